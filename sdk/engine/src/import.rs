//! Hugging Face to Megatron: the plan, and running it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rialto_bridge::binding::TensorBinding;
use rialto_bridge::{
    Bridge, Claim, Codec, Forms, KeyDecl, LayerAxis, MapOptions, Mapping, ModelSpec, Piece,
    PipelineLayout, PipelineRequest, Placement, RawConfig, StoredTensor, settings,
};
use rialto_checkpoint::hf::{self, HfCheckpoint};
use rialto_checkpoint::run_config::{RUN_CONFIG, run_config_yaml};
use rialto_checkpoint::safetensors::PlannedShard;
use rialto_checkpoint::store::{Store, Target};
use rialto_checkpoint::torch_dist::{self, Body, FilePlan};
use rialto_tensor::held::Held;
use rialto_tensor::{Dtype, Region};

use crate::array::Values;
use crate::assemble::{BAND_BYTES, Part, assemble};
use crate::beside::{self, BESIDE_FILE};
use crate::data_files::{ChunkWriter, place};
use crate::padding;
use crate::params::touches;
use crate::progress::step;
use crate::reading::{Format, forms_of};
use crate::side_files::{SOURCE_DIRECTORY, copy, total_bytes, write};
use crate::stages::{self, Suggestions};
use crate::summary::{self, Direction, Encoded, Side, Skipped, Summary};
use crate::total::add;
use crate::{Error, Options, Progress, copies, encoded, ignored};

/// The iteration that an import writes: nothing has been trained yet.
const ITERATION: u64 = 0;

/// The config of a Hugging Face directory, for finding the family that takes it.
pub fn source_config(store: &dyn Store) -> Result<RawConfig, Error> {
    Ok(RawConfig::parse(&hf::read_config(store)?)?)
}

/// All that an import will do, before it does anything: every violation has been found, every offset is known.
#[derive(Debug)]
pub struct ImportPlan {
    source: Option<HfCheckpoint>,
    config: RawConfig,
    spec: ModelSpec,
    layout: PipelineLayout,
    placement: Placement,
    mapping: Mapping,
    binding: TensorBinding,
    /// For each position in the binding's inventory, the one in the source: what is ignored stands only in the latter.
    stored: Vec<usize>,
    codecs: Vec<Codec>,
    /// Dtype of each param as written.
    dtypes: Vec<Dtype>,
    /// Whether layers that are alike have keys of their own, which a loader must be told.
    has_per_layer: bool,
    files: FilePlan,
    /// The file of the params that Megatron has no place for, and their positions in its order.
    beside: Option<(PlannedShard, Vec<usize>)>,
    metadata: Vec<u8>,
    summary: Summary,
}

impl Held for ImportPlan {
    fn held_bytes(&self) -> u64 {
        let source = self.source.held_bytes();
        let bound = self.binding.held_bytes() + self.stored.held_bytes() + self.dtypes.held_bytes();
        let beside = self.beside.held_bytes();
        let files = self.files.held_bytes() + beside + self.metadata.held_bytes();
        source + self.mapping.held_bytes() + bound + files
    }
}

