//! See `rialto_fuzz::index`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rialto_fuzz::index::check(input));
