use std::collections::HashMap;

use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView as PeerView;

use super::*;
use crate::store::{MemoryStore, Store};

fn read(bytes: &[u8]) -> Result<Header, Error> {
    let store = MemoryStore::new("ckpt");
    store.insert("w.safetensors", bytes).unwrap();
    let source = store.open("w.safetensors").unwrap();
    Header::read(&*source)
}

/// A file with this JSON and this many bytes of data.
fn file(json: &str, data: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    bytes
}

/// Two tensors in the order of the header that lie in the data the other way round.
const TWO: &str = r#"{"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[4,12]},"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;

fn refusal(json: &str, data: usize) -> Error {
    let error = read(&file(json, data)).unwrap_err();
    assert!(error.to_string().contains("ckpt/w.safetensors"), "{error}");
    error
}

#[test]
fn order_of_the_header_metadata_and_absolute_ranges_are_kept() {
    let header = read(&file(TWO, 12)).unwrap();
    let start = 8 + TWO.len() as u64;
    let [b, a] = header.tensors() else {
        panic!("{header:?}")
    };
    assert_eq!(
        (b.name.as_str(), b.dtype, &b.shape),
        ("b", Dtype::Bf16, &Shape::new([2, 2]))
    );
    assert_eq!(b.range, ByteRange::new(start + 4, start + 12));
    assert_eq!(a.range, ByteRange::new(start, start + 4));
    assert_eq!(header.metadata()["format"], "pt");
    assert_eq!(read(&file("{}  ", 0)).unwrap().tensors(), []);
}

#[test]
fn fc_33_a_file_cut_anywhere_names_sizes_first_tensor_and_missing_bytes() {
    let whole = file(TWO, 12);
    let data = whole.len() - 12;
    for len in 0..whole.len() {
        let error = read(&whole[..len]).unwrap_err();
        let Error::Truncated {
            location,
            expected,
            found,
        } = &error
        else {
            panic!("{len}: {error}")
        };
        let needed = if len < 8 {
            8
        } else if len < data {
            data
        } else {
            whole.len()
        };
        assert_eq!((*found, *expected), (len as u64, needed as u64));
        assert_eq!(
            location.bytes,
            Some(ByteRange::new(len as u64, needed as u64))
        );
        let tensor = match len {
            _ if len < data => None,
            _ if len < data + 4 => Some("a"),
            _ => Some("b"),
        };
        assert_eq!(location.tensor.as_deref(), tensor, "{len}");
        assert_eq!(error.code(), 4);
    }
}

#[test]
fn bytes_after_the_last_tensor_are_refused() {
    let error = refusal(TWO, 13);
    assert!(matches!(error, Error::TrailingBytes { .. }), "{error}");
    assert!(matches!(refusal("{}", 1), Error::TrailingBytes { .. }));
}

