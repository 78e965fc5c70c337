//! Objects written and read back, and hostile ones.

use super::*;
use crate::store::{MemoryStore, Store};
use crate::torch_dist::state::{common_state, empty_extra_state, no_extra_state, train_state};

fn read(bytes: &[u8]) -> Result<Object, Error> {
    let store = MemoryStore::new("m");
    store.insert("f", bytes).unwrap();
    let source = store.open("f").unwrap();
    read_object(
        source.as_ref(),
        ByteRange::new(0, source.len()),
        &Location::file("f"),
    )
}

fn read_pickle(pickle: &[u8]) -> Result<Object, Error> {
    let mut archive = ArchiveWriter::new(ROOT);
    write_head(&mut archive, pickle);
    read(&archive.finish())
}

fn text(text: &str) -> Object {
    Object::Str(text.to_owned())
}

#[test]
fn what_megatron_needs_is_read_back() {
    for object in [
        Object::None,
        Object::Int(i64::MIN),
        Object::Float(0.1),
        text("Grüße"),
        Object::Tuple(vec![Object::Bool(true), Object::List(Vec::new())]),
        common_state(42, false),
        train_state(3),
        empty_extra_state(),
        no_extra_state(),
    ] {
        assert_eq!(read(&object_item(&object).unwrap()).unwrap(), object);
    }
}

#[test]
fn tensor_bytes_in_an_object_are_aligned() {
    let bytes = object_item(&train_state(0x0807_0605_0403_0201)).unwrap();
    let at = bytes
        .windows(8)
        .position(|w| w == [1, 2, 3, 4, 5, 6, 7, 8])
        .unwrap();
    assert_eq!(at % 64, 0);
}

#[test]
fn what_has_no_encoding_is_refused() {
    let object = Object::List(vec![Object::Opaque("x.Y".to_owned()), Object::None]);
    assert!(matches!(
        object_item(&object),
        Err(Error::ObjectOpaque { .. })
    ));
    let short = Object::scalar(Dtype::F32, &[0]);
    assert_eq!(object_item(&short).unwrap_err().code(), 1);
}

#[test]
fn fc_42_a_hostile_call_is_opaque_and_nothing_more() {
    let object = read_pickle(b"\x80\x02]cos\nsystem\nX\x04\x00\x00\x00exit\x85Ra.").unwrap();
    assert_eq!(
        object,
        Object::List(vec![Object::Opaque("os.system".to_owned())])
    );
}

#[test]
fn an_object_may_hold_tensors_in_several_storages_and_parts_of_one() {
    let mut pickle = PickleWriter::new();
    let tensor = |pickle: &mut PickleWriter, key: &str, offset, count| {
        pickle.global("torch._utils", "_rebuild_tensor_v2");
        pickle.mark();
        pickle.mark();
        pickle.text("storage");
        pickle.global("torch", "ByteStorage");
        pickle.text(key);
        pickle.text("cuda:3");
        pickle.uint(count);
        pickle.tuple();
        pickle.persistent_id();
        pickle.uint(offset);
        pickle.int_tuple(&[2]);
        pickle.int_tuple(&[1]);
        pickle.bool(false);
        pickle.none();
        pickle.tuple();
        pickle.reduce();
    };
    pickle.mark();
    tensor(&mut pickle, "0", 0, 4);
    tensor(&mut pickle, "1", 1, 3);
    tensor(&mut pickle, "0", 2, 4);
    pickle.tuple();
    let mut archive = ArchiveWriter::new(ROOT);
    write_head(&mut archive, &pickle.finish());
    archive.aligned_record("data/1", b"xyz");
    archive.aligned_record("data/0", b"abcd");
    let Object::Tuple(tensors) = read(&archive.finish()).unwrap() else {
        panic!()
    };
    let bytes = tensors.iter().map(|tensor| match tensor {
        Object::Tensor { bytes, .. } => bytes.as_slice(),
        other => panic!("{other:?}"),
    });
    assert_eq!(bytes.collect::<Vec<_>>(), [b"ab", b"yz", b"cd"]);
}

#[test]
fn an_ordered_dict_is_a_dict_and_a_doubled_key_keeps_its_last_value() {
    let pickle =
        b"\x80\x02ccollections\nOrderedDict\n)R(X\x01\x00\x00\x00aK\x01X\x01\x00\x00\x00aK\x02u.";
    let expected = Object::Dict(vec![("a".to_owned(), Object::Int(2))]);
    assert_eq!(read_pickle(pickle).unwrap(), expected);
}

#[test]
fn values_that_are_not_of_the_subset_are_opaque() {
    for (pickle, expected) in [
        (
            &b"\x80\x02}K\x01K\x02s."[..],
            "dict with keys that are not text",
        ),
        (b"\x80\x04\x8f.", "set"),
        (b"\x80\x02c_io\nBytesIO\n)\x81.", "_io.BytesIO"),
        (
            b"\x80\x02c_codecs\nencode\nX\x03\x00\x00\x00\xe2\x82\xacX\x06\x00\x00\x00latin1\x86R.",
            "_codecs.encode",
        ),
        (
            b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
            "_codecs.encode",
        ),
        (
            b"\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00.",
            "int beyond 64 bits",
        ),
        (
            b"\x80\x02cargparse\nNamespace\n)\x81}b.",
            "argparse.Namespace",
        ),
        (b"\x80\x02ctorch\nbfloat16\n.", "torch.bfloat16"),
    ] {
        assert_eq!(
            read_pickle(pickle).unwrap(),
            Object::Opaque(expected.to_owned())
        );
    }
}

