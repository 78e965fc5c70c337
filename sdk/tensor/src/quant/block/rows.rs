//! The loops of block dequantization.
//!
//! How it is made fast: a code moved into the exponent and mantissa of an `f32` is the code's value but for one power of two,
//! which goes into the block's scale beforehand. So an element costs shifts, a mask, a multiplication and the rounding, with
//! no table and no scale for each element; two neighbors share the lanes of a pair of `f32`s, whose upper halves are what is
//! written. Three things are kept out of that loop:
//!
//! * codes that are no number. The loop notes whether it met one, and then the run of elements is done again by the
//!   definition; no real weight has one;
//! * scales that with the power of two in them are no number any more;
//! * ties. Half of what a rounding to even costs is finding out what is even. But a mantissa of a code has 3 bits or 2, so a
//!   scale meets 8 mantissas at most, and whether one of them gives a tie is known before the block is begun. The scale of
//!   an amax never does, a power of two neither; those that were BF16 once do.
//!
//! It works on as many elements as a line of the caches holds, for the compiler to make whole registers of, and is compiled
//! for each tier of [`simd`](crate::simd). A large result goes past the caches by way of a buffer of some lines: blocks begin where
//! they begin, lines of the result where the allocator put them, and what lies in the nearest cache may be moved for nothing.
//!
//! Subnormal codes pass through subnormal `f32`s. Some processors are slow at those, but few weights are so small.

use std::marker::PhantomData;

use crate::TensorView;
use crate::format::{bf16, e4m3, e5m2};
use crate::simd::{Line, Machine, Work};

/// Elements of a line.
const ELEMS: usize = Line::BYTES / 2;

/// The bytes of a line.
type Values = [u8; Line::BYTES];

/// Elements that the buffer takes at a time: a multiple of those of the blocks there are.
const BUFFERED: usize = 2048;

/// Those, behind the end of those before.
#[repr(align(64))]
struct Buffer([u8; Line::BYTES + 2 * BUFFERED]);

/// What the loops know of a format.
pub(super) trait Format {
    const MANTISSA_BITS: u32;
    /// The least magnitude that is no number.
    const SPECIAL: u8;
    /// What a code in the place of an `f32`'s exponent and mantissa is too small by.
    const REBIAS: f32;
    /// What is left of a code in that place when its neighbors are taken away.
    const PLACE: u32 = 0x8000_0000 | 0x7f << (23 - Self::MANTISSA_BITS);

    /// The value of any code.
    fn decode(code: u8) -> f32;

    /// The value, but for [`Format::REBIAS`], of the code in the upper byte.
    #[inline(always)]
    fn place(word: u32) -> f32 {
        // The arithmetic shift leaves copies of the sign behind, which the mask takes away.
        let shifted = word.cast_signed() >> (1 + Self::MANTISSA_BITS);
        f32::from_bits(shifted.cast_unsigned() & Self::PLACE)
    }
}

pub(super) struct E4m3;

impl Format for E4m3 {
    const MANTISSA_BITS: u32 = e4m3::MANTISSA_BITS;
    const SPECIAL: u8 = e4m3::NAN;
    const REBIAS: f32 = e4m3::REBIAS;

    #[inline(always)]
    fn decode(code: u8) -> f32 {
        e4m3::decode(code)
    }
}

pub(super) struct E5m2;

impl Format for E5m2 {
    const MANTISSA_BITS: u32 = e5m2::MANTISSA_BITS;
    const SPECIAL: u8 = e5m2::INFINITY;
    const REBIAS: f32 = e5m2::REBIAS;

    #[inline(always)]
    fn decode(code: u8) -> f32 {
        e5m2::decode(code)
    }
}

/// What is known of a block before its elements.
#[derive(Clone, Copy)]
pub(super) struct Block {
    scale: f32,
    /// The scale times [`Format::REBIAS`].
    factor: f32,
    pub(super) has_ties: bool,
}