impl ImportPlan {
    /// Plans the import of a Hugging Face directory. One that holds only `config.json` gives a plan of the checkpoint that
    /// the config describes, in the published dtypes; it cannot be run.
    ///
    /// Reads headers, never weights. Errors: what is wrong with the directory, the config or the mapping, all of it.
    pub fn new(
        family: &dyn Bridge,
        store: Arc<dyn Store>,
        options: &Options,
    ) -> Result<ImportPlan, Error> {
        // Whose model it is comes first: files that nobody here can read need not be right.
        let config = source_config(store.as_ref())?;
        let reason = match family.claim(&config)? {
            Claim::Yes { reason, .. } => reason,
            Claim::No { reason } => return Err(Error::NotClaimed { reason }),
        };
        // Shards without their index are no checkpoint, and no config alone either: opening says what is missing.
        let source = if hf::holds_weight_files(store.as_ref())? {
            Some(HfCheckpoint::open(store)?)
        } else {
            None
        };
        settings::check_names(&options.settings)?;
        let map_options = MapOptions {
            mtp: options.mtp,
            settings: options.settings.clone(),
            pads_vocabulary: options.pads_vocabulary,
        };
        let mut spec = family.map_config(&config, &map_options)?;
        let layout = layout(family, &spec, options)?;
        let changes = settings::changes(&options.settings, &[&spec.provider, &layout.provider]);
        let set = summary::set_notices(&spec.provider, &changes);
        spec.provider.extend(changes);
        let map = family.weight_map(&spec)?;
        let codecs = family.codecs(&spec)?;
        let (forms, inventory) = match &source {
            Some(source) => {
                let inventory = inventory(source);
                let forms = forms_of(&map, Format::HuggingFace, &inventory)?;
                (forms, Some(inventory))
            }
            None => (Forms::own(&map), None),
        };
        let forms = forms.with_layer_axis(&map, options.layer_axis);
        let mapping = map.resolve_as(&forms)?;
        let mut inventory = match inventory {
            Some(inventory) => inventory,
            None => mapping.nominal_tensors("config.json", &codecs)?,
        };
        let (mapping, padding_notices) = if options.pads_vocabulary {
            padding::pad(mapping, &options.mesh)?
        } else {
            (mapping, Vec::new())
        };
        let held = |inventory: &[StoredTensor]| mapping.find_tensors(inventory, &codecs).violations;
        let (ignored, ignore_notices) =
            ignored::take_out(&mut inventory, &options.ignore, mapping.copies(), held)?;
        let stored = match &source {
            Some(source) => positions_in(source, &inventory),
            None => Vec::new(),
        };
        let binding = mapping.bind_tensors(&inventory, &codecs)?;
        let pairs = mapping.params().iter().zip(&binding.param_dtypes);
        let dtypes =
            pairs.map(|(param, &stored)| options.dtype.target(stored, mapping.rule(param.rule)));
        let dtypes: Vec<Dtype> = dtypes.collect::<Result<_, _>>()?;
        let placement = family.placement(&spec)?;
        let files = place(&placement, &mapping, &dtypes, options)?;
        let beside = beside::plan(&mapping, &dtypes)?;
        let metadata = files.metadata().encode();
        let mut plan = ImportPlan {
            summary: empty_summary(&spec, reason, options),
            source,
            config,
            spec,
            layout,
            placement,
            mapping,
            binding,
            stored,
            codecs,
            dtypes,
            has_per_layer: forms.has_per_layer(),
            files,
            beside,
            metadata,
        };
        plan.summary.skipped = ignored;
        plan.summarize(&inventory)?;
        let parts = stages::parts(&plan.mapping, &plan.dtypes, &plan.placement, &options.mesh)?;
        plan.summary.stages = stages::shares(&plan.layout.stages, &parts, &options.mesh)?;
        plan.summary.notices.extend(set);
        plan.summary.notices.extend(ignore_notices);
        plan.summary.notices.extend(forms.notices(&map));
        plan.summary.notices.extend(padding_notices);
        if options.layer_axis == LayerAxis::PerLayer && !plan.has_per_layer {
            let notice =
                "--layer-axis changes nothing: this model's layers have keys of their own anyway";
            plan.summary.notices.push(notice.to_owned());
        }
        let kept = beside::notices(&plan.mapping);
        plan.summary.notices.extend(kept);
        tracing::info!(target: "rialto::engine", tensors = plan.summary.source.tensors, "import planned");
        Ok(plan)
    }

    /// What it will do, in numbers.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The sizes of each dimension of a mesh that fit, and what the largest rank holds at each number of stages. The mesh of
    /// `options` gives the other sizes, which need not be the plan's.
    ///
    /// Errors: [`rialto_bridge::Error::Mesh`] if those do not divide the model.
    pub fn suggest(&self, family: &dyn Bridge, options: &Options) -> Result<Suggestions, Error> {
        let (mapping, placement) = (&self.mapping, &self.placement);
        stages::suggest(
            family,
            &self.spec,
            mapping,
            &self.dtypes,
            placement,
            options,
        )
    }

    /// The model as the family read it.
    #[must_use]
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The tensors, params and pieces.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The data files and every item in them.
    #[must_use]
    pub fn files(&self) -> &FilePlan {
        &self.files
    }

