//! Megatron to Hugging Face: the plan, and running it.

mod exporting;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use rialto_bridge::mapping::MTP_GROUP;
use rialto_bridge::{
    Bridge, Claim, ConfigEdit, KeyDecl, MapOptions, Mapping, ModelSpec, MtpPolicy, RawConfig,
    StoredTensor,
};
use rialto_checkpoint::hf::{self, HfPlan, INDEX_FILE, ShardLimit};
use rialto_checkpoint::store::{FileEntry, Stamp, Store, Subdirectory, Target};
use rialto_checkpoint::torch_dist::{
    METADATA_FILE, RunDirectory, TRACKER_FILE, TorchDistCheckpoint,
};
use rialto_tensor::Dtype;
use rialto_tensor::held::Held;
use serde_json::Value;

use crate::beside::{BESIDE_FILE, Beside};
use crate::padding;
use crate::params::{self, Params};
use crate::reading::{Format, Reading};
use crate::run::{self, DEFAULT_MEMORY_BUDGET_BYTES, RunOptions, RunReport};
use crate::side_files::{self, SOURCE_DIRECTORY};
use crate::summary::{self, Direction, Side, Skipped, Summary};
use crate::{Error, ExportOptions, Progress, error, order, source_config, unmapped};
pub(crate) use exporting::Exporting;

/// A Megatron checkpoint and the Hugging Face directory its config comes from: opened, not yet understood by a family.
#[derive(Debug)]
pub struct MegatronSource {
    run: RunDirectory,
    checkpoint: TorchDistCheckpoint,
    beside: Option<Beside>,
    config: ConfigSource,
    /// The config kept at import, when a reference takes its place.
    stored: Option<RawConfig>,
    /// What its files looked like before anything was read.
    stamps: BTreeMap<String, Stamp>,
}

/// Where the config and the side files of an export come from.
#[derive(Debug)]
pub struct ConfigSource {
    /// The config.
    pub config: RawConfig,
    /// Its directory.
    pub store: Arc<dyn Store>,
    /// The side files beside it.
    pub side_files: Vec<FileEntry>,
    /// Whether it is another directory than the checkpoint's.
    pub is_reference: bool,
}

impl MegatronSource {
    /// Opens a run directory or an iteration directory, and finds the config: in `reference` if one is given, else where
    /// an import kept it. Errors: [`Error::NoConfig`], and what is wrong with the checkpoint.
    pub fn open(
        store: Arc<dyn Store>,
        reference: Option<Arc<dyn Store>>,
    ) -> Result<MegatronSource, Error> {
        let run = match RunDirectory::resolve(Arc::clone(&store)) {
            Err(rialto_checkpoint::Error::NoTracker { .. }) if is_hugging_face(store.as_ref())? => {
                return Err(Error::OtherFormat {
                    place: store.name().to_owned(),
                    found: error::HUGGING_FACE,
                    expected: error::MEGATRON,
                });
            }
            run => run?,
        };
        let mut stamps = side_files::stamps(run.store.as_ref(), "")?;
        let checkpoint = TorchDistCheckpoint::open(Arc::clone(&run.store))?;
        let beside = Beside::open(run.store.as_ref())?;
        let kept = kept_directory(&run.store)?;
        let stored = MegatronSource::kept_config(&run.store)?;
        if let Some(reference) = &reference {
            stamps.extend(side_files::stamps(reference.as_ref(), "config/")?);
        }
        let (config, stored) = match (reference, stored) {
            (Some(reference), stored) => {
                let config = source_config(reference.as_ref())?;
                let side_files = hf::side_files(reference.as_ref())?;
                (
                    ConfigSource {
                        config,
                        store: reference,
                        side_files,
                        is_reference: true,
                    },
                    stored,
                )
            }
            (None, Some(config)) => {
                let files = kept.files()?.into_iter();
                let is_ours = |name: &str| name == hf::CONFIG_FILE || name == BESIDE_FILE;
                let side_files = files.filter(|file| !is_ours(&file.name)).collect();
                (
                    ConfigSource {
                        config,
                        store: kept,
                        side_files,
                        is_reference: false,
                    },
                    None,
                )
            }
            (None, None) => {
                let searched = vec![
                    format!("{}/{SOURCE_DIRECTORY}{}", run.store.name(), hf::CONFIG_FILE),
                    "--reference".to_owned(),
                ];
                return Err(Error::NoConfig {
                    place: run.store.name().to_owned(),
                    searched,
                });
            }
        };
        Ok(MegatronSource {
            run,
            checkpoint,
            beside,
            config,
            stored,
            stamps,
        })
    }

