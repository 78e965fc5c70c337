use proptest::prelude::*;

use super::rows::Block;
use super::*;
use crate::format::bf16;

mod tiers;

/// By the definition, through `f64`, which holds the product of a code and a scale exactly; the one rounding to BF16 on bits.
fn expected(dtype: Dtype, code: u8, scale: f32) -> u16 {
    let mantissa_bits = if dtype == Dtype::F8E4m3 { 3 } else { 2 };
    let (bias, last) = if mantissa_bits == 3 {
        (7, 16)
    } else {
        (15, 31)
    };
    let (exponent, mantissa) = (
        i32::from(code & 0x7f) >> mantissa_bits,
        code & ((1 << mantissa_bits) - 1),
    );
    let fraction = f64::from(mantissa) / f64::from(1 << mantissa_bits);
    let magnitude = match exponent {
        _ if code & 0x7f == 0x7f => f64::NAN,
        _ if exponent == last && mantissa == 0 => f64::INFINITY,
        _ if exponent == last => f64::NAN,
        0 => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
    };
    let value = if code < 0x80 { magnitude } else { -magnitude };
    let product = (value * f64::from(scale)) as f32;
    if product.is_nan() {
        return 0xffff;
    }
    let (kept, cut) = (product.to_bits() >> 16, product.to_bits() & 0xffff);
    let up = cut > 0x8000 || cut == 0x8000 && kept % 2 == 1;
    (kept + u32::from(up)) as u16
}

