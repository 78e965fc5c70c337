//! An item that is planned, filled and read back.

use proptest::prelude::*;
use rialto_tensor::{ByteRange, Dtype, Location, Shape};

use super::*;
use crate::store::{MemoryStore, Source, Store};
use crate::torch_dist::read_tensor_item;

fn source(bytes: Vec<u8>) -> Box<dyn Source> {
    let store = MemoryStore::new("m");
    store.insert("f", bytes).unwrap();
    store.open("f").unwrap()
}

fn check(dtype: Dtype, shape: &Shape) {
    let item = TensorItem::plan(dtype, shape).unwrap();
    let data: Vec<u8> = (0..item.data_len())
        .map(|index| (index * 7) as u8)
        .collect();
    let crc = crc32fast::hash(&data);
    let prefix = item.prefix();
    assert_eq!(prefix.len() as u64, item.data_offset());
    assert_eq!(item.data_offset() % 64, 0);
    let bytes = [&prefix[..], &data, &item.suffix(crc)].concat();
    assert_eq!(bytes.len() as u64, item.len());

    let source = source(bytes);
    let whole = ByteRange::new(0, source.len());
    let stored = read_tensor_item(source.as_ref(), whole, &Location::file("f")).unwrap();
    assert_eq!((stored.dtype, &stored.size), (dtype, shape));
    assert!(stored.is_dense());
    let expected = ByteRange::new(item.data_offset(), item.data_offset() + item.data_len());
    assert_eq!(stored.dense_bytes(), Some(expected));
    assert_eq!(stored.crc32, crc);
    assert_eq!(stored.read(source.as_ref()).unwrap(), data);
}

#[test]
fn every_dtype_is_read_back_also_without_axes_and_without_elements() {
    for &dtype in Dtype::ALL {
        for shape in [
            Shape::new([]),
            Shape::new([0]),
            Shape::new([3, 0, 70_000]),
            Shape::new([1]),
            Shape::new([2, 3, 4, 5]),
            Shape::new([300]),
        ] {
            check(dtype, &shape);
        }
    }
}

proptest! {
    #[test]
    fn any_shape_is_read_back(
        dtype in proptest::sample::select(Dtype::ALL),
        extents in proptest::collection::vec(0u64..7, 0..5),
    ) {
        check(dtype, &Shape::new(extents));
    }
}

#[test]
fn a_tensor_of_terabytes_is_planned_without_its_bytes() {
    let item = TensorItem::plan(Dtype::F32, &Shape::new([1 << 20, 1 << 20])).unwrap();
    assert_eq!(item.data_len(), 4 << 40);
    assert_eq!(item.suffix(1).len(), item.suffix(2).len());
    let ends = item.data_offset() + item.suffix(0).len() as u64;
    assert_eq!(item.len(), item.data_len() + ends);
}

#[test]
fn sizes_beyond_63_bits_are_refused() {
    for extents in [
        vec![1 << 63],
        vec![1 << 62, 4],
        vec![i64::MAX as u64],
        vec![0, 1 << 40, 1 << 40],
    ] {
        let error = TensorItem::plan(Dtype::U8, &Shape::new(extents)).unwrap_err();
        assert_eq!(error.slug(), "tensor/shape-overflow");
    }
}
