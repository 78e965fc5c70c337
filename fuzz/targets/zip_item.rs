//! See `rialto_fuzz::zip_item`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rialto_fuzz::zip_item::check(input));
