//! What operations are given: tensors on the host, and steps of sequences in pages.

use rialto_backend::TensorType;
use rialto_program::{Element, ValueType};
use rialto_tensor::Dtype;
use rialto_tests::random::Random;
use rialto_tests::shapes::StepShape;

use crate::numbers;

/// Scales of codes.
#[derive(Clone, Debug)]
pub(crate) struct Scales {
    /// F32, for each block one.
    pub(crate) values: Vec<f64>,
    /// Their shape.
    pub(crate) shape: Vec<u64>,
    /// Rows and columns of a block.
    pub(crate) block: [u64; 2],
}

/// A tensor, perhaps with the scales of its codes.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    /// Element type and shape.
    pub(crate) tensor: TensorType,
    /// Little-endian, dense.
    pub(crate) bytes: Vec<u8>,
    /// For codes in blocks.
    pub(crate) scales: Option<Scales>,
}

/// Bytes of numbers, each rounded to the element type.
#[must_use]
pub(crate) fn encode(dtype: Dtype, values: &[f64]) -> Vec<u8> {
    let rounded = values.iter().map(|&value| numbers::round(dtype, value));
    match dtype {
        Dtype::F32 => rounded
            .flat_map(|value| (value as f32).to_le_bytes())
            .collect(),
        // The upper half of an F32, whose lower half is zeros after rounding. NaN keeps its upper half.
        _ => rounded
            .flat_map(|value| ((value as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec())
            .collect(),
    }
}

/// Numbers of bytes of F32 or BF16.
#[must_use]
pub(crate) fn decode(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        Dtype::F32 => bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into())
            .collect(),
        Dtype::Bf16 => bytes
            .chunks_exact(2)
            .map(|b| f32::from_le_bytes([0, 0, b[0], b[1]]).into())
            .collect(),
        other => panic!("{other} is no type to compute with"),
    }
}

/// Numbers of bytes of I32.
#[must_use]
pub(crate) fn decode_ints(bytes: &[u8]) -> Vec<i32> {
    bytes
        .chunks_exact(4)
        .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

impl Input {
    /// Floats, rounded to the element type.
    #[must_use]
    pub(crate) fn floats(dtype: Dtype, shape: &[u64], values: &[f64]) -> Input {
        assert_eq!(shape.iter().product::<u64>(), values.len() as u64);
        Input {
            tensor: TensorType::new(dtype, shape),
            bytes: encode(dtype, values),
            scales: None,
        }
    }

    /// Integers.
    #[must_use]
    pub(crate) fn ints(shape: &[u64], values: &[i32]) -> Input {
        assert_eq!(shape.iter().product::<u64>(), values.len() as u64);
        Input {
            tensor: TensorType::new(Dtype::I32, shape),
            bytes: values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
            scales: None,
        }
    }

    /// Codes of E4M3 as they are, without scales.
    #[must_use]
    pub(crate) fn codes(shape: &[u64], codes: Vec<u8>) -> Input {
        Input {
            tensor: TensorType::new(Dtype::F8E4m3, shape),
            bytes: codes,
            scales: None,
        }
    }

    /// The extents.
    #[must_use]
    pub(crate) fn shape(&self) -> &[u64] {
        self.tensor.shape.extents()
    }

    /// An extent.
    #[must_use]
    pub(crate) fn extent(&self, axis: usize) -> usize {
        self.shape()[axis] as usize
    }

    /// The element type.
    #[must_use]
    pub(crate) fn dtype(&self) -> Dtype {
        self.tensor.dtype
    }

    /// Its type as operations see it.
    #[must_use]
    pub(crate) fn value_type(&self) -> ValueType {
        let shape = self.shape().iter().copied();
        ValueType {
            block: self.scales.as_ref().map(|scales| scales.block),
            ..ValueType::new(Element::Of(self.dtype()), shape)
        }
    }

    /// The numbers of floats.
    #[must_use]
    pub(crate) fn values(&self) -> Vec<f64> {
        decode(self.dtype(), &self.bytes)
    }

    /// The numbers of I32.
    #[must_use]
    pub(crate) fn integers(&self) -> Vec<i32> {
        assert_eq!(self.dtype(), Dtype::I32);
        decode_ints(&self.bytes)
    }

    /// The numbers of a weight: of codes `bf16(f32(code * scale))`.
    #[must_use]
    pub(crate) fn weights(&self) -> Vec<f64> {
        match self.scales {
            Some(_) => self.unrounded().into_iter().map(numbers::bf16).collect(),
            None => self.values(),
        }
    }

    /// The products of codes and scales in F32, the scale that of the element's own row and column of its matrix.
    #[must_use]
    pub(crate) fn unrounded(&self) -> Vec<f64> {
        let scales = self.scales.as_ref().expect("codes with scales");
        let rank = self.shape().len();
        let (n, k) = (self.extent(rank - 2), self.extent(rank - 1));
        let [rows, columns] = scales.block.map(|size| size as usize);
        let (down, across) = (n.div_ceil(rows), k.div_ceil(columns));
        let value = |(position, &code): (usize, &u8)| {
            let (matrix, row, column) = (position / (n * k), position / k % n, position % k);
            let scale = scales.values[(matrix * down + row / rows) * across + column / columns];
            numbers::f32(numbers::e4m3(code) * scale)
        };
        self.bytes.iter().enumerate().map(value).collect()
    }
}

/// How a weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// As F32.
    F32,
    /// As BF16.
    Bf16,
    /// As codes in blocks of so many rows and columns.
    Blocks([u64; 2]),
}