impl Block {
    pub(super) fn new<F: Format>(scale: f32) -> Block {
        // Below this a product may be subnormal in f32, where it has fewer bits and ties are elsewhere.
        const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);
        let mantissas = 1 << F::MANTISSA_BITS;
        let is_tie = |mantissa: u8| {
            let product = f32::from(mantissas + mantissa) * scale;
            product.to_bits() & 0xffff == 0x8000
        };
        Block {
            scale,
            factor: scale * F::REBIAS,
            has_ties: scale.abs() < SMALLEST || (0..mantissas).any(is_tie),
        }
    }

    /// Any run of elements of one row.
    #[inline(always)]
    fn run<F: Format>(self, codes: &[u8], out: &mut [u8]) {
        let (codes, rest) = codes.as_chunks();
        let (out, out_rest) = out.as_chunks_mut();
        self.lines::<F>(codes, out);
        if !rest.is_empty() {
            let (mut padded, mut line) = ([0; ELEMS], [[0; Line::BYTES]]);
            padded[..rest.len()].copy_from_slice(rest);
            self.lines::<F>(&[padded], &mut line);
            out_rest.copy_from_slice(&line[0][..out_rest.len()]);
        }
    }

    #[inline(always)]
    fn lines<F: Format>(self, codes: &[[u8; ELEMS]], out: &mut [Values]) {
        let is_done = if !self.factor.is_finite() {
            false
        } else if self.has_ties {
            let rounded = |bits: u32| bits + 0x7fff + (bits >> 16 & 1);
            scaled::<F>(codes, out, self.factor, rounded)
        } else {
            // Without ties, half of the last place added up is enough.
            scaled::<F>(codes, out, self.factor, |bits| bits + 0x8000)
        };
        if !is_done {
            defined::<F>(codes, out, self.scale);
        }
    }
}

/// The definition, for what the fast loop does not take.
#[inline(always)]
fn defined<F: Format>(codes: &[[u8; ELEMS]], out: &mut [Values], scale: f32) {
    for (out, codes) in out.iter_mut().zip(codes) {
        for (out, &code) in out.as_chunks_mut().0.iter_mut().zip(codes) {
            *out = bf16::round(F::decode(code) * scale).to_le_bytes();
        }
    }
}

/// The fast loop; false if a code was no number. `rounded` leaves the nearest BF16 in the upper half.
#[inline(always)]
fn scaled<F: Format>(
    codes: &[[u8; ELEMS]],
    out: &mut [Values],
    factor: f32,
    rounded: impl Fn(u32) -> u32,
) -> bool {
    // What is added to a magnitude to set its upper bit if it is no number; nothing is carried.
    let more = 0x0101 * u32::from(0x80 - F::SPECIAL);
    let scaled = |word: u32| rounded((F::place(word) * factor).to_bits());
    // In lanes that do not depend on each other, so that it costs next to nothing.
    let mut seen = [0; ELEMS / 2];
    for (out, codes) in out.iter_mut().zip(codes) {
        let outs = out.as_chunks_mut::<4>().0.iter_mut();
        for ((out, pair), seen) in outs.zip(codes.as_chunks().0).zip(&mut seen) {
            let pair = u32::from(u16::from_le_bytes(*pair));
            *seen |= (pair & 0x7f7f) + more;
            let (first, second) = (scaled(pair << 24), scaled(pair << 16));
            *out = (first >> 16 | second & 0xffff_0000).to_le_bytes();
        }
    }
    seen.into_iter().fold(0, |all, seen| all | seen) & 0x8080 == 0
}

/// How matrices and their blocks lie in the bytes; no extent is zero.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    rows: usize,
    columns: usize,
    block_rows: usize,
    block_columns: usize,
}

impl Layout {
    /// `None` if there are no elements. Codes and block have been checked against each other.
    pub(super) fn new(q: &TensorView<'_>, block: [u64; 2]) -> Option<Layout> {
        let length = q.bytes().len();
        if length == 0 {
            return None;
        }
        // No extent is zero, so each is at most the number of elements, and a block can be taken for no larger.
        let size =
            |extent: u64| usize::try_from(extent).map_or(length, |extent| extent.min(length));
        let [rows, columns] = q.shape().extents().last_chunk()?.map(size);
        let [block_rows, block_columns] = block.map(size);
        Some(Layout {
            rows,
            columns,
            block_rows: block_rows.min(rows),
            block_columns: block_columns.min(columns),
        })
    }
}