    /// Writes the run directory into `target` and commits it.
    ///
    /// Errors: [`Error::NoWeights`] for a plan from a config alone; what the stores say; [`Error::Cancelled`]. After any
    /// error the target is as it was before.
    pub fn run(
        &self,
        family: &dyn Bridge,
        target: Box<dyn Target>,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let Some(source) = &self.source else {
            return Err(Error::NoWeights {
                place: "the source".to_owned(),
            });
        };
        let data: u64 = self.files.files().iter().map(|file| file.len).sum();
        let kept = self.beside.as_ref().map_or(0, |(shard, _)| shard.len);
        let beside = self.metadata.len() as u64 + total_bytes(source.side_files());
        target.require_bytes(data + kept + beside)?;
        for &(tensor, position) in &self.binding.copies {
            let [tensor, copy] = [self.binding.tensors[tensor], position]
                .map(|position| &source.tensors()[self.stored[position]]);
            copies::check(source, tensor, copy, progress)?;
        }
        progress.begin("import", self.summary.target.bytes);
        let written = self.write_all(family, source, target.as_ref(), progress);
        progress.end();
        written?;
        target.commit()?;
        tracing::info!(target: "rialto::engine", bytes = self.summary.target.bytes, "import committed");
        Ok(())
    }

    fn write_all(
        &self,
        family: &dyn Bridge,
        source: &HfCheckpoint,
        target: &dyn Target,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let iteration = torch_dist::iteration_directory(ITERATION);
        let inside = |name: &str| format!("{iteration}/{name}");
        self.write_data(family, source, target, &inside, progress)?;
        let kept = inside(SOURCE_DIRECTORY);
        self.write_beside(family, source, target, &kept, progress)?;
        write(
            target,
            &format!("{kept}config.json"),
            self.config.text().as_bytes(),
        )?;
        copy(
            source.store().as_ref(),
            source.side_files(),
            target,
            &kept,
            progress,
        )?;
        write(
            target,
            &inside("common.pt"),
            &torch_dist::common_pt(ITERATION, self.has_per_layer),
        )?;
        write(
            target,
            &inside("train_state.pt"),
            &torch_dist::train_state_pt(ITERATION),
        )?;
        write(
            target,
            "latest_train_state.pt",
            &torch_dist::train_state_pt(ITERATION),
        )?;
        let mut provider = self.spec.provider.clone();
        provider.extend(self.layout.provider.clone());
        provider.sort_keys();
        write(
            target,
            &inside(RUN_CONFIG),
            &run_config_yaml(&self.spec.provider_target, &provider)?,
        )?;
        // Readers take these three for the sign that the rest is there.
        write(target, &inside(".metadata"), &self.metadata)?;
        write(
            target,
            &inside("metadata.json"),
            &torch_dist::description_bytes(),
        )?;
        write(
            target,
            torch_dist::TRACKER_FILE,
            &torch_dist::tracker_bytes(ITERATION),
        )
    }

    fn write_data(
        &self,
        family: &dyn Bridge,
        source: &HfCheckpoint,
        target: &dyn Target,
        inside: &dyn Fn(&str) -> String,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let keys = self.mapping.keys().iter();
        let keys: HashMap<(&str, Option<u64>), &KeyDecl> = keys
            .map(|key| ((key.name.as_str(), key.slot), key))
            .collect();
        let pieces = by_param(&self.mapping);
        // The plan lists the items file by file.
        for items in self.files.items().chunk_by(|a, b| a.file == b.file) {
            let file = &self.files.files()[items[0].file];
            let sink = target.create(&inside(&file.name))?;
            for item in items {
                match &item.body {
                    Body::Object(bytes) => sink.write_at(item.offset, bytes)?,
                    Body::Chunk {
                        region,
                        item: layout,
                    } => {
                        let slot = region.offsets().first().copied();
                        let stack = keys.get(&(&*item.name, slot));
                        let key = stack.unwrap_or_else(|| &keys[&(&*item.name, None)]);
                        let region = key.in_param(region).expect("it was made from the key");
                        let mut writer = ChunkWriter::begin(sink.as_ref(), item, layout)?;
                        self.write_chunk(
                            family,
                            source,
                            key.param,
                            &pieces[key.param],
                            &region,
                            &mut |band| step(progress, band, |band| writer.write(band)),
                        )?;
                        writer.end(layout)?;
                    }
                }
            }
            sink.sync()?;
        }
        Ok(())
    }