/// Element by element, the block found by division.
fn by_definition(
    dtype: Dtype,
    extents: [u64; 3],
    block: [u64; 2],
    q: &[u8],
    scale: &[f32],
) -> Vec<u8> {
    let [batch, rows, columns] = extents;
    let grid = [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
    let mut out = Vec::new();
    for matrix in 0..batch {
        for row in 0..rows {
            for column in 0..columns {
                let place = (matrix * grid[0] + row / block[0]) * grid[1] + column / block[1];
                let code = q[((matrix * rows + row) * columns + column) as usize];
                out.extend(expected(dtype, code, scale[place as usize]).to_le_bytes());
            }
        }
    }
    out
}

/// In every tier, stored as usual and past the caches; all of them give the same.
fn dequantized(dtype: Dtype, shape: &Shape, block: [u64; 2], q: &[u8], scale: &[f32]) -> Vec<u8> {
    let grid = grid(shape, block).unwrap();
    let scale: Vec<u8> = scale.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let q = TensorView::new(dtype, shape, q).unwrap();
    let scale = TensorView::new(Dtype::F32, &grid, &scale).unwrap();
    let mut expected = None;
    for tier in Tier::available() {
        for stream_bytes in [usize::MAX, 0] {
            let mut out = vec![0xa5; 2 * q.bytes().len()];
            dequantize_by((tier, stream_bytes), &q, &scale, block, &mut out).unwrap();
            let expected = expected.get_or_insert_with(|| out.clone());
            assert!(
                *expected == out,
                "{tier}, past the caches from {stream_bytes} bytes on"
            );
        }
    }
    expected.expect("there is a tier")
}

fn every_code() -> Vec<u8> {
    (0..=u8::MAX).collect()
}

/// Holds every code under a scale against the definition, in one block, whose row has codes that are no numbers, and again
/// without these, so that the fast loop is taken where it can be.
fn assert_every_code(dtype: Dtype, scale: f32) {
    let special = if dtype == Dtype::F8E4m3 { 0x7f } else { 0x7c };
    let mut numbers = every_code();
    numbers.retain(|code| code & 0x7f < special);
    for codes in [every_code(), numbers] {
        let shape = Shape::new([1, codes.len() as u64]);
        let found = dequantized(dtype, &shape, [1, 256], &codes, &[scale]);
        for (code, found) in codes.iter().zip(found.as_chunks::<2>().0) {
            assert_eq!(
                u16::from_le_bytes(*found),
                expected(dtype, *code, scale),
                "{dtype} {code:02x} under {scale:e} ({:08x})",
                scale.to_bits()
            );
        }
    }
}

#[test]
fn every_code_is_exact_under_scales_of_every_exponent_with_and_without_ties() {
    for dtype in [Dtype::F8E4m3, Dtype::F8E5m2] {
        for exponent in 0..=255 {
            // A power of two; a BF16; one that ties under an odd code only; an f32; the last before the next power.
            for mantissa in [0, 0x01_0000, 0x00_8000, 0x35_1234, 0x7f_ffff] {
                for sign in [0, 1 << 31] {
                    assert_every_code(dtype, f32::from_bits(sign | exponent << 23 | mantissa));
                }
            }
        }
    }
}

#[test]
fn a_scale_meets_ties_when_it_was_a_bf16_and_the_even_side_is_taken() {
    // 1.0078125 has 8 bits, 1.125 four: of the product, 1.1337890625, the ninth is a tie.
    let scale = f32::from_bits(0x3f81_0000);
    assert!(Block::new::<E4m3>(scale).has_ties);
    assert!(!Block::new::<E4m3>(0.25).has_ties);
    assert!(!Block::new::<E4m3>(0.0013579).has_ties);
    assert_every_code(Dtype::F8E4m3, scale);
}

#[test]
fn ragged_edge_blocks_use_their_own_scales_in_both_axes() {
    let found = dequantized(
        Dtype::F8E4m3,
        &Shape::new([3, 3]),
        [2, 2],
        &[0x38; 9],
        &[1.0, 2.0, 4.0, 8.0],
    );
    let values: Vec<f32> = found
        .as_chunks()
        .0
        .iter()
        .map(|code| bf16::decode(u16::from_le_bytes(*code)))
        .collect();
    assert_eq!(values, [1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 4.0, 4.0, 8.0]);
}

#[test]
fn a_matrix_smaller_than_its_block_has_one_scale_and_each_of_a_stack_has_its_own() {
    let found = dequantized(
        Dtype::F8E5m2,
        &Shape::new([2, 1, 1]),
        [128, 128],
        &[0x3c; 2],
        &[1.0, -3.0],
    );
    assert_eq!(found, [0x80, 0x3f, 0x40, 0xc0]);
}

#[test]
fn an_empty_tensor_is_dequantized_to_nothing() {
    for extents in [
        vec![0, 128],
        vec![128, 0],
        vec![0, 3, 5],
        vec![u64::MAX, u64::MAX, 0, 2],
    ] {
        let shape = Shape::new(extents);
        assert_eq!(dequantized(Dtype::F8E4m3, &shape, [128, 128], &[], &[]), []);
    }
}

#[test]
fn a_block_may_be_larger_than_any_tensor() {
    let found = dequantized(
        Dtype::F8E4m3,
        &Shape::new([2, 2]),
        [u64::MAX; 2],
        &[0x38; 4],
        &[2.0],
    );
    assert_eq!(found, [0x00, 0x40].repeat(4));
}

/// What `dequantize` says of views of these dtypes and shapes, with `out` of so many bytes.
fn refusal(q: (Dtype, &[u64]), scale: (Dtype, &[u64]), block: [u64; 2], out: usize) -> Error {
    let (q_shape, scale_shape) = (Shape::new(q.1), Shape::new(scale.1));
    let q_bytes = vec![0; q_shape.size_bytes(q.0).unwrap() as usize];
    let scale_bytes = vec![0; scale_shape.size_bytes(scale.0).unwrap() as usize];
    let q = TensorView::new(q.0, &q_shape, &q_bytes).unwrap();
    let scale = TensorView::new(scale.0, &scale_shape, &scale_bytes).unwrap();
    let mut out = vec![0xa5; out];
    let error = dequantize(&q, &scale, block, &mut out).unwrap_err();
    assert!(
        out.iter().all(|&byte| byte == 0xa5),
        "a refusal writes nothing"
    );
    error
}

#[test]
fn what_does_not_fit_together_is_refused_by_name() {
    const Q: Dtype = Dtype::F8E4m3;
    const S: Dtype = Dtype::F32;
    let b = [128, 128];
    let cases = [
        (
            refusal((Q, &[130, 4]), (S, &[1, 1]), b, 1040),
            "tensor/scale-shape",
            "a tensor of shape [130, 4] in blocks of [128, 128] needs scales of shape [2, 1], found [1, 1]",
        ),
        (
            refusal((Q, &[2, 130, 4]), (S, &[2, 1]), b, 2080),
            "tensor/scale-shape",
            "a tensor of shape [2, 130, 4] in blocks of [128, 128] needs scales of shape [2, 2, 1], found [2, 1]",
        ),
        (
            refusal((Q, &[130, 257]), (S, &[3, 2]), b, 66820),
            "tensor/scale-shape",
            "a tensor of shape [130, 257] in blocks of [128, 128] needs scales of shape [2, 3], found [3, 2]",
        ),
        (
            refusal((Q, &[4]), (S, &[1]), b, 8),
            "tensor/block-rank",
            "a tensor in blocks needs two axes or more, found shape [4]",
        ),
        (
            refusal((Q, &[4, 4]), (S, &[1, 1]), [128, 0], 32),
            "tensor/block-size",
            "a block needs an extent on both axes, found [128, 0]",
        ),
        (
            refusal((Q, &[4, 4]), (Dtype::Bf16, &[1, 1]), b, 32),
            "tensor/block-dtype",
            "block scales must be F32, found BF16",
        ),
        (
            refusal((Dtype::I8, &[4, 4]), (S, &[1, 1]), b, 32),
            "tensor/block-dtype",
            "block-scaled codes must be F8_E4M3 or F8_E5M2, found I8",
        ),
        (
            refusal((Q, &[4, 4]), (S, &[1, 1]), b, 31),
            "tensor/view-length",
            "BF16 tensor of shape [4, 4] needs 32 bytes, found 31",
        ),
    ];
    for (error, slug, text) in cases {
        assert_eq!((error.slug(), error.to_string().as_str()), (slug, text));
    }
}

proptest! {
    #[test]
    fn agrees_with_the_definition_for_any_shape_block_codes_and_scales(
        is_e4m3 in any::<bool>(),
        (batch, rows, columns) in (1u64..3, 1u64..20, 1u64..80),
        (block_rows, block_columns) in (1u64..9, prop_oneof![1u64..50, Just(128)]),
        seed in any::<u64>(),
    ) {
        let dtype = if is_e4m3 { Dtype::F8E4m3 } else { Dtype::F8E5m2 };
        let (extents, block) = ([batch, rows, columns], [block_rows, block_columns]);
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 32) as u32
        };
        let q: Vec<u8> = (0..batch * rows * columns).map(|_| (next() >> 20) as u8).collect();
        let shape = Shape::new(extents);
        let scales = grid(&shape, block).unwrap().elements().unwrap();
        // Any bits: NaN, infinities and subnormals are among them.
        let scales: Vec<f32> = (0..scales).map(|_| f32::from_bits(next())).collect();
        prop_assert_eq!(
            dequantized(dtype, &shape, block, &q, &scales),
            by_definition(dtype, extents, block, &q, &scales)
        );
    }

    #[test]
    fn every_code_is_exact_under_any_scale(bits in any::<u32>(), is_e4m3 in any::<bool>()) {
        assert_every_code(if is_e4m3 { Dtype::F8E4m3 } else { Dtype::F8E5m2 }, f32::from_bits(bits));
    }
}
