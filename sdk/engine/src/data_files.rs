//! The data files of a run directory: which chunk and object lies where.

use std::sync::Arc;

use rialto_bridge::{KeyDecl, Mapping, Placement, StateValue};
use rialto_checkpoint::torch_dist::{self, Content, FileLimit, FilePlan};
use rialto_tensor::{Dtype, Region, Shape};

use crate::{ChunkChoice, Error, Options, beside, filter, order, padding};

/// A data file is closed when the next item would take it beyond this.
const MAX_FILE_BYTES: u64 = 16 << 30;

/// Gives every chunk and object its file and offset, keys in the order people count. `kept` says of each param whether it is
/// written.
pub(crate) fn place(
    placement: &Placement,
    mapping: &Mapping,
    kept: &[bool],
    dtypes: &[Dtype],
    options: &Options,
) -> Result<FilePlan, Error> {
    let params = beside::others(mapping);
    padding::check_mesh(placement, mapping, &params, options)?;
    mapping.check_stacks(dtypes)?;
    let mut keys: Vec<&KeyDecl> = mapping.keys().iter().collect();
    keys.retain(|key| kept[key.param] && !beside::is_beside(mapping, key.param));
    keys.sort_by(|a, b| order::natural(&a.name, &b.name).then(a.slot.cmp(&b.slot)));
    // All that can be refused is refused before the first chunk is made: a large mesh makes a million.
    let mut regions: Vec<Box<dyn Iterator<Item = Region>>> = Vec::with_capacity(keys.len());
    if options.chunks == ChunkChoice::Megatron {
        placement.check_count(padding::named(mapping, &params), &options.mesh)?;
    }
    for key in &keys {
        let param = &mapping.params()[key.param];
        let (name, shape) = (&param.name, &param.shape);
        regions.push(match options.chunks {
            ChunkChoice::Megatron => Box::new(placement.chunks(name, shape, &options.mesh)?),
            ChunkChoice::Whole => Box::new(std::iter::once(Region::whole(shape))),
        });
    }
    let mut last: Option<(Arc<str>, Arc<Shape>)> = None;
    let chunks = keys.iter().zip(regions).flat_map(|(&key, regions)| {
        // The chunks of a stack share its name.
        let (name, shape) = match last.take().filter(|(name, _)| **name == *key.name) {
            Some(shared) => shared,
            None => (Arc::from(key.name.as_str()), Arc::new(key.shape.clone())),
        };
        last = Some((Arc::clone(&name), Arc::clone(&shape)));
        let dtype = dtypes[key.param];
        regions.map(move |region| Content::Chunk {
            name: Arc::clone(&name),
            dtype,
            shape: Arc::clone(&shape),
            region: key.in_key(&region),
        })
    });
    let mut objects = Vec::with_capacity(mapping.objects().len());
    let empty = Arc::from(torch_dist::object_item(&torch_dist::empty_extra_state())?);
    let none = Arc::from(torch_dist::object_item(&torch_dist::no_extra_state())?);
    let kept = filter::objects(mapping, kept);
    for (object, _) in mapping
        .objects()
        .iter()
        .zip(kept)
        .filter(|(_, is_kept)| *is_kept)
    {
        let bytes: &Arc<[u8]> = match object.value {
            StateValue::EmptyTensor => &empty,
            StateValue::None => &none,
            _ => {
                return Err(Error::Bridge(rialto_bridge::Error::Unsupported {
                    what: format!("the value of {}", object.key),
                    found: format!("{:?}", object.value),
                    supported: "empty_tensor, none".to_owned(),
                }));
            }
        };
        objects.push(Content::Object {
            name: object.key.as_str().into(),
            bytes: Arc::clone(bytes),
        });
    }
    let limit = match options.files {
        Some(files) => FileLimit::Count(files),
        None => FileLimit::Bytes(MAX_FILE_BYTES),
    };
    Ok(FilePlan::new(chunks.chain(objects), limit)?)
}
