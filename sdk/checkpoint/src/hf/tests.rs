use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use rialto_tensor::{Dtype, Shape};

use super::*;
use crate::Error;
use crate::error::IndexFinding;
use crate::safetensors::Header;
use crate::store::faulty::Call;
use crate::store::memory::MemorySlot;
use crate::store::{
    Fault, Faults, FaultyStore, LocalStore, LocalTarget, MemoryStore, MemoryTarget, Overwrite,
    Target,
};

/// A shard that holds these tensors, one byte each.
fn shard(tensors: &[&str]) -> Vec<u8> {
    let tensors = tensors
        .iter()
        .map(|name| ((*name).to_owned(), Dtype::U8, Shape::new([1])));
    let plan = Header::plan("shard", tensors, &BTreeMap::new()).unwrap();
    let mut bytes = plan.header_bytes;
    bytes.resize(usize::try_from(plan.len).unwrap(), 1);
    bytes
}

fn index(weight_map: &[(&str, &str)]) -> Vec<u8> {
    let weight_map: BTreeMap<&str, &str> = weight_map.iter().copied().collect();
    serde_json::json!({"metadata": {}, "weight_map": weight_map})
        .to_string()
        .into_bytes()
}

fn store(files: &[(&str, Vec<u8>)]) -> MemoryStore {
    let store = MemoryStore::new("ckpt");
    store.insert(CONFIG_FILE, "{}").unwrap();
    for (name, bytes) in files {
        store.insert(name, bytes.clone()).unwrap();
    }
    store
}

fn open(store: &MemoryStore) -> Result<HfCheckpoint, Error> {
    HfCheckpoint::open(Arc::new(store.clone()))
}

/// Two shards `1` and `2` with `a b` and `c`, under the index given.
fn two_shards(weight_map: &[(&str, &str)]) -> Result<HfCheckpoint, Error> {
    open(&store(&[
        (INDEX_FILE, index(weight_map)),
        ("1", shard(&["a", "b"])),
        ("2", shard(&["c"])),
    ]))
}

#[test]
fn with_an_index_exactly_its_files_are_read() {
    let checkpoint = two_shards(&[("a", "1"), ("b", "1"), ("c", "2")]).unwrap();
    let tensors: Vec<(&str, usize)> = checkpoint
        .tensors()
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor.file))
        .collect();
    assert_eq!(tensors, [("a", 0), ("b", 0), ("c", 1)]);
    assert_eq!(checkpoint.tensor("c").unwrap().file, 1);
    assert!(checkpoint.tensor("d").is_none());
    assert_eq!(checkpoint.config(), b"{}");
    assert!(checkpoint.notes().is_empty());
    let b = checkpoint.tensor("b").unwrap();
    let mut byte = [0];
    checkpoint
        .source(b.file)
        .read_at(b.range.start, &mut byte)
        .unwrap();
    assert_eq!(byte, [1]);
}

#[test]
fn without_an_index_exactly_the_single_file_is_read() {
    let checkpoint = open(&store(&[(SINGLE_FILE, shard(&["b", "a"]))])).unwrap();
    assert_eq!(checkpoint.files().len(), 1);
    let names: Vec<&str> = checkpoint
        .tensors()
        .iter()
        .map(|t| t.name.as_str())
        .collect();
    assert_eq!(names, ["b", "a"]);
    assert_eq!(checkpoint.tensor("a"), Some(&checkpoint.tensors()[1]));
}

