//! Hostile and ordinary pickles.

use super::*;

fn origin() -> Origin {
    Origin {
        location: Location::file("x"),
        base: 100,
    }
}

fn read(bytes: &[u8]) -> Result<Pickle<'_>, Error> {
    Pickle::read(bytes, Limits::ITEM, &origin())
}

#[test]
fn fc_42_a_call_of_a_shell_stays_a_record_of_the_call() {
    let pickle = read(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00exit\x85R.").unwrap();
    let call = pickle.call_of(pickle.root(), "os", "system").unwrap();
    assert_eq!(pickle.tuple(call.args).unwrap(), [Value::Str("exit")]);
}

#[test]
fn numbers_keep_their_value_in_every_width() {
    for value in [
        0,
        1,
        255,
        256,
        65535,
        65536,
        -1,
        i64::from(i32::MAX) + 1,
        i64::MIN,
        i64::MAX,
    ] {
        let mut writer = PickleWriter::new();
        writer.int(value);
        assert_eq!(read(&writer.finish()).unwrap().root(), Value::Int(value));
    }
    let mut writer = PickleWriter::new();
    writer.uint(u64::MAX);
    let bytes = writer.finish();
    let expected = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0];
    assert_eq!(read(&bytes).unwrap().root(), Value::BigInt(&expected));
    assert_eq!(read(b"\x80\x02\x8a\x00.").unwrap().root(), Value::Int(0));
}

