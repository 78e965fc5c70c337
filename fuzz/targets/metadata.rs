//! See `rialto_fuzz::metadata`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rialto_fuzz::metadata::check(input));
