//! See `rialto_fuzz::safetensors_header`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rialto_fuzz::safetensors_header::check(input));
