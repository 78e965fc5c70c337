//! What a tier could do wrong by itself: at the edges of its registers, of the lines it stores, and of its buffer.

use super::*;

/// Numbers without an order, all codes among them, or none that is no number.
fn codes(length: usize, has_special: bool) -> Vec<u8> {
    let mixed = (0..length as u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8);
    mixed
        .map(|code| {
            if has_special || code & 0x7c != 0x7c {
                code
            } else {
                0x3c
            }
        })
        .collect()
}

/// Scales whose products are rounded in each of the three ways.
const SCALES: [f32; 5] = [
    0.001_357_9,
    f32::from_bits(0x3f81_0000),
    -2.5e-4,
    3e-42,
    f32::INFINITY,
];

/// `out` begins `offset` bytes behind the beginning of a line, and nothing around it is written.
fn assert_at(offset: usize, tier: Tier, stream_bytes: usize, case: &Case, expected: &[u8]) {
    let shape = Shape::new(case.extents);
    let grid = grid(&shape, case.block).unwrap();
    let scale: Vec<u8> = case
        .scales
        .iter()
        .flat_map(|scale| scale.to_le_bytes())
        .collect();
    let q = TensorView::new(case.dtype, &shape, &case.codes).unwrap();
    let scale = TensorView::new(Dtype::F32, &grid, &scale).unwrap();
    let length = 2 * case.codes.len();
    let mut room = vec![0xa5; length + 192];
    let begin = room.as_ptr().align_offset(64) + offset;
    let out = &mut room[begin..begin + length];
    dequantize_by((tier, stream_bytes), &q, &scale, case.block, out).unwrap();
    let place = || {
        format!(
            "{tier}, {:?} in {:?}, {offset} behind a line",
            case.extents, case.block
        )
    };
    assert!(room[begin..begin + length] == *expected, "{}", place());
    room[begin..begin + length].fill(0xa5);
    assert!(room.iter().all(|&byte| byte == 0xa5), "around {}", place());
}

struct Case {
    dtype: Dtype,
    extents: [u64; 3],
    block: [u64; 2],
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl Case {
    fn new(dtype: Dtype, [rows, columns]: [u64; 2], block: [u64; 2], has_special: bool) -> Case {
        let grid = rows.div_ceil(block[0]) * columns.div_ceil(block[1]);
        Case {
            dtype,
            extents: [1, rows, columns],
            block,
            codes: codes((rows * columns) as usize, has_special),
            scales: SCALES.into_iter().cycle().take(grid as usize).collect(),
        }
    }

    fn expected(&self) -> Vec<u8> {
        by_definition(
            self.dtype,
            self.extents,
            self.block,
            &self.codes,
            &self.scales,
        )
    }
}

#[test]
fn every_width_up_to_200_is_right_at_every_place_in_a_line() {
    for columns in 0..=200 {
        let (dtype, block) = match columns % 3 {
            0 => (Dtype::F8E4m3, [2, 128]),
            1 => (Dtype::F8E5m2, [1, 33]),
            _ => (Dtype::F8E4m3, [3, 32]),
        };
        let case = Case::new(dtype, [3, columns], block, columns % 2 == 0);
        let expected = case.expected();
        for tier in Tier::available() {
            for offset in 0..64 {
                assert_at(offset, tier, 0, &case, &expected);
            }
            assert_at(0, tier, usize::MAX, &case, &expected);
        }
    }
}

#[test]
fn rows_longer_than_the_buffer_are_right_at_every_place_in_a_line() {
    // The buffer takes 2048 elements: one and two of them, and some more and less; blocks that divide it and others.
    for columns in [2047, 2048, 2049, 2079, 2080, 4096, 4129] {
        for block in [[2, 128], [1, 100], [1, 5000]] {
            let case = Case::new(Dtype::F8E4m3, [2, columns], block, false);
            let expected = case.expected();
            for tier in Tier::available() {
                for offset in 0..64 {
                    assert_at(offset, tier, 0, &case, &expected);
                }
            }
        }
    }
}

#[test]
fn results_around_the_size_that_goes_past_the_caches_are_right() {
    const LIMIT: u64 = STREAM_BYTES as u64 / 2;
    for (rows, columns) in [(1, LIMIT - 1), (1, LIMIT), (1, LIMIT + 1), (2048, 2049)] {
        let case = Case::new(Dtype::F8E4m3, [rows, columns], [128, 128], false);
        let expected = case.expected();
        for tier in Tier::available() {
            for offset in [0, 16, 63] {
                assert_at(offset, tier, STREAM_BYTES, &case, &expected);
            }
        }
    }
}

#[test]
fn a_code_that_is_no_number_is_found_in_every_place_of_a_row() {
    for (dtype, special) in [
        (Dtype::F8E4m3, 0xff),
        (Dtype::F8E5m2, 0x7c),
        (Dtype::F8E5m2, 0xfe),
    ] {
        let mut case = Case::new(dtype, [1, 300], [1, 128], false);
        for at in 0..300 {
            let before = std::mem::replace(&mut case.codes[at], special);
            let expected = case.expected();
            for tier in Tier::available() {
                assert_at(16, tier, 0, &case, &expected);
                assert_at(0, tier, usize::MAX, &case, &expected);
            }
            case.codes[at] = before;
        }
    }
}

#[test]
fn a_matrix_of_a_stack_ends_inside_a_line_and_the_next_begins_there() {
    let (extents, block) = ([3, 5, 77], [2, 32]);
    let scales: Vec<f32> = SCALES.into_iter().cycle().take(3 * 3 * 3).collect();
    let codes = codes(3 * 5 * 77, true);
    assert_eq!(
        dequantized(Dtype::F8E5m2, &Shape::new(extents), block, &codes, &scales),
        by_definition(Dtype::F8E5m2, extents, block, &codes, &scales)
    );
}