#[test]
fn fc_34_a_header_length_is_bounded_before_it_is_believed() {
    for len in [HEADER_LIMIT + 1, u64::MAX, 1 << 63] {
        let mut bytes = file(TWO, 12);
        bytes[..8].copy_from_slice(&len.to_le_bytes());
        let error = read(&bytes).unwrap_err();
        assert!(
            matches!(
                error,
                Error::HeaderLimit {
                    limit: 100_000_000,
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains(&len.to_string()), "{error}");
    }
    let mut bytes = file(TWO, 12);
    bytes[..8].copy_from_slice(&HEADER_LIMIT.to_le_bytes());
    assert!(matches!(read(&bytes), Err(Error::Truncated { .. })));
}

/// A file as long as can be, of which nothing but the length of the header may be read.
#[derive(Debug)]
struct Endless(u64);

impl Source for Endless {
    fn name(&self) -> &str {
        "endless"
    }

    fn len(&self) -> u64 {
        u64::MAX
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        assert_eq!(
            (offset, buffer.len()),
            (0, 8),
            "a buffer for a header that is too long"
        );
        buffer.copy_from_slice(&self.0.to_le_bytes());
        Ok(())
    }
}

#[test]
fn fc_34_no_buffer_is_made_for_a_header_over_the_limit_that_the_file_would_hold() {
    for len in [HEADER_LIMIT + 1, 1 << 40, u64::MAX - PREFIX, u64::MAX] {
        let error = Header::read(&Endless(len)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("header of {len} bytes exceeds the limit of 100000000 bytes (endless)")
        );
    }
}

#[test]
fn fc_38_a_repeated_name_is_refused_wherever_it_is() {
    let twice = [
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
        r#"{"__metadata__":{"a":"1","a":"2"}}"#,
        r#"{"__metadata__":{"b":"1"},"__metadata__":{}}"#,
    ];
    for (json, name) in twice.into_iter().zip(["a", "a", "__metadata__"]) {
        let error = refusal(json, 2);
        assert!(
            matches!(&error, Error::DuplicateName { name: found, .. } if found == name),
            "{error}"
        );
    }
    let field = r#"{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    assert!(matches!(refusal(field, 1), Error::HeaderSyntax { .. }));
}

#[test]
fn json_that_is_not_a_header_is_refused_with_the_tensor_at_fault() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let deep_object = format!(
        "{{\"a\":{{\"x\":{}1{}}}}}",
        "{\"y\":".repeat(100_000),
        "}".repeat(100_000)
    );
    let in_entry = [
        r#"{"a":["U8",[1],[0,1]]}"#,
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]}}"#,
        r#"{"a":{"dtype":"U8","shape":[1]}}"#,
        r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#,
        r#"{"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}}"#,
        r#"{"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]}}"#,
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}"#,
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}}"#,
        r#"{"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}}"#,
        r#"{"a":null}"#,
        r#"{"a":"#,
        &deep,
        &deep_object,
    ];
    for json in in_entry {
        let error = refusal(json, 1);
        let Error::HeaderSyntax { location, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(location.tensor.as_deref(), Some("a"), "{error}");
    }
    let outside = [
        "",
        " {}",
        "[]",
        "{} x",
        "{}{}",
        "{",
        "null",
        r#"{"__metadata__":{"a":1}}"#,
        r#"{"__metadata__":[]}"#,
    ];
    for json in outside {
        let error = refusal(json, 0);
        assert!(
            matches!(error, Error::HeaderSyntax { .. }),
            "{json}: {error}"
        );
    }
    let not_text = read(&[&2u64.to_le_bytes()[..], b"{\"\xff\":1}"].concat());
    assert!(not_text.is_err());
}

#[test]
fn an_unknown_dtype_is_named_with_its_tensor() {
    let error = refusal(
        r#"{"w":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}"#,
        1,
    );
    assert_eq!(
        error.to_string(),
        "dtype \"F4\" is not known (ckpt/w.safetensors, tensor w)"
    );
    assert_eq!(error.code(), 3);
}

