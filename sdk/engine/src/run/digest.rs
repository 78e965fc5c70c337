//! The checksum and the digest of a dense run of bytes, from parts that are hashed apart and in any order.
//!
//! CRC-32 is what a `torch.save` stream carries; two of neighbors combine to that of both. BLAKE3 is a tree over chunks of
//! [`GRAIN_BYTES`]: a part that begins between two chunks gives the nodes that lie in it, and all nodes together the root,
//! which is what `b3sum` says of the same bytes.

use std::collections::HashMap;

use blake3::hazmat::{self, ChainingValue, HasherExt, Mode};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Parts begin on multiples of this.
pub(crate) const GRAIN_BYTES: u64 = blake3::CHUNK_LEN as u64;

/// A BLAKE3 digest.
pub(crate) type Digest = [u8; 32];

/// What is known of a part once its bytes have passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartDigest {
    /// CRC-32 of the part, if it was asked for.
    #[serde(rename = "c", skip_serializing_if = "Option::is_none", default)]
    pub(crate) crc32: Option<u32>,
    /// The nodes of the BLAKE3 tree that tile the part, in order; of a part that is the whole run, the digest. None if no
    /// digest was asked for.
    #[serde(
        rename = "n",
        with = "hex_nodes",
        skip_serializing_if = "Vec::is_empty",
        default
    )]
    pub(crate) nodes: Vec<Digest>,
}

/// Which of the two are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) crc32: bool,
    pub(crate) digest: bool,
}

/// The nodes that tile a part, as `(start, length)`: the largest that fit, one after the other.
fn nodes(start: u64, end: u64, total: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = start;
    std::iter::from_fn(move || {
        let rest = end.checked_sub(at).filter(|&rest| rest > 0)?;
        let most = hazmat::max_subtree_len(at).unwrap_or(u64::MAX);
        // A node is of a power of two of bytes, unless the run ends in it.
        let len = if end == total && rest <= most {
            rest
        } else {
            most.min(1 << rest.ilog2())
        };
        let node = (at, len);
        at += len;
        Some(node)
    })
}

/// Hashes one part as it streams by.
#[derive(Debug)]
pub(crate) struct PartHasher {
    crc32: Option<crc32fast::Hasher>,
    tree: Option<Tree>,
}

#[derive(Debug)]
struct Tree {
    /// Nodes to come, the next one last.
    ahead: Vec<(u64, u64)>,
    hasher: blake3::Hasher,
    /// Bytes that the node under way still takes.
    missing: u64,
    done: Vec<Digest>,
    is_whole: bool,
}

impl PartHasher {
    /// For bytes `start..end` of a run of `total`. `start` is a multiple of [`GRAIN_BYTES`], `end` as well or the end of the run.
    pub(crate) fn new(start: u64, end: u64, total: u64, wanted: Wanted) -> PartHasher {
        debug_assert!(start.is_multiple_of(GRAIN_BYTES));
        debug_assert!(end == total || end.is_multiple_of(GRAIN_BYTES));
        PartHasher {
            crc32: wanted.crc32.then(crc32fast::Hasher::new),
            tree: wanted.digest.then(|| Tree::new(start, end, total)),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        if let Some(crc32) = &mut self.crc32 {
            crc32.update(bytes);
        }
        if let Some(tree) = &mut self.tree {
            tree.update(bytes);
        }
    }

    pub(crate) fn finish(self) -> PartDigest {
        PartDigest {
            crc32: self.crc32.map(crc32fast::Hasher::finalize),
            nodes: self.tree.map(Tree::finish).unwrap_or_default(),
        }
    }
}

impl Tree {
    fn new(start: u64, end: u64, total: u64) -> Tree {
        let mut ahead: Vec<(u64, u64)> = nodes(start, end, total).collect();
        ahead.reverse();
        let mut tree = Tree {
            ahead,
            hasher: blake3::Hasher::new(),
            missing: 0,
            done: Vec::new(),
            is_whole: start == 0 && end == total,
        };
        if !tree.is_whole {
            tree.begin();
        }
        tree
    }