#[test]
fn a_directory_without_weights_or_config_is_refused() {
    let bare = store(&[]);
    assert_eq!(read_config(&bare).unwrap(), b"{}");
    assert!(!HfCheckpoint::has_weights(&bare).unwrap());
    let error = open(&bare).unwrap_err();
    assert_eq!((error.code(), error.slug()), (2, "hf/no-weights"));
    assert!(error.to_string().contains(INDEX_FILE), "{error}");

    let unindexed = store(&[("model-00001-of-00002.safetensors", shard(&["a"]))]);
    assert!(!HfCheckpoint::has_weights(&unindexed).unwrap());
    let help = open(&unindexed).unwrap_err().help().unwrap();
    assert!(help.contains("model-00001-of-00002.safetensors"), "{help}");

    let whole = store(&[(SINGLE_FILE, shard(&["a"]))]);
    assert!(HfCheckpoint::has_weights(&whole).unwrap());
    whole.remove(CONFIG_FILE);
    let error = open(&whole).unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    assert!(error.to_string().contains("ckpt/config.json"), "{error}");
    whole
        .insert(CONFIG_FILE, vec![b' '; (16 << 20) + 1])
        .unwrap();
    let error = open(&whole).unwrap_err();
    assert!(matches!(error, Error::FileTooLarge { .. }), "{error}");
}

#[test]
fn fc_37_all_absent_shards_are_listed_with_their_tensor_counts_before_data_is_read() {
    let faults = Faults::none();
    let files = store(&[
        (
            INDEX_FILE,
            index(&[("a", "1"), ("b", "2"), ("c", "2"), ("d", "3")]),
        ),
        ("1", shard(&["a"])),
    ]);
    let error = HfCheckpoint::open(Arc::new(FaultyStore::new(Arc::new(files), faults.clone())))
        .unwrap_err();
    let Error::MissingShards { shards, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*shards, [("2".to_owned(), 2), ("3".to_owned(), 1)]);
    assert!(
        error.to_string().contains("2 (2 tensors); 3 (1 tensors)"),
        "{error}"
    );
    // Only config and index were read.
    let reads = faults
        .calls()
        .into_iter()
        .filter(|&call| call == Call::Read);
    assert_eq!(reads.count(), 2);
}

#[test]
fn fc_35_missing_misplaced_and_unindexed_tensors_are_listed_together() {
    let error = two_shards(&[("a", "2"), ("b", "1"), ("gone", "1")]).unwrap_err();
    let Error::IndexMismatch { findings, .. } = &error else {
        panic!("{error}")
    };
    let finding = |tensor: &str, claimed: Option<&str>, found: &[&str]| IndexFinding {
        tensor: tensor.to_owned(),
        claimed: claimed.map(str::to_owned),
        found: found.iter().map(|file| (*file).to_owned()).collect(),
    };
    assert_eq!(
        *findings,
        [
            finding("a", Some("2"), &["1"]),
            finding("c", None, &["2"]),
            finding("gone", Some("1"), &[]),
        ]
    );
    assert_eq!(error.code(), 4);
    assert!(
        error.to_string().contains(
            "a is claimed for 2, found in 1; c is in 2, not in the index; gone is claimed for 1, found nowhere"
        ),
        "{error}"
    );
}

#[test]
fn fc_36_the_index_decides_between_two_copies_and_the_other_is_reported() {
    for (claimed, other) in [("1", "2"), ("2", "1")] {
        let files = store(&[
            (INDEX_FILE, index(&[("a", claimed), ("b", "1"), ("c", "2")])),
            ("1", shard(&["a", "b"])),
            ("2", shard(&["a", "c"])),
        ]);
        let checkpoint = open(&files).unwrap();
        assert_eq!(checkpoint.tensors().len(), 3);
        let file = checkpoint.tensor("a").unwrap().file;
        assert_eq!(checkpoint.files()[file].name, claimed);
        let [note] = checkpoint.notes() else {
            panic!("{:?}", checkpoint.notes())
        };
        assert!(
            note.contains(&format!("a (in {claimed}, not {other})")),
            "{note}"
        );
    }
}

#[test]
fn fc_36_copies_that_no_index_settles_are_an_error_that_names_both_files() {
    // The index knows nothing of the tensor, or places it in a third shard.
    for (map, claimed) in [
        (&[("b", "1"), ("c", "2"), ("d", "3")][..], None),
        (&[("a", "3"), ("b", "1"), ("c", "2"), ("d", "3")], Some("3")),
    ] {
        let error = open(&store(&[
            (INDEX_FILE, index(map)),
            ("1", shard(&["a", "b"])),
            ("2", shard(&["a", "c"])),
            ("3", shard(&["d"])),
        ]))
        .unwrap_err();
        let Error::IndexMismatch { findings, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].claimed.as_deref(), claimed);
        assert_eq!(findings[0].found, ["1", "2"]);
        assert!(error.to_string().contains("in 1 and 2"), "{error}");
    }
}