#[test]
fn fc_39_arithmetic_beyond_64_bits_is_an_error_that_names_the_tensor() {
    let max = u64::MAX;
    let cases = [
        (
            format!(r#"{{"w":{{"dtype":"F32","shape":[{max},{max}],"data_offsets":[0,4]}}}}"#),
            "tensor/shape-overflow",
        ),
        (
            format!(
                r#"{{"w":{{"dtype":"F32","shape":[{}],"data_offsets":[0,4]}}}}"#,
                1u64 << 62
            ),
            "tensor/shape-overflow",
        ),
        (
            format!(r#"{{"w":{{"dtype":"U8","shape":[{max}],"data_offsets":[0,{max}]}}}}"#),
            "safetensors/data-range",
        ),
        (
            r#"{"w":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}"#.to_owned(),
            "safetensors/data-range",
        ),
        (
            r#"{"w":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}}"#.to_owned(),
            "safetensors/data-length",
        ),
        (
            format!(r#"{{"w":{{"dtype":"U8","shape":[0,{max}],"data_offsets":[0,4]}}}}"#),
            "safetensors/data-length",
        ),
    ];
    for (json, slug) in cases {
        let error = refusal(&json, 4);
        assert_eq!(error.slug(), slug, "{error}");
        assert!(error.to_string().contains("tensor w"), "{error}");
    }
}

#[test]
fn holes_and_overlaps_are_named() {
    let two = |first: &str, second: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{first}}},"b":{{"dtype":"U8","shape":[4],"data_offsets":{second}}}}}"#
        )
    };
    let json = two("[0,4]", "[5,9]");
    let start = 8 + json.len() as u64;
    let Error::DataHole { location } = refusal(&json, 9) else {
        panic!("a hole")
    };
    assert_eq!(location.bytes, Some(ByteRange::new(start + 4, start + 5)));
    assert_eq!(location.tensor.as_deref(), Some("b"));
    let Error::DataOverlap { location, other } = refusal(&two("[2,6]", "[0,4]"), 6) else {
        panic!("an overlap")
    };
    assert_eq!(
        (location.tensor.as_deref(), other.as_str()),
        (Some("a"), "b")
    );
    assert_eq!(location.bytes, Some(ByteRange::new(start + 2, start + 4)));
    assert!(matches!(
        refusal(&two("[1,5]", "[5,9]"), 9),
        Error::DataHole { .. }
    ));
    // An empty tensor must lie between others too.
    let inside = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}}"#;
    assert!(matches!(refusal(inside, 4), Error::DataOverlap { .. }));
    let between = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"e":{"dtype":"U8","shape":[0],"data_offsets":[4,4]},"b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}}"#;
    assert_eq!(read(&file(between, 5)).unwrap().tensors().len(), 3);
}

#[test]
fn a_plan_refuses_what_no_header_can_say() {
    let none = BTreeMap::new();
    let plan = |tensors: Vec<(&str, Dtype, Shape)>| {
        let tensors = tensors.into_iter().map(|(n, d, s)| (n.to_owned(), d, s));
        Header::plan("w.safetensors", tensors, &none).unwrap_err()
    };
    let small = || Shape::new([1]);
    let error = plan(vec![("a", Dtype::U8, small()), ("a", Dtype::F32, small())]);
    assert!(matches!(error, Error::DuplicateName { .. }), "{error}");
    let error = plan(vec![("__metadata__", Dtype::U8, small())]);
    assert!(matches!(error, Error::ReservedName { .. }), "{error}");
    let error = plan(vec![("a", Dtype::U16, Shape::new([u64::MAX]))]);
    assert_eq!(error.slug(), "tensor/shape-overflow");
    let error = plan(vec![("a", Dtype::U8, Shape::new([u64::MAX]))]);
    assert!(matches!(error, Error::DataRange { .. }), "{error}");
    let huge = Shape::new([u64::MAX - 9]);
    let error = plan(vec![("a", Dtype::U8, huge.clone()), ("b", Dtype::U8, huge)]);
    assert!(matches!(error, Error::DataRange { .. }), "{error}");
}

#[test]
fn fc_34_a_header_over_the_limit_is_never_written() {
    let tensors = [("a".to_owned(), Dtype::U8, Shape::new([1]))];
    let plan = Header::plan("w", tensors, &BTreeMap::new()).unwrap();
    let len = plan.header_bytes.len() as u64 - PREFIX;
    let bytes =
        |limit| plan::header_bytes(&plan.tensors, &BTreeMap::new(), &Location::file("w"), limit);
    assert_eq!(bytes(len).unwrap().len(), plan.header_bytes.len());
    let error = bytes(len - 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "header of {len} bytes exceeds the limit of {} bytes (w)",
            len - 1
        )
    );
}

