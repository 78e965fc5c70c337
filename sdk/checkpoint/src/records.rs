//! Names of the files in which a run leaves what it did and what it wrote. They are about one result: whoever reads a
//! checkpoint passes over them, and no conversion carries them on.

/// What a run did: command, versions, counts, what was left out and why.
pub const REPORT_FILE: &str = "rialto-report.json";

/// The digest of every tensor and file of a result.
pub const MANIFEST_FILE: &str = "rialto-manifest.json";

/// Whether a file of a directory is one of these.
#[must_use]
pub fn is_record(name: &str) -> bool {
    matches!(name, REPORT_FILE | MANIFEST_FILE)
}
