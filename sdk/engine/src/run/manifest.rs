//! What a run wrote, byte for byte: the digest of every tensor and of every file that holds none.

use rialto_checkpoint::records::MANIFEST_FILE;
use serde::{Deserialize, Serialize};

use super::conversion::Conversion;
use super::digest::{Digest, hex};
use super::small::FileDigest;
use crate::Error;

/// The digests of a result. Equal results have equal manifests, whoever wrote them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The form of this document: 1.
    pub schema: u32,
    /// Tensors and chunks of tensors, in the order in which they lie in their files.
    pub tensors: Vec<TensorDigest>,
    /// Every other file of the result but this one and the report.
    pub files: Vec<FileDigest>,
    /// Files that hold tensors, with their lengths.
    pub data_files: Vec<DataFileEntry>,
}

/// A file that holds tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataFileEntry {
    /// Its name in the result.
    pub name: String,
    /// Its length.
    pub bytes: u64,
}

/// A tensor, or a chunk of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorDigest {
    /// The tensor's name, or the param's key.
    pub name: String,
    /// Dtype, as safetensors spells it.
    pub dtype: String,
    /// First index on every axis, of a chunk that is not the whole.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub offsets: Option<Vec<u64>>,
    /// Extents of the tensor, or of the chunk.
    pub sizes: Vec<u64>,
    /// The file, in the result.
    pub file: String,
    /// Where the elements begin in it: dense, row-major, little-endian.
    pub begin: u64,
    /// Their bytes.
    pub bytes: u64,
    /// BLAKE3 of them, in hexadecimal digits.
    pub blake3: String,
}

impl Manifest {
    /// Of the outputs of a conversion, with their digests by position, and the small files beside them.
    pub(crate) fn new(
        conversion: &dyn Conversion,
        digests: &[Option<Digest>],
        files: Vec<FileDigest>,
    ) -> Result<Manifest, Error> {
        let mut tensors = Vec::with_capacity(digests.len());
        for file in conversion.files() {
            for position in file.outputs.clone() {
                let (output, entry) = (conversion.output(position), conversion.entry(position));
                let digest = digests.get(position).copied().flatten();
                let digest = digest.ok_or_else(|| malformed("an output has no digest"))?;
                let is_whole = entry.region.sizes() == entry.shape.extents();
                tensors.push(TensorDigest {
                    name: entry.name,
                    dtype: output.dtype.safetensors_name().to_owned(),
                    offsets: (!is_whole).then(|| entry.region.offsets().to_vec()),
                    sizes: entry.region.sizes().to_vec(),
                    file: file.name.clone(),
                    begin: output.data.start,
                    bytes: output.data.len(),
                    blake3: hex(&digest),
                });
            }
        }
        let data_files = conversion.files().iter().map(|file| DataFileEntry {
            name: file.name.clone(),
            bytes: file.len,
        });
        Ok(Manifest {
            schema: 1,
            tensors,
            files,
            data_files: data_files.collect(),
        })
    }

    /// As it is written: a line for each entry, so that two manifests can be compared by eye.
    pub(crate) fn text(&self) -> Result<String, Error> {
        let mut text = format!("{{\"schema\":{},", self.schema);
        list(&mut text, "tensors", &self.tensors)?;
        text.push(',');
        list(&mut text, "files", &self.files)?;
        text.push(',');
        list(&mut text, "data_files", &self.data_files)?;
        text.push_str("}\n");
        Ok(text)
    }
}

/// Writes a list as a member of an object, a line an entry.
fn list(text: &mut String, name: &str, entries: &[impl Serialize]) -> Result<(), Error> {
    text.push_str(&format!("\"{name}\":["));
    for (at, entry) in entries.iter().enumerate() {
        text.push_str(if at == 0 { "\n" } else { ",\n" });
        let entry = serde_json::to_string(entry);
        text.push_str(&entry.map_err(|error| malformed(&error.to_string()))?);
    }
    text.push_str("\n]");
    Ok(())
}

fn malformed(reason: &str) -> Error {
    Error::Manifest {
        file: MANIFEST_FILE.to_owned(),
        reason: reason.to_owned(),
    }
}
