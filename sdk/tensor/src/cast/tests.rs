use proptest::prelude::*;

use super::*;

/// A binary format as IEEE writes them down: bits of exponent and mantissa, and what the largest exponent means.
#[derive(Clone, Copy)]
struct Layout {
    exponent: u32,
    mantissa: u32,
    has_infinity: bool,
}

fn layout(dtype: Dtype) -> Layout {
    let (exponent, mantissa) = match dtype {
        Dtype::Bf16 => (8, 7),
        Dtype::F16 => (5, 10),
        Dtype::F32 => (8, 23),
        Dtype::F64 => (11, 52),
        Dtype::F8E4m3 => (4, 3),
        Dtype::F8E5m2 => (5, 2),
        _ => panic!("{dtype} is no float"),
    };
    Layout {
        exponent,
        mantissa,
        has_infinity: dtype != Dtype::F8E4m3,
    }
}

/// What bits stand for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meaning {
    /// The payload, counted from the top of 52 bits.
    Nan(u64),
    Infinity,
    /// `significand * 2^exponent`.
    Number(u64, i32),
}

fn meaning(bits: u64, layout: Layout) -> (bool, Meaning) {
    let Layout {
        exponent, mantissa, ..
    } = layout;
    let sign = bits >> (exponent + mantissa) & 1 == 1;
    let fraction = bits & ((1 << mantissa) - 1);
    let power = (bits >> mantissa & ((1 << exponent) - 1)) as i32;
    let bias = (1 << (exponent - 1)) - 1;
    let last = (1 << exponent) - 1;
    let meaning = if !layout.has_infinity && power == last && fraction == (1 << mantissa) - 1 {
        Meaning::Nan(fraction << (52 - mantissa))
    } else if layout.has_infinity && power == last {
        match fraction {
            0 => Meaning::Infinity,
            _ => Meaning::Nan(fraction << (52 - mantissa)),
        }
    } else {
        match power {
            0 => Meaning::Number(fraction, 1 - bias - mantissa as i32),
            _ => Meaning::Number(fraction | 1 << mantissa, power - bias - mantissa as i32),
        }
    };
    (sign, meaning)
}

/// The bits nearest to a number, ties to even, by whole-number arithmetic alone.
fn nearest(sign: bool, meaning: Meaning, layout: Layout, nan: impl Fn(u64) -> u64) -> u64 {
    let Layout {
        exponent, mantissa, ..
    } = layout;
    let infinity = ((1u64 << exponent) - 1) << mantissa;
    let bias = (1 << (exponent - 1)) - 1;
    let magnitude = match meaning {
        Meaning::Nan(payload) => return nan(payload) | u64::from(sign) << (exponent + mantissa),
        Meaning::Infinity => infinity,
        Meaning::Number(0, _) => 0,
        Meaning::Number(significand, power) => {
            // Exponent of the leading bit, and of the last place at that size.
            let leading = power + significand.ilog2() as i32;
            let last_place = leading.max(1 - bias) - mantissa as i32;
            let shift = last_place - power;
            let units = if shift <= 0 {
                significand << -shift
            } else if shift > 63 {
                0
            } else {
                let (kept, cut) = (significand >> shift, significand & ((1 << shift) - 1));
                let half = 1 << (shift - 1);
                kept + u64::from(cut > half || cut == half && kept % 2 == 1)
            };
            // Units of the last place count on across powers of two: 2^mantissa of them are the next one.
            let steps = last_place + mantissa as i32 - (1 - bias);
            (units + ((steps as u64) << mantissa)).min(infinity)
        }
    };
    magnitude | u64::from(sign) << (exponent + mantissa)
}

