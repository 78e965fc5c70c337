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

/// A rank by its place in every dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rank {
    /// Its number.
    pub rank: u64,
    /// Its pipeline stage.
    pub pp: u64,
    /// Its tensor rank.
    pub tp: u64,
    /// Its expert rank.
    pub ep: u64,
    /// Its tensor rank inside an expert.
    pub etp: u64,
}

impl Mesh {
    /// The fewest ranks of a stage that both ways of dealing them fill: tensor ranks, and expert ranks, are the same ranks.
    #[must_use]
    pub fn ranks_of_a_stage(&self) -> u64 {
        lcm(self.tp, self.ep * self.etp)
    }

    /// The ranks, in order: tensor ranks count fastest, and on the same numbers expert ranks; stages count slowest.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        let (mesh, each) = (*self, self.ranks_of_a_stage());
        (0..each * mesh.pp).map(move |rank| {
            let inside = rank % each;
            Rank {
                rank,
                pp: rank / each,
                tp: inside % mesh.tp,
                ep: inside / mesh.etp % mesh.ep,
                etp: inside % mesh.etp,
            }
        })
    }
}

/// The least common multiple of two numbers that are not 0.
fn lcm(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a / divisor * b
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_ranks_and_expert_ranks_are_the_same_ranks() {
        for (tp, ep, etp, expected) in [
            (1, 8, 2, 16),
            (2, 1, 1, 2),
            (4, 3, 2, 12),
            (1, 1, 1, 1),
            (2, 2, 2, 4),
        ] {
            let mesh = Mesh { tp, pp: 3, ep, etp };
            assert_eq!(mesh.ranks_of_a_stage(), expected, "{mesh}");
            let ranks: Vec<Rank> = mesh.ranks().collect();
            assert_eq!(ranks.len() as u64, 3 * expected);
            // Every place of either way is filled equally often in every stage.
            for pp in 0..3 {
                let of_stage = || ranks.iter().filter(|rank| rank.pp == pp);
                for t in 0..tp {
                    assert_eq!(
                        of_stage().filter(|rank| rank.tp == t).count() as u64,
                        expected / tp
                    );
                }
                for e in 0..ep {
                    for k in 0..etp {
                        let there = of_stage().filter(|rank| (rank.ep, rank.etp) == (e, k));
                        assert_eq!(there.count() as u64, expected / ep / etp);
                    }
                }
            }
        }
    }
}