#[test]
fn a_plan_aligns_every_tensor_without_padding_between_them() {
    let tensors = [
        ("q", Dtype::F8E4m3, 3),
        ("norm", Dtype::Bf16, 3),
        ("scale", Dtype::F32, 1),
    ];
    let tensors = tensors.map(|(name, dtype, n)| (name.to_owned(), dtype, Shape::new([n])));
    let plan = Header::plan("w", tensors, &BTreeMap::new()).unwrap();
    let start = plan.header_bytes.len() as u64;
    assert_eq!(start % 8, 0);
    let ranges: Vec<u64> = plan.tensors.iter().map(|t| t.range.start - start).collect();
    assert_eq!(ranges, [10, 4, 0]);
    assert_eq!(plan.len, start + 13);
}

fn dtypes() -> impl Strategy<Value = Dtype> {
    proptest::sample::select(Dtype::ALL)
}

type Given = Vec<(String, Dtype, Shape)>;

fn given() -> impl Strategy<Value = Given> {
    let shape = proptest::collection::vec(0u64..5, 0..4).prop_map(Shape::from);
    proptest::collection::btree_map("\\PC{0,12}", (dtypes(), shape), 0..8).prop_map(|map| {
        map.into_iter()
            .map(|(name, (dtype, shape))| (name, dtype, shape))
            .collect()
    })
}

fn metadata() -> impl Strategy<Value = BTreeMap<String, String>> {
    proptest::collection::btree_map("\\PC{0,8}", "\\PC{0,8}", 0..3)
}

/// The file of a plan, its data counting up.
fn written(plan: &PlannedShard) -> Vec<u8> {
    let mut bytes = plan.header_bytes.clone();
    let mut next = 0u8;
    bytes.resize_with(usize::try_from(plan.len).unwrap(), || {
        next = next.wrapping_add(1);
        next
    });
    bytes
}

fn slice(bytes: &[u8], range: ByteRange) -> &[u8] {
    &bytes[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()]
}

/// Asserts that the reference implementation sees the same tensors and bytes.
fn assert_peer_agrees(bytes: &[u8], tensors: &[Tensor], metadata: &BTreeMap<String, String>) {
    let peer = SafeTensors::deserialize(bytes).unwrap();
    assert_eq!(peer.len(), tensors.len());
    for tensor in tensors {
        let view = peer.tensor(&tensor.name).unwrap();
        assert_eq!(view.dtype().to_string(), tensor.dtype.safetensors_name());
        let shape: Vec<u64> = view.shape().iter().map(|&extent| extent as u64).collect();
        assert_eq!(shape, tensor.shape.extents());
        assert_eq!(view.data(), slice(bytes, tensor.range));
    }
    let (_, described) = SafeTensors::read_metadata(bytes).unwrap();
    let described = described.metadata().clone().unwrap_or_default();
    assert_eq!(described.into_iter().collect::<BTreeMap<_, _>>(), *metadata);
}