    /// Writes the params that Megatron has no place for.
    fn write_beside(
        &self,
        family: &dyn Bridge,
        source: &HfCheckpoint,
        target: &dyn Target,
        kept: &str,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let Some((shard, params)) = &self.beside else {
            return Ok(());
        };
        let pieces = by_param(&self.mapping);
        let sink = target.create(&format!("{kept}{BESIDE_FILE}"))?;
        sink.write_at(0, &shard.header_bytes)?;
        for (tensor, &param) in shard.tensors.iter().zip(params) {
            let mut offset = tensor.range.start;
            let whole = Region::whole(&tensor.shape);
            self.write_chunk(family, source, param, &pieces[param], &whole, &mut |band| {
                step(progress, band, |band| Ok(sink.write_at(offset, band)?))?;
                offset += band.len() as u64;
                Ok(())
            })?;
        }
        Ok(sink.sync()?)
    }

    fn write_chunk(
        &self,
        family: &dyn Bridge,
        source: &HfCheckpoint,
        param: usize,
        pieces: &[&Piece],
        region: &Region,
        emit: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let pieces: Vec<&Piece> = pieces
            .iter()
            .copied()
            .filter(|piece| touches(&piece.param_region, region))
            .collect();
        let arrays = pieces
            .iter()
            .map(|piece| self.values(family, source, piece.tensor));
        let arrays: Vec<Box<dyn Values + '_>> = arrays.collect();
        let parts: Vec<Part<'_>> = pieces
            .iter()
            .zip(&arrays)
            .map(|(piece, array)| Part {
                output: &piece.param_region,
                array: array.as_ref(),
                input: &piece.tensor_region,
            })
            .collect();
        assemble(region, self.dtypes[param], &parts, emit)
    }

    /// A tensor of the source, decoded if it is encoded.
    fn values<'a>(
        &'a self,
        family: &'a dyn Bridge,
        source: &'a HfCheckpoint,
        tensor: usize,
    ) -> Box<dyn Values + 'a> {
        let at = |position: usize| &source.tensors()[self.stored[position]];
        let stored = at(self.binding.tensors[tensor]);
        let encoding = self.binding.encodings[tensor].as_ref();
        encoded::values(Some(family), &self.codecs, source, stored, encoding, at)
    }

    fn summarize(&mut self, inventory: &[StoredTensor]) -> Result<(), Error> {
        let decode_bytes = self.largest_decode_bytes(inventory)?;
        let summary = &mut self.summary;
        summary.groups = summary::groups(&self.mapping)?;
        for &position in &self.binding.tensors {
            let stored = &inventory[position];
            summary.source.count(&stored.shape, stored.dtype)?;
        }
        for encoding in self.binding.encodings.iter().flatten() {
            let (codec, companions) = encoding;
            let mut bytes = 0;
            for &position in companions {
                let stored = &inventory[position];
                add(&mut bytes, stored.shape.size_bytes(stored.dtype)?)?;
            }
            let name = &self.codecs[*codec].name;
            Encoded::count(&mut summary.encoded, name, companions.len() as u64, bytes)?;
            add(&mut summary.source.bytes, bytes)?;
        }
        // A stack is one tensor, which the first of its params stands for.
        let is_first = |key: &&KeyDecl| key.slot.is_none_or(|slot| slot == 0);
        for key in self.mapping.keys().iter().filter(is_first) {
            summary.target.count(&key.shape, self.dtypes[key.param])?;
        }
        let dtypes = self.mapping.params().iter().zip(&self.dtypes);
        summary
            .notices
            .extend(summary::dtype_notice(&self.spec, dtypes));
        summary.target.objects = self.mapping.objects().len() as u64;
        summary.target.files = self.files.files().len() as u64;
        for (rule, position) in &self.binding.skipped {
            let reason = self.mapping.rule(*rule).skip.clone().unwrap_or_default();
            let elements = inventory[*position].shape.elements()?;
            Skipped::count(&mut summary.skipped, &reason, elements)?;
        }
        for &(tensor, position) in &self.binding.copies {
            let (tensor, copy) = (&self.mapping.tensors()[tensor], &inventory[position]);
            let reason = format!(
                "{} repeats {}: an import compares them and carries one",
                copy.name, tensor.name
            );
            Skipped::count(&mut summary.skipped, &reason, copy.shape.elements()?)?;
        }
        if let Some(&first) = self.binding.aliases.first() {
            summary.notices.push(format!(
                "scales taken under another name than the published one, which their shapes prove: {}, the first of them {}",
                self.binding.aliases.len(),
                inventory[first].name
            ));
        }
        summary.notices.extend(summary::spec_notices(&self.spec));
        if let Some(source) = &self.source {
            summary.source.files = source.files().len() as u64;
            summary.side_files = source.side_files().len() as u64;
            summary.notices.extend(source.notes().iter().cloned());
            if source.side_files().is_empty() {
                summary.notices.push(
                    "the source has no side files (tokenizer, generation config, templates)"
                        .to_owned(),
                );
            }
        }
        // The inventory is gone when the plan is there, and was not when it was made.
        let index_bytes = self.held_bytes() + inventory.held_bytes();
        self.summary.index_bytes = index_bytes;
        self.summary.peak_host_bytes = 2 * BAND_BYTES + decode_bytes + index_bytes;
        Ok(())
    }

    /// Memory for decoding: the blocks around a band, once as stored and once decoded.
    fn largest_decode_bytes(&self, inventory: &[StoredTensor]) -> Result<u64, Error> {
        let mut largest = 0;
        let bound = self.binding.tensors.iter().zip(&self.binding.encodings);
        for (tensor, (&position, encoding)) in self.mapping.tensors().iter().zip(bound) {
            let Some((codec, _)) = encoding else { continue };
            let (codec, stored) = (&self.codecs[*codec], &inventory[position]);
            let width = codec.decoded.size_bytes();
            // A band lies in at most one block more than it fills at each of its ends.
            let block = codec.block.iter().copied().max().unwrap_or(1);
            let row = tensor.shape.extents().last().copied().unwrap_or(1);
            let elements = BAND_BYTES / width + 2 * block.saturating_mul(row);
            let elements = elements.min(tensor.shape.elements()?);
            largest = largest.max(elements * (width + stored.dtype.size_bytes()));
        }
        Ok(largest)
    }
}

