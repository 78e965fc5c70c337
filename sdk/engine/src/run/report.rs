//! What a run did, for who reads it later.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{DeviceReport, Summary};

/// What a run did. Times and places differ from run to run, so no two reports are equal; the result does not depend on them.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The form of this document: 1.
    pub schema: u32,
    /// Version of rialto.
    pub rialto: String,
    /// What the application adds: its command line, the plugin.
    #[serde(flatten)]
    pub about: Map<String, Value>,
    /// When the run began, in seconds since 1970.
    pub began_unix_s: u64,
    /// How long it took, this attempt alone.
    pub seconds: f64,
    /// Bytes of tensors in the result.
    pub bytes: u64,
    /// Bytes of tensors, in the files of this process, that were done when it began.
    pub bytes_found_done: u64,
    /// The process and how many there were.
    pub rank: u64,
    /// How many processes did the run together.
    pub world_size: u64,
    /// Units that were worked on at once.
    pub threads: usize,
    /// Memory that data buffers could take.
    pub memory_budget_bytes: u64,
    /// The device that decoded blocks, if not the processor did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceReport>,
    /// The source.
    pub source: SourceReport,
    /// The result.
    pub result: ResultReport,
    /// Counts, filters, what was left out and why, and notices.
    pub summary: Summary,
    /// What nobody has verified.
    pub not_verified: Vec<String>,
}

/// What the source was.
#[derive(Clone, Debug, Serialize)]
pub struct SourceReport {
    /// Files in it.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// BLAKE3 of the names, lengths and times of its files: whether it has been touched, not what is in it.
    pub stamps_blake3: String,
}

/// What the result is.
#[derive(Clone, Debug, Serialize)]
pub struct ResultReport {
    /// Where it appeared.
    pub place: String,
    /// BLAKE3 of the manifest: of every byte of every tensor and side file. None with hashing off.
    pub manifest_blake3: Option<String>,
    /// The plan's digest: equal for equal source, options and version.
    pub plan_blake3: String,
}

impl RunReport {
    /// As it is written.
    pub(crate) fn text(&self) -> Result<String, crate::Error> {
        let text = serde_json::to_string_pretty(self);
        Ok(format!(
            "{}\n",
            text.map_err(|error| crate::Error::journal(&error.to_string()))?
        ))
    }
}