#[test]
fn every_instruction_that_checkpoints_use_gives_its_value() {
    let leaves: &[(&[u8], Value<'_>)] = &[
        (b"N", Value::None),
        (b"\x88", Value::Bool(true)),
        (b"\x89", Value::Bool(false)),
        (b"K\xff", Value::Int(255)),
        (b"M\xff\xff", Value::Int(65535)),
        (b"J\xfe\xff\xff\xff", Value::Int(-2)),
        (b"\x8a\x02\x00\xff", Value::Int(-256)),
        (b"\x8b\x03\x00\x00\x00\x01\x00\x01", Value::Int(65537)),
        (b"G\x3f\xf8\x00\x00\x00\x00\x00\x00", Value::Float(1.5)),
        (b"\x8c\x01a", Value::Str("a")),
        (b"X\x01\x00\x00\x00a", Value::Str("a")),
        (b"\x8d\x01\x00\x00\x00\x00\x00\x00\x00a", Value::Str("a")),
        (b"U\x01a", Value::Str("a")),
        (b"U\x01\xff", Value::Bytes(b"\xff")),
        (b"T\x01\x00\x00\x00a", Value::Str("a")),
        (b"C\x01a", Value::Bytes(b"a")),
        (b"B\x01\x00\x00\x00a", Value::Bytes(b"a")),
        (b"\x8e\x01\x00\x00\x00\x00\x00\x00\x00a", Value::Bytes(b"a")),
        (b"\x96\x01\x00\x00\x00\x00\x00\x00\x00a", Value::Bytes(b"a")),
        // A frame of the two bytes after it; values that are dropped again; marks that are.
        (b"\x95\x02\x00\x00\x00\x00\x00\x00\x00N0N", Value::None),
        (b"\x88N0", Value::Bool(true)),
        (b"\x88(NN1", Value::Bool(true)),
        (b"\x88(0", Value::Bool(true)),
        // Memo entries by count and by number.
        (b"\x88\x940h\x00", Value::Bool(true)),
        (b"\x88q\x050h\x05", Value::Bool(true)),
        (
            b"\x88r\x05\x00\x00\x000j\x05\x00\x00\x00",
            Value::Bool(true),
        ),
    ];
    for (instructions, expected) in leaves {
        let bytes = [b"\x80\x04", *instructions, b"."].concat();
        // Values borrow from the bytes, so they are compared in words.
        let found = format!("{:?}", read(&bytes).unwrap().root());
        assert_eq!(found, format!("{expected:?}"), "{instructions:?}");
    }
    let nodes: &[(&[u8], &str)] = &[
        (b")", "Tuple([])"),
        (b"N\x85", "Tuple([None])"),
        (b"NN\x86", "Tuple([None, None])"),
        (b"NNN\x87", "Tuple([None, None, None])"),
        (b"(NNNNt", "Tuple([None, None, None, None])"),
        (b"]Na", "List([None])"),
        (b"](NNe", "List([None, None])"),
        (b"}K\x01Ns", "Dict([(Int(1), None)])"),
        (b"}(K\x01NK\x02Nu", "Dict([(Int(1), None), (Int(2), None)])"),
        (b"\x8f(NN\x90", "Set([None, None])"),
        (b"(N\x91", "Set([None])"),
        (b"cm\nn\n", "Global { module: \"m\", name: \"n\" }"),
        (
            b"\x8c\x01m\x8c\x01n\x93",
            "Global { module: \"m\", name: \"n\" }",
        ),
        (b"NQ", "PersistentId(None)"),
    ];
    for (instructions, expected) in nodes {
        let bytes = [b"\x80\x04", *instructions, b"."].concat();
        let pickle = read(&bytes).unwrap();
        let found = format!("{:?}", pickle.node(pickle.root()).unwrap());
        assert_eq!(found, *expected, "{instructions:?}");
    }
    for instructions in [&b"cm\nn\n)R"[..], b"cm\nn\n)\x81", b"cm\nn\n)}\x92"] {
        let bytes = [b"\x80\x04", instructions, b"\x88b."].concat();
        let pickle = read(&bytes).unwrap();
        let call = pickle.call_of(pickle.root(), "m", "n").unwrap();
        assert_eq!(call.state, Some(Value::Bool(true)), "{instructions:?}");
    }
}

#[test]
fn fc_42_refused_instructions_are_named_with_their_byte() {
    for opcode in [
        b'i', b'o', b'P', b'2', b'I', b'L', 0x82, 0x83, 0x84, 0x97, 0x98, 0xff,
    ] {
        let bytes = [0x80, 2, b'N', opcode, b'.'];
        match read(&bytes).unwrap_err() {
            Error::PickleOpcode {
                opcode: found,
                location,
            } => {
                assert_eq!(found, opcode);
                assert_eq!(location.to_string(), " (x, bytes 103..104)");
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn deep_nesting_is_read_and_dropped_without_recursion() {
    let mut bytes = vec![0x80, 2, b')'];
    bytes.resize(1_000_000, 0x85);
    bytes.push(b'.');
    drop(read(&bytes).unwrap());
    let mut marks = vec![b'('; 1001];
    marks.push(b'.');
    assert!(matches!(
        read(&marks),
        Err(Error::PickleLimit { limit: 1000, .. })
    ));
}

#[test]
fn doubling_through_the_memo_takes_no_more_memory_than_bytes() {
    // Each round wraps the same value twice: 2^4000 leaves if it were ever expanded.
    let mut bytes = vec![0x80, 2, b')', b'q', 0];
    for _ in 0..4000 {
        bytes.extend([b'h', 0, 0x86, b'q', 0]);
    }
    bytes.push(b'.');
    let pickle = read(&bytes).unwrap();
    assert_eq!(pickle.nodes.len(), 4001);
}

#[test]
fn a_list_may_hold_itself() {
    let pickle = read(b"\x80\x02]q\x00h\x00a.").unwrap();
    assert_eq!(pickle.list(pickle.root()).unwrap(), [pickle.root()]);
}

#[test]
fn a_memo_index_out_of_nowhere_allocates_nothing() {
    assert!(matches!(
        read(b"\x80\x02Nr\xff\xff\xff\xff."),
        Err(Error::PickleLimit {
            what: "memo entries",
            ..
        })
    ));
    assert!(matches!(
        read(b"\x80\x02h\x05."),
        Err(Error::PickleMalformed { .. })
    ));
}

#[test]
fn the_number_of_nodes_is_bounded() {
    let limits = Limits {
        nodes: 3,
        ..Limits::ITEM
    };
    assert!(Pickle::read(b"(]]]t.", limits, &origin()).is_err());
    assert!(Pickle::read(b"(]]t.", limits, &origin()).is_ok());
}

#[test]
fn the_memo_is_bounded_as_nodes_are() {
    let limits = Limits {
        nodes: 3,
        ..Limits::ITEM
    };
    // Entries by number, entries by counting: each takes two dozen bytes of memory for one or two of the pickle.
    for (bytes, is_read) in [
        (&b"Nq\x02q\x02."[..], true),
        (b"Nq\x03q\x03.", false),
        (b"N\x94\x94\x94.", true),
        (b"N\x94\x94\x94\x94.", false),
    ] {
        let result = Pickle::read(bytes, limits, &origin());
        assert_eq!(result.is_ok(), is_read, "{bytes:?}: {result:?}");
    }
}

#[test]
fn lengths_beyond_the_pickle_are_truncations() {
    for bytes in [
        &b"X\xff\xff\xff\xffa."[..],
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffa.",
        b"\x8d\x00\x00\x00\x00\x00\x00\x00\x80a.",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xffa.",
        b"\x8e\x00\x00\x00\x00\x00\x00\x00\x80a.",
        b"\x96\xff\xff\xff\xff\xff\xff\xff\x7fa.",
        b"\x96\x00\x00\x00\x00\x00\x00\x00\x80a.",
        b"B\xff\xff\xff\xffa.",
        b"T\xff\xff\xff\xffa.",
        b"\x8b\xff\xff\xff\x7f.",
        b"\x95\x00\x00\x00\x00\x00\x00\x00\x80N.",
        b"\x8b\xff\xff\xff\xff.",
        b"\x95\xff\x00\x00\x00\x00\x00\x00\x00N.",
    ] {
        assert!(
            matches!(read(bytes), Err(Error::PickleTruncated { .. })),
            "{bytes:?}"
        );
    }
}

#[test]
fn a_stack_that_is_too_short_or_too_long_is_malformed() {
    for bytes in [
        &b"."[..],
        b"N0.",
        b"t.",
        b"(N.",
        b"NN.",
        b"\x85.",
        b"N(\x85.",
        b"NN\x93.",
        b"Ns.",
        b"]Nu.",
        b"}(Nu.",
        b"NNb.",
        b"NNR.",
        b"N.N",
        b"\x80\x06N.",
        b"(0.",
        b"\x8f(Ne.",
        b"](N\x90.",
    ] {
        assert!(
            matches!(read(bytes), Err(Error::PickleMalformed { .. })),
            "{bytes:?}"
        );
    }
}

#[test]
fn every_cut_of_a_pickle_is_an_error() {
    let bytes = sample();
    assert!(read(&bytes).is_ok());
    for len in 0..bytes.len() {
        assert!(read(&bytes[..len]).is_err(), "cut at {len}");
    }
}

#[test]
fn what_is_written_twice_is_stored_once() {
    let bytes = sample();
    let pickle = read(&bytes).unwrap();
    let root = pickle.root();
    let first = pickle.field(root, "a").unwrap();
    let call = pickle.call_of(first, "torch", "Size").unwrap();
    let [extents] = pickle.tuple(call.args).unwrap() else {
        panic!()
    };
    assert_eq!(
        pickle.tuple(*extents).unwrap(),
        [Value::Int(2), Value::Int(300)]
    );
    assert_eq!(pickle.field(root, "b").unwrap(), first);
}

#[test]
fn long_lists_come_in_batches() {
    let mut writer = PickleWriter::new();
    writer.list(0..2500, |writer, value| writer.int(value));
    let bytes = writer.finish();
    let limits = Limits {
        stack: 1001,
        ..Limits::ITEM
    };
    let pickle = Pickle::read(&bytes, limits, &origin()).unwrap();
    assert_eq!(pickle.list(pickle.root()).unwrap().len(), 2500);
}

fn sample() -> Vec<u8> {
    let mut writer = PickleWriter::new();
    writer.dict(["a", "b"], |writer, key| {
        writer.text(key);
        writer.size(&[2, 300]);
    });
    writer.finish()
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
        let _ = read(&bytes);
    }

    #[test]
    fn no_change_of_a_real_pickle_makes_the_reader_panic(position in 0usize..60, byte in proptest::num::u8::ANY) {
        let mut bytes = sample();
        if let Some(old) = bytes.get_mut(position) {
            *old = byte;
        }
        let _ = read(&bytes);
    }
}
