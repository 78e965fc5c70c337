//! The layout of a Hugging Face checkpoint, complete before a byte is written.

use std::collections::BTreeMap;

use rialto_tensor::held::Held;
use rialto_tensor::{Dtype, Location, Shape};

use super::SINGLE_FILE;
use crate::Error;
use crate::index::Index;
use crate::safetensors::{Header, PlannedShard};

/// Which tensor will lie where, and the bytes of everything that is not tensor data.
///
/// There is always an index, also for a single shard: the transformers library does without one then, but other tools look
/// for nothing else, and both read a single shard that has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfPlan {
    /// The shards. Their tensors, one shard after the other, are the given ones in the given order.
    pub shards: Vec<PlannedShard>,
    /// The bytes of `model.safetensors.index.json`.
    pub index_bytes: Vec<u8>,
    /// Bytes of all tensors together, headers not counted.
    pub total_size: u64,
}

impl Held for HfPlan {
    fn held_bytes(&self) -> u64 {
        self.shards.held_bytes() + self.index_bytes.held_bytes()
    }
}

impl HfPlan {
    /// Splits tensors into shards of at most `max_shard_bytes` of data, in the given order: a tensor that does not fit any
    /// more begins the next shard, and one that is larger has a shard of its own.
    ///
    /// Shards are called as the hub calls them: `model.safetensors` alone, else `model-00001-of-0000N.safetensors`. Their
    /// metadata is `{"format": "pt"}`, which the transformers library asks for. Equal arguments give equal plans.
    ///
    /// Errors: [`Error::ShardSize`] for 0 bytes, [`Error::DuplicateName`], and those of [`Header::plan`].
    pub fn new(
        tensors: Vec<(String, Dtype, Shape)>,
        max_shard_bytes: u64,
    ) -> Result<HfPlan, Error> {
        let (groups, total_size) = split(tensors, max_shard_bytes)?;
        let count = groups.len();
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let mut shards = Vec::with_capacity(count);
        let mut weight_map = BTreeMap::new();
        for (position, group) in groups.into_iter().enumerate() {
            let name = shard_name(position, count);
            let shard = Header::plan(&name, group, &metadata)?;
            for tensor in &shard.tensors {
                if weight_map
                    .insert(tensor.name.clone(), name.clone())
                    .is_some()
                {
                    return Err(Error::DuplicateName {
                        location: Location::file(name),
                        name: tensor.name.clone(),
                    });
                }
            }
            shards.push(shard);
        }
        let index = Index {
            weight_map,
            total_size: Some(total_size),
        };
        Ok(HfPlan {
            shards,
            index_bytes: index.write(),
            total_size,
        })
    }
}

fn shard_name(position: usize, count: usize) -> String {
    match count {
        1 => SINGLE_FILE.to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", position + 1),
    }
}

type Given = (String, Dtype, Shape);

