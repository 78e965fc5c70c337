//! One side of a verification: a checkpoint, what its config says, and what of it was found.

use std::collections::BTreeSet;
use std::sync::Arc;

use rialto_bridge::binding::{FoundParams, FoundTensors};
use rialto_bridge::{
    Bridge, Claim, Codec, DtypeRule, MapRule, Mapping, ModelSpec, Part as RulePart, Piece,
    RawConfig, StoredTensor, Violation, WeightMap,
};
use rialto_checkpoint::hf::HfCheckpoint;
use rialto_checkpoint::store::Store;
use rialto_checkpoint::torch_dist::TorchDistCheckpoint;
use rialto_tensor::{Dtype, Region};

use crate::array::Array;
use crate::assemble::Part;
use crate::beside::Beside;
use crate::copies;
use crate::encoded;
use crate::padding;
use crate::params::{self, Params, touches};
use crate::reading::{Format, Reading};
use crate::{Error, MegatronSource, Progress, import, is_hugging_face, run_directory};

/// A checkpoint of either format: opened, not yet understood by a family.
#[derive(Debug)]
pub struct VerifySource {
    stored: Stored,
    config: Option<RawConfig>,
    notes: Vec<String>,
}

#[derive(Debug)]
enum Stored {
    HuggingFace(HfCheckpoint),
    Megatron(TorchDistCheckpoint, Option<Beside>),
}

impl VerifySource {
    /// Opens a directory of either format. The config is the directory's own, or what an import kept of it.
    pub fn open(store: Arc<dyn Store>) -> Result<VerifySource, Error> {
        if is_hugging_face(store.as_ref())? {
            let checkpoint = HfCheckpoint::open(store)?;
            return Ok(VerifySource {
                config: Some(import::parse_config(
                    checkpoint.config(),
                    checkpoint.store().as_ref(),
                )?),
                notes: checkpoint.notes().to_vec(),
                stored: Stored::HuggingFace(checkpoint),
            });
        }
        let run = run_directory(store)?;
        let checkpoint = TorchDistCheckpoint::open(Arc::clone(&run.store))?;
        let config = MegatronSource::kept_config(&run.store)?;
        let mut notes = vec![run.note];
        notes.extend(checkpoint.notes().iter().cloned());
        Ok(VerifySource {
            stored: Stored::Megatron(checkpoint, Beside::open(run.store.as_ref())?),
            config,
            notes,
        })
    }

    /// Its config, if there is one.
    #[must_use]
    pub fn config(&self) -> Option<&RawConfig> {
        self.config.as_ref()
    }

    /// What the format is called.
    #[must_use]
    pub fn format(&self) -> &'static str {
        match self.stored {
            Stored::HuggingFace(_) => "hugging face",
            Stored::Megatron(..) => "megatron",
        }
    }

    fn side(&self) -> Format {
        match self.stored {
            Stored::HuggingFace(_) => Format::HuggingFace,
            Stored::Megatron(..) => Format::Megatron,
        }
    }

    /// The name errors show.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.stored {
            Stored::HuggingFace(checkpoint) => checkpoint.store().name(),
            Stored::Megatron(checkpoint, _) => checkpoint.name(),
        }
    }

    /// What it holds of weights, and what the user should know about it.
    fn inventory(&self) -> (Vec<StoredTensor>, Vec<String>) {
        let mut notes = self.notes.clone();
        match &self.stored {
            Stored::HuggingFace(checkpoint) => (import::inventory(checkpoint), notes),
            Stored::Megatron(checkpoint, beside) => {
                let (inventory, ignored) = params::inventory(checkpoint, beside.as_ref());
                notes.extend(ignored);
                (inventory, notes)
            }
        }
    }

    /// Holds its files against the digests beside them, if there are any.
    pub(super) fn verify_digests(&self, progress: &dyn Progress) -> Result<(), Error> {
        match &self.stored {
            Stored::HuggingFace(_) => Ok(()),
            Stored::Megatron(checkpoint, _) => params::verify_digests(checkpoint, progress),
        }
    }
}

