//! An import as it is run: chunks of params from tensors.

use std::collections::{BTreeMap, HashMap};

use rialto_bridge::{Bridge, KeyDecl, Piece};
use rialto_checkpoint::hf::{HfCheckpoint, HfTensor};
use rialto_checkpoint::run_config::{RUN_CONFIG, run_config_yaml};
use rialto_checkpoint::store::Stamp;
use rialto_checkpoint::torch_dist::{self, Body, PlannedItem};
use rialto_tensor::{Dtype, Region};

use super::{ITERATION, ImportPlan};
use crate::array::Values;
use crate::assemble::Part;
use crate::beside::BESIDE_FILE;
use crate::decoder::Decoder;
use crate::encoded::{self, Encoded};
use crate::params::touches;
use crate::run::{Conversion, DataFile, Entry, Frame, Output, Reading, SmallFiles, WriteAt};
use crate::side_files::{SOURCE_DIRECTORY, stamps, total_bytes};
use crate::{DeviceReport, Direction, Error, Progress, copies};

/// A plan with its source and its family.
pub(crate) struct Importing<'a> {
    pub(super) plan: &'a ImportPlan,
    pub(super) family: &'a dyn Bridge,
    source: &'a HfCheckpoint,
    /// What decodes tensors in the family's place.
    pub(super) decoder: Option<&'a Decoder>,
    keys: HashMap<(&'a str, Option<u64>), &'a KeyDecl>,
    /// The pieces of each param.
    pieces: Vec<Vec<&'a Piece>>,
    readings: Vec<Reading>,
    files: Vec<DataFile>,
    /// The items that are chunks: outputs by position, before those that are kept beside.
    chunks: Vec<&'a PlannedItem>,
}

impl<'a> Importing<'a> {
    /// Errors: [`Error::NoWeights`].
    pub(crate) fn new(
        plan: &'a ImportPlan,
        family: &'a dyn Bridge,
    ) -> Result<Importing<'a>, Error> {
        let Some(source) = &plan.source else {
            return Err(Error::NoWeights {
                place: "the source".to_owned(),
            });
        };
        let keys = plan.mapping.keys().iter();
        let keys = keys.map(|key| ((key.name.as_str(), key.slot), key));
        let mut pieces = vec![Vec::new(); plan.mapping.params().len()];
        for piece in plan.mapping.pieces() {
            pieces[piece.param].push(piece);
        }
        let is_chunk = |item: &&PlannedItem| matches!(item.body, Body::Chunk { .. });
        let chunks: Vec<&PlannedItem> = plan.files.items().iter().filter(is_chunk).collect();
        let mut importing = Importing {
            plan,
            family,
            source,
            decoder: None,
            keys: keys.collect(),
            readings: Vec::new(),
            files: Vec::new(),
            pieces,
            chunks,
        };
        importing.readings = (0..importing.pieces.len())
            .map(|param| importing.reading_of(param))
            .collect();
        importing.files = importing.data_files();
        Ok(importing)
    }

    /// The same with a device that decodes what it takes.
    pub(super) fn on(self, decoder: &'a Decoder) -> Importing<'a> {
        Importing {
            decoder: Some(decoder),
            ..self
        }
    }

    pub(crate) fn plan(&self) -> &'a ImportPlan {
        self.plan
    }

    /// The dtype in which each tensor of the mapping is written.
    pub(crate) fn tensor_dtypes(&self) -> Vec<Dtype> {
        let mut dtypes = vec![Dtype::Bf16; self.plan.mapping.tensors().len()];
        for piece in self.plan.mapping.pieces() {
            dtypes[piece.tensor] = self.plan.dtypes[piece.param];
        }
        dtypes
    }

    /// A tensor of the mapping, decoded if it is encoded.
    pub(crate) fn tensor(&self, tensor: usize) -> Box<dyn Values + Sync + '_> {
        match self.encoded(tensor) {
            Some(encoded) => Box::new(encoded),
            None => Box::new(encoded::stored(self.source, self.stored(tensor))),
        }
    }

    /// A tensor of the mapping with what decodes it, if it is encoded.
    pub(super) fn encoded(&self, tensor: usize) -> Option<Encoded<'_>> {
        let (codec, companions) = self.plan.binding.encodings[tensor].as_ref()?;
        let at = |&position: &usize| &self.source.tensors()[self.plan.stored[position]];
        let companions: Vec<_> = companions.iter().map(at).collect();
        let stored = self.stored(tensor);
        // Why a device does not take it is said once, in the report.
        let device = self.decoder;
        let device = device.filter(|device| device.takes(*codec, stored.dtype).is_ok());
        let codec = &self.plan.codecs[*codec];
        let encoded = Encoded::new(self.family, codec, self.source, stored, &companions);
        Some(encoded.on(device))
    }

    /// A name inside the iteration directory.
    fn inside(name: &str) -> String {
        format!("{}/{name}", torch_dist::iteration_directory(ITERATION))
    }

    fn kept(name: &str) -> String {
        Importing::inside(&format!("{SOURCE_DIRECTORY}{name}"))
    }

    fn data_files(&self) -> Vec<DataFile> {
        let planned = self.plan.files.files().iter().enumerate();
        let mut start = 0;
        let mut files: Vec<DataFile> = planned
            .map(|(number, file)| {
                let chunks = self.chunks[start..].iter();
                let end = start + chunks.take_while(|item| item.file == number).count();
                let outputs = start..end;
                start = end;
                DataFile {
                    name: Importing::inside(&file.name),
                    len: file.len,
                    outputs,
                }
            })
            .collect();
        if let Some((shard, params)) = &self.plan.beside {
            files.push(DataFile {
                name: Importing::kept(BESIDE_FILE),
                len: shard.len,
                outputs: start..start + params.len(),
            });
        }
        files
    }

    fn reading_of(&self, param: usize) -> Reading {
        let mut reading = Reading::plain(self.plan.binding.param_dtypes[param]);
        for piece in &self.pieces[param] {
            let Some((codec, _)) = &self.plan.binding.encodings[piece.tensor] else {
                continue;
            };
            let codec = &self.plan.codecs[*codec];
            let stored = self.stored(piece.tensor);
            reading.dtype = codec.decoded;
            reading.code_bytes = stored.dtype.size_bytes();
            // Blocks count from the last axis; 0 is a whole axis.
            let axes = codec
                .block
                .iter()
                .rev()
                .zip(stored.shape.extents().iter().rev());
            for ((&block, &extent), slot) in axes.zip(reading.block.iter_mut().rev()) {
                *slot = (*slot).max(if block == 0 { extent } else { block });
            }
        }
        reading
    }

    /// A tensor of the mapping in the source.
    pub(super) fn stored(&self, tensor: usize) -> &'a HfTensor {
        &self.source.tensors()[self.plan.stored[self.plan.binding.tensors[tensor]]]
    }

    fn key(&self, item: &PlannedItem, region: &Region) -> &'a KeyDecl {
        let slot = region.offsets().first().copied();
        let stack = self.keys.get(&(&*item.name, slot));
        stack.unwrap_or_else(|| &self.keys[&(&*item.name, None)])
    }

    /// What of the shard beside an output is, if it is not a chunk.
    fn kept_at(&self, position: usize) -> (&'a rialto_checkpoint::safetensors::Tensor, usize) {
        let beside = self.plan.beside.as_ref();
        let (shard, params) = beside.expect("positions beyond the chunks are kept beside");
        let at = position - self.chunks.len();
        (&shard.tensors[at], params[at])
    }
}