    /// The config that an import kept in an iteration directory, if one did.
    pub(crate) fn kept_config(iteration: &Arc<dyn Store>) -> Result<Option<RawConfig>, Error> {
        let kept = kept_directory(iteration)?;
        let mut files = kept.files()?.into_iter();
        if !files.any(|file| file.name == hf::CONFIG_FILE) {
            return Ok(None);
        }
        Ok(Some(source_config(kept.as_ref())?))
    }

    /// Whether config and side files come from somewhere else.
    pub(crate) fn has_reference(&self) -> bool {
        self.config.is_reference
    }

    /// The config, for finding the family that takes it.
    #[must_use]
    pub fn config(&self) -> &RawConfig {
        &self.config.config
    }

    /// The checkpoint itself.
    #[must_use]
    pub fn checkpoint(&self) -> &TorchDistCheckpoint {
        &self.checkpoint
    }

    /// Refuses a reference whose sizes are not those of the config kept at import, and says what else differs.
    fn check_reference(
        &self,
        family: &dyn Bridge,
        spec: &ModelSpec,
        options: &MapOptions,
        inventory: &[StoredTensor],
    ) -> Result<Vec<String>, Error> {
        let Some(config) = &self.stored else {
            return Ok(Vec::new());
        };
        let mut stored = family.map_config(config, options)?;
        if stored.dims.mtp_layers > spec.dims.mtp_layers {
            // An import may have left out what its config describes; then a reference that describes none is right.
            stored = Reading::of(family, config, Format::Megatron, inventory, &[])?.spec;
        }
        // Sizes must agree; other values are the user's to choose, and are named in the notices.
        let (ours, theirs) = (serde_json::json!(stored.dims), serde_json::json!(spec.dims));
        let sizes = differing(&ours, &theirs);
        let own = differing(&stored.own_sizes(), &spec.own_sizes());
        let differences = said_once(sizes, own);
        if differences.is_empty() {
            let (ours, theirs) = (
                Value::Object(stored.provider),
                Value::Object(spec.provider.clone()),
            );
            let lines = differing(&ours, &theirs);
            return Ok(lines
                .iter()
                .map(|line| format!("{line}; the reference is followed"))
                .collect());
        }
        let (reference, place) = (
            self.config.store.name().to_owned(),
            self.run.store.name().to_owned(),
        );
        Err(Error::ReferenceDiffers {
            reference,
            place,
            differences,
        })
    }
}

/// Where an import keeps what the Hugging Face side brought besides weights.
fn kept_directory(iteration: &Arc<dyn Store>) -> Result<Arc<dyn Store>, Error> {
    let name = SOURCE_DIRECTORY.trim_end_matches('/');
    Ok(Arc::new(Subdirectory::new(Arc::clone(iteration), name)?))
}

/// A field that has not one value in a reference and in the config kept at import.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Difference {
    field: String,
    in_reference: String,
    at_import: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference {
            field,
            in_reference,
            at_import,
        } = self;
        write!(
            f,
            "{field} is {in_reference} in the reference, {at_import} at import"
        )
    }
}

/// Every field that has not one value in both, in order of name.
fn differing(ours: &Value, theirs: &Value) -> Vec<Difference> {
    let empty = serde_json::Map::new();
    let [ours, theirs] = [ours, theirs].map(|side| side.as_object().unwrap_or(&empty));
    let mut fields: Vec<&String> = ours.keys().chain(theirs.keys()).collect();
    fields.sort();
    fields.dedup();
    let shown = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), Value::to_string);
    let differing = fields
        .into_iter()
        .filter(|field| ours.get(*field) != theirs.get(*field));
    let differing = differing.map(|field| Difference {
        field: field.clone(),
        in_reference: shown(theirs.get(field)),
        at_import: shown(ours.get(field)),
    });
    differing.collect()
}

