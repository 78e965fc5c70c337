//! Conversions in memory, and what the Hugging Face side must hold after one.

use std::sync::Arc;

use rialto_bridge::{Dequantizer, EncodedTensor};
use rialto_checkpoint::store::{MemoryStore, Store};
use rialto_engine::{
    Error, ExportOptions, ExportPlan, ImportPlan, MegatronSource, Options, RunOptions, Silent,
};
use rialto_tensor::TensorView;

use crate::error;
use crate::fixture::Fixture;
use crate::guarded::{Guarded, caught};
use crate::reading::{Bound, Reading};
use crate::tensors::{Tensor, Tensors};

/// A directory that a conversion wrote, and what its plan announced.
pub(crate) struct Written {
    pub(crate) files: MemoryStore,
    pub(crate) notices: Vec<String>,
}

impl Written {
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.files.clone())
    }
}

/// Imports a directory into a Megatron run.
pub(crate) fn import(
    family: &Guarded,
    source: Arc<dyn Store>,
    options: &Options,
) -> Result<Written, Error> {
    caught("import", || {
        let plan = ImportPlan::new(family, source, options)?;
        Ok(Written {
            files: MemoryStore::written_by("run", |target| {
                plan.run(family, target, &RunOptions::default(), &Silent)
                    .map(drop)
            })?,
            notices: plan.summary().notices.clone(),
        })
    })
}

/// Exports a Megatron run into a directory, tensors spelled in these forms.
pub(crate) fn export(
    family: &Guarded,
    run: Arc<dyn Store>,
    forms: &[String],
) -> Result<Written, Error> {
    caught("export", || {
        let options = ExportOptions {
            forms: forms.to_vec(),
            ..ExportOptions::default()
        };
        let plan = ExportPlan::new(family, MegatronSource::open(run, None)?, &options)?;
        Ok(Written {
            files: MemoryStore::written_by("exported", |target| {
                plan.run(target, &RunOptions::default(), &Silent).map(drop)
            })?,
            notices: plan.summary().notices.clone(),
        })
    })
}

/// The tensors that an export of an import must hold: the fixture's own, those stored encoded as the family decodes each at once.
/// What a rule leaves out is among them, and so is found missing; a second name of a tensor is not.
pub(crate) fn expected(
    family: &Guarded,
    fixture: &Fixture,
    reading: &Reading,
    bound: &Bound,
) -> Result<Tensors, error::Error> {
    let at = |position: usize| &fixture.tensors[&bound.inventory[position].name];
    let tensors = bound.binding.tensors.iter().zip(&bound.binding.encodings);
    let tensors = tensors.map(|(&position, encoding)| {
        let (name, stored) = (bound.inventory[position].name.clone(), at(position));
        let Some((codec, companions)) = encoding else {
            return Ok((name, stored.clone()));
        };
        let codec = &reading.codecs[*codec];
        let mut decoded = Tensor::zeros(codec.decoded, &stored.shape)?;
        let companions = companions.iter().map(|&position| view(at(position)));
        let encoded = EncodedTensor {
            codec: &codec.name,
            tensor: view(stored)?,
            companions: companions.collect::<Result<_, _>>()?,
        };
        family.dequantize(&encoded, &mut decoded.bytes)?;
        Ok((name, decoded))
    });
    let skipped = bound.binding.skipped.iter();
    let skipped = skipped.map(|&(_, position)| {
        let name = bound.inventory[position].name.clone();
        Ok((name, at(position).clone()))
    });
    tensors.chain(skipped).collect()
}

/// A tensor as the dequant hook is given it.
pub(crate) fn view(tensor: &Tensor) -> Result<TensorView<'_>, rialto_tensor::Error> {
    TensorView::new(tensor.dtype, &tensor.shape, &tensor.bytes)
}

/// What differs between tensors that should be and tensors that are: name, expected, found.
pub(crate) fn differences(expected: &Tensors, found: &Tensors) -> Vec<[String; 3]> {
    let line = |name: &String, expected: &str, found: &str| {
        [name.clone(), expected.to_owned(), found.to_owned()]
    };
    let mut lines = Vec::new();
    for (name, tensor) in expected {
        let kind = |tensor: &Tensor| format!("{} {}", tensor.dtype, tensor.shape);
        match found.get(name) {
            None => lines.push(line(name, &kind(tensor), "nothing")),
            Some(found) if (found.dtype, &found.shape) != (tensor.dtype, &tensor.shape) => {
                lines.push(line(name, &kind(tensor), &kind(found)));
            }
            Some(found) => {
                let mut bytes = tensor.bytes.iter().zip(&found.bytes);
                if let Some(at) = bytes.position(|(a, b)| a != b) {
                    let (a, b) = (tensor.bytes[at], found.bytes[at]);
                    let element = at as u64 / tensor.dtype.size_bytes().max(1);
                    let expected = format!("byte {at} (element {element}) {a:#04x}");
                    lines.push(line(name, &expected, &format!("{b:#04x}")));
                }
            }
        }
    }
    let surplus = found.keys().filter(|name| !expected.contains_key(*name));
    lines.extend(surplus.map(|name| line(name, "no such tensor", "one")));
    lines
}