/// A checkpoint held against a mapping.
pub struct Contents<'a> {
    source: &'a VerifySource,
    family: Option<&'a dyn Bridge>,
    /// The model, if a family reads it.
    spec: Option<ModelSpec>,
    mapping: Mapping,
    /// The same with tensors spelled as the rules spell them, if the checkpoint spells them otherwise.
    own: Option<Mapping>,
    bound: Bound,
    pub(crate) notices: Vec<String>,
    /// What is not as the mapping says.
    pub(crate) violations: Vec<Violation>,
    /// Encoded tensors.
    pub(super) scales: u64,
}

enum Bound {
    Tensors {
        found: FoundTensors,
        codecs: Vec<Codec>,
        /// For each param, the positions of its pieces.
        pieces: Vec<Vec<usize>>,
    },
    Params(Params),
}

impl<'a> Contents<'a> {
    /// What a family says the checkpoint holds, by the config given. Multi-token prediction is part of it if any of it is
    /// there.
    ///
    /// Errors: [`Error::NotClaimed`], [`Error::Vocabulary`], and what the family says of the config. What is missing or superfluous in the
    /// checkpoint is no error here.
    pub fn new(
        source: &'a VerifySource,
        config: &RawConfig,
        family: &'a dyn Bridge,
    ) -> Result<Contents<'a>, Error> {
        if let Claim::No { reason } = family.claim(config)? {
            return Err(Error::NotClaimed { reason });
        }
        let (inventory, mut notices) = source.inventory();
        let reading = Reading::of(family, config, source.side(), &inventory, &[])?;
        let Reading {
            spec,
            map,
            mapping,
            forms,
            ..
        } = reading;
        notices.extend(forms.notices(&map));
        if let Stored::Megatron(checkpoint, _) = &source.stored {
            notices.extend(padding::left_out(
                &mapping,
                &spec,
                checkpoint.store().as_ref(),
            )?);
        }
        let codecs = family.codecs(&spec)?;
        let own = forms.in_own_spelling();
        let own = (forms != own).then(|| map.resolve_as(&own));
        let mut contents =
            Contents::bind(source, Some(family), mapping, codecs, inventory, notices);
        contents.own = own.transpose()?;
        contents.spec = Some(spec);
        Ok(contents)
    }

    /// The two sides by their names alone, for checkpoints of one format that no family takes.
    ///
    /// Errors: [`Error::TwoFormats`] if the formats differ; a name that no rule can hold.
    pub fn by_name(
        ours: &'a VerifySource,
        theirs: &'a VerifySource,
    ) -> Result<[Contents<'a>; 2], Error> {
        if ours.format() != theirs.format() {
            return Err(Error::TwoFormats {
                ours: format!("{} ({})", ours.name(), ours.format()),
                theirs: format!("{} ({})", theirs.name(), theirs.format()),
            });
        }
        let of = |source: &'a VerifySource, known: &[StoredTensor]| {
            let (inventory, notices) = source.inventory();
            let mut names = BTreeSet::new();
            let all = inventory.iter().chain(known);
            let rules = all.filter(|stored| names.insert(stored.name.clone()));
            let mapping = WeightMap::new(rules.map(same_name)).resolve()?;
            Ok::<_, Error>(Contents::bind(
                source,
                None,
                mapping,
                Vec::new(),
                inventory,
                notices,
            ))
        };
        Ok([
            of(ours, &theirs.inventory().0)?,
            of(theirs, &ours.inventory().0)?,
        ])
    }

    fn bind(
        source: &'a VerifySource,
        family: Option<&'a dyn Bridge>,
        mapping: Mapping,
        codecs: Vec<Codec>,
        inventory: Vec<StoredTensor>,
        notices: Vec<String>,
    ) -> Contents<'a> {
        let (bound, violations, scales) = match source.stored {
            Stored::HuggingFace(_) => {
                let mut found = mapping.find_tensors(&inventory, &codecs);
                let violations = std::mem::take(&mut found.violations);
                let scales = found.encodings.iter().flatten().count() as u64;
                let mut pieces = vec![Vec::new(); mapping.params().len()];
                for (position, piece) in mapping.pieces().iter().enumerate() {
                    pieces[piece.param].push(position);
                }
                let bound = Bound::Tensors {
                    found,
                    codecs,
                    pieces,
                };
                (bound, violations, scales)
            }
            Stored::Megatron(..) => {
                let mut found: FoundParams = mapping.find_params(&inventory);
                let violations = std::mem::take(&mut found.violations);
                let params = Params::new(&mapping, inventory, found);
                (Bound::Params(params), violations, 0)
            }
        };
        Contents {
            source,
            family,
            spec: None,
            mapping,
            own: None,
            bound,
            notices,
            violations,
            scales,
        }
    }

    /// How many tensors are there once more.
    pub(super) fn copies(&self) -> u64 {
        match &self.bound {
            Bound::Tensors { found, .. } => found.copies.len() as u64,
            Bound::Params(_) => 0,
        }
    }

    /// Refuses the first tensor that is there once more with other bits. Errors: [`Error::Copy`].
    pub(crate) fn check_copies(&self, progress: &dyn Progress) -> Result<(), Error> {
        let (Bound::Tensors { found, .. }, Stored::HuggingFace(checkpoint)) =
            (&self.bound, &self.source.stored)
        else {
            return Ok(());
        };
        for &(tensor, position) in &found.copies {
            if let Some(tensor) = found.tensors[tensor] {
                let [tensor, copy] = [tensor, position].map(|at| &checkpoint.tensors()[at]);
                copies::check(checkpoint, tensor, copy, progress)?;
            }
        }
        Ok(())
    }

    /// A line for each tensor that is there once more with other bits, on a Hugging Face side.
    pub(super) fn differing_copies(&self, progress: &dyn Progress) -> Result<Vec<String>, Error> {
        let (Bound::Tensors { found, .. }, Stored::HuggingFace(checkpoint)) =
            (&self.bound, &self.source.stored)
        else {
            return Ok(Vec::new());
        };
        let mut lines = Vec::new();
        for &(tensor, position) in &found.copies {
            let Some(tensor) = found.tensors[tensor] else {
                continue;
            };
            let [tensor, copy] = [tensor, position].map(|at| &checkpoint.tensors()[at]);
            let difference = copies::first_difference(checkpoint, tensor, copy, progress)?;
            if let Some(index) = difference {
                let (copy, tensor) = (&copy.name, &tensor.name);
                lines.push(format!(
                    "{copy} differs from {tensor}, which the config says it repeats, from element {index:?} on"
                ));
            }
        }
        Ok(lines)
    }

    /// The pieces to compare by: those of the rules' own spelling, so that names, order and digest do not depend on the one
    /// that this checkpoint has.
    pub(crate) fn own_mapping(&self) -> &Mapping {
        self.own.as_ref().unwrap_or(&self.mapping)
    }

    /// The mapping.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The model, if a family reads it.
    pub(crate) fn spec(&self) -> Option<&ModelSpec> {
        self.spec.as_ref()
    }

    /// A tensor of the mapping as it is stored, if it is encoded: its codec, its codes, and its companions.
    pub(crate) fn encoded(&self, tensor: usize) -> Option<(&Codec, Vec<Array<'_>>)> {
        let (Bound::Tensors { found, codecs, .. }, Stored::HuggingFace(checkpoint)) =
            (&self.bound, &self.source.stored)
        else {
            return None;
        };
        if self.own.is_some() {
            // Spelled otherwise, its tensors are others.
            return None;
        }
        let (codec, companions) = found.encodings[tensor].as_ref()?;
        let positions = std::iter::once(found.tensors[tensor]?).chain(companions.iter().copied());
        let arrays = positions.map(|at| encoded::stored(checkpoint, &checkpoint.tensors()[at]));
        Some((&codecs[*codec], arrays.collect()))
    }

    /// The checkpoint.
    #[must_use]
    pub fn source(&self) -> &VerifySource {
        self.source
    }

    /// The dtypes that a rectangle of a param has here, decoded: one, unless what it is made of differs.
    pub(crate) fn dtypes(&self, param: usize, region: &Region) -> Vec<Dtype> {
        match &self.bound {
            Bound::Params(params) => params.dtypes_of(&self.mapping, param, region),
            Bound::Tensors { found, .. } => {
                let touched = self.touched(param, region);
                let mut dtypes: Vec<Dtype> =
                    touched.map(|piece| found.dtypes[piece.tensor]).collect();
                dtypes.sort();
                dtypes.dedup();
                dtypes
            }
        }
    }

    /// Whether a rectangle of a param was found whole.
    pub(super) fn holds(&self, param: usize, region: &Region) -> bool {
        match &self.bound {
            Bound::Params(params) => params.is_whole(param),
            Bound::Tensors { found, .. } => {
                let mut touched = self.touched(param, region);
                touched.all(|piece| found.tensors[piece.tensor].is_some())
            }
        }
    }

    /// The pieces of a Hugging Face side that a rectangle of a param is made of.
    fn touched<'b>(&'b self, param: usize, region: &'b Region) -> impl Iterator<Item = &'b Piece> {
        let pieces = match &self.bound {
            Bound::Tensors { pieces, .. } => pieces[param].as_slice(),
            Bound::Params(_) => &[],
        };
        let pieces = pieces.iter().map(|&at| &self.mapping.pieces()[at]);
        pieces.filter(|piece| touches(&piece.param_region, region))
    }

    /// Compares the checksums of what was read only in part.
    pub(crate) fn finish_checks(&self, progress: &dyn Progress) -> Result<(), Error> {
        match (&self.bound, &self.source.stored) {
            (Bound::Params(params), Stored::Megatron(checkpoint, _)) => {
                params.finish_checks(checkpoint, progress)
            }
            _ => Ok(()),
        }
    }

    /// What a rectangle of a param is made of.
    pub(crate) fn values(
        &self,
        param: usize,
        region: &Region,
        verifies: bool,
    ) -> Result<Vec<Part<'_>>, Error> {
        match (&self.bound, &self.source.stored) {
            (Bound::Params(params), Stored::Megatron(checkpoint, beside)) => {
                let beside = beside.as_ref();
                let mapping = &self.mapping;
                let array = params.array(mapping, checkpoint, beside, param, region, verifies)?;
                Ok(vec![Part {
                    output: region.clone(),
                    input: region.clone(),
                    values: Box::new(array),
                }])
            }
            (Bound::Tensors { found, codecs, .. }, Stored::HuggingFace(checkpoint)) => {
                let located = self.touched(param, region).filter_map(|piece| {
                    let at = |position: usize| &checkpoint.tensors()[position];
                    let stored = at(found.tensors[piece.tensor]?);
                    let encoding = found.encodings[piece.tensor].as_ref();
                    let values =
                        encoded::values(self.family, codecs, checkpoint, stored, encoding, at);
                    Some(Part {
                        output: piece.param_region.clone(),
                        input: piece.tensor_region.clone(),
                        values,
                    })
                });
                Ok(located.collect())
            }
            _ => unreachable!("a checkpoint is bound as what it is"),
        }
    }
}

/// A rule under which a tensor is a param of its own name.
fn same_name(stored: &StoredTensor) -> MapRule {
    let shape = stored.shape.extents();
    MapRule::new(&stored.name, "tensors", &stored.name, shape)
        .dtype(DtypeRule::any_of(Dtype::ALL))
        .part(RulePart::new(&stored.name, shape))
}