/// The lines of all differences. A size that the SDK reads is mostly one that the family reads too: under the same name, and
/// then the SDK's is a number where the family's may be a list, or as the beginning of a longer name, which the config has.
fn said_once(mut sizes: Vec<Difference>, mut own: Vec<Difference>) -> Vec<String> {
    own.retain(|own| !sizes.iter().any(|size| size.field == own.field));
    sizes.retain(|size| {
        !own.iter().any(|own| {
            own.field.starts_with(&size.field)
                && (&own.in_reference, &own.at_import) == (&size.in_reference, &size.at_import)
        })
    });
    sizes.append(&mut own);
    sizes.sort();
    sizes.iter().map(ToString::to_string).collect()
}

/// All that an export will do, before it does anything.
#[derive(Debug)]
pub struct ExportPlan {
    source: MegatronSource,
    edits: Vec<ConfigEdit>,
    mapping: Mapping,
    params: Params,
    verifies_checksums: bool,
    /// The dtype that each tensor of the mapping is stored in.
    stored: Vec<Dtype>,
    /// For each tensor and each param of the mapping whether it is converted.
    kept: (Vec<bool>, Vec<bool>),
    /// For each tensor of `files`, its position in the mapping.
    ordered: Vec<usize>,
    files: HfPlan,
    summary: Summary,
}

impl ExportPlan {
    /// Plans the export of a Megatron checkpoint. Whether it has multi-token prediction is read from its keys.
    ///
    /// Reads metadata, never weights. Errors: what is wrong with the config or the mapping, all of it.
    pub fn new(
        family: &dyn Bridge,
        source: MegatronSource,
        options: &ExportOptions,
    ) -> Result<ExportPlan, Error> {
        let config = source.config();
        let reason = match family.claim(config)? {
            Claim::Yes { reason, .. } => reason,
            Claim::No { reason } => return Err(Error::NotClaimed { reason }),
        };
        let (mut inventory, training) =
            params::inventory(&source.checkpoint, source.beside.as_ref());
        let mut skipped = Vec::new();
        if options.mtp == MtpPolicy::Drop {
            skipped.extend(drop_mtp(family, config, &mut inventory)?);
        }
        let Reading {
            options: map_options,
            spec,
            map,
            mapping,
            forms,
        } = Reading::of(family, config, Format::Megatron, &inventory, &options.forms)?;
        let reference_notices = source.check_reference(family, &spec, &map_options, &inventory)?;
        let cut = padding::left_out(&mapping, &spec, source.run.store.as_ref())?;
        let held = |inventory: &[_]| mapping.find_params(inventory).violations;
        let (unmapped, unmapped_notices) =
            unmapped::take_out(&mut inventory, &options.allow_unmapped, &[], held)?;
        skipped.extend(unmapped);
        let params = Params::bind(&mapping, inventory)?;

        let (tensors_kept, filtered) = options.filter.tensors(&mapping)?;
        skipped.extend(filtered);
        let mut params_kept = vec![false; mapping.params().len()];
        for piece in mapping.pieces() {
            params_kept[piece.param] |= tensors_kept[piece.tensor];
        }
        let mut ordered: Vec<usize> = (0..mapping.tensors().len()).collect();
        ordered.retain(|&tensor| tensors_kept[tensor]);
        ordered.sort_by(|&a, &b| {
            order::natural(&mapping.tensors()[a].name, &mapping.tensors()[b].name)
        });
        let stored = stored_dtypes(&mapping, &params);
        let tensors = ordered.iter().map(|&position| {
            let tensor = &mapping.tensors()[position];
            let dtype = options
                .dtype
                .target(stored[position], mapping.rule(tensor.rule))?;
            Ok((tensor.name.clone(), dtype, tensor.shape.clone()))
        });
        let tensors = tensors.collect::<Result<Vec<_>, Error>>()?;
        let limit = match options.files {
            Some(files) => ShardLimit::Count(files),
            None => ShardLimit::Bytes(options.max_shard_bytes),
        };
        let files = HfPlan::new(tensors.clone(), limit)?;
        let edits = family.unmap_config(&spec, config)?;

        let found = source.checkpoint.metadata().held_bytes() + params.held_bytes();
        let index_bytes = found + mapping.held_bytes() + files.held_bytes() + ordered.held_bytes();
        let mut summary = Summary {
            direction: Direction::Export,
            release: spec.release.clone(),
            reason,
            architecture: spec.architecture.clone(),
            mesh: None,
            chunks: None,
            dtype: options.dtype,
            layers: spec.dims.layers,
            mtp_layers: spec.dims.mtp_layers,
            source: Side {
                objects: source.checkpoint.metadata().objects.len() as u64,
                ..Side::default()
            },
            target: Side {
                files: files.shards.len() as u64,
                ..Side::default()
            },
            encoded: Vec::new(),
            groups: summary::groups(&mapping, &tensors_kept, &params_kept)?,
            skipped,
            stages: Vec::new(),
            side_files: source.config.side_files.len() as u64,
            peak_host_bytes: 0,
            index_bytes,
            device_bytes: 0,
            notices: vec![source.run.note.clone()],
        };
        summary.set_memory(DEFAULT_MEMORY_BUDGET_BYTES, 0);
        for stored in params.stored(&mapping, &params_kept) {
            summary.source.count(&stored.shape, stored.dtype)?;
        }
        for (_, dtype, shape) in &tensors {
            summary.target.count(shape, *dtype)?;
        }
        summary.notices.extend(training);
        summary.notices.extend(unmapped_notices);
        summary.notices.extend(forms.notices(&map));
        summary.notices.extend(cut);
        summary.notices.extend(reference_notices);
        summary.notices.extend(summary::spec_notices(&spec));
        summary
            .notices
            .extend(source.checkpoint.notes().iter().cloned());
        summary
            .notices
            .extend(edits.iter().map(|edit| edit_notice(edit, config)));
        tracing::info!(target: "rialto::engine", tensors = summary.target.tensors, "export planned");
        Ok(ExportPlan {
            source,
            edits,
            mapping,
            params,
            verifies_checksums: options.verifies_checksums,
            stored,
            kept: (tensors_kept, params_kept),
            ordered,
            files,
            summary,
        })
    }

