//! Shapes of operations, once for tests and benches: none, one, ragged, and those of the models scaled down.
//!
//! A block is 128 wide, so 127, 128, 129 and 130 are here, and 576 rows, which are four and a half blocks. Vectors have 4 to 16
//! lanes, so 7 is.

/// Rows and width of what is done row by row.
pub const ROWS: [[u64; 2]; 9] = [
    [0, 8],
    [1, 1],
    [2, 7],
    [5, 96],
    [33, 128],
    [1, 130],
    [3, 576],
    [2, 1000],
    [1, 2048],
];

/// Tokens of a step.
pub const TOKENS: [u64; 5] = [0, 1, 2, 5, 33];

/// `[t, n, k]` of a product `[t, k] x [n, k]`; a sum of none is 0.
pub const LINEAR: [[u64; 3]; 14] = [
    [0, 7, 5],
    [3, 5, 0],
    [2, 0, 7],
    [1, 1, 1],
    [1, 7, 127],
    [2, 7, 128],
    [2, 129, 257],
    [5, 96, 130],
    [33, 48, 96],
    [1, 576, 128],
    [5, 576, 260],
    [1, 300, 1],
    [33, 130, 40],
    [2, 64, 2048],
];

/// Tokens, heads, the width of a head, elements that are rotated, the first of them: attention, indexer, all of a head, none, one pair.
pub const ROPE: [[u64; 5]; 8] = [
    [0, 2, 8, 8, 0],
    [1, 1, 2, 2, 0],
    [5, 4, 256, 64, 192],
    [33, 2, 128, 64, 0],
    [2, 3, 64, 64, 0],
    [2, 1, 7, 4, 2],
    [5, 2, 10, 0, 3],
    [3, 1, 96, 96, 0],
];

/// Sequences of a step: how long each is and how many of its last positions are tokens of the step, and rows of padding.
#[derive(Clone, Copy, Debug)]
pub struct StepShape {
    /// Positions of a page.
    pub page: u64,
    /// Length and tokens of each sequence.
    pub sequences: &'static [[u64; 2]],
    /// Rows of no sequence.
    pub padding: u64,
}

impl StepShape {
    /// Tokens of the step, padding among them.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.padding + self.sequences.iter().map(|[_, tokens]| tokens).sum::<u64>()
    }
}

/// Steps: nothing, a first token, a prompt, decoding and prompts together, lengths around a page, padding alone.
pub const STEPS: [StepShape; 8] = [
    StepShape {
        page: 16,
        sequences: &[[7, 0]],
        padding: 0,
    },
    StepShape {
        page: 16,
        sequences: &[[1, 1]],
        padding: 0,
    },
    StepShape {
        page: 4,
        sequences: &[[5, 5]],
        padding: 0,
    },
    StepShape {
        page: 16,
        sequences: &[[33, 1], [7, 3]],
        padding: 1,
    },
    StepShape {
        page: 64,
        sequences: &[[63, 1], [64, 1], [65, 2]],
        padding: 0,
    },
    StepShape {
        page: 1,
        sequences: &[[3, 2], [1, 1]],
        padding: 2,
    },
    StepShape {
        page: 32,
        sequences: &[[33, 33]],
        padding: 0,
    },
    StepShape {
        page: 8,
        sequences: &[[4, 0]],
        padding: 2,
    },
];

/// A sequence so long that sparse attention leaves most of it out.
pub const LONG: StepShape = StepShape {
    page: 64,
    sequences: &[[4097, 2]],
    padding: 0,
};

/// Positions that sparse attention reads in these shapes.
pub const SPARSE_K: u64 = 8;

/// Lengths around [`SPARSE_K`].
pub const AROUND_K: [StepShape; 4] = [
    StepShape {
        page: 4,
        sequences: &[[1, 1]],
        padding: 0,
    },
    StepShape {
        page: 4,
        sequences: &[[SPARSE_K - 1, 2]],
        padding: 0,
    },
    StepShape {
        page: 4,
        sequences: &[[SPARSE_K, 2]],
        padding: 1,
    },
    StepShape {
        page: 4,
        sequences: &[[SPARSE_K + 1, 3]],
        padding: 0,
    },
];

/// Heads and width of the indexer: one, ragged, and of the model a quarter.
pub const INDEXER: [[u64; 2]; 3] = [[1, 4], [3, 7], [8, 32]];

/// Rows, scores of a row, and how many are selected; the last is as wide as a context of a million.
pub const TOPK: [[u64; 3]; 10] = [
    [0, 5, 2],
    [1, 1, 1],
    [2, 7, 3],
    [5, 96, 8],
    [3, 5, 8],
    [2, 0, 3],
    [33, 64, 64],
    [2, 4097, 64],
    [1, 4096, 2048],
    [1, 1_000_000, 2048],
];

/// Heads, the part of a head without rotation, the rotated part, the value, the latent; of the model an eighth last, where heads
/// of 56 rows begin inside of blocks as there those of 448 do.
pub const MLA: [[u64; 5]; 4] = [
    [1, 1, 2, 1, 1],
    [3, 5, 2, 4, 7],
    [2, 192, 4, 256, 40],
    [8, 24, 8, 32, 64],
];

/// Query heads, groups of them, the width of a head.
pub const GQA: [[u64; 3]; 4] = [[1, 1, 2], [4, 2, 8], [6, 3, 7], [8, 1, 32]];

/// Tokens, experts, experts of a token, width, inner width.
pub const EXPERTS: [[u64; 5]; 7] = [
    [0, 4, 2, 8, 4],
    [1, 1, 1, 1, 1],
    [2, 4, 2, 7, 5],
    [5, 8, 3, 130, 33],
    [33, 16, 4, 32, 16],
    [3, 3, 3, 64, 129],
    [33, 3, 3, 32, 24],
];

/// Experts, those of a token, groups, groups that stay: GLM-5 without groups, DeepSeek-V3 with, and small ones.
pub const ROUTER: [[u64; 4]; 6] = [
    [1, 1, 1, 1],
    [7, 3, 1, 1],
    [8, 2, 4, 2],
    [8, 8, 2, 2],
    [256, 8, 1, 1],
    [256, 8, 8, 4],
];

/// Rows, columns, and the block of a quantized matrix.
pub const QUANT: [[u64; 4]; 8] = [
    [0, 128, 1, 128],
    [1, 1, 128, 128],
    [5, 256, 1, 128],
    [3, 130, 1, 128],
    [576, 130, 128, 128],
    [129, 127, 128, 128],
    [7, 9, 2, 3],
    [2, 0, 1, 128],
];

/// Rows and vocabulary of logits.
pub const LOGITS: [[u64; 2]; 5] = [[0, 5], [1, 1], [3, 7], [5, 1000], [2, 19_360]];

/// `[t, n, k]` of the query latent's projection at full size, for one token and for many.
pub const LINEAR_HOT: [[u64; 3]; 2] = [[1, 2048, 6144], [64, 2048, 6144]];

/// Rows, scores of a row, and how many are selected, at full size.
pub const TOPK_HOT: [u64; 3] = [1, 131_072, 2048];

/// Heads, the part of a head without rotation, the rotated part, the value, the latent, at full size; and positions selected.
pub const MLA_HOT: ([u64; 5], u64) = ([64, 192, 64, 256, 512], 2048);