#[test]
fn fc_33_a_truncated_shard_names_the_first_tensor_and_the_missing_bytes() {
    let [first, second] = [shard(&["a", "b"]), shard(&["c", "d", "e"])];
    let map = index(&[("a", "1"), ("b", "1"), ("c", "2"), ("d", "2"), ("e", "2")]);
    let data = second.len() - 3;
    for len in 0..second.len() {
        let faults = Faults::none();
        let files = store(&[
            (INDEX_FILE, map.clone()),
            ("1", first.clone()),
            ("2", second[..len].to_vec()),
        ]);
        let files = FaultyStore::new(Arc::new(files), faults.clone());
        let error = HfCheckpoint::open(Arc::new(files)).unwrap_err();
        let Error::Truncated {
            location,
            expected,
            found,
        } = &error
        else {
            panic!("{len}: {error}")
        };
        let needed = match len {
            0..8 => 8,
            _ if len < data => data,
            _ => second.len(),
        };
        assert_eq!((*found, *expected), (len as u64, needed as u64));
        assert_eq!(location.file.as_deref(), Some("ckpt/2"));
        let missing = rialto_tensor::ByteRange::new(len as u64, needed as u64);
        assert_eq!(location.bytes, Some(missing));
        let tensor = len.checked_sub(data).map(|whole| ["c", "d", "e"][whole]);
        assert_eq!(location.tensor.as_deref(), tensor, "cut at {len}");
        assert!(error.help().unwrap().contains("fetch the file again"));
        // Config, index and headers: no tensor was read.
        let reads = faults
            .calls()
            .into_iter()
            .filter(|&call| call == Call::Read);
        assert!(reads.count() <= 6, "cut at {len}");
    }
}