    fn begin(&mut self) {
        let Some((start, len)) = self.ahead.pop() else {
            return;
        };
        // `reset` would keep the offset.
        self.hasher = blake3::Hasher::new();
        self.hasher.set_input_offset(start);
        self.missing = len;
    }

    fn update(&mut self, mut bytes: &[u8]) {
        if self.is_whole {
            self.hasher.update(bytes);
            return;
        }
        while !bytes.is_empty() {
            let take =
                usize::try_from(self.missing).map_or(bytes.len(), |len| len.min(bytes.len()));
            assert!(take > 0, "more bytes than the part has");
            let (now, rest) = bytes.split_at(take);
            self.hasher.update(now);
            self.missing -= take as u64;
            bytes = rest;
            if self.missing == 0 {
                self.done.push(self.hasher.finalize_non_root());
                self.begin();
            }
        }
    }

    fn finish(mut self) -> Vec<Digest> {
        if self.is_whole {
            self.done.push(self.hasher.finalize().into());
        }
        self.done
    }
}

/// The checksum and the digest of a run, from its parts in order, each with the number of its bytes. Parts are those of
/// [`PartHasher`]; of a journal they may be anything.
///
/// Errors: [`Error::Journal`] if they are not parts of such a run.
pub(crate) fn join(
    parts: &[(u64, &PartDigest)],
    wanted: Wanted,
) -> Result<(u32, Option<Digest>), Error> {
    let total = parts.iter().map(|(len, _)| len).sum();
    let crc32 = if wanted.crc32 {
        joined_crc32(parts)?
    } else {
        0
    };
    if !wanted.digest {
        return Ok((crc32, None));
    }
    let mut found: HashMap<(u64, u64), ChainingValue> = HashMap::new();
    let mut at = 0;
    for (len, part) in parts {
        let is_whole = at == 0 && *len == total;
        let extents: Vec<(u64, u64)> = match is_whole {
            true => vec![(0, total)],
            false => nodes(at, at + len, total).collect(),
        };
        if extents.len() != part.nodes.len() {
            return Err(Error::journal(
                "a record has another number of nodes than its unit",
            ));
        }
        if is_whole {
            return Ok((crc32, Some(part.nodes[0])));
        }
        found.extend(extents.into_iter().zip(part.nodes.iter().copied()));
        at += len;
    }
    let left = hazmat::left_subtree_len(total);
    let (a, b) = (node(&found, 0, left)?, node(&found, left, total - left)?);
    let root = hazmat::merge_subtrees_root(&a, &b, Mode::Hash);
    Ok((crc32, Some(root.into())))
}

fn joined_crc32(parts: &[(u64, &PartDigest)]) -> Result<u32, Error> {
    let mut all = crc32fast::Hasher::new();
    for (len, part) in parts {
        let crc32 = part
            .crc32
            .ok_or_else(|| Error::journal("a record lacks the checksum of its unit"))?;
        all.combine(&crc32fast::Hasher::new_with_initial_len(crc32, *len));
    }
    Ok(all.finalize())
}

fn node(
    found: &HashMap<(u64, u64), ChainingValue>,
    start: u64,
    len: u64,
) -> Result<ChainingValue, Error> {
    if let Some(value) = found.get(&(start, len)) {
        return Ok(*value);
    }
    if len <= GRAIN_BYTES {
        return Err(Error::journal("the nodes of a record do not tile its unit"));
    }
    let left = hazmat::left_subtree_len(len);
    let (a, b) = (
        node(found, start, left)?,
        node(found, start + left, len - left)?,
    );
    Ok(hazmat::merge_subtrees_non_root(&a, &b, Mode::Hash))
}

/// A digest as text.
pub(crate) fn hex(digest: &Digest) -> String {
    blake3::Hash::from_bytes(*digest).to_hex().to_string()
}

/// Nodes as one run of hexadecimal digits.
mod hex_nodes {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::{Digest, hex};