impl Conversion for Importing<'_> {
    fn direction(&self) -> Direction {
        Direction::Import
    }

    fn files(&self) -> &[DataFile] {
        &self.files
    }

    fn output(&self, position: usize) -> Output {
        let Some(item) = self.chunks.get(position) else {
            let (tensor, param) = self.kept_at(position);
            return Output {
                file: self.files.len() - 1,
                subject: param,
                region: Region::whole(&tensor.shape),
                dtype: tensor.dtype,
                data: tensor.range,
                frame: None,
            };
        };
        let Body::Chunk {
            region,
            item: layout,
        } = &item.body
        else {
            unreachable!("objects are no outputs")
        };
        let key = self.key(item, region);
        Output {
            file: item.file,
            subject: key.param,
            region: key.in_param(region).expect("it was made from the key"),
            dtype: layout.dtype(),
            data: item.data().expect("a chunk has data"),
            frame: Some(Frame {
                offset: item.offset,
                item: std::sync::Arc::clone(layout),
            }),
        }
    }

    fn entry(&self, position: usize) -> Entry {
        let Some(item) = self.chunks.get(position) else {
            let (tensor, _) = self.kept_at(position);
            return Entry {
                name: tensor.name.clone(),
                shape: tensor.shape.clone(),
                region: Region::whole(&tensor.shape),
            };
        };
        let Body::Chunk { region, .. } = &item.body else {
            unreachable!("objects are no outputs")
        };
        let planned = &self.plan.files.metadata().tensors[&*item.name];
        Entry {
            name: item.name.as_ref().to_owned(),
            shape: planned.shape.clone(),
            region: region.as_ref().clone(),
        }
    }

    fn reading(&self, subject: usize) -> Reading {
        self.readings[subject]
    }

    fn parts(&self, subject: usize, region: &Region) -> Result<Vec<Part<'_>>, Error> {
        let pieces = self.pieces[subject].iter();
        let pieces = pieces.filter(|piece| touches(&piece.param_region, region));
        let part = |piece: &&Piece| Part {
            output: piece.param_region.clone(),
            input: piece.tensor_region.clone(),
            values: self.tensor(piece.tensor),
        };
        Ok(pieces.map(part).collect())
    }

    fn fixed(&self, file: usize, write: WriteAt<'_>) -> Result<(), Error> {
        if file == self.plan.files.files().len() {
            let (shard, _) = self
                .plan
                .beside
                .as_ref()
                .expect("the last file is the one beside");
            return write(0, &shard.header_bytes);
        }
        let items = self.plan.files.items();
        let start = items.partition_point(|item| item.file < file);
        for item in items[start..].iter().take_while(|item| item.file == file) {
            if let Body::Object(bytes) = &item.body {
                write(item.offset, bytes)?;
            }
        }
        Ok(())
    }

    fn check_before(&self, progress: &dyn Progress) -> Result<(), Error> {
        for &(tensor, position) in &self.plan.binding.copies {
            let [tensor, copy] = [self.plan.binding.tensors[tensor], position]
                .map(|position| &self.source.tensors()[self.plan.stored[position]]);
            copies::check(self.source, tensor, copy, progress)?;
        }
        Ok(())
    }

    fn prepare(&self, lanes: usize, progress: &dyn Progress) -> Result<(), Error> {
        match self.decoder {
            Some(decoder) => self.sample(decoder, lanes, progress),
            None => Ok(()),
        }
    }

    fn device(&self) -> Option<DeviceReport> {
        let decoder = self.decoder?;
        Some(decoder.report(self.share(decoder)))
    }

    fn device_bytes(&self, lanes: usize, budget_bytes: u64) -> u64 {
        let largest = self.decoder.and_then(|decoder| {
            let elements = self.largest_rectangle(decoder)?;
            Some(decoder.bytes_besides(elements, lanes as u64, budget_bytes))
        });
        largest.unwrap_or_default()
    }

    fn check_after(&self, _: &dyn Progress) -> Result<(), Error> {
        Ok(())
    }

    fn write_small(&self, small: &mut SmallFiles<'_>) -> Result<(), Error> {
        let (plan, inside) = (self.plan, Importing::inside);
        small.write(
            &Importing::kept("config.json"),
            plan.config.text().as_bytes(),
        )?;
        let store = self.source.store().as_ref();
        small.copy(store, self.source.side_files(), &Importing::kept(""))?;
        let common = torch_dist::common_pt(ITERATION, plan.has_per_layer);
        small.write(&inside("common.pt"), &common)?;
        let state = torch_dist::train_state_pt(ITERATION);
        small.write(&inside("train_state.pt"), &state)?;
        small.write("latest_train_state.pt", &state)?;
        let mut provider = plan.spec.provider.clone();
        provider.extend(plan.layout.provider.clone());
        provider.sort_keys();
        let yaml = run_config_yaml(&plan.spec.provider_target, &provider)?;
        small.write(&inside(RUN_CONFIG), &yaml)?;
        // Readers take these three for the sign that the rest is there.
        small.write(&inside(".metadata"), &plan.metadata)?;
        small.write(&inside("metadata.json"), &torch_dist::description_bytes())?;
        let tracker = torch_dist::tracker_bytes(ITERATION);
        small.write(torch_dist::TRACKER_FILE, &tracker)
    }

    fn small_bytes(&self) -> u64 {
        self.plan.metadata.len() as u64 + total_bytes(self.source.side_files())
    }

    fn planned_stamps(&self) -> &BTreeMap<String, Stamp> {
        &self.plan.stamps
    }

    fn stamps(&self) -> Result<BTreeMap<String, Stamp>, Error> {
        stamps(self.source.store().as_ref(), "")
    }

    /// The device is not among it: its bytes are those of the processor, so an attempt on one goes on with the other's.
    fn identify(&self, hasher: &mut blake3::Hasher) {
        let plan = self.plan;
        let family = self.family.describe();
        let mut say = |text: String| {
            hasher.update(text.as_bytes());
        };
        say(format!("{} {}\n", family.name, family.version));
        say(format!(
            "{:?} {:?} {:?}\n",
            plan.spec, plan.layout, plan.codecs
        ));
        for piece in plan.mapping.pieces() {
            let tensor = self.stored(piece.tensor);
            let encoding = &plan.binding.encodings[piece.tensor];
            say(format!("{piece:?} {tensor:?} {encoding:?}\n"));
        }
        hasher.update(plan.config.text().as_bytes());
        hasher.update(&plan.metadata);
    }
}
