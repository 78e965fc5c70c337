//! See `rialto_fuzz::config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rialto_fuzz::config::check(input));