/// Matrices one after the other, their codes, scales and results as many as the layout says.
pub(super) struct Matrices<'a> {
    pub(super) layout: Layout,
    pub(super) codes: &'a [u8],
    pub(super) scales: &'a [[u8; 4]],
    pub(super) out: &'a mut [u8],
    /// Whether the results are stored past the caches.
    pub(super) streams: bool,
}

impl<'a> Matrices<'a> {
    /// The work of dequantizing codes of a format.
    pub(super) fn of<F: Format>(self, _: F) -> impl Work<Output = ()> + use<'a, F> {
        Dequantize::<F> {
            matrices: self,
            format: PhantomData,
        }
    }
}

struct Dequantize<'a, F> {
    matrices: Matrices<'a>,
    format: PhantomData<F>,
}

impl<F: Format> Work for Dequantize<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let Matrices {
            layout,
            codes,
            scales,
            out,
            streams,
        } = self.matrices;
        let columns = layout.columns;
        let mut buffer = Buffer([0; Line::BYTES + 2 * BUFFERED]);
        let mut bands = scales.chunks(columns.div_ceil(layout.block_columns));
        let matrices = codes.chunks(layout.rows * columns);
        for (codes, out) in matrices.zip(out.chunks_mut(2 * layout.rows * columns)) {
            let codes = codes.chunks(layout.block_rows * columns);
            let out = out.chunks_mut(2 * layout.block_rows * columns);
            for ((codes, out), scales) in codes.zip(out).zip(&mut bands) {
                let scales = scales.iter();
                let blocks = scales.map(|scale| Block::new::<F>(f32::from_le_bytes(*scale)));
                let blocks: Vec<Block> = blocks.collect();
                let row = Row {
                    blocks: &blocks,
                    block_columns: layout.block_columns,
                };
                for (codes, out) in codes.chunks(columns).zip(out.chunks_mut(2 * columns)) {
                    if streams {
                        row.stream::<F, M>(machine, codes, out, &mut buffer);
                    } else {
                        row.run::<F>(0, codes, out);
                    }
                }
            }
        }
    }
}

/// The blocks that a row of elements goes through.
#[derive(Clone, Copy)]
struct Row<'a> {
    blocks: &'a [Block],
    block_columns: usize,
}

impl Row<'_> {
    /// The elements from a column on, stored as usual.
    #[inline(always)]
    fn run<F: Format>(self, column: usize, mut codes: &[u8], mut out: &mut [u8]) {
        let mut block = column / self.block_columns;
        let mut left = self.block_columns - column % self.block_columns;
        while !codes.is_empty() {
            let (part, rest) = codes.split_at(left.min(codes.len()));
            let (part_out, rest_out) = out.split_at_mut(2 * part.len());
            self.blocks[block].run::<F>(part, part_out);
            (codes, out) = (rest, rest_out);
            (block, left) = (block + 1, self.block_columns);
        }
    }

    /// The whole row, its lines stored past the caches.
    #[inline(always)]
    fn stream<F: Format, M: Machine>(
        self,
        machine: M,
        codes: &[u8],
        out: &mut [u8],
        buffer: &mut Buffer,
    ) {
        let (head, lines, tail) = machine.lines(out);
        if lines.is_empty() {
            return self.run::<F>(0, codes, out);
        }
        let (buffer, mut lines) = (&mut buffer.0, lines.iter_mut());
        // Where in the buffer the next line begins: in what is filled now, or before it, where the end of what was filled
        // before is kept.
        let mut next = Line::BYTES + head.len();
        for (at, codes) in codes.chunks(BUFFERED).enumerate() {
            let filled = Line::BYTES + 2 * codes.len();
            let fresh = &mut buffer[Line::BYTES..filled];
            self.run::<F>(at * BUFFERED, codes, fresh);
            if at == 0 {
                head.copy_from_slice(&fresh[..head.len()]);
            }
            let values = buffer[next..filled].as_chunks().0;
            for (value, target) in values.iter().zip(&mut lines) {
                machine.stream(value, target);
            }
            next += values.len() * Line::BYTES;
            buffer.copy_within(filled - Line::BYTES..filled, 0);
            next -= filled - Line::BYTES;
        }
        tail.copy_from_slice(&buffer[next..Line::BYTES]);
    }
}