    /// Whether a directory is what this plan makes, as [`crate::ImportPlan::has_made`].
    pub fn has_made(&self, options: &RunOptions, store: &dyn Store) -> Result<bool, Error> {
        run::has_made(&Exporting::new(self), options, store)
    }

    /// For each tensor and each param of the mapping whether it is converted.
    pub(crate) fn kept(&self) -> (&[bool], &[bool]) {
        (&self.kept.0, &self.kept.1)
    }

    /// What it will do, in numbers.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The tensors, params and pieces.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Writes the Hugging Face directory into `target` and commits it; of several processes the first does the latter.
    ///
    /// Errors: those of [`crate::run`].
    pub fn run(
        &self,
        target: Box<dyn Target>,
        options: &RunOptions,
        progress: &dyn Progress,
    ) -> Result<RunReport, Error> {
        let exporting = Exporting::new(self);
        run::run(&exporting, &self.summary, target, options, progress)
    }
}

/// The stored dtype of each tensor: that of the param its first piece lies in.
fn stored_dtypes(mapping: &Mapping, params: &Params) -> Vec<Dtype> {
    let nominal = mapping
        .tensors()
        .iter()
        .map(|tensor| mapping.rule(tensor.rule).dtype.accepts[0]);
    let mut dtypes: Vec<Dtype> = nominal.collect();
    for piece in mapping.pieces() {
        dtypes[piece.tensor] = params.dtypes()[piece.param];
    }
    dtypes
}

/// Takes the params of multi-token prediction out, if there are any: what is left is a checkpoint that has none.
fn drop_mtp(
    family: &dyn Bridge,
    config: &RawConfig,
    inventory: &mut Vec<StoredTensor>,
) -> Result<Vec<Skipped>, Error> {
    let reading = Reading::of(family, config, Format::Megatron, inventory, &[])?;
    let mapping = &reading.mapping;
    let is_mtp = |key: &&KeyDecl| {
        let rule = mapping.rule(mapping.params()[key.param].rule);
        rule.group == MTP_GROUP
    };
    let keys = mapping.keys().iter().filter(is_mtp);
    let keys: HashSet<&str> = keys.map(|key| key.name.as_str()).collect();
    let mut skipped = Vec::new();
    for stored in inventory
        .iter()
        .filter(|stored| keys.contains(stored.name.as_str()))
    {
        Skipped::count(&mut skipped, "--mtp drop", stored.shape.elements()?)?;
    }
    inventory.retain(|stored| !keys.contains(stored.name.as_str()));
    Ok(skipped)
}