/// What the cast must give for the bits of one element.
fn expected(from: Dtype, to: Dtype, bits: u64) -> u64 {
    if (from, to) == (Dtype::F64, Dtype::Bf16) {
        let between = expected(Dtype::F64, Dtype::F32, bits);
        return expected(Dtype::F32, Dtype::Bf16, between);
    }
    let (sign, meaning) = meaning(bits, layout(from));
    let target = layout(to);
    let nan = |payload: u64| {
        let quiet = 1 << (target.mantissa - 1);
        let infinity = ((1u64 << target.exponent) - 1) << target.mantissa;
        infinity | quiet | payload >> (52 - target.mantissa)
    };
    match (meaning, from, to) {
        (Meaning::Nan(_), Dtype::F32, Dtype::Bf16) => 0xffff,
        (Meaning::Nan(_), _, Dtype::Bf16) => 0x7fc0,
        (Meaning::Nan(_), Dtype::Bf16, Dtype::F32) => bits << 16,
        // The one NaN of E4M3 has all its bits set and is quiet already.
        _ => nearest(sign, meaning, target, nan),
    }
}

fn bytes(dtype: Dtype, bits: impl Iterator<Item = u64>) -> Vec<u8> {
    let width = dtype.size_bytes() as usize;
    bits.flat_map(|bits| bits.to_le_bytes()[..width].to_vec())
        .collect()
}

/// The loops of every tier, that store as usual and that store past the caches.
fn all_loops() -> impl Iterator<Item = Loops> {
    let loops = |tier| [usize::MAX, 0].map(|stream_bytes| Loops { tier, stream_bytes });
    Tier::available().into_iter().flat_map(loops)
}

/// In every tier, stored as usual and past the caches; all of them give the same.
fn found(from: Dtype, to: Dtype, bits: impl Iterator<Item = u64>) -> Vec<u64> {
    let source = bytes(from, bits);
    let elements = source.len() / from.size_bytes() as usize;
    let width = to.size_bytes() as usize;
    let mut expected = None;
    for loops in all_loops() {
        let mut target = vec![0x5a; elements * width];
        loops.cast_into(from, to, &source, &mut target).unwrap();
        let expected = expected.get_or_insert_with(|| target.clone());
        assert!(*expected == target, "{from} to {to}: {}", loops.tier);
    }
    let target = expected.expect("there is a tier");
    let elements = target.chunks_exact(width).map(|element| {
        let mut bytes = [0; 8];
        bytes[..width].copy_from_slice(element);
        u64::from_le_bytes(bytes)
    });
    elements.collect()
}

fn assert_cast(from: Dtype, to: Dtype, bits: &[u64]) {
    let results = found(from, to, bits.iter().copied());
    assert_eq!(results.len(), bits.len());
    for (&bits, result) in bits.iter().zip(results) {
        assert_eq!(
            result,
            expected(from, to, bits),
            "{from} {bits:x} to {to}: {result:x}"
        );
    }
    let changed = |bits: u64| {
        let (sign, before) = meaning(bits, layout(from));
        let (sign_after, after) = meaning(expected(from, to, bits), layout(to));
        match (before, after) {
            (Meaning::Nan(_), _) => false,
            (Meaning::Number(a, p), Meaning::Number(b, q)) => {
                assert_eq!(sign, sign_after);
                let value = |significand: u64, power: i32| match significand {
                    0 => (0, 0),
                    _ => (
                        significand >> significand.trailing_zeros(),
                        power + significand.trailing_zeros() as i32,
                    ),
                };
                value(a, p) != value(b, q)
            }
            _ => before != after,
        }
    };
    let source = bytes(from, bits.iter().copied());
    let expected = bits.iter().filter(|&&bits| changed(bits)).count();
    for loops in all_loops() {
        assert_eq!(
            loops.rounded(from, to, &source),
            Ok(expected as u64),
            "{from} to {to}: {}",
            loops.tier
        );
    }
}

fn pairs() -> impl Iterator<Item = (Dtype, Dtype)> {
    let all = Dtype::ALL.iter();
    let pairs = all.flat_map(|&from| Dtype::ALL.iter().map(move |&to| (from, to)));
    pairs.filter(|(from, to)| from != to && is_defined(*from, *to))
}

