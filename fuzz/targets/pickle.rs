//! See `rialto_fuzz::pickle`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rialto_fuzz::pickle::check(input));
