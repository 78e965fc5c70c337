//! Saves of several ranks, each with metadata of its own.

use std::sync::Arc;

use rialto_tensor::{Dtype, Shape};

use super::*;
use crate::store::MemoryStore;
use crate::torch_dist::item::TensorItem;
use crate::torch_dist::{Object, ObjectEntry, TorchDistCheckpoint, object_item};

/// What one rank stores: a tensor `w`, bf16 of `shape`, of which it has `regions`, every byte the one given.
struct Rank {
    dtype: Dtype,
    shape: Vec<u64>,
    regions: Vec<Region>,
    byte: u8,
    object: &'static str,
}

fn rank(regions: &[Region]) -> Rank {
    Rank {
        dtype: Dtype::Bf16,
        shape: vec![4, 2],
        regions: regions.to_vec(),
        byte: 7,
        object: "step",
    }
}

fn rows(start: u64, count: u64) -> Region {
    Region::new([start, 0], [count, 2])
}

fn store(ranks: &[Rank]) -> MemoryStore {
    let store = MemoryStore::new("ckpt");
    for (number, rank) in ranks.iter().enumerate() {
        let file = format!("__{number}_0.distcp");
        let mut bytes = Vec::new();
        let mut metadata = Metadata::default();
        let mut chunks = Vec::new();
        for region in &rank.regions {
            let item = TensorItem::plan(rank.dtype, &region.shape()).unwrap();
            let data = vec![rank.byte; usize::try_from(item.data_len()).unwrap()];
            chunks.push(Chunk {
                region: region.clone().into(),
                file: file.as_str().into(),
                offset: bytes.len() as u64,
                len: item.len(),
            });
            bytes.extend(
                [
                    item.prefix(),
                    data.clone(),
                    item.suffix(crc32fast::hash(&data)),
                ]
                .concat(),
            );
        }
        let entry = TensorEntry {
            dtype: rank.dtype,
            shape: Shape::new(rank.shape.clone()),
            chunks,
        };
        metadata.tensors.insert("w".to_owned(), entry);
        let object = object_item(&Object::Int(number as i64)).unwrap();
        let entry = ObjectEntry {
            file: file.as_str().into(),
            offset: bytes.len() as u64,
            len: object.len() as u64,
        };
        metadata.objects.insert(rank.object.to_owned(), entry);
        bytes.extend(object);
        store.insert(&file, bytes).unwrap();
        store
            .insert(&format!("__{number}.metadata"), metadata.encode())
            .unwrap();
    }
    store
}

fn open(store: &MemoryStore) -> Result<TorchDistCheckpoint, Error> {
    TorchDistCheckpoint::open(Arc::new(store.clone()))
}

fn refusal(ranks: &[Rank]) -> Error {
    open(&store(ranks)).unwrap_err()
}

#[test]
fn the_files_of_all_ranks_are_read_as_one_and_a_note_says_so() {
    let files = store(&[
        rank(&[rows(0, 2)]),
        rank(&[rows(2, 1)]),
        rank(&[rows(3, 1), rows(4, 0)]),
    ]);
    let checkpoint = open(&files).unwrap();
    let chunks = &checkpoint.metadata().tensors["w"].chunks;
    let places: Vec<&str> = chunks.iter().map(|chunk| &*chunk.file).collect();
    assert_eq!(places, ["__0_0.distcp", "__1_0.distcp", "__2_0.distcp"]);
    // The object of the lowest rank is the one that counts.
    assert_eq!(checkpoint.object("step").unwrap(), Object::Int(0));
    let notes: Vec<&String> = checkpoint
        .notes()
        .iter()
        .filter(|note| note.contains("collectives"))
        .collect();
    assert_eq!(
        notes,
        [
            "saved without collectives: 3 metadata files are read as one; copies of 0 chunks and 2 objects by higher ranks \
          are left aside"
        ]
    );
}

#[test]
fn a_metadata_file_of_the_whole_comes_before_those_of_ranks() {
    let files = store(&[rank(&[rows(0, 2)]), rank(&[rows(2, 2)])]);
    let whole = store(&[rank(&[rows(0, 4)])]);
    files
        .insert(METADATA_FILE, whole.bytes("__0.metadata").unwrap())
        .unwrap();
    files
        .insert("__0_0.distcp", whole.bytes("__0_0.distcp").unwrap())
        .unwrap();
    let checkpoint = open(&files).unwrap();
    assert_eq!(checkpoint.metadata().tensors["w"].chunks.len(), 1);
    assert!(
        checkpoint
            .notes()
            .iter()
            .any(|note| note.starts_with("2 metadata files of single ranks are left aside"))
    );
}

