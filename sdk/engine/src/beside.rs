//! Params that Megatron has no place for, kept in a file of ours beside its own.
//!
//! A prediction layer may bring an embedding and a head of its own, which Megatron shares with the main model. They are
//! kept, even if equal, so that the way back loses nothing. The file is a safetensors file: whoever needs the tensors can
//! read them.

use std::collections::BTreeMap;

use rialto_bridge::{Mapping, StoredTensor};
use rialto_checkpoint::safetensors::{Header, PlannedShard, Tensor};
use rialto_checkpoint::store::{Source, Store};
use rialto_tensor::{Dtype, Region};

use crate::Error;
use crate::array::{Array, Bytes, Extent, Handle};
use crate::side_files::SOURCE_DIRECTORY;

/// The file, inside [`SOURCE_DIRECTORY`].
pub(crate) const BESIDE_FILE: &str = "beside.safetensors";

/// The file of a checkpoint, open.
#[derive(Debug)]
pub(crate) struct Beside {
    source: Box<dyn Source>,
    tensors: BTreeMap<String, Tensor>,
}

impl Beside {
    /// Opens the file of an iteration directory, if there is one. Errors: what is wrong with its header.
    pub(crate) fn open(iteration: &dyn Store) -> Result<Option<Beside>, Error> {
        let name = format!("{SOURCE_DIRECTORY}{BESIDE_FILE}");
        if !iteration.files()?.iter().any(|file| file.name == name) {
            return Ok(None);
        }
        let source = iteration.open(&name)?;
        let tensors = Header::read(source.as_ref())?.into_tensors();
        let tensors = tensors
            .into_iter()
            .map(|tensor| (tensor.name.clone(), tensor));
        Ok(Some(Beside {
            tensors: tensors.collect(),
            source,
        }))
    }

    /// What it holds, in the words of the mapping.
    pub(crate) fn inventory(&self) -> impl Iterator<Item = StoredTensor> + '_ {
        self.tensors.values().map(|tensor| StoredTensor {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            place: BESIDE_FILE.to_owned(),
        })
    }

    /// A param, if it is kept here.
    pub(crate) fn array(&self, name: &str) -> Option<Array<'_>> {
        let tensor = self.tensors.get(name)?;
        Some(Array {
            dtype: tensor.dtype,
            extents: vec![Extent {
                region: Region::whole(&tensor.shape),
                bytes: Bytes::File {
                    source: Handle::Borrowed(self.source.as_ref()),
                    offset: tensor.range.start,
                    check: None,
                },
            }],
        })
    }
}

/// Whether a param is kept beside Megatron's own.
pub(crate) fn is_beside(mapping: &Mapping, param: usize) -> bool {
    let rule = mapping.rule(mapping.params()[param].rule);
    rule.beside.is_some()
}

/// Positions of the params that Megatron has a place for.
pub(crate) fn others(mapping: &Mapping) -> Vec<usize> {
    let all = 0..mapping.params().len();
    all.filter(|&param| !is_beside(mapping, param)).collect()
}

/// Lays out the file that keeps the params of a mapping, with their positions; none if there is nothing to keep. `is_written`
/// says of each param whether it is written at all.
pub(crate) fn plan(
    mapping: &Mapping,
    is_written: &[bool],
    dtypes: &[Dtype],
) -> Result<Option<(PlannedShard, Vec<usize>)>, Error> {
    let kept: Vec<usize> = (0..mapping.params().len())
        .filter(|&param| is_written[param] && is_beside(mapping, param))
        .collect();
    if kept.is_empty() {
        return Ok(None);
    }
    let tensors = kept.iter().map(|&param| {
        let declared = &mapping.params()[param];
        (declared.name.clone(), dtypes[param], declared.shape.clone())
    });
    let shard = Header::plan(BESIDE_FILE, tensors, &BTreeMap::new())?;
    Ok(Some((shard, kept)))
}

/// A line for each reason for which params are kept.
pub(crate) fn notices(mapping: &Mapping) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for param in mapping.params() {
        if let Some(reason) = &mapping.rule(param.rule).beside {
            *counts.entry(reason).or_default() += 1;
        }
    }
    let line = |(reason, count): (&str, usize)| {
        format!("params kept beside Megatron's own, in {BESIDE_FILE}: {count}, since {reason}")
    };
    counts.into_iter().map(line).collect()
}