#[test]
fn every_code_of_one_or_two_bytes_becomes_what_the_formats_say() {
    for (from, to) in pairs().filter(|(from, _)| from.size_bytes() <= 2) {
        let codes: Vec<u64> = (0..1 << (8 * from.size_bytes())).collect();
        assert_cast(from, to, &codes);
    }
}

#[test]
fn narrowing_f32_is_right_for_every_upper_half_with_awkward_lower_halves() {
    let lower = [
        0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff,
    ];
    for lower in lower {
        let bits: Vec<u64> = (0..=0xffff).map(|upper| upper << 16 | lower).collect();
        for to in [Dtype::Bf16, Dtype::F16, Dtype::F64] {
            assert_cast(Dtype::F32, to, &bits);
        }
    }
}

#[test]
fn narrowing_f64_is_right_for_every_exponent_with_awkward_mantissas() {
    // What is the last place of an F32, of a BF16, of a subnormal of either; halves of it, and one more and less.
    let places = (0..52).flat_map(|place| [0, 1, 2, 3].map(|odd| odd << place));
    let mantissas = places.flat_map(|at: u64| [at.wrapping_sub(1), at, at + 1]);
    let mantissas: Vec<u64> = mantissas.map(|bits| bits & ((1 << 52) - 1)).collect();
    for exponent in (0..=2047).filter(|at| at % 64 == 0 || (860..=1160).contains(at) || *at == 2047)
    {
        let bits = mantissas.iter().flat_map(|mantissa| {
            let magnitude = exponent << 52 | mantissa;
            [magnitude, 1 << 63 | magnitude]
        });
        let bits: Vec<u64> = bits.collect();
        for to in [Dtype::F32, Dtype::Bf16] {
            assert_cast(Dtype::F64, to, &bits);
        }
    }
}

#[test]
fn f64_becomes_bf16_by_way_of_f32() {
    let value = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
    assert_eq!(
        found(Dtype::F64, Dtype::Bf16, [value.to_bits()].into_iter()),
        [0x3f80]
    );
}

#[test]
fn cast_and_rounded_know_exactly_the_pairs_that_are_defined() {
    for &from in Dtype::ALL {
        for &to in Dtype::ALL {
            let mut target = vec![0xa5; 8 / from.size_bytes() as usize * to.size_bytes() as usize];
            let result = cast_into(from, to, &[0; 8], &mut target);
            assert_eq!(result.is_ok(), is_defined(from, to), "{from} to {to}");
            assert_eq!(
                rounded(from, to, &[0; 8]),
                result.map(|()| 0),
                "{from} to {to}"
            );
        }
    }
}

#[test]
fn a_pair_without_a_definition_is_refused_and_a_torn_element_and_a_target_of_another_length_too() {
    let mut target = [0xa5; 8];
    let refused = Err(Error::NoCast {
        from: Dtype::F8E8m0,
        to: Dtype::Bf16,
    });
    let found = cast_into(Dtype::F8E8m0, Dtype::Bf16, &[0], &mut target[..2]);
    assert_eq!(found, refused);
    assert!(cast_into(Dtype::F32, Dtype::Bf16, &[0; 5], &mut target[..2]).is_err());
    assert!(rounded(Dtype::F32, Dtype::Bf16, &[0; 5]).is_err());
    for (to, source, length, text) in [
        (
            Dtype::Bf16,
            8,
            5,
            "BF16 tensor of shape [2] needs 4 bytes, found 5",
        ),
        (
            Dtype::F64,
            4,
            7,
            "F64 tensor of shape [1] needs 8 bytes, found 7",
        ),
        (
            Dtype::F32,
            8,
            4,
            "F32 tensor of shape [2] needs 8 bytes, found 4",
        ),
    ] {
        let error = cast_into(Dtype::F32, to, &[0; 8][..source], &mut target[..length]);
        assert_eq!(error.unwrap_err().to_string(), text);
    }
    assert_eq!(target, [0xa5; 8], "a refusal writes nothing");
}