proptest! {
    #[test]
    fn what_is_planned_is_read_again_by_us_and_by_the_reference(given in given(), metadata in metadata()) {
        let plan = Header::plan("w.safetensors", given.clone(), &metadata).unwrap();
        prop_assert_eq!(&plan, &Header::plan("w.safetensors", given.clone(), &metadata).unwrap());
        let bytes = written(&plan);
        let header = read(&bytes).unwrap();
        prop_assert_eq!(header.tensors(), &plan.tensors[..]);
        prop_assert_eq!(header.metadata(), &metadata);
        let read_back: Given = plan.tensors.iter().map(|t| (t.name.clone(), t.dtype, t.shape.clone())).collect();
        prop_assert_eq!(read_back, given);
        for tensor in &plan.tensors {
            prop_assert_eq!(tensor.range.start % tensor.dtype.size_bytes(), 0);
        }
        assert_peer_agrees(&bytes, &plan.tensors, &metadata);
    }

    #[test]
    fn what_the_reference_writes_we_read(given in given(), metadata in metadata()) {
        let bytes: Vec<u8> = (0..=255).cycle().take(4096).collect();
        let views = given.iter().enumerate().map(|(position, (name, dtype, shape))| {
            let size = usize::try_from(shape.size_bytes(*dtype).unwrap()).unwrap();
            let extents = shape.extents().iter().map(|&extent| usize::try_from(extent).unwrap()).collect();
            let peer_dtype = serde_json::from_value(dtype.safetensors_name().into()).unwrap();
            (name, PeerView::new(peer_dtype, extents, &bytes[position..position + size]).unwrap())
        });
        let info: HashMap<String, String> = metadata.clone().into_iter().collect();
        // The reference writes broken JSON for metadata that is there but empty, in a file without tensors.
        let info = Some(info).filter(|info| !info.is_empty());
        let written = safetensors::serialize(views, info).unwrap();
        let header = read(&written).unwrap();
        prop_assert_eq!(header.tensors().len(), given.len());
        assert_peer_agrees(&written, header.tensors(), &metadata);
    }

    #[test]
    fn a_spoiled_file_is_refused_or_read_as_the_reference_reads_it(
        given in given(), metadata in metadata(),
        spoils in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = written(&Header::plan("w.safetensors", given, &metadata).unwrap());
        for (index, byte) in spoils {
            let position = index.index(bytes.len());
            bytes[position] = byte;
        }
        if let Ok(header) = read(&bytes) {
            assert_peer_agrees(&bytes, header.tensors(), header.metadata());
        }
    }

    #[test]
    fn noise_is_never_a_panic(noise in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&noise);
        let _ = read(&file(&format!("{{{}", String::from_utf8_lossy(&noise)), 3));
    }

    #[test]
    fn fc_39_no_shape_or_range_makes_the_header_wrap_or_allocate(
        dtype in dtypes(),
        shape in proptest::collection::vec(prop_oneof![any::<u64>(), 0u64..4, Just(1 << 31), Just(1 << 32), Just(1 << 63)], 0..6),
        start in prop_oneof![any::<u64>(), 0u64..9],
        end in prop_oneof![any::<u64>(), 0u64..9],
    ) {
        let name = dtype.safetensors_name();
        let json = format!(r#"{{"w":{{"dtype":"{name}","shape":{shape:?},"data_offsets":[{start},{end}]}}}}"#);
        // The size as arithmetic without a width has it, 0 if an axis has no extent.
        let elements = if shape.contains(&0) {
            Some(0)
        } else {
            shape.iter().try_fold(1u128, |product, &extent| product.checked_mul(u128::from(extent)))
        };
        let size = elements.and_then(|elements| elements.checked_mul(u128::from(dtype.size_bytes())));
        // As much data as the range says, up to a little.
        let data = usize::try_from(end.min(16)).unwrap();
        match read(&file(&json, data)) {
            Ok(_) => prop_assert_eq!((size, start, data as u64), (Some(u128::from(end)), 0, end)),
            Err(error) => prop_assert!(error.to_string().contains("tensor w"), "{}", error),
        }
    }

    #[test]
    fn fc_33_any_cut_of_any_shard_names_a_tensor_whose_bytes_are_missing(
        given in given(), cut in any::<proptest::sample::Index>(),
    ) {
        let plan = Header::plan("w.safetensors", given, &BTreeMap::new()).unwrap();
        let bytes = written(&plan);
        let len = cut.index(bytes.len());
        let Err(Error::Truncated { location, expected, found }) = read(&bytes[..len]) else {
            panic!("cut at {len}")
        };
        prop_assert_eq!(found, len as u64);
        prop_assert_eq!(location.bytes, Some(ByteRange::new(found, expected)));
        if len >= plan.header_bytes.len() {
            prop_assert_eq!(expected, plan.len);
            let affected = plan.tensors.iter().filter(|tensor| tensor.range.end > found);
            let first = affected.min_by_key(|tensor| tensor.range).unwrap();
            prop_assert_eq!(location.tensor.as_deref(), Some(first.name.as_str()));
        }
    }
}
