//! Hugging Face to Megatron: the plan, and running it.

mod importing;
mod on_device;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use rialto_backend::Backend;
use rialto_bridge::binding::TensorBinding;
use rialto_bridge::{
    Bridge, Claim, Codec, Forms, KeyDecl, LayerAxis, MapOptions, Mapping, ModelSpec,
    PipelineLayout, PipelineRequest, Placement, RawConfig, StoredTensor, settings,
};
use rialto_checkpoint::hf::{self, HfCheckpoint};
use rialto_checkpoint::safetensors::PlannedShard;
use rialto_checkpoint::store::{Stamp, Store, Target};
use rialto_checkpoint::torch_dist::FilePlan;
use rialto_tensor::Dtype;
use rialto_tensor::held::Held;

use crate::data_files::place;
use crate::decoder::Decoder;
use crate::export::is_megatron;
use crate::reading::{Format, forms_of};
use crate::run::{self, DEFAULT_MEMORY_BUDGET_BYTES, RunOptions, RunReport};
use crate::side_files::stamps;
use crate::stages::{self, Suggestions};
use crate::summary::{self, Direction, Encoded, Side, Skipped, Summary};
use crate::total::add;
use crate::{Error, Filter, Options, Progress, beside, error, padding, unmapped};
pub(crate) use importing::Importing;

/// The iteration that an import writes: nothing has been trained yet.
const ITERATION: u64 = 0;

/// The config of a Hugging Face directory, for finding the family that takes it.
///
/// Errors: [`Error::OtherFormat`] for a Megatron checkpoint; those of reading and of [`RawConfig::parse`].
pub fn source_config(store: &dyn Store) -> Result<RawConfig, Error> {
    match hf::read_config(store) {
        Ok(bytes) => parse_config(&bytes, store),
        Err(rialto_checkpoint::Error::NotFound { .. }) if is_megatron(store)? => {
            Err(Error::OtherFormat {
                place: store.name().to_owned(),
                found: error::MEGATRON,
                expected: error::HUGGING_FACE,
            })
        }
        Err(error) => Err(error.into()),
    }
}

/// The config of a directory, from the bytes of its file. An error names the file, as there may be several.
///
/// Errors: those of [`RawConfig::parse`].
pub fn parse_config(bytes: &[u8], store: &dyn Store) -> Result<RawConfig, Error> {
    use rialto_bridge::Error::ConfigSyntax;
    let named = |error| match error {
        ConfigSyntax { reason } => ConfigSyntax {
            reason: format!("{reason} ({}/{})", store.name(), hf::CONFIG_FILE),
        },
        other => other,
    };
    Ok(RawConfig::parse(bytes).map_err(named)?)
}

/// All that an import will do, before it does anything: every violation has been found, every offset is known.
#[derive(Debug)]
pub struct ImportPlan {
    source: Option<HfCheckpoint>,
    /// What its files looked like before anything was read.
    stamps: BTreeMap<String, Stamp>,
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
    /// For each tensor and each param of the mapping whether it is converted.
    kept: (Vec<bool>, Vec<bool>),
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
        // Before anything is read: a file that changes from here on is another than the one that was planned with.
        let stamps = stamps(store.as_ref(), "")?;
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
        let (mut skipped, unmapped_notices) = unmapped::take_out(
            &mut inventory,
            &options.allow_unmapped,
            mapping.copies(),
            held,
        )?;
        let stored = match &source {
            Some(source) => positions_in(source, &inventory),
            None => Vec::new(),
        };
        let binding = mapping.bind_tensors(&inventory, &codecs)?;
        let pairs = mapping.params().iter().zip(&binding.param_dtypes);
        let dtypes =
            pairs.map(|(param, &stored)| options.dtype.target(stored, mapping.rule(param.rule)));
        let dtypes: Vec<Dtype> = dtypes.collect::<Result<_, _>>()?;
        let (tensors, filtered) = options.filter.tensors(&mapping)?;
        let params = Filter::params(&mapping, &tensors)?;
        skipped.extend(filtered);
        let placement = family.placement(&spec)?;
        let files = place(&placement, &mapping, &params, &dtypes, options)?;
        let beside = beside::plan(&mapping, &params, &dtypes)?;
        let metadata = files.metadata().encode();
        let mut plan = ImportPlan {
            summary: empty_summary(&spec, reason, options),
            source,
            stamps,
            config,
            spec,
            layout,
            placement,
            mapping,
            binding,
            stored,
            codecs,
            dtypes,
            kept: (tensors, params),
            has_per_layer: forms.has_per_layer(),
            files,
            beside,
            metadata,
        };
        plan.summary.skipped = skipped;
        plan.summarize(&inventory)?;
        if options.filter.is_all() {
            // A part of a model is nothing that a rank would hold.
            let parts = stages::parts(&plan.mapping, &plan.dtypes, &plan.placement, &options.mesh)?;
            plan.summary.stages = stages::shares(&plan.layout.stages, &parts, &options.mesh)?;
        }
        plan.summary.notices.extend(set);
        plan.summary.notices.extend(unmapped_notices);
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

