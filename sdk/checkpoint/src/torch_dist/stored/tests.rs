//! Items as PyTorch may write them: strided, big-endian, newer rebuild functions, and items that lie.

use proptest::prelude::*;
use rialto_tensor::{ByteRange, Dtype, Location, Shape};

use super::*;
use crate::store::{MemoryStore, Store};
use crate::torch_dist::pickle::PickleWriter;
use crate::torch_dist::zip::ArchiveWriter;

/// What a tensor item's pickle says.
struct Item {
    function: &'static str,
    class: (&'static str, &'static str),
    key: &'static str,
    count: u64,
    offset: u64,
    size: Vec<u64>,
    strides: Vec<u64>,
    metadata: Option<&'static [&'static str]>,
    byteorder: Option<&'static [u8]>,
    data: Vec<u8>,
}

impl Item {
    /// Ten 16-bit integers, 0 to 9, as a matrix of 2 rows.
    fn shorts() -> Item {
        Item {
            function: "_rebuild_tensor_v2",
            class: ("torch", "ShortStorage"),
            key: "0",
            count: 10,
            offset: 0,
            size: vec![2, 5],
            strides: vec![5, 1],
            metadata: None,
            byteorder: Some(b"little"),
            data: (0..10u16).flat_map(u16::to_le_bytes).collect(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut pickle = PickleWriter::new();
        pickle.global("torch._utils", self.function);
        pickle.mark();
        pickle.mark();
        pickle.text("storage");
        pickle.global(self.class.0, self.class.1);
        pickle.text(self.key);
        pickle.text("cuda:0");
        pickle.uint(self.count);
        pickle.tuple();
        pickle.persistent_id();
        pickle.uint(self.offset);
        pickle.int_tuple(&self.size);
        pickle.int_tuple(&self.strides);
        pickle.bool(true);
        pickle.none();
        if self.function.ends_with("v3") {
            pickle.global("torch", "uint16");
        }
        if let Some(keys) = self.metadata {
            pickle.dict(keys, |pickle, key| {
                pickle.text(key);
                pickle.bool(true);
            });
        }
        pickle.tuple();
        pickle.reduce();
        archive(&pickle.finish(), self.byteorder, &self.data)
    }

    fn open(&self) -> Result<(StoredTensor, Vec<u8>), Error> {
        open(&self.bytes())
    }
}

fn archive(pickle: &[u8], byteorder: Option<&[u8]>, data: &[u8]) -> Vec<u8> {
    let mut archive = ArchiveWriter::new("any");
    archive.record("data.pkl", pickle);
    if let Some(order) = byteorder {
        archive.record("byteorder", order);
    }
    archive.aligned_record("data/0", data);
    archive.record("version", b"3\n");
    archive.finish()
}

fn open(bytes: &[u8]) -> Result<(StoredTensor, Vec<u8>), Error> {
    let store = MemoryStore::new("m");
    store.insert("f", bytes).unwrap();
    let source = store.open("f").unwrap();
    let whole = ByteRange::new(0, source.len());
    let stored = read_tensor_item(source.as_ref(), whole, &Location::file("f"))?;
    let bytes = stored.read(source.as_ref())?;
    Ok((stored, bytes))
}

fn shorts(values: &[u16]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

#[test]
fn fc_48_a_transposed_tensor_is_read_in_row_major_order() {
    let item = Item {
        size: vec![5, 2],
        strides: vec![1, 5],
        ..Item::shorts()
    };
    let (stored, bytes) = item.open().unwrap();
    assert!(!stored.is_dense());
    assert_eq!(stored.dense_bytes(), None);
    assert_eq!(bytes, shorts(&[0, 5, 1, 6, 2, 7, 3, 8, 4, 9]));
}

#[test]
fn fc_48_a_slice_with_an_offset_is_read() {
    let item = Item {
        offset: 3,
        size: vec![2, 2],
        strides: vec![5, 1],
        ..Item::shorts()
    };
    assert_eq!(item.open().unwrap().1, shorts(&[3, 4, 8, 9]));
    let item = Item {
        offset: 7,
        size: vec![3],
        strides: vec![1],
        ..Item::shorts()
    };
    let (stored, bytes) = item.open().unwrap();
    assert_eq!(stored.dense_bytes().map(ByteRange::len), Some(6));
    assert_eq!(bytes, shorts(&[7, 8, 9]));
}

proptest! {
    #[test]
    fn fc_48_any_view_is_read_in_row_major_order(
        extents in proptest::collection::vec(1u64..5, 0..5),
        gaps in proptest::collection::vec(1u64..4, 5),
        order in Just([0usize, 1, 2, 3, 4]).prop_shuffle(),
        offset in 0u64..7,
    ) {
        // The axes in any order of nesting, each with room between its steps.
        let rank = extents.len();
        let mut strides = vec![0; rank];
        let mut step = 1;
        for axis in order.into_iter().filter(|&axis| axis < rank) {
            strides[axis] = step * gaps[axis];
            step = strides[axis] * extents[axis];
        }
        let count = offset + step;
        let element = |index: u64| u16::try_from(index).unwrap();
        let item = Item {
            count,
            offset,
            size: extents.clone(),
            strides: strides.clone(),
            data: (0..count).flat_map(|index| element(index).to_le_bytes()).collect(),
            ..Item::shorts()
        };
        let total: u64 = extents.iter().product();
        let expected: Vec<u16> = (0..total)
            .map(|mut number| {
                let mut index = offset;
                for axis in (0..rank).rev() {
                    index += number % extents[axis] * strides[axis];
                    number /= extents[axis];
                }
                element(index)
            })
            .collect();
        prop_assert_eq!(item.open().unwrap().1, shorts(&expected));
    }
}

#[test]
fn the_stride_of_an_axis_of_one_does_not_matter() {
    let item = Item {
        size: vec![1, 10],
        strides: vec![77, 1],
        ..Item::shorts()
    };
    assert!(item.open().unwrap().0.is_dense());
}

#[test]
fn big_endian_elements_are_turned() {
    let data = (0..10u16).flat_map(u16::to_be_bytes).collect();
    let item = Item {
        byteorder: Some(b"big"),
        data,
        ..Item::shorts()
    };
    let (stored, bytes) = item.open().unwrap();
    assert!(stored.is_dense() && stored.dense_bytes().is_none());
    assert_eq!(bytes, shorts(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
    let item = Item {
        byteorder: None,
        ..Item::shorts()
    };
    assert!(!item.open().unwrap().0.big_endian);
}

#[test]
fn an_untyped_storage_counts_bytes_and_takes_its_dtype_apart() {
    let item = Item {
        function: "_rebuild_tensor_v3",
        class: ("torch.storage", "UntypedStorage"),
        count: 20,
        ..Item::shorts()
    };
    assert_eq!(item.open().unwrap().0.dtype, Dtype::U16);
}

#[test]
fn items_that_contradict_themselves_are_errors() {
    let shorts = Item::shorts;
    for (why, item) in [
        (
            "one element too far",
            Item {
                offset: 1,
                ..shorts()
            },
        ),
        (
            "far beyond",
            Item {
                size: vec![1 << 62, 2],
                strides: vec![1, 1 << 62],
                ..shorts()
            },
        ),
        (
            "2^63 elements",
            Item {
                size: vec![1 << 63],
                strides: vec![1],
                ..shorts()
            },
        ),
        (
            "an overflow",
            Item {
                size: vec![3, 2],
                strides: vec![i64::MAX as u64, 1],
                ..shorts()
            },
        ),
        (
            "other ranks",
            Item {
                strides: vec![1],
                ..shorts()
            },
        ),
        (
            "another count",
            Item {
                count: 11,
                ..shorts()
            },
        ),
        (
            "a huge count",
            Item {
                count: 1 << 63,
                ..shorts()
            },
        ),
        (
            "repeated elements",
            Item {
                size: vec![1 << 40],
                strides: vec![0],
                ..shorts()
            },
        ),
        (
            "an absent record",
            Item {
                key: "1",
                ..shorts()
            },
        ),
        (
            "an escape",
            Item {
                key: "../data.pkl",
                ..shorts()
            },
        ),
        (
            "an unknown class",
            Item {
                class: ("torch", "ComplexFloatStorage"),
                ..shorts()
            },
        ),
        (
            "a foreign class",
            Item {
                class: ("os", "ShortStorage"),
                ..shorts()
            },
        ),
        (
            "an unknown order",
            Item {
                byteorder: Some(b"middle"),
                ..shorts()
            },
        ),
        (
            "lazy negation",
            Item {
                metadata: Some(&["neg"]),
                ..shorts()
            },
        ),
        (
            "no elements, far away",
            Item {
                size: vec![0],
                strides: vec![1],
                offset: 11,
                ..shorts()
            },
        ),
    ] {
        assert!(item.open().is_err(), "{why}");
    }
    assert!(
        Item {
            metadata: Some(&[]),
            ..shorts()
        }
        .open()
        .is_ok()
    );
}

#[test]
fn a_parameter_is_the_tensor_in_it_and_never_another_parameter() {
    let item = |depth: usize| {
        let mut pickle = PickleWriter::new();
        for _ in 0..depth {
            pickle.global("torch._utils", "_rebuild_parameter");
            pickle.mark();
        }
        pickle.global("torch._utils", "_rebuild_tensor_v2");
        pickle.mark();
        pickle.mark();
        pickle.text("storage");
        pickle.global("torch", "ByteStorage");
        pickle.text("0");
        pickle.text("cpu");
        pickle.uint(3);
        pickle.tuple();
        pickle.persistent_id();
        pickle.uint(1);
        pickle.int_tuple(&[2]);
        pickle.int_tuple(&[1]);
        pickle.bool(false);
        pickle.none();
        pickle.tuple();
        pickle.reduce();
        for _ in 0..depth {
            pickle.bool(true);
            pickle.none();
            pickle.tuple();
            pickle.reduce();
        }
        archive(&pickle.finish(), None, b"abc")
    };
    assert_eq!(open(&item(1)).unwrap().1, b"bc");
    for depth in [2, 300] {
        assert!(matches!(
            open(&item(depth)),
            Err(Error::ItemMalformed { .. })
        ));
    }
}

#[test]
fn fc_42_a_command_in_the_place_of_a_tensor_or_inside_it_is_not_run() {
    let scratch = tempfile::tempdir().unwrap();
    let mark = scratch.path().join("was-run");
    let command = format!("touch {}", mark.display());
    let run = |pickle: &mut PickleWriter| {
        pickle.global("os", "system");
        pickle.text(&command);
        pickle.tuple1();
        pickle.reduce();
    };
    // In the place of the whole, of the storage, of a hook, of the dtype.
    for place in 0..4 {
        let mut pickle = PickleWriter::new();
        if place == 0 {
            run(&mut pickle);
        } else {
            pickle.global("torch._utils", "_rebuild_tensor_v3");
            pickle.mark();
            if place == 1 {
                run(&mut pickle);
            } else {
                pickle.mark();
                pickle.text("storage");
                pickle.global("torch.storage", "UntypedStorage");
                pickle.text("0");
                pickle.text("cpu");
                pickle.uint(2);
                pickle.tuple();
                pickle.persistent_id();
            }
            pickle.uint(0);
            pickle.int_tuple(&[1]);
            pickle.int_tuple(&[1]);
            pickle.bool(false);
            if place == 2 {
                run(&mut pickle)
            } else {
                pickle.none()
            }
            if place == 3 {
                run(&mut pickle)
            } else {
                pickle.global("torch", "uint16")
            }
            pickle.tuple();
            pickle.reduce();
        }
        // A hook is nothing that a reader needs, so the tensor beside it is read.
        let result = open(&archive(&pickle.finish(), None, b"ab"));
        assert_eq!(result.is_ok(), place == 2, "{place}: {result:?}");
    }
    assert!(!mark.exists());
}

#[test]
fn something_that_is_no_tensor_is_refused() {
    for pickle in [
        &b"\x80\x02K\x01."[..],
        b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
    ] {
        assert!(matches!(
            open(&archive(pickle, None, b"")),
            Err(Error::ItemMalformed { .. })
        ));
    }
}

#[test]
fn every_cut_of_an_item_is_an_error() {
    let bytes = Item::shorts().bytes();
    for len in 0..bytes.len() {
        assert!(open(&bytes[..len]).is_err(), "cut at {len}");
    }
}

#[test]
fn errors_name_the_item() {
    let error = Item {
        count: 11,
        ..Item::shorts()
    }
    .open()
    .unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with("item does not hold a tensor: its storage has another"),
        "{message}"
    );
    assert!(message.contains("(f, bytes 0.."), "{message}");
}

#[test]
fn an_empty_tensor_is_dense_whatever_its_strides() {
    let stored = StoredTensor {
        dtype: Dtype::F32,
        size: Shape::new([0, 4]),
        strides: vec![9, 9],
        storage_offset: 0,
        data: ByteRange::new(64, 64),
        big_endian: true,
        crc32: 0,
    };
    assert!(stored.is_dense());
    let store = MemoryStore::new("m");
    store.insert("f", []).unwrap();
    assert!(
        stored
            .read(store.open("f").unwrap().as_ref())
            .unwrap()
            .is_empty()
    );
}
