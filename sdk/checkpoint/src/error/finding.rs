//! What errors are made of that collect: a disagreement, a fault of a tiling, a file that is too short.

use std::fmt::{self, Display};

use rialto_tensor::{Shape, TilingFault};

/// How many findings a message shows before it only counts.
const SHOWN: usize = 20;

/// One tensor about which an index and the shard headers disagree.
///
/// Claimed and not found: missing. Found and not claimed: unindexed. Both: misplaced.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexFinding {
    /// The tensor.
    pub tensor: String,
    /// The file that the index names.
    pub claimed: Option<String>,
    /// The files whose headers have it.
    pub found: Vec<String>,
}

impl Display for IndexFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.found.join(" and ");
        match &self.claimed {
            None => write!(f, "{} is in {found}, not in the index", self.tensor),
            Some(claimed) if found.is_empty() => {
                write!(f, "{} is claimed for {claimed}, found nowhere", self.tensor)
            }
            Some(claimed) => write!(
                f,
                "{} is claimed for {claimed}, found in {found}",
                self.tensor
            ),
        }
    }
}

/// One way in which the chunks of one tensor fail to tile it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorTilingFault {
    /// The tensor.
    pub tensor: String,
    /// Its global shape.
    pub shape: Shape,
    /// The region that is missing, doubled or outside.
    pub fault: TilingFault,
}

impl Display for TensorTilingFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.tensor, self.shape, self.fault)
    }
}

/// One data file that does not hold what the metadata places in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFileFault {
    /// The file.
    pub file: String,
    /// Its length in bytes, `None` if it is not there.
    pub found: Option<u64>,
    /// The length in bytes that its items need.
    pub needed: u64,
    /// The first tensor or object that is affected.
    pub item: String,
}

impl Display for DataFileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DataFileFault {
            file, needed, item, ..
        } = self;
        match self.found {
            None => write!(f, "{file} is absent (holds {item} and more)"),
            Some(found) => write!(
                f,
                "{file} has {found} bytes, needs {needed}: bytes {found}..{needed} are missing (first affected: {item})"
            ),
        }
    }
}

/// The findings joined, or the word `none`.
pub(super) fn first_or_none(findings: &[String]) -> String {
    if findings.is_empty() {
        "none".to_owned()
    } else {
        first(findings)
    }
}

/// Joins the first [`SHOWN`] findings and counts the rest.
pub(crate) fn first<T: Display>(findings: impl IntoIterator<Item = T>) -> String {
    let mut text = String::new();
    let mut hidden = 0usize;
    for (position, finding) in findings.into_iter().enumerate() {
        if position >= SHOWN {
            hidden += 1;
            continue;
        }
        if position > 0 {
            text.push_str("; ");
        }
        text.push_str(&finding.to_string());
    }
    if hidden > 0 {
        text.push_str(&format!("; and {hidden} more"));
    }
    text
}
