//! Sizes of the parallel dimensions.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Sizes of the parallel dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mesh {
    /// Tensor parallel ranks.
    pub tp: u64,
    /// Pipeline stages.
    pub pp: u64,
    /// Expert parallel ranks.
    pub ep: u64,
    /// Tensor parallel ranks inside an expert.
    pub etp: u64,
}

impl Mesh {
    /// One rank.
    pub const SINGLE: Mesh = Mesh {
        tp: 1,
        pp: 1,
        ep: 1,
        etp: 1,
    };

    /// The size of one dimension.
    #[must_use]
    pub fn size(&self, axis: MeshAxis) -> u64 {
        match axis {
            MeshAxis::Tp => self.tp,
            MeshAxis::Ep => self.ep,
            MeshAxis::Etp => self.etp,
        }
    }
}

impl fmt::Display for Mesh {
    /// Prints `tp 1 pp 2 ep 8 etp 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "tp {} pp {} ep {} etp {}",
            self.tp, self.pp, self.ep, self.etp
        )
    }
}

/// A dimension that cuts params.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeshAxis {
    /// Tensor parallel.
    Tp,
    /// Expert parallel.
    Ep,
    /// Expert tensor parallel.
    Etp,
}

impl MeshAxis {
    /// All of them.
    pub const ALL: [MeshAxis; 3] = [MeshAxis::Tp, MeshAxis::Ep, MeshAxis::Etp];
}

impl fmt::Display for MeshAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MeshAxis::Tp => "tp",
            MeshAxis::Ep => "ep",
            MeshAxis::Etp => "etp",
        })
    }
}