/// The tensors of each shard, at least one shard, and the bytes of all tensors.
fn split(tensors: Vec<Given>, max_shard_bytes: u64) -> Result<(Vec<Vec<Given>>, u64), Error> {
    if max_shard_bytes == 0 {
        return Err(Error::ShardSize);
    }
    let mut groups = Vec::new();
    let mut group = Vec::new();
    let mut group_size = 0u64;
    let mut total_size = 0u64;
    for (name, dtype, shape) in tensors {
        let location = || Location::tensor(&name);
        let size = shape.size_bytes(dtype).map_err(|source| Error::Tensor {
            location: location(),
            source,
        })?;
        total_size = total_size
            .checked_add(size)
            .ok_or_else(|| Error::DataRange {
                location: location(),
            })?;
        // No overflow: a part of the total.
        if !group.is_empty() && group_size + size > max_shard_bytes {
            groups.push(std::mem::take(&mut group));
            group_size = 0;
        }
        group_size += size;
        group.push((name, dtype, shape));
    }
    if !group.is_empty() || groups.is_empty() {
        groups.push(group);
    }
    Ok((groups, total_size))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn tensors(sizes: &[u64]) -> Vec<Given> {
        let named = sizes.iter().enumerate();
        named
            .map(|(position, &size)| (format!("t{position}"), Dtype::U8, Shape::new([size])))
            .collect()
    }

    /// How many tensors each shard holds, and the names of the shards.
    fn split_of(sizes: &[u64], max: u64) -> (Vec<usize>, Vec<String>) {
        let plan = HfPlan::new(tensors(sizes), max).unwrap();
        let shards = plan.shards.into_iter();
        shards
            .map(|shard| (shard.tensors.len(), shard.name))
            .unzip()
    }

    #[test]
    fn shards_are_filled_in_order_and_named_as_on_the_hub() {
        let (counts, names) = split_of(&[4, 4, 5, 3, 100, 0, 8], 8);
        assert_eq!(counts, [2, 2, 1, 2]);
        assert_eq!(names[0], "model-00001-of-00004.safetensors");
        assert_eq!(names[3], "model-00004-of-00004.safetensors");
        assert_eq!(
            split_of(&[4, 4], 8),
            (vec![2], vec![SINGLE_FILE.to_owned()])
        );
        assert_eq!(split_of(&[], 8), (vec![0], vec![SINGLE_FILE.to_owned()]));
    }

    #[test]
    fn a_single_shard_has_an_index_too() {
        let plan = HfPlan::new(tensors(&[3]), 8).unwrap();
        let index = Index::parse(&plan.index_bytes, &Location::default()).unwrap();
        assert_eq!(index.weight_map["t0"], SINGLE_FILE);
        assert_eq!((index.total_size, plan.total_size), (Some(3), 3));
    }

    #[test]
    fn a_name_in_two_shards_sizes_beyond_64_bits_and_empty_shards_are_refused() {
        let mut twice = tensors(&[8, 8]);
        twice[1].0 = "t0".to_owned();
        let error = HfPlan::new(twice, 8).unwrap_err();
        assert!(
            matches!(&error, Error::DuplicateName { name, .. } if name == "t0"),
            "{error}"
        );
        let error = HfPlan::new(tensors(&[u64::MAX, 1]), 8).unwrap_err();
        assert!(matches!(error, Error::DataRange { .. }), "{error}");
        let huge = vec![("t".to_owned(), Dtype::F64, Shape::new([u64::MAX]))];
        assert_eq!(
            HfPlan::new(huge, 8).unwrap_err().slug(),
            "tensor/shape-overflow"
        );
        let error = HfPlan::new(tensors(&[1]), 0).unwrap_err();
        assert!(matches!(error, Error::ShardSize), "{error}");
    }

    proptest! {
        #[test]
        fn fc_44_the_index_names_exactly_what_the_headers_hold(
            given in proptest::collection::btree_map("\\PC{1,9}", (proptest::sample::select(Dtype::ALL), 0u64..40), 0..12),
            max in 1u64..200,
        ) {
            let given: Vec<Given> = given.into_iter().map(|(name, (dtype, n))| (name, dtype, Shape::new([n]))).collect();
            let plan = HfPlan::new(given.clone(), max).unwrap();
            let index = Index::parse(&plan.index_bytes, &Location::default()).unwrap();
            let mut in_headers = BTreeMap::new();
            let mut bytes = 0;
            for shard in &plan.shards {
                // What the bytes say, as another implementation reads them.
                let mut file = shard.header_bytes.clone();
                file.resize(usize::try_from(shard.len).unwrap(), 0);
                let (_, header) = safetensors::SafeTensors::read_metadata(&file).unwrap();
                for (name, info) in header.tensors() {
                    prop_assert_eq!(in_headers.insert(name, shard.name.clone()), None);
                    bytes += (info.data_offsets.1 - info.data_offsets.0) as u64;
                }
            }
            prop_assert_eq!(&index.weight_map, &in_headers);
            prop_assert_eq!(index.total_size, Some(bytes));
            let names: BTreeSet<&String> = given.iter().map(|(name, ..)| name).collect();
            prop_assert_eq!(in_headers.keys().collect::<BTreeSet<_>>(), names);
        }
    }
}