/// Casts into a target `offset` bytes behind the beginning of a line, and nothing around it is written.
fn assert_at(offset: usize, loops: Loops, (from, to): (Dtype, Dtype), source: &[u8], cast: &[u8]) {
    let mut room = vec![0xa5; cast.len() + 192];
    let begin = room.as_ptr().align_offset(64) + offset;
    let target = &mut room[begin..begin + cast.len()];
    loops.cast_into(from, to, source, target).unwrap();
    let place = || format!("{from} to {to}, {}, {offset} behind a line", loops.tier);
    assert!(*target == *cast, "{}", place());
    target.fill(0xa5);
    assert!(room.iter().all(|&byte| byte == 0xa5), "around {}", place());
}

/// Elements without an order, most of them numbers that are rounded; and what becomes of them by the formats.
fn elements(from: Dtype, to: Dtype, count: usize) -> (Vec<u8>, Vec<u8>) {
    let mixed = (1..=count as u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let bits = mixed.map(|bits| bits >> (64 - 8 * from.size_bytes()));
    let cast = bytes(to, bits.clone().map(|bits| expected(from, to, bits)));
    (bytes(from, bits), cast)
}

#[test]
fn every_length_up_to_200_is_right_at_every_place_in_a_line() {
    for (from, to) in pairs() {
        let (source, cast) = elements(from, to, 200);
        for count in 0..=200 {
            let source = &source[..count * from.size_bytes() as usize];
            let cast = &cast[..count * to.size_bytes() as usize];
            for loops in all_loops() {
                // All places for some lengths, one for each of the others.
                let places = if count % 37 < 2 {
                    0..64
                } else {
                    count % 64..count % 64 + 1
                };
                for offset in places {
                    assert_at(offset, loops, (from, to), source, cast);
                }
            }
        }
    }
}

#[test]
fn targets_around_the_size_that_goes_past_the_caches_are_right() {
    for pair in [(Dtype::F32, Dtype::Bf16), (Dtype::F8E4m3, Dtype::F32)] {
        let width = pair.1.size_bytes() as usize;
        let limit = STREAM_BYTES / width;
        let (source, cast) = elements(pair.0, pair.1, limit + 1);
        for count in [limit - 1, limit, limit + 1] {
            let source = &source[..count * pair.0.size_bytes() as usize];
            for tier in Tier::available() {
                let loops = Loops {
                    tier,
                    stream_bytes: STREAM_BYTES,
                };
                for offset in [0, 16, 63] {
                    assert_at(offset, loops, pair, source, &cast[..count * width]);
                }
            }
        }
    }
}

#[test]
fn more_elements_than_a_lane_counts_are_counted() {
    // 1 + 2^-20, which BF16 does not hold, more often than 2^16 times.
    let source = (1.0f32 + 2f32.powi(-20)).to_le_bytes().repeat(200_001);
    for loops in all_loops() {
        assert_eq!(loops.rounded(Dtype::F32, Dtype::Bf16, &source), Ok(200_001));
    }
}

proptest! {
    #[test]
    fn any_f32_and_any_f64_become_what_the_formats_say(bits in any::<u64>()) {
        for to in [Dtype::Bf16, Dtype::F16, Dtype::F64] {
            assert_cast(Dtype::F32, to, &[bits >> 32, bits & 0xffff_ffff]);
        }
        for to in [Dtype::F32, Dtype::Bf16] {
            assert_cast(Dtype::F64, to, &[bits]);
        }
    }

    #[test]
    fn an_f64_in_the_range_of_f32_becomes_what_the_formats_say(exponent in 860u64..1160, rest in any::<u64>()) {
        let bits = rest & 0x800f_ffff_ffff_ffff | exponent << 52;
        for to in [Dtype::F32, Dtype::Bf16] {
            assert_cast(Dtype::F64, to, &[bits]);
        }
    }
}