/// What the source holds, in the words of the mapping.
pub(crate) fn inventory(source: &HfCheckpoint) -> Vec<StoredTensor> {
    let stored = source.tensors().iter().map(|tensor| StoredTensor {
        name: tensor.name.clone(),
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        place: source.files()[tensor.file].name.clone(),
    });
    stored.collect()
}

/// Where in the source each tensor of an inventory stands that was taken from it.
fn positions_in(source: &HfCheckpoint, inventory: &[StoredTensor]) -> Vec<usize> {
    let kept: HashSet<&str> = inventory
        .iter()
        .map(|stored| stored.name.as_str())
        .collect();
    let all = source.tensors().iter().enumerate();
    let stored = all.filter(|(_, tensor)| kept.contains(tensor.name.as_str()));
    stored.map(|(position, _)| position).collect()
}

/// Positions of the pieces of each param.
fn by_param(mapping: &Mapping) -> Vec<Vec<&Piece>> {
    let mut pieces = vec![Vec::new(); mapping.params().len()];
    for piece in mapping.pieces() {
        pieces[piece.param].push(piece);
    }
    pieces
}

/// The stages as asked for, held against the model.
fn layout(
    family: &dyn Bridge,
    spec: &ModelSpec,
    options: &Options,
) -> Result<PipelineLayout, Error> {
    let request = PipelineRequest {
        mesh: options.mesh,
        stages: options.stages.clone(),
    };
    let layout = family.pipeline_layout(spec, &request)?;
    settings::check_layout(&layout, &options.settings)?;
    let (stages, pp, layers) = (layout.stages.len(), options.mesh.pp, spec.dims.layers);
    if !layout.is_partition_of(layers) || stages as u64 != pp {
        return Err(Error::Layout { stages, pp, layers });
    }
    Ok(layout)
}

fn empty_summary(spec: &ModelSpec, reason: String, options: &Options) -> Summary {
    Summary {
        direction: Direction::Import,
        release: spec.release.clone(),
        reason,
        architecture: spec.architecture.clone(),
        mesh: Some(options.mesh),
        chunks: Some(options.chunks),
        dtype: options.dtype,
        layers: spec.dims.layers,
        mtp_layers: spec.dims.mtp_layers,
        source: Side::default(),
        target: Side::default(),
        encoded: Vec::new(),
        groups: Vec::new(),
        skipped: Vec::new(),
        stages: Vec::new(),
        side_files: 0,
        peak_host_bytes: 0,
        index_bytes: 0,
        notices: Vec::new(),
    }
}
