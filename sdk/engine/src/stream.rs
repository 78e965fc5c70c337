//! The tensors of a plan one after the other, for an application that does something else with them than write a checkpoint.
//!
//! ```no_run
//! use std::sync::Arc;
//! use rialto_bridge::Bridge;
//! use rialto_checkpoint::store::LocalStore;
//! use rialto_engine::{ImportPlan, Names, Options, Silent};
//!
//! fn names(family: Arc<dyn Bridge>) -> Result<(), rialto_engine::Error> {
//!     let source = Arc::new(LocalStore::open("glm-5.2")?);
//!     let plan = Arc::new(ImportPlan::new(family.as_ref(), source, &Options::default())?);
//!     for part in plan.stream(family, Names::Target, 64 << 20, Arc::new(Silent)) {
//!         let part = part?;
//!         println!("{} {} {:?}: {} bytes", part.name, part.dtype, part.region, part.bytes.len());
//!     }
//!     Ok(())
//! }
//! ```

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use rialto_bridge::{Bridge, Mapping};
use rialto_tensor::{Dtype, Region, Shape};

use crate::assemble::{Buffers, Part, bands_of};
use crate::export::Exporting;
use crate::import::Importing;
use crate::run::Conversion;
use crate::{Error, ExportPlan, ImportPlan, Progress, order};

/// Parts that lie ready while the caller works on one: so at most three are in memory, and what reading them takes.
const AHEAD: usize = 1;

/// By which side's names tensors are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// The side that is read: its tensors, decoded and in the dtype of the conversion.
    Source,
    /// The side that would be written: its tensors, whole, whatever chunks or shards they would lie in.
    Target,
}

/// A part of a tensor, in memory that is the caller's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPart {
    /// Name of the tensor.
    pub name: String,
    /// Dtype of the elements.
    pub dtype: Dtype,
    /// Shape of the whole tensor.
    pub shape: Shape,
    /// Which of it this is.
    pub region: Region,
    /// The elements: dense, row-major, little-endian.
    pub bytes: Vec<u8>,
}

/// Tensors in the order in which people count their names, each in one part or in several that follow each other in row-major
/// order. It reads ahead by one part; dropping it ends that. After an error it ends.
#[derive(Debug)]
pub struct TensorStream {
    parts: Receiver<Result<TensorPart, Error>>,
    worker: Option<JoinHandle<()>>,
}

impl Iterator for TensorStream {
    type Item = Result<TensorPart, Error>;

    /// # Panics
    ///
    /// If the thread that reads has panicked, as with a family that does: an end would look like the model's.
    fn next(&mut self) -> Option<Result<TensorPart, Error>> {
        if let Ok(part) = self.parts.recv() {
            return Some(part);
        }
        if let Some(Err(panic)) = self.worker.take().map(JoinHandle::join) {
            resume_unwind(panic);
        }
        None
    }
}

impl TensorStream {
    /// Lists what `list` gives in a thread of its own.
    fn spawn(
        list: impl FnOnce(&SyncSender<Result<TensorPart, Error>>) -> Result<(), Error> + Send + 'static,
    ) -> TensorStream {
        let (sender, parts) = sync_channel(AHEAD);
        let worker = thread::spawn(move || {
            if let Err(error) = list(&sender) {
                // Nobody listens any more: then nobody asks.
                let _ = sender.send(Err(error));
            }
        });
        TensorStream {
            parts,
            worker: Some(worker),
        }
    }
}

/// Tensors of one side.
trait Listing {
    /// Name, dtype and shape of each, by position.
    fn tensors(&self) -> Vec<(&str, Dtype, &Shape)>;

    /// What a rectangle of one is made of.
    fn parts(&self, position: usize, region: &Region) -> Result<Vec<Part<'_>>, Error>;
}

/// Tensors with the dtypes in which they are given.
fn tensors(mapping: &Mapping, dtypes: Vec<Dtype>) -> Vec<(&str, Dtype, &Shape)> {
    let tensors = mapping.tensors().iter().zip(dtypes);
    let named = tensors.map(|(tensor, dtype)| (tensor.name.as_str(), dtype, &tensor.shape));
    named.collect()
}

/// Params with the dtypes in which they are given.
fn params(mapping: &Mapping, dtypes: Vec<Dtype>) -> Vec<(&str, Dtype, &Shape)> {
    let params = mapping.params().iter().zip(dtypes);
    let named = params.map(|(param, dtype)| (param.name.as_str(), dtype, &param.shape));
    named.collect()
}