    pub(super) fn serialize<S: Serializer>(nodes: &[Digest], to: S) -> Result<S::Ok, S::Error> {
        let text: String = nodes.iter().map(hex).collect();
        to.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Digest>, D::Error> {
        let text = String::deserialize(from)?;
        let (nodes, rest) = text.as_bytes().as_chunks::<64>();
        if !rest.is_empty() {
            return Err(D::Error::custom("a node is 64 hexadecimal digits"));
        }
        let node = |digits: &[u8; 64]| {
            blake3::Hash::from_hex(digits)
                .map(Digest::from)
                .map_err(D::Error::custom)
        };
        nodes.iter().map(node).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOTH: Wanted = Wanted {
        crc32: true,
        digest: true,
    };

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
    }

    /// Hashes a run in parts that end at the given places, each in steps of `step` bytes, and joins them.
    fn in_parts(bytes: &[u8], ends: &[usize], step: usize) -> (u32, Option<Digest>) {
        let total = bytes.len() as u64;
        let (mut parts, mut start) = (Vec::new(), 0);
        for &end in ends.iter().chain([&bytes.len()]) {
            let mut hasher = PartHasher::new(start as u64, end as u64, total, BOTH);
            bytes[start..end]
                .chunks(step)
                .for_each(|part| hasher.update(part));
            parts.push(((end - start) as u64, hasher.finish()));
            start = end;
        }
        let text = serde_json::to_string(&parts).unwrap();
        let parts: Vec<(u64, PartDigest)> = serde_json::from_str(&text).unwrap();
        let parts: Vec<_> = parts.iter().map(|(len, part)| (*len, part)).collect();
        join(&parts, BOTH).unwrap()
    }

    #[test]
    fn a_run_in_one_part_has_the_plain_digest() {
        for len in [0, 1, 1023, 1024, 1025, 5000] {
            let bytes = bytes(len);
            let plain = (
                crc32fast::hash(&bytes),
                Some(*blake3::hash(&bytes).as_bytes()),
            );
            assert_eq!(in_parts(&bytes, &[], 700), plain, "{len}");
        }
    }

    #[test]
    fn a_node_that_is_another_or_missing_is_seen() {
        let bytes = bytes(7 * 1024 + 5);
        let parts = [(0, 3072), (3072, bytes.len())].map(|(start, end)| {
            let mut hasher = PartHasher::new(start as u64, end as u64, bytes.len() as u64, BOTH);
            hasher.update(&bytes[start..end]);
            ((end - start) as u64, hasher.finish())
        });
        let joined = |parts: &[(u64, PartDigest)]| {
            let parts: Vec<_> = parts.iter().map(|(len, part)| (*len, part)).collect();
            join(&parts, BOTH)
        };
        let plain = Some(*blake3::hash(&bytes).as_bytes());
        assert_eq!(joined(&parts).unwrap().1, plain);
        let mut other = parts.clone();
        other[0].1.nodes[1][0] ^= 1;
        assert_ne!(joined(&other).unwrap().1, plain);
        let mut missing = parts.clone();
        missing[1].1.nodes.pop();
        assert_eq!(joined(&missing).unwrap_err().slug(), "engine/journal");
        let mut unchecked = parts;
        unchecked[0].1.crc32 = None;
        assert_eq!(joined(&unchecked).unwrap_err().slug(), "engine/journal");
    }

    proptest! {
        #[test]
        fn parts_make_the_digest_of_the_whole_wherever_they_end(
            len in 0usize..40_000,
            cuts in proptest::collection::btree_set(1usize..40, 0..6),
            step in 1usize..5000,
        ) {
            let bytes = bytes(len);
            let ends: Vec<usize> = cuts.iter().map(|cut| cut * 1024).filter(|&end| end < len).collect();
            let plain = (crc32fast::hash(&bytes), Some(*blake3::hash(&bytes).as_bytes()));
            prop_assert_eq!(in_parts(&bytes, &ends, step), plain);
        }
    }
}