/// Each way that the checks store weights in: blocks of the checkpoints, and small ones that are cut and not square.
pub(crate) const STORED: [Stored; 4] = [
    Stored::F32,
    Stored::Bf16,
    Stored::Blocks([128, 128]),
    Stored::Blocks([3, 5]),
];

/// Makes inputs; the same seed makes the same.
pub(crate) struct Maker {
    /// What is random in them.
    pub(crate) random: Random,
    /// The element type of activations.
    pub(crate) activation: Dtype,
}

impl Maker {
    /// A whole number below another.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.random.bits() % end.max(1)
    }

    /// Normal numbers.
    pub(crate) fn numbers(&mut self, count: u64) -> Vec<f64> {
        (0..count).map(|_| self.random.normal().into()).collect()
    }

    /// Normal activations.
    pub(crate) fn activations(&mut self, shape: &[u64]) -> Input {
        self.floats(self.activation, shape)
    }

    /// Normal numbers of a type.
    pub(crate) fn floats(&mut self, dtype: Dtype, shape: &[u64]) -> Input {
        let values = self.numbers(shape.iter().product());
        Input::floats(dtype, shape, &values)
    }

    /// Integers from a number to less than another.
    pub(crate) fn ints(&mut self, shape: &[u64], begin: i32, end: i32) -> Input {
        let count = shape.iter().product::<u64>();
        let span = u64::from(begin.abs_diff(end));
        let values: Vec<i32> = (0..count)
            .map(|_| begin + self.below(span) as i32)
            .collect();
        Input::ints(shape, &values)
    }

    /// A weight. Scales of codes are no powers of two and differ by more than any rounding.
    pub(crate) fn weight(&mut self, stored: Stored, shape: &[u64]) -> Input {
        let block = match stored {
            Stored::F32 => return self.floats(Dtype::F32, shape),
            Stored::Bf16 => return self.floats(Dtype::Bf16, shape),
            Stored::Blocks(block) => block,
        };
        let count = shape.iter().product::<u64>();
        let codes = (0..count)
            .map(|_| {
                let code = self.random.bits() as u8;
                // Not NaN, which no weight is.
                if code & 0x7f == 0x7f { code ^ 1 } else { code }
            })
            .collect();
        let mut grid = shape.to_vec();
        for (extent, size) in grid.iter_mut().rev().zip([block[1], block[0]]) {
            *extent = extent.div_ceil(size);
        }
        let scale = |_| numbers::f32(0.003 * (0.3 + f64::from(self.random.normal()).abs()));
        let scales = (0..grid.iter().product::<u64>()).map(scale).collect();
        Input {
            scales: Some(Scales {
                values: scales,
                shape: grid,
                block,
            }),
            ..Input::codes(shape, codes)
        }
    }
}

