//! The layout of a Hugging Face checkpoint, complete before a byte is written.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use rialto_tensor::held::Held;
use rialto_tensor::{Dtype, Location, Shape};

use super::SINGLE_FILE;
use crate::Error;
use crate::index::Index;
use crate::safetensors::{Header, PlannedShard};
use crate::spread::spread;

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

/// How tensors are split into shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardLimit {
    /// At most so many bytes of data in each: a tensor that does not fit any more begins the next shard, and one that is
    /// larger has a shard of its own.
    Bytes(u64),
    /// So many shards of about equal data, or one for each tensor if there are fewer.
    Count(u64),
}

impl HfPlan {
    /// Splits tensors into shards, in the given order.
    ///
    /// Shards are called as the hub calls them: `model.safetensors` alone, else `model-00001-of-0000N.safetensors`. Their
    /// metadata is `{"format": "pt"}`, which the transformers library asks for. Equal arguments give equal plans.
    ///
    /// Errors: [`Error::ShardSize`] for 0 bytes or shards, [`Error::DuplicateName`], and those of [`Header::plan`].
    pub fn new(tensors: Vec<(String, Dtype, Shape)>, limit: ShardLimit) -> Result<HfPlan, Error> {
        let (groups, total_size) = split(tensors, limit)?;
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
fn split(tensors: Vec<Given>, limit: ShardLimit) -> Result<(Vec<Vec<Given>>, u64), Error> {
    let mut sizes = Vec::with_capacity(tensors.len());
    let mut total_size = 0u64;
    for (name, dtype, shape) in &tensors {
        let location = || Location::tensor(name);
        let size = shape.size_bytes(*dtype).map_err(|source| Error::Tensor {
            location: location(),
            source,
        })?;
        total_size = total_size
            .checked_add(size)
            .ok_or_else(|| Error::DataRange {
                location: location(),
            })?;
        sizes.push(size);
    }
    let counts = match limit {
        ShardLimit::Bytes(most) => filled(&sizes, NonZeroU64::new(most).ok_or(Error::ShardSize)?),
        ShardLimit::Count(count) => spread(&sizes, NonZeroU64::new(count).ok_or(Error::ShardSize)?),
    };
    let mut rest = tensors.into_iter();
    let groups = counts
        .into_iter()
        .map(|count| rest.by_ref().take(count).collect());
    Ok((groups.collect(), total_size))
}

/// How many tensors each shard of at most so many bytes holds.
fn filled(sizes: &[u64], most: NonZeroU64) -> Vec<usize> {
    let (mut counts, mut held) = (vec![0], 0);
    for &size in sizes {
        let last = counts.len() - 1;
        // No overflow: a part of the total.
        if counts[last] > 0 && held + size > most.get() {
            counts.push(1);
            held = size;
        } else {
            counts[last] += 1;
            held += size;
        }
    }
    counts
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
        let plan = HfPlan::new(tensors(sizes), ShardLimit::Bytes(max)).unwrap();
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
        let plan = HfPlan::new(tensors(&[3]), ShardLimit::Bytes(8)).unwrap();
        let index = Index::parse(&plan.index_bytes, &Location::default()).unwrap();
        assert_eq!(index.weight_map["t0"], SINGLE_FILE);
        assert_eq!((index.total_size, plan.total_size), (Some(3), 3));
    }

    #[test]
    fn a_name_in_two_shards_sizes_beyond_64_bits_and_empty_shards_are_refused() {
        let mut twice = tensors(&[8, 8]);
        twice[1].0 = "t0".to_owned();
        let error = HfPlan::new(twice, ShardLimit::Bytes(8)).unwrap_err();
        assert!(
            matches!(&error, Error::DuplicateName { name, .. } if name == "t0"),
            "{error}"
        );
        let error = HfPlan::new(tensors(&[u64::MAX, 1]), ShardLimit::Bytes(8)).unwrap_err();
        assert!(matches!(error, Error::DataRange { .. }), "{error}");
        let huge = vec![("t".to_owned(), Dtype::F64, Shape::new([u64::MAX]))];
        assert_eq!(
            HfPlan::new(huge, ShardLimit::Bytes(8)).unwrap_err().slug(),
            "tensor/shape-overflow"
        );
        for limit in [ShardLimit::Bytes(0), ShardLimit::Count(0)] {
            let error = HfPlan::new(tensors(&[1]), limit).unwrap_err();
            assert!(matches!(error, Error::ShardSize), "{error}");
        }
    }

    proptest! {
        #[test]
        fn fc_44_the_index_names_exactly_what_the_headers_hold(
            given in proptest::collection::btree_map("\\PC{1,9}", (proptest::sample::select(Dtype::ALL), 0u64..40), 0..12),
            most in 1u64..200,
            is_count: bool,
        ) {
            let limit = if is_count { ShardLimit::Count(most) } else { ShardLimit::Bytes(most) };
            let given: Vec<Given> = given.into_iter().map(|(name, (dtype, n))| (name, dtype, Shape::new([n]))).collect();
            let plan = HfPlan::new(given.clone(), limit).unwrap();
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