fn edit_notice(edit: &ConfigEdit, config: &RawConfig) -> String {
    let before = config
        .values()
        .get(edit.key())
        .map_or_else(|| "absent".to_owned(), Value::to_string);
    match edit {
        ConfigEdit::Set { key, value } => {
            format!("config.json: {key} changes from {before} to {value}")
        }
        ConfigEdit::Remove { key } => format!("config.json: {key} is removed"),
    }
}

/// Whether a directory looks like a Hugging Face one rather than a Megatron one: a tracker or `.metadata` decides against it,
/// whatever lies beside them.
pub fn is_hugging_face(store: &dyn Store) -> Result<bool, Error> {
    let files = store.files()?;
    let holds = |names: &[&str]| files.iter().any(|file| names.contains(&file.name.as_str()));
    Ok(!holds(&[TRACKER_FILE, METADATA_FILE])
        && holds(&[hf::CONFIG_FILE, INDEX_FILE, hf::SINGLE_FILE]))
}

/// Whether a directory looks like that of a Megatron run, or of an iteration.
pub(crate) fn is_megatron(store: &dyn Store) -> Result<bool, Error> {
    let is_sign =
        |name: &str| [TRACKER_FILE, METADATA_FILE].contains(&name) || name.ends_with(".distcp");
    let files = store.files()?;
    Ok(files.iter().any(|file| is_sign(&file.name)))
}

/// Chooses the iteration of a directory that is no Hugging Face one.
///
/// Errors: [`Error::NoCheckpoint`] if it is no Megatron one either; those of [`RunDirectory::resolve`].
pub fn run_directory(store: Arc<dyn Store>) -> Result<RunDirectory, Error> {
    let place = store.name().to_owned();
    match RunDirectory::resolve(store) {
        Err(rialto_checkpoint::Error::NoTracker { found, .. }) if found.is_empty() => {
            Err(Error::NoCheckpoint { place })
        }
        run => Ok(run?),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_size_that_differs_is_said_once_by_the_name_that_says_most() {
        for (ours, theirs, own, their_own, expected) in [
            (
                json!({"vocab": 8}),
                json!({"vocab": 9}),
                json!({"vocab_size": 8}),
                json!({"vocab_size": 9}),
                &["vocab_size is 9 in the reference, 8 at import"][..],
            ),
            // Of one name: the list is no better than its length.
            (
                json!({"layers": 1}),
                json!({"layers": 2}),
                json!({"layers": ["a"]}),
                json!({"layers": ["a", "a"]}),
                &["layers is 2 in the reference, 1 at import"],
            ),
            (
                json!({"layers": 1}),
                json!({"layers": 1}),
                json!({"layers": ["a"]}),
                json!({"layers": ["b"]}),
                &[r#"layers is ["b"] in the reference, ["a"] at import"#],
            ),
            // Other names and other values are other things.
            (
                json!({"vocab": 8, "hidden": 4}),
                json!({"vocab": 9, "hidden": 5}),
                json!({"heads": 4, "vocab_rows": 80}),
                json!({"heads": 5, "vocab_rows": 90}),
                &[
                    "heads is 5 in the reference, 4 at import",
                    "hidden is 5 in the reference, 4 at import",
                    "vocab is 9 in the reference, 8 at import",
                    "vocab_rows is 90 in the reference, 80 at import",
                ],
            ),
            (
                json!({"mtp": 0}),
                json!({"mtp": 1}),
                json!(null),
                json!({"new": true}),
                &[
                    "mtp is 1 in the reference, 0 at import",
                    "new is true in the reference, absent at import",
                ],
            ),
            (json!({}), json!({}), json!({"a": 1}), json!({"a": 1}), &[]),
        ] {
            let found = said_once(differing(&ours, &theirs), differing(&own, &their_own));
            assert_eq!(found, expected);
        }
    }
}