#[test]
fn a_copy_counts_once_if_it_is_equal_and_is_refused_if_it_is_not() {
    let both = || [rank(&[rows(0, 4)]), rank(&[rows(0, 4)])];
    let checkpoint = open(&store(&both())).unwrap();
    let chunks = &checkpoint.metadata().tensors["w"].chunks;
    assert_eq!((chunks.len(), &*chunks[0].file), (1, "__0_0.distcp"));
    assert!(
        checkpoint
            .notes()
            .iter()
            .any(|note| note.contains("copies of 1 chunks and 1 objects"))
    );

    let [first, mut second] = both();
    second.byte = 8;
    let error = refusal(&[first, second]);
    let Error::RanksDisagree {
        before,
        after,
        location,
    } = &error
    else {
        panic!("{error}")
    };
    assert!(
        before.starts_with("rank 0 stores bytes") && after.starts_with("rank 1 stores bytes"),
        "{error}"
    );
    assert_eq!(location.tensor.as_deref(), Some("w"));
}

#[test]
fn ranks_must_agree_on_dtype_and_shape() {
    let halves = || [rank(&[rows(0, 2)]), rank(&[rows(2, 2)])];
    let [first, mut second] = halves();
    second.dtype = Dtype::F16;
    assert_eq!(
        refusal(&[first, second]).to_string(),
        "ranks disagree: rank 0 says BF16 [4, 2], but rank 1 says F16 [4, 2] (ckpt, tensor w)"
    );
    let [first, mut second] = halves();
    second.shape = vec![5, 2];
    let error = refusal(&[first, second]);
    assert_eq!(error.slug(), "torch_dist/ranks-disagree", "{error}");
}

#[test]
fn a_name_is_a_tensor_or_an_object_on_every_rank() {
    for order in [[0, 1], [1, 0]] {
        let mut ranks = [rank(&[rows(0, 2)]), rank(&[rows(2, 2)])];
        ranks[1].object = "other";
        let files = store(&ranks);
        // One rank's tensor is called as the other's object.
        let location = Location::default();
        let [keeps, changes] = order.map(|rank| format!("__{rank}.metadata"));
        let object = Metadata::decode_part(&files.bytes(&keeps).unwrap(), &location).unwrap();
        let name = object.objects.keys().next().unwrap().clone();
        let mut metadata =
            Metadata::decode_part(&files.bytes(&changes).unwrap(), &location).unwrap();
        let entry = metadata.tensors.remove("w").unwrap();
        metadata.tensors.insert(name.clone(), entry);
        files.insert(&changes, metadata.encode()).unwrap();
        let error = open(&files).unwrap_err();
        assert!(
            matches!(&error, Error::DuplicateName { name: found, .. } if *found == name),
            "{error}"
        );
    }
}

#[test]
fn chunks_of_all_ranks_together_must_tile() {
    let gap = refusal(&[rank(&[rows(0, 2)]), rank(&[rows(3, 1)])]);
    assert!(
        gap.to_string()
            .contains("w [4, 2]: [2, 0]+[1, 2] is not covered"),
        "{gap}"
    );
    let overlap = refusal(&[rank(&[rows(0, 3)]), rank(&[rows(2, 2)])]);
    assert!(
        overlap
            .to_string()
            .contains("w [4, 2]: [2, 0]+[1, 2] is covered twice"),
        "{overlap}"
    );
}

#[test]
fn the_missing_files_of_ranks_are_named_also_when_numbers_are_huge() {
    let files = store(&[
        rank(&[rows(0, 1)]),
        rank(&[rows(1, 1)]),
        rank(&[rows(2, 2)]),
    ]);
    let last = files.remove("__1.metadata").unwrap();
    let error = open(&files).unwrap_err();
    assert_eq!(
        error.to_string(),
        "metadata of 1 rank(s) is absent: __1.metadata (ckpt)"
    );
    for rank in [u64::MAX, u64::MAX - 1] {
        let name = format!("__{rank}.metadata");
        files.insert(&name, last.clone()).unwrap();
        assert!(matches!(open(&files), Err(Error::RanksMissing { .. })));
        files.remove(&name);
    }
}

#[test]
fn other_names_are_no_rank() {
    let names = [
        "__.metadata",
        "__+1.metadata",
        "__01.metadata",
        "__1.metadata.tmp",
        "x/__1.metadata",
        "__1_0.metadata",
        "__18446744073709551616.metadata",
        "_1.metadata",
    ];
    let names = names.map(str::to_owned);
    assert!(rank_files(&names).is_empty());
    assert_eq!(
        rank_files(&["__10.metadata".to_owned()])
            .into_keys()
            .collect::<Vec<_>>(),
        [10]
    );
}
