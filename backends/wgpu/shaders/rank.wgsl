// Scores as integers in the same order.

// Larger for a larger score, one for both zeros, and 0 for what is never selected: negative infinity and NaN.
fn rank(bits: u32) -> u32 {
    if (is_nan(bits) || bits == 0xff800000u) {
        return 0u;
    }
    if (bits == 0x80000000u || bits == 0u) {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}
