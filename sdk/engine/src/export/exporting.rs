//! An export as it is run: tensors of shards from params.

use std::collections::BTreeMap;

use rialto_bridge::Piece;
use rialto_checkpoint::hf::{self, INDEX_FILE};
use rialto_checkpoint::safetensors::Tensor;
use rialto_checkpoint::store::Stamp;
use rialto_tensor::{Dtype, Region};

use super::{ExportPlan, MegatronSource};
use crate::assemble::Part;
use crate::params;
use crate::run::{Conversion, DataFile, Entry, Output, Reading, SmallFiles, WriteAt};
use crate::side_files::{stamps, total_bytes};
use crate::{Direction, Error, Progress};

/// A plan, its tensors by position in their shards.
pub(crate) struct Exporting<'a> {
    plan: &'a ExportPlan,
    /// The pieces of each tensor.
    pieces: Vec<Vec<&'a Piece>>,
    files: Vec<DataFile>,
}

impl<'a> Exporting<'a> {
    pub(crate) fn new(plan: &'a ExportPlan) -> Exporting<'a> {
        let mut pieces = vec![Vec::new(); plan.mapping.tensors().len()];
        for piece in plan.mapping.pieces() {
            pieces[piece.tensor].push(piece);
        }
        let mut start = 0;
        let files = plan.files.shards.iter().map(|shard| {
            let outputs = start..start + shard.tensors.len();
            start = outputs.end;
            DataFile {
                name: shard.name.clone(),
                len: shard.len,
                outputs,
            }
        });
        Exporting {
            plan,
            pieces,
            files: files.collect(),
        }
    }

    pub(crate) fn plan(&self) -> &'a ExportPlan {
        self.plan
    }

    /// The dtype in which each tensor of the mapping is written; of those left out, in which it is stored.
    pub(crate) fn tensor_dtypes(&self) -> Vec<Dtype> {
        let mut dtypes = self.plan.stored.clone();
        let planned = self
            .plan
            .files
            .shards
            .iter()
            .flat_map(|shard| &shard.tensors);
        for (tensor, &position) in planned.zip(&self.plan.ordered) {
            dtypes[position] = tensor.dtype;
        }
        dtypes
    }

    /// The dtype in which each param is written.
    pub(crate) fn param_dtypes(&self) -> Vec<Dtype> {
        let tensors = self.tensor_dtypes();
        let mut dtypes = self.plan.params.dtypes().to_vec();
        for piece in self.plan.mapping.pieces() {
            dtypes[piece.param] = tensors[piece.tensor];
        }
        dtypes
    }

    /// A rectangle of a param, as part of a rectangle of something else.
    pub(crate) fn param(
        &self,
        param: usize,
        output: Region,
        input: Region,
    ) -> Result<Part<'_>, Error> {
        let MegatronSource {
            checkpoint, beside, ..
        } = &self.plan.source;
        let (beside, verifies) = (beside.as_ref(), self.plan.verifies_checksums);
        let (params, mapping) = (&self.plan.params, &self.plan.mapping);
        let array = params.array(mapping, checkpoint, beside, param, &input, verifies)?;
        Ok(Part {
            output,
            input,
            values: Box::new(array),
        })
    }

    /// The file of an output, and the tensor that it is.
    fn planned(&self, position: usize) -> (usize, &'a Tensor) {
        let file = self
            .files
            .partition_point(|file| file.outputs.end <= position);
        let at = position - self.files[file].outputs.start;
        (file, &self.plan.files.shards[file].tensors[at])
    }
}

impl Conversion for Exporting<'_> {
    fn direction(&self) -> Direction {
        Direction::Export
    }

    fn files(&self) -> &[DataFile] {
        &self.files
    }

    fn output(&self, position: usize) -> Output {
        let (file, tensor) = self.planned(position);
        Output {
            file,
            // Shards take the tensors in the order in which they were planned.
            subject: self.plan.ordered[position],
            region: Region::whole(&tensor.shape),
            dtype: tensor.dtype,
            data: tensor.range,
            frame: None,
        }
    }

    fn entry(&self, position: usize) -> Entry {
        let (_, tensor) = self.planned(position);
        Entry {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            region: Region::whole(&tensor.shape),
        }
    }

    fn reading(&self, subject: usize) -> Reading {
        Reading::plain(self.plan.stored[subject])
    }

    fn parts(&self, subject: usize, region: &Region) -> Result<Vec<Part<'_>>, Error> {
        let pieces = self.pieces[subject].iter();
        let pieces = pieces.filter(|piece| params::touches(&piece.tensor_region, region));
        let part = |piece: &&Piece| {
            // Only what the unit takes of the param: each of its chunks is looked up in its file.
            let common = piece.tensor_region.intersection(region);
            let output = common.unwrap_or_else(|| piece.tensor_region.clone());
            let input = Region::corresponding(&output, &piece.tensor_region, &piece.param_region);
            self.param(piece.param, output, input)
        };
        pieces.map(part).collect()
    }

    fn fixed(&self, file: usize, write: WriteAt<'_>) -> Result<(), Error> {
        write(0, &self.plan.files.shards[file].header_bytes)
    }

    fn check_before(&self, progress: &dyn Progress) -> Result<(), Error> {
        match self.plan.verifies_checksums {
            true => params::verify_digests(&self.plan.source.checkpoint, progress),
            false => Ok(()),
        }
    }

    fn check_after(&self, progress: &dyn Progress) -> Result<(), Error> {
        match self.plan.verifies_checksums {
            true => self
                .plan
                .params
                .finish_checks(&self.plan.source.checkpoint, progress),
            false => Ok(()),
        }
    }

    fn write_small(&self, small: &mut SmallFiles<'_>) -> Result<(), Error> {
        let config = &self.plan.source.config;
        let edited = config.config.edited(&self.plan.edits);
        small.write(hf::CONFIG_FILE, edited.as_bytes())?;
        small.copy(config.store.as_ref(), &config.side_files, "")?;
        small.write(INDEX_FILE, &self.plan.files.index_bytes)
    }

    fn small_bytes(&self) -> u64 {
        let index = self.plan.files.index_bytes.len() as u64;
        index + total_bytes(&self.plan.source.config.side_files)
    }

    fn planned_stamps(&self) -> &BTreeMap<String, Stamp> {
        &self.plan.source.stamps
    }

    fn stamps(&self) -> Result<BTreeMap<String, Stamp>, Error> {
        let MegatronSource { run, config, .. } = &self.plan.source;
        let mut all = stamps(run.store.as_ref(), "")?;
        // What an import kept is among them.
        if self.plan.source.has_reference() {
            all.extend(stamps(config.store.as_ref(), "config/")?);
        }
        Ok(all)
    }

    fn identify(&self, hasher: &mut blake3::Hasher) {
        let plan = self.plan;
        let mut say = |text: String| {
            hasher.update(text.as_bytes());
        };
        say(format!("{:?}\n", plan.edits));
        for piece in plan.mapping.pieces() {
            say(format!("{piece:?}\n"));
        }
        for shard in &plan.files.shards {
            say(format!("{:?}\n", shard.tensors));
        }
        hasher.update(plan.source.config().text().as_bytes());
        hasher.update(&plan.source.checkpoint.metadata().encode());
    }
}