    /// Whether a directory is what this plan makes: of several processes one that comes when all is done finds it so.
    ///
    /// Errors: [`Error::NoWeights`], and what looking at the source says.
    pub fn has_made(
        &self,
        family: &dyn Bridge,
        options: &RunOptions,
        store: &dyn Store,
    ) -> Result<bool, Error> {
        run::has_made(&Importing::new(self, family)?, options, store)
    }

    /// The dtype in which each param is written.
    pub(crate) fn dtypes(&self) -> &[Dtype] {
        &self.dtypes
    }

    /// For each tensor and each param of the mapping whether it is converted.
    pub(crate) fn kept(&self) -> (&[bool], &[bool]) {
        (&self.kept.0, &self.kept.1)
    }

    /// The data files and every item in them.
    #[must_use]
    pub fn files(&self) -> &FilePlan {
        &self.files
    }

    /// Writes the run directory into `target` and commits it; of several processes the first does the latter.
    ///
    /// Errors: [`Error::NoWeights`] for a plan from a config alone; those of [`crate::run`].
    pub fn run(
        &self,
        family: &dyn Bridge,
        target: Box<dyn Target>,
        options: &RunOptions,
        progress: &dyn Progress,
    ) -> Result<RunReport, Error> {
        let importing = Importing::new(self, family)?;
        run::run(&importing, &self.summary, target, options, progress)
    }

    /// [`ImportPlan::run`] with blocks decoded by a device, where what is stored means what `rialto.dequantize_block/1` does: E4M3
    /// codes of a codec that the model's program lists. The rest is decoded by the family, and [`RunReport::device`] says which
    /// tensors and why.
    ///
    /// The result is that of [`ImportPlan::run`], byte for byte, so an attempt with a device is gone on with by one without, and the
    /// other way round. A sample of what is stored is decoded by both first: bytes are compared, and `progress` is told which
    /// of the two is faster. Lanes share the device.
    ///
    /// What is held on top of the memory budget:
    /// * the device's buffers: half of the budget at most and never more than 128 MiB, unless one block takes more; and what the
    ///   backend passes bytes through;
    /// * before the first lane begins, the sample. A rectangle of it has 2^20 elements, or those of the whole blocks around them. There
    ///   are as many as have 8 MiB of codes, with their scales, and for each lane two in BF16: one decoded by the device, and one to
    ///   compare it with;
    /// * from then on, for all lanes together, one rectangle in BF16 to compare with: that of the largest band, 2 MiB at most, with
    ///   the blocks that it begins and ends in.
    ///
    /// Errors: those of [`ImportPlan::run`]; [`Error::Device`] if the device does not run the operation, or stops, which keeps
    /// what is done as other failures do; [`Error::DeviceDiffers`] if it makes other bytes, after which a run by one process
    /// keeps nothing that the device had a part in.
    pub fn run_on(
        &self,
        device: &Arc<dyn Backend>,
        family: &dyn Bridge,
        target: Box<dyn Target>,
        options: &RunOptions,
        progress: &dyn Progress,
    ) -> Result<RunReport, Error> {
        let (spec, codecs) = (&self.spec, &self.codecs);
        let decoder = Decoder::new(device, family, spec, codecs, options.memory_budget_bytes)?;
        let importing = Importing::new(self, family)?.on(&decoder);
        run::run(&importing, &self.summary, target, options, progress)
    }

    /// Counts what is converted.
    fn summarize(&mut self, inventory: &[StoredTensor]) -> Result<(), Error> {
        let (tensors, params) = (&self.kept.0, &self.kept.1);
        let summary = &mut self.summary;
        summary.groups = summary::groups(&self.mapping, tensors, params)?;
        let bound = self.binding.tensors.iter().zip(&self.binding.encodings);
        let read: Vec<_> = bound
            .zip(tensors)
            .filter(|(_, is_read)| **is_read)
            .collect();
        for ((position, _), _) in &read {
            let stored = &inventory[**position];
            summary.source.count(&stored.shape, stored.dtype)?;
        }
        for (codec, companions) in read
            .iter()
            .filter_map(|((_, encoding), _)| encoding.as_ref())
        {
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
        let written = self.mapping.keys().iter().filter(|key| params[key.param]);
        for key in written.filter(is_first) {
            summary.target.count(&key.shape, self.dtypes[key.param])?;
        }
        let dtypes = self.mapping.params().iter().zip(&self.dtypes);
        summary
            .notices
            .extend(summary::dtype_notice(&self.spec, dtypes));
        summary.target.objects = self.files.metadata().objects.len() as u64;
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
        self.summary.set_memory(DEFAULT_MEMORY_BUDGET_BYTES, 0);
        Ok(())
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
        device_bytes: 0,
        notices: Vec::new(),
    }
}