/// A step's sequences and positions, as operations are given them.
pub(crate) struct Step {
    /// Pages of the pool.
    pub(crate) pool: u64,
    /// Positions of a page.
    pub(crate) page: u64,
    /// `row_seq`.
    pub(crate) row_seq: Input,
    /// `row_pos`.
    pub(crate) row_pos: Input,
    /// `page_table`.
    pub(crate) page_table: Input,
    /// The lengths.
    pub(crate) lengths: Vec<u64>,
}

impl Step {
    /// Sequences in shuffled pages of a pool that has more, with a column more than the longest needs. Of a `moved` step each sequence is
    /// one shorter, where its tokens allow it: other positions in buffers of the same shapes.
    pub(crate) fn new(maker: &mut Maker, shape: &StepShape, moved: bool) -> Step {
        let needed = |length: u64| length.div_ceil(shape.page);
        let (longest, all) = shape
            .sequences
            .iter()
            .fold((0, 0), |(longest, all), [length, _]| {
                (needed(*length).max(longest), all + needed(*length))
            });
        let (pool, columns) = (all + 2, longest + 1);
        let mut free: Vec<i32> = (0..pool as i32).collect();
        for position in (1..free.len()).rev() {
            let other = maker.below(position as u64 + 1) as usize;
            free.swap(position, other);
        }
        let (mut seqs, mut positions, mut table) = (Vec::new(), Vec::new(), Vec::new());
        let mut lengths = Vec::new();
        for (seq, [length, tokens]) in shape.sequences.iter().enumerate() {
            let length = match moved && length > tokens {
                true => length - 1,
                false => *length,
            };
            lengths.push(length);
            for position in length - tokens..length {
                seqs.push(seq as i32);
                positions.push(position as i32);
            }
            for column in 0..columns {
                let page = (column < needed(length)).then(|| free.pop()).flatten();
                table.push(page.unwrap_or(-1));
            }
        }
        // Padding in the middle, at a position that a sequence has: it is the sequence that says so.
        for _ in 0..shape.padding {
            let place = seqs.len() / 2;
            seqs.insert(place, -1);
            positions.insert(place, 0);
        }
        let tokens = [shape.tokens()];
        let sequences = shape.sequences.len() as u64;
        Step {
            pool,
            page: shape.page,
            row_seq: Input::ints(&tokens, &seqs),
            row_pos: Input::ints(&tokens, &positions),
            page_table: Input::ints(&[sequences, columns], &table),
            lengths,
        }
    }

    /// A cache with rows for every position, and NaN where no sequence has one: what is not a sequence's must not be felt.
    pub(crate) fn cache(&self, maker: &mut Maker, dtype: Dtype, width: u64) -> Input {
        let table = self.page_table.integers();
        let columns = self.page_table.shape()[1];
        let mut values = vec![f64::NAN; (self.pool * self.page * width) as usize];
        for (seq, &length) in self.lengths.iter().enumerate() {
            for position in 0..length {
                let page = table[seq * columns as usize + (position / self.page) as usize];
                let row = page as u64 * self.page + position % self.page;
                let begin = (row * width) as usize;
                let row = maker.numbers(width);
                values[begin..begin + width as usize].copy_from_slice(&row);
            }
        }
        Input::floats(dtype, &[self.pool, self.page, width], &values)
    }

    /// The last three operands of what reads caches.
    #[must_use]
    pub(crate) fn places(&self) -> [Input; 3] {
        [
            self.row_seq.clone(),
            self.row_pos.clone(),
            self.page_table.clone(),
        ]
    }
}
