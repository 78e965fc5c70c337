//! The one error type of this crate.

use thiserror::Error as ThisError;

use crate::{Dtype, Shape};

/// The status code of a kind of error in a crate's list of (slug, code); 13, a fault of ours, for one that is not listed.
#[must_use]
pub fn code_of(kinds: &[(&str, u32)], slug: &str) -> u32 {
    let kind = kinds.iter().find(|(listed, _)| *listed == slug);
    kind.map_or(13, |(_, code)| *code)
}

/// What can be wrong with a dtype, a shape, a view, or views that belong together.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// A dtype name that is in no table of this version.
    #[error("dtype {name:?} is not known")]
    UnknownDtype {
        /// The name as found.
        name: String,
    },
    /// The product of the extents, or that times the element size, does not fit in 64 bits.
    #[error("shape {shape} overflows 64-bit arithmetic")]
    ShapeOverflow {
        /// The shape as found.
        shape: Shape,
    },
    /// The bytes given are not as many as dtype and shape need.
    #[error("{dtype} tensor of shape {shape} needs {expected} bytes, found {found}")]
    ViewLength {
        /// Element type of the view.
        dtype: Dtype,
        /// Shape of the view.
        shape: Shape,
        /// Bytes needed.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// No cast between these two element types is defined.
    #[error("no cast from {from} to {to}")]
    NoCast {
        /// Element type of the source.
        from: Dtype,
        /// Element type asked for.
        to: Dtype,
    },
    /// Blocks are of matrices: a tensor with fewer axes has none.
    #[error("a tensor in blocks needs two axes or more, found shape {shape}")]
    BlockRank {
        /// The shape as found.
        shape: Shape,
    },
    /// A block without an extent.
    #[error("a block needs an extent on both axes, found {block:?}")]
    BlockSize {
        /// Rows and columns as given.
        block: [u64; 2],
    },
    /// Codes or scales of a dtype that block dequantization does not know.
    #[error("{role} must be {expected}, found {found}")]
    BlockDtype {
        /// What the tensor is there for.
        role: &'static str,
        /// The dtypes that are known.
        expected: &'static str,
        /// The dtype as found.
        found: Dtype,
    },
    /// A scale grid that does not belong to its tensor.
    #[error(
        "a tensor of shape {shape} in blocks of {block:?} needs scales of shape {expected}, found {found}"
    )]
    ScaleShape {
        /// Shape of the codes.
        shape: Shape,
        /// Rows and columns of a block.
        block: [u64; 2],
        /// Shape of the grid.
        expected: Shape,
        /// Shape of the scales as found.
        found: Shape,
    },
    /// Two runs of bytes that were to be compared are not as long as each other.
    #[error("cannot compare {ours} bytes with {theirs}")]
    BandLength {
        /// Bytes of one side.
        ours: u64,
        /// Bytes of the other.
        theirs: u64,
    },
    /// The environment asks for instructions that are not to be had.
    #[error(
        "{variable}={found} names no instructions of this processor; valid here: {}",
        available.join(", "),
        variable = crate::simd::VARIABLE
    )]
    NoTier {
        /// The name as found.
        found: String,
        /// The names that are valid on this processor.
        available: Vec<&'static str>,
    },
}

impl Error {
    /// Kinds of this crate as (slug, code); `docs/errors.md` lists them.
    pub const KINDS: &'static [(&'static str, u32)] = &[
        ("tensor/unknown-dtype", 3),
        ("tensor/shape-overflow", 4),
        ("tensor/view-length", 1),
        ("tensor/no-cast", 3),
        ("tensor/block-rank", 3),
        ("tensor/block-size", 1),
        ("tensor/block-dtype", 3),
        ("tensor/scale-shape", 4),
        ("tensor/band-length", 1),
        ("tensor/no-tier", 1),
    ];

    /// The status code that crosses the ABI; see `docs/errors.md`.
    #[must_use]
    pub fn code(&self) -> u32 {
        code_of(Error::KINDS, self.slug())
    }

    /// The stable name of this kind of error; see `docs/errors.md`.
    #[must_use]
    pub fn slug(&self) -> &'static str {
        match self {
            Error::UnknownDtype { .. } => "tensor/unknown-dtype",
            Error::ShapeOverflow { .. } => "tensor/shape-overflow",
            Error::ViewLength { .. } => "tensor/view-length",
            Error::NoCast { .. } => "tensor/no-cast",
            Error::BlockRank { .. } => "tensor/block-rank",
            Error::BlockSize { .. } => "tensor/block-size",
            Error::BlockDtype { .. } => "tensor/block-dtype",
            Error::ScaleShape { .. } => "tensor/scale-shape",
            Error::BandLength { .. } => "tensor/band-length",
            Error::NoTier { .. } => "tensor/no-tier",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        let help = match self {
            Error::UnknownDtype { .. } => {
                let known: Vec<&str> = Dtype::ALL.iter().map(|d| d.safetensors_name()).collect();
                return Some(format!(
                    "known are {}; a newer version may know more",
                    known.join(", ")
                ));
            }
            Error::ShapeOverflow { .. } => "the file is damaged; fetch it again",
            Error::ViewLength { .. } | Error::BandLength { .. } => {
                "this is a fault of the program that asked; report it to its author"
            }
            Error::NoCast { .. } => "keep the dtype: `--dtype keep`",
            Error::BlockRank { .. } => {
                "report it to the checkpoint's author: blocks are of matrices"
            }
            Error::BlockSize { .. } => "report it to the plugin's author",
            Error::BlockDtype { .. } => "use a newer version, or store the scales in F32",
            Error::ScaleShape { .. } => {
                "fetch the shard again; a checkpoint in other blocks needs another codec"
            }
            Error::NoTier { .. } => "take one of the names in the message, or unset the variable",
        };
        Some(help.to_owned())
    }
}
