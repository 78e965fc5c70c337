// Floats in order as integers, so that nothing compares NaN or infinity as floats.

const NAN_BITS: u32 = 0x7fc00000u;
const INFINITY_BITS: u32 = 0x7f800000u;
const LEAST_BITS: u32 = 0xff800000u;
// The key of NaN: above all others. That of nothing, 0, is below all others.
const NAN_KEY: u32 = 0xffffffffu;

// Both zeros have the key of 0.
fn key_of(bits: u32) -> u32 {
    if (is_nan(bits)) {
        return NAN_KEY;
    }
    if ((bits & 0x80000000u) == 0u || bits == 0x80000000u) {
        return bits | 0x80000000u;
    }
    return ~bits;
}

fn bits_of_key(key: u32) -> u32 {
    if (key == NAN_KEY) {
        return NAN_BITS;
    }
    return select(~key, key & 0x7fffffffu, key >= 0x80000000u);
}