/// Sends what a listing has of what is kept, at most `part_bytes` at a time; ends when nobody takes it any more.
fn send(
    listing: &dyn Listing,
    kept: &[bool],
    part_bytes: u64,
    progress: &dyn Progress,
    to: &SyncSender<Result<TensorPart, Error>>,
) -> Result<(), Error> {
    let tensors = listing.tensors();
    let mut order: Vec<usize> = (0..tensors.len()).filter(|&at| kept[at]).collect();
    order.sort_by(|&a, &b| order::natural(tensors[a].0, tensors[b].0));
    let mut buffers = Buffers::default();
    for position in order {
        let (name, dtype, shape) = tensors[position];
        let whole = Region::whole(shape);
        // Bands follow from the dtype alone here, so that each is asked for what it needs and no more.
        for region in bands_of(part_bytes, &whole, dtype, &[]) {
            if progress.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let parts = listing.parts(position, &region)?;
            let bytes = buffers.fill(&region, dtype, &parts, 0)?.to_vec();
            progress.advance(bytes.len() as u64);
            let part = TensorPart {
                name: name.to_owned(),
                dtype,
                shape: shape.clone(),
                region,
                bytes,
            };
            if to.send(Ok(part)).is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

impl ImportPlan {
    /// The tensors of the plan, at most `part_bytes` at a time.
    ///
    /// The stream gives [`Error::NoWeights`] for a plan from a config alone, and what reading says; `progress` is told of
    /// bytes and asked whether to stop.
    #[must_use]
    pub fn stream(
        self: &Arc<Self>,
        family: Arc<dyn Bridge>,
        names: Names,
        part_bytes: u64,
        progress: Arc<dyn Progress>,
    ) -> TensorStream {
        let plan = Arc::clone(self);
        TensorStream::spawn(move |to| {
            let importing = Importing::new(&plan, family.as_ref())?;
            let (tensors, params) = plan.kept();
            match names {
                Names::Source => send(
                    &SourceOfImport(&importing),
                    tensors,
                    part_bytes,
                    &*progress,
                    to,
                ),
                Names::Target => send(
                    &TargetOfImport(&importing),
                    params,
                    part_bytes,
                    &*progress,
                    to,
                ),
            }
        })
    }
}

struct SourceOfImport<'a>(&'a Importing<'a>);

impl Listing for SourceOfImport<'_> {
    fn tensors(&self) -> Vec<(&str, Dtype, &Shape)> {
        tensors(self.0.plan().mapping(), self.0.tensor_dtypes())
    }

    fn parts(&self, position: usize, region: &Region) -> Result<Vec<Part<'_>>, Error> {
        Ok(vec![Part {
            output: region.clone(),
            input: region.clone(),
            values: self.0.tensor(position),
        }])
    }
}

struct TargetOfImport<'a>(&'a Importing<'a>);

impl Listing for TargetOfImport<'_> {
    fn tensors(&self) -> Vec<(&str, Dtype, &Shape)> {
        params(self.0.plan().mapping(), self.0.plan().dtypes().to_vec())
    }

    fn parts(&self, position: usize, region: &Region) -> Result<Vec<Part<'_>>, Error> {
        self.0.parts(position, region)
    }
}

impl ExportPlan {
    /// The tensors of the plan, at most `part_bytes` at a time, as [`ImportPlan::stream`].
    ///
    /// Checksums that were recorded in the checkpoint are compared as the bytes pass; what was read only in part is read whole
    /// at the end of the stream.
    #[must_use]
    pub fn stream(
        self: &Arc<Self>,
        names: Names,
        part_bytes: u64,
        progress: Arc<dyn Progress>,
    ) -> TensorStream {
        let plan = Arc::clone(self);
        TensorStream::spawn(move |to| {
            let exporting = Exporting::new(&plan);
            exporting.check_before(&*progress)?;
            let (tensors, params) = plan.kept();
            match names {
                Names::Source => send(
                    &SourceOfExport(&exporting),
                    params,
                    part_bytes,
                    &*progress,
                    to,
                ),
                Names::Target => send(
                    &TargetOfExport(&exporting),
                    tensors,
                    part_bytes,
                    &*progress,
                    to,
                ),
            }?;
            exporting.check_after(&*progress)
        })
    }
}

struct SourceOfExport<'a>(&'a Exporting<'a>);

impl Listing for SourceOfExport<'_> {
    fn tensors(&self) -> Vec<(&str, Dtype, &Shape)> {
        params(self.0.plan().mapping(), self.0.param_dtypes())
    }

    fn parts(&self, position: usize, region: &Region) -> Result<Vec<Part<'_>>, Error> {
        Ok(vec![self.0.param(
            position,
            region.clone(),
            region.clone(),
        )?])
    }
}

struct TargetOfExport<'a>(&'a Exporting<'a>);

impl Listing for TargetOfExport<'_> {
    fn tensors(&self) -> Vec<(&str, Dtype, &Shape)> {
        tensors(self.0.plan().mapping(), self.0.tensor_dtypes())
    }

    fn parts(&self, position: usize, region: &Region) -> Result<Vec<Part<'_>>, Error> {
        self.0.parts(position, region)
    }
}
