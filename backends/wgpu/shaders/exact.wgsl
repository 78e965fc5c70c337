// Arithmetic of F32 on its bits, rounded to nearest even, subnormals and all: a device's own division may be off by 2.5 units in the last
// place, and its product may lose subnormals.

const INFINITY_BITS: u32 = 0x7f800000u;

// mantissa * 2^exponent. The mantissa has 24 digits.
struct Number {
    mantissa: u32,
    exponent: i32,
}

// The magnitude of a finite number that is not 0.
fn number_of(bits: u32) -> Number {
    let fraction = bits & 0x7fffffu;
    let biased = (bits >> 23u) & 0xffu;
    if (biased == 0u) {
        let shift = countLeadingZeros(fraction) - 8u;
        return Number(fraction << shift, -149 - i32(shift));
    }
    return Number(fraction | 0x800000u, i32(biased) - 150);
}

// The nearest F32 of mantissa * 2^exponent. The mantissa is from 1 to less than 2^30.
fn rounded(mantissa: u32, exponent: i32) -> u32 {
    // Of the first digit; all subnormals have the last place of the least normal number.
    let first = max(31 - i32(countLeadingZeros(mantissa)) + exponent, -126);
    if (first > 127) {
        return INFINITY_BITS;
    }
    let below = first - 23 - exponent;
    var digits = 0u;
    if (below <= 0) {
        digits = mantissa << u32(-below);
    } else if (below < 32) {
        let places = u32(below);
        let odd = (mantissa >> places) & 1u;
        digits = (mantissa + (1u << (places - 1u)) - 1u + odd) >> places;
    }
    // The first digit of a normal number counts the exponent up by one, as does a carry.
    return (u32(first + 126) << 23u) + digits;
}

// The quotient of the magnitudes of two finite numbers that are not 0.
fn quotient(x: u32, y: u32) -> u32 {
    let a = number_of(x);
    let b = number_of(y);
    var digits = a.mantissa / b.mantissa;
    var rest = a.mantissa % b.mantissa;
    for (var part = 0u; part < 3u; part++) {
        digits = (digits << 8u) | ((rest << 8u) / b.mantissa);
        rest = (rest << 8u) % b.mantissa;
    }
    digits = (digits << 4u) | ((rest << 4u) / b.mantissa);
    rest = (rest << 4u) % b.mantissa;
    // A last digit says whether there is more, which is all that rounding asks.
    digits = (digits << 1u) | select(0u, 1u, rest != 0u);
    return rounded(digits, a.exponent - b.exponent - 29);
}
