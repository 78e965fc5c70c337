//! Two Hugging Face directories, byte for byte. Shards are read by the `safetensors` crate, which rialto does not use to
//! write them. The split into shards may differ; nothing else may.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// What every run leaves in its result.
const RECORDS: [&str; 2] = ["rialto-manifest.json", "rialto-report.json"];

const INDEX: &str = "model.safetensors.index.json";
const CONFIG: &str = "config.json";
/// Findings on screen; all are counted.
const SHOWN: usize = 20;

/// What was compared, and every difference found.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    tensors: usize,
    bytes: u64,
    index_keys: usize,
    side_files: usize,
    /// One line each.
    pub(crate) differences: Vec<String>,
}

impl fmt::Display for Comparison {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "  {} tensors, {} bytes of weights",
            self.tensors, self.bytes
        )?;
        writeln!(
            out,
            "  {} index keys, {CONFIG}, {} side files",
            self.index_keys, self.side_files
        )?;
        for difference in self.differences.iter().take(SHOWN) {
            writeln!(out, "  DIFFERENT {difference}")?;
        }
        if self.differences.len() > SHOWN {
            writeln!(out, "  and {} more", self.differences.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// One tensor as stored.
#[derive(PartialEq, Eq)]
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// One directory, read whole: meant for checkpoints of a few megabytes.
struct Checkpoint {
    config: Vec<u8>,
    /// Tensor to shard, as the index says.
    index: BTreeMap<String, String>,
    total_size: Option<u64>,
    /// Tensor to the shard that holds it.
    places: BTreeMap<String, String>,
    tensors: BTreeMap<String, Stored>,
    /// Metadata of the shards.
    metadata: BTreeSet<(String, String)>,
    side_files: BTreeMap<String, Vec<u8>>,
}

impl Checkpoint {
    fn read(folder: &Path) -> Result<Checkpoint> {
        let mut files = BTreeMap::new();
        read_files(folder, "", &mut files)?;
        let config = files
            .remove(CONFIG)
            .with_context(|| format!("{} has no {CONFIG}", folder.display()))?;
        let index = files
            .remove(INDEX)
            .with_context(|| format!("{} has no {INDEX}", folder.display()))?;
        let index: Value =
            serde_json::from_slice(&index).with_context(|| format!("{INDEX} is no JSON"))?;
        let named = index["weight_map"]
            .as_object()
            .context("the index has no weight_map")?;
        let named = named
            .iter()
            .map(|(name, shard)| (name.clone(), shard.as_str().unwrap_or_default().to_owned()));
        let named: BTreeMap<String, String> = named.collect();

        let mut checkpoint = Checkpoint {
            config,
            total_size: index["metadata"]["total_size"].as_u64(),
            places: BTreeMap::new(),
            tensors: BTreeMap::new(),
            metadata: BTreeSet::new(),
            side_files: BTreeMap::new(),
            index: named,
        };
        let shards: BTreeSet<&String> = checkpoint.index.values().collect();
        for shard in shards {
            let bytes = files
                .remove(shard)
                .with_context(|| format!("shard {shard:?} is not in {}", folder.display()))?;
            let (_, header) =
                SafeTensors::read_metadata(&bytes).with_context(|| format!("header of {shard}"))?;
            for (key, value) in header.metadata().iter().flatten() {
                checkpoint.metadata.insert((key.clone(), value.clone()));
            }
            for (name, view) in SafeTensors::deserialize(&bytes)
                .with_context(|| shard.clone())?
                .iter()
            {
                let stored = Stored {
                    dtype: view.dtype(),
                    shape: view.shape().to_vec(),
                    bytes: view.data().to_vec(),
                };
                let earlier = checkpoint.places.insert(name.to_owned(), shard.clone());
                ensure!(
                    earlier.is_none(),
                    "{name} is in {shard} and in {}",
                    earlier.unwrap_or_default()
                );
                checkpoint.tensors.insert(name.to_owned(), stored);
            }
        }
        checkpoint.side_files = files;
        Ok(checkpoint)
    }

    fn bytes(&self) -> u64 {
        self.tensors
            .values()
            .map(|tensor| tensor.bytes.len() as u64)
            .sum()
    }
}

fn read_files(folder: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("{} cannot be listed", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if prefix.is_empty() && RECORDS.contains(&name.as_str()) {
            // What a run says of its result is no part of the checkpoint, and no source has it.
            continue;
        }
        if entry.path().is_dir() {
            read_files(&entry.path(), &format!("{name}/"), files)?;
        } else {
            let bytes = fs::read(entry.path())
                .with_context(|| format!("{} cannot be read", entry.path().display()))?;
            files.insert(name, bytes);
        }
    }
    Ok(())
}

/// Compares an exported directory with its source. Errors: a directory that is no checkpoint.
pub(crate) fn compare(source: &Path, exported: &Path) -> Result<Comparison> {
    let (source, exported) = (Checkpoint::read(source)?, Checkpoint::read(exported)?);
    let mut found = Comparison {
        tensors: source.tensors.len(),
        bytes: source.bytes(),
        index_keys: source.index.len(),
        side_files: source.side_files.len(),
        differences: Vec::new(),
    };
    let differences = &mut found.differences;
    for name in union(&source.tensors, &exported.tensors) {
        match (source.tensors.get(name), exported.tensors.get(name)) {
            (Some(_), None) => differences.push(format!("{name}: not in the export")),
            (None, _) => differences.push(format!("{name}: not in the source")),
            (Some(a), Some(b)) if (a.dtype, &a.shape) != (b.dtype, &b.shape) => {
                let (was, is) = (
                    format!("{:?} {:?}", a.dtype, a.shape),
                    format!("{:?} {:?}", b.dtype, b.shape),
                );
                differences.push(format!("{name}: {was} in the source, {is} in the export"));
            }
            (Some(a), Some(b)) => differences.extend(first_difference(name, &a.bytes, &b.bytes)),
        }
    }
    for name in union(&source.index, &exported.index) {
        if source.index.contains_key(name) != exported.index.contains_key(name) {
            differences.push(format!("{INDEX}: {name} is a key on one side only"));
        }
    }
    for (name, shard) in exported
        .index
        .iter()
        .filter(|(name, shard)| exported.places.get(*name) != Some(shard))
    {
        differences.push(format!("{INDEX}: {name} is not in {shard}"));
    }
    for name in exported
        .places
        .keys()
        .filter(|name| !exported.index.contains_key(*name))
    {
        differences.push(format!("{INDEX}: {name} is in a shard and in no entry"));
    }
    if exported.total_size != Some(exported.bytes()) {
        differences.push(format!(
            "{INDEX}: total_size is {:?}, the shards hold {}",
            exported.total_size,
            exported.bytes()
        ));
    }
    if source.metadata != exported.metadata {
        differences.push(format!(
            "shard metadata: {:?} and {:?}",
            source.metadata, exported.metadata
        ));
    }
    differences.extend(first_difference(CONFIG, &source.config, &exported.config));
    for name in union(&source.side_files, &exported.side_files) {
        match (source.side_files.get(name), exported.side_files.get(name)) {
            (Some(a), Some(b)) => differences.extend(first_difference(name, a, b)),
            (Some(_), None) => differences.push(format!("{name}: not in the export")),
            (None, _) => differences.push(format!("{name}: not in the source")),
        }
    }
    Ok(found)
}

fn union<'a, V>(a: &'a BTreeMap<String, V>, b: &'a BTreeMap<String, V>) -> BTreeSet<&'a String> {
    a.keys().chain(b.keys()).collect()
}

fn first_difference(name: &str, a: &[u8], b: &[u8]) -> Option<String> {
    if a.len() != b.len() {
        return Some(format!(
            "{name}: {} bytes in the source, {} in the export",
            a.len(),
            b.len()
        ));
    }
    let byte = a.iter().zip(b).position(|(a, b)| a != b)?;
    Some(format!("{name}: byte {byte} of {} differs", a.len()))
}

#[cfg(test)]
mod tests;