#[test]
fn bytes_are_read_as_every_protocol_writes_them() {
    for pickle in [
        &b"\x80\x04C\x02\xe9x."[..],
        b"\x80\x02c_codecs\nencode\nX\x03\x00\x00\x00\xc3\xa9xX\x06\x00\x00\x00latin1\x86R.",
        b"\x80\x02c_io\nBytesIO\n)\x81c_codecs\nencode\nX\x03\x00\x00\x00\xc3\xa9xX\x06\x00\x00\x00latin1\x86RK\x00N\x87b.",
        b"\x80\x04c_io\nBytesIO\n)\x81C\x02\xe9xK\x00N\x87b.",
    ] {
        let object = read_pickle(pickle).unwrap();
        assert_eq!(object, Object::Bytes(vec![0xe9, b'x']));
        assert_eq!(
            object_item(&object).unwrap_err().slug(),
            "torch_dist/object-opaque"
        );
    }
}

#[test]
fn deep_circular_and_doubling_objects_end_in_an_error() {
    let mut deep = vec![0x80, 2, b')'];
    deep.resize(10_000, 0x85);
    deep.push(b'.');
    assert!(matches!(read_pickle(&deep), Err(Error::PickleLimit { .. })));

    assert!(matches!(
        read_pickle(b"\x80\x02]q\x00h\x00a."),
        Err(Error::PickleLimit { .. })
    ));

    let mut doubling = vec![0x80, 2, b')', b'q', 0];
    for _ in 0..60 {
        doubling.extend([b'h', 0, 0x86, b'q', 0]);
    }
    doubling.push(b'.');
    assert!(matches!(
        read_pickle(&doubling),
        Err(Error::PickleLimit { .. })
    ));
}

#[test]
fn text_shared_many_times_is_not_copied_without_end() {
    let mut pickle = vec![0x80, 2, b'('];
    pickle.push(b'X');
    pickle.extend((1u32 << 20).to_le_bytes());
    pickle.resize(pickle.len() + (1 << 20), b'a');
    pickle.extend([b'q', 0]);
    for _ in 0..100 {
        pickle.extend([b'h', 0]);
    }
    pickle.extend(b"t.");
    assert!(matches!(
        read_pickle(&pickle),
        Err(Error::PickleLimit { .. })
    ));
}

#[test]
fn sharing_makes_an_object_little_larger_than_its_pickle() {
    let limit_of = |pickle: &[u8]| match read_pickle(pickle) {
        Err(Error::PickleLimit { limit, .. }) => limit,
        other => panic!("{other:?}"),
    };
    // Six lists, each holding the one before ten times: a million values in 180 bytes.
    let mut values = b"\x80\x02(]q\x00".to_vec();
    for _ in 0..6 {
        values.extend(b"](");
        values.extend([b'h', 0].repeat(10));
        values.extend(b"eq\x00");
    }
    values.extend(b"1h\x00.");
    assert_eq!(limit_of(&values), SHARED_VALUES + values.len() as u64);

    // A text of a thousand bytes, twenty thousand times: 20 MB in 40 kB.
    let mut text = b"\x80\x02(X\xe8\x03\x00\x00".to_vec();
    text.extend([b'a'; 1000]);
    text.extend(b"q\x00");
    text.extend([b'h', 0].repeat(20_000));
    text.extend(b"t.");
    assert!(limit_of(&text) < SHARED_BYTES + 50_000);

    // What is not shared is read however much there is.
    let mut long = b"\x80\x02(".to_vec();
    long.resize(200_000, b'N');
    long.extend(b"t.");
    assert!(matches!(read_pickle(&long), Ok(Object::Tuple(_))));
}

#[test]
fn a_tensor_that_claims_more_than_it_has_stays_opaque() {
    // The second one would fit in what an object may hold.
    for claimed in [1 << 40, 2] {
        let expected = Object::Opaque(format!("tensor of {claimed} bytes"));
        assert_eq!(read(&repeated_byte(claimed)).unwrap(), expected);
    }
    let one = Object::Tensor {
        dtype: Dtype::U8,
        shape: Shape::new([1]),
        bytes: b"x".to_vec(),
    };
    assert_eq!(read(&repeated_byte(1)).unwrap(), one);
}

/// A tensor of one stored byte that is all its elements.
fn repeated_byte(elements: u64) -> Vec<u8> {
    let mut pickle = PickleWriter::new();
    pickle.global("torch._utils", "_rebuild_tensor_v2");
    pickle.mark();
    pickle.mark();
    pickle.text("storage");
    pickle.global("torch", "ByteStorage");
    pickle.text("0");
    pickle.text("cpu");
    pickle.uint(1);
    pickle.tuple();
    pickle.persistent_id();
    pickle.uint(0);
    pickle.int_tuple(&[elements]);
    pickle.int_tuple(&[0]);
    pickle.bool(false);
    pickle.none();
    pickle.tuple();
    pickle.reduce();
    let mut archive = ArchiveWriter::new(ROOT);
    write_head(&mut archive, &pickle.finish());
    archive.aligned_record("data/0", b"x");
    archive.finish()
}

#[test]
fn every_cut_of_an_object_is_an_error() {
    let bytes = object_item(&common_state(1, false)).unwrap();
    for len in 0..bytes.len() {
        assert!(read(&bytes[..len]).is_err(), "cut at {len}");
    }
}