#[test]
fn fc_35_the_index_alone_says_which_files_there_are() {
    // Files are found through the index alone, never by what they are called.
    let error = open(&store(&[
        (INDEX_FILE, index(&[("a", "1")])),
        ("1", shard(&["a", "b"])),
        ("model-00001-of-00001.safetensors", shard(&["z"])),
    ]))
    .unwrap_err();
    let Error::IndexMismatch { findings, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(findings.len(), 1);
    assert_eq!(
        (findings[0].tensor.as_str(), &findings[0].claimed),
        ("b", &None)
    );
    let empty = open(&store(&[
        (INDEX_FILE, index(&[])),
        (SINGLE_FILE, shard(&["a"])),
    ]))
    .unwrap();
    assert!(empty.tensors().is_empty() && empty.files().is_empty());
    assert!(
        empty.notes()[0].contains(SINGLE_FILE),
        "{:?}",
        empty.notes()
    );
}

#[test]
fn names_that_leave_the_directory_or_nest_too_deep_are_refused_before_a_file_is_opened() {
    let names = [
        "/etc/passwd",
        "../w",
        "a/../../w",
        "",
        "a//b",
        "./w",
        "a\0b",
        "..",
        "a/",
    ];
    for name in names {
        let faults = Faults::none();
        let files = store(&[
            (INDEX_FILE, index(&[("w", name)])),
            (SINGLE_FILE, shard(&["w"])),
        ]);
        let files = FaultyStore::new(Arc::new(files), faults.clone());
        let error = HfCheckpoint::open(Arc::new(files)).unwrap_err();
        assert!(
            matches!(error, Error::UnsafeName { .. }),
            "{name:?}: {error}"
        );
        let opens = faults
            .calls()
            .into_iter()
            .filter(|&call| call == Call::Open);
        assert_eq!(opens.count(), 2, "config and index");
    }
    for text in ["[".repeat(1 << 20), "{\"weight_map\":".repeat(1 << 16)] {
        let error = open(&store(&[(INDEX_FILE, text.into_bytes())])).unwrap_err();
        assert!(matches!(error, Error::IndexSyntax { .. }), "{error}");
    }
}

#[test]
fn other_weights_are_one_note_and_everything_else_is_a_side_file() {
    let files = store(&[
        (SINGLE_FILE, shard(&["a"])),
        ("consolidated.safetensors", vec![1]),
        ("pytorch_model.bin", vec![1]),
        ("pytorch_model.bin.index.json", vec![1]),
        ("original/consolidated.00.pth", vec![1]),
        ("Model-Q4.GGUF", vec![1]),
        ("tokenizer.json", vec![1, 2, 3]),
        ("code/modeling.py", vec![]),
    ]);
    let checkpoint = open(&files).unwrap();
    let side: Vec<(&str, u64)> = checkpoint
        .side_files()
        .iter()
        .map(|file| (file.name.as_str(), file.len))
        .collect();
    assert_eq!(side, [("code/modeling.py", 0), ("tokenizer.json", 3)]);
    let [note] = checkpoint.notes() else {
        panic!("{:?}", checkpoint.notes())
    };
    for other in [
        "5 other",
        "consolidated.safetensors",
        "pytorch_model.bin;",
        "00.pth",
        "GGUF",
    ] {
        assert!(note.contains(other), "{other}: {note}");
    }
}

#[test]
fn a_spoiled_shard_or_index_names_its_file() {
    let mut cut = shard(&["a"]);
    cut.pop();
    let error = open(&store(&[(SINGLE_FILE, cut)])).unwrap_err();
    assert!(matches!(error, Error::Truncated { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("ckpt/model.safetensors, tensor a"),
        "{error}"
    );
    let error = open(&store(&[(INDEX_FILE, b"{".to_vec())])).unwrap_err();
    assert!(matches!(error, Error::IndexSyntax { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("ckpt/model.safetensors.index.json"),
        "{error}"
    );
    let error = open(&store(&[(INDEX_FILE, index(&[("a", "../1")]))])).unwrap_err();
    assert!(matches!(error, Error::UnsafeName { .. }), "{error}");
}

/// Writes a checkpoint of three tensors, 2 bytes a shard, with data counting up.
fn write(target: Box<dyn Target>) -> Result<HfPlan, Error> {
    let tensors = [
        ("w", Dtype::Bf16, 1),
        ("b", Dtype::U8, 1),
        ("n", Dtype::U8, 1),
    ];
    let tensors = tensors.map(|(name, dtype, n)| (name.to_owned(), dtype, Shape::new([n])));
    let plan = HfPlan::new(tensors.to_vec(), ShardLimit::Bytes(2))?;
    let mut next = 0u8;
    for shard in &plan.shards {
        let sink = target.create(&shard.name)?;
        sink.write_at(0, &shard.header_bytes)?;
        for tensor in &shard.tensors {
            for offset in tensor.range.start..tensor.range.end {
                sink.write_at(offset, &[next])?;
                next += 1;
            }
        }
        sink.sync()?;
    }
    target.create(INDEX_FILE)?.write_at(0, &plan.index_bytes)?;
    target.create(CONFIG_FILE)?.write_at(0, b"{}")?;
    target.commit()?;
    Ok(plan)
}

#[test]
fn what_is_planned_and_written_is_opened_again_by_us_and_by_the_reference() {
    let slot = MemorySlot::default();
    let plan = write(Box::new(MemoryTarget::new("out", slot.clone()))).unwrap();
    let written = slot
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
        .unwrap();
    let checkpoint = open(&written).unwrap();
    assert_eq!(checkpoint.notes(), &[] as &[String]);
    assert_eq!(checkpoint.side_files(), []);
    let planned = plan.shards.iter().enumerate().flat_map(|(file, shard)| {
        shard.tensors.iter().map(move |tensor| HfTensor {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            file,
            range: tensor.range,
        })
    });
    assert_eq!(checkpoint.tensors(), planned.collect::<Vec<_>>());
    let sizes: u64 = checkpoint
        .tensors()
        .iter()
        .map(|tensor| tensor.range.len())
        .sum();
    assert_eq!(sizes, plan.total_size);
    for (file, values) in checkpoint.files().iter().zip([&[0u8, 1][..], &[2, 3]]) {
        let bytes = written.bytes(&file.name).unwrap();
        let peer = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut names = peer.names();
        names.sort_unstable();
        let data: Vec<u8> = match names[..] {
            ["w"] => peer.tensor("w").unwrap().data().to_vec(),
            ["b", "n"] => ["b", "n"]
                .map(|n| peer.tensor(n).unwrap().data()[0])
                .to_vec(),
            _ => panic!("{names:?}"),
        };
        assert_eq!(data, values);
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
    }
}

#[test]
fn fc_41_opening_fails_in_an_ordinary_way_at_any_call() {
    let slot = MemorySlot::default();
    write(Box::new(MemoryTarget::new("out", slot.clone()))).unwrap();
    let written = slot
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
        .unwrap();
    let run = |faults: &Faults| {
        let store = FaultyStore::new(Arc::new(written.clone()), faults.clone());
        HfCheckpoint::open(Arc::new(store)).map(drop)
    };
    let clean = Faults::none();
    run(&clean).unwrap();
    let calls = clean.calls();
    for (call, &kind) in calls.iter().enumerate() {
        for fault in [Fault::Error(ErrorKind::Other), Fault::Short, Fault::Vanish] {
            let result = run(&Faults::at(call, fault));
            match (call, kind, fault) {
                // Half a config is for its reader to refuse: here it is bytes.
                (0, Call::Open, Fault::Short) => result.unwrap(),
                _ => assert!(result.is_err(), "call {call} {kind:?} {fault:?}"),
            }
        }
    }
}

/// Every file below with its length and the time of its last change, directories too.
pub(crate) fn state_of(root: &std::path::Path) -> Vec<(std::path::PathBuf, u64, SystemTime)> {
    let mut state = Vec::new();
    let mut paths = vec![root.to_path_buf()];
    while let Some(path) = paths.pop() {
        let metadata = fs::metadata(&path).unwrap();
        state.push((path.clone(), metadata.len(), metadata.modified().unwrap()));
        if metadata.is_dir() {
            paths.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    state.sort();
    state
}

#[test]
fn fc_40_reading_changes_nothing_and_needs_no_right_to_write() {
    use std::os::unix::fs::PermissionsExt;

    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("ckpt");
    write(Box::new(
        LocalTarget::create(&source, Overwrite::Refuse).unwrap(),
    ))
    .unwrap();
    let set_mode = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for entry in fs::read_dir(&source).unwrap() {
        set_mode(&entry.unwrap().path(), 0o444);
    }
    set_mode(&source, 0o555);
    let before = state_of(&source);
    let checkpoint = HfCheckpoint::open(Arc::new(LocalStore::open(&source).unwrap())).unwrap();
    for tensor in checkpoint.tensors() {
        let mut bytes = vec![0; usize::try_from(tensor.range.len()).unwrap()];
        let source = checkpoint.source(tensor.file);
        source.read_at(tensor.range.start, &mut bytes).unwrap();
    }
    assert_eq!(state_of(&source), before);
    assert_eq!(checkpoint.store().files().unwrap().len(), 4);
    set_mode(&source, 0o755);
}

#[test]
fn writing_that_fails_at_any_call_leaves_nothing() {
    use crate::store::FaultyTarget;

    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let run = |faults: &Faults| {
        let target = LocalTarget::create(&out, Overwrite::Refuse)?;
        write(Box::new(FaultyTarget::new(
            Box::new(target),
            faults.clone(),
        )))
    };
    let clean = Faults::none();
    run(&clean).unwrap();
    fs::remove_dir_all(&out).unwrap();
    for call in 0..clean.calls().len() {
        let error = run(&Faults::at(call, Fault::Short)).unwrap_err();
        assert!(matches!(error, Error::Write { .. }), "{error}");
        assert_eq!(
            fs::read_dir(scratch.path()).unwrap().count(),
            0,
            "call {call}"
        );
    }
}
