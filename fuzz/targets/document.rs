//! See `rialto_fuzz::document`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rialto_fuzz::document::check(input));
