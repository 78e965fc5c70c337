//! Number formats that no Rust primitive has: what each code stands for, exactly.
//!
//! | module | format |
//! |---|---|
//! | [`bf16`] | the upper half of an `f32`, and how one is rounded to it |
//! | [`mod@f16`] | IEEE half precision |
//! | [`e4m3`] | 8 bits, 4 of exponent, no infinity |
//! | [`e5m2`] | 8 bits, 5 of exponent, the upper half of an IEEE half |
//! | [`ue8m0`] | 8 bits of exponent, a power of two |

pub mod bf16;
pub mod e4m3;
pub mod e5m2;
pub mod f16;
pub mod ue8m0;

/// Decodes every code once, at compile time.
macro_rules! values {
    ($decode:path) => {{
        let mut values = [0.0; 256];
        let mut code = 0;
        while code < 256 {
            values[code] = $decode(code as u8);
            code += 1;
        }
        values
    }};
}
pub(crate) use values;

/// One of two by a mask: what the compiler may not make a branch of, so that a loop of it is vectorized.
#[inline(always)]
pub(crate) const fn choose(condition: bool, chosen: u32, other: u32) -> u32 {
    let mask = (condition as u32).wrapping_neg();
    chosen & mask | other & !mask
}

/// The same of longer ones.
#[inline(always)]
pub(crate) const fn choose_long(condition: bool, chosen: u64, other: u64) -> u64 {
    let mask = (condition as u64).wrapping_neg();
    chosen & mask | other & !mask
}
