//! Whole checkpoints, written in memory by the plan, then damaged.

use std::fs;
use std::io::ErrorKind;

use rialto_tensor::{Dtype, Region, Shape};

use super::*;
use crate::hf::tests::state_of;
use crate::store::faulty::Call;
use crate::store::{Fault, Faults, FaultyStore, LocalStore, MemoryStore};
use crate::torch_dist::pickle::PickleWriter;
use crate::torch_dist::plan::{Body, Content, FileLimit, FilePlan};
use crate::torch_dist::{
    TensorEntry, common_pt, common_state, description_bytes, empty_extra_state, object_item,
};

/// `w`, bf16 [4, 2] in two halves of which byte n has the value n; and an object.
fn sample() -> MemoryStore {
    let half = |row| Content::Chunk {
        name: "w".into(),
        dtype: Dtype::Bf16,
        shape: Arc::new(Shape::new([4, 2])),
        region: Region::new([row, 0], [2, 2]),
    };
    let object = Content::Object {
        name: "w._extra_state/shard_0_1".into(),
        bytes: object_item(&empty_extra_state()).unwrap().into(),
    };
    // So small that every item has a file of its own.
    let plan = FilePlan::new([half(0), half(2), object], FileLimit::Bytes(1)).unwrap();
    let store = MemoryStore::new("iter_0000042");
    for item in plan.items() {
        let bytes = match &item.body {
            Body::Object(bytes) => bytes.to_vec(),
            Body::Chunk { region, item } => {
                let data: Vec<u8> = (0..8).map(|n| n + region.offsets()[0] as u8 * 4).collect();
                let crc = crc32fast::hash(&data);
                [item.prefix(), data, item.suffix(crc)].concat()
            }
        };
        let start = usize::try_from(item.offset).unwrap();
        let file = [vec![0; start], bytes].concat();
        store.insert(&plan.files()[item.file].name, file).unwrap();
    }
    store
        .insert(METADATA_FILE, plan.metadata().encode())
        .unwrap();
    store.insert(DESCRIPTION_FILE, description_bytes()).unwrap();
    store.insert(COMMON_FILE, common_pt(42, false)).unwrap();
    store
}

fn open(store: &MemoryStore) -> Result<TorchDistCheckpoint, Error> {
    TorchDistCheckpoint::open(Arc::new(store.clone()))
}

fn change(store: &MemoryStore, edit: impl FnOnce(&mut Metadata)) {
    let mut metadata = open(&sample()).unwrap().metadata().clone();
    edit(&mut metadata);
    store.insert(METADATA_FILE, metadata.encode()).unwrap();
}

#[test]
fn a_planned_checkpoint_is_read_back() {
    let checkpoint = open(&sample()).unwrap();
    assert_eq!(checkpoint.notes(), [""; 0]);
    assert_eq!(checkpoint.common(), Some(&common_state(42, false)));
    let object = checkpoint.object("w._extra_state/shard_0_1").unwrap();
    assert_eq!(object, empty_extra_state());
    let entry: &TensorEntry = &checkpoint.metadata().tensors["w"];
    for (chunk, start) in entry.chunks.iter().zip([0, 8]) {
        let stored = checkpoint.locate("w", chunk).unwrap();
        let source = checkpoint.source(&chunk.file).unwrap();
        let expected: Vec<u8> = (start..start + 8).collect();
        assert_eq!(stored.read(source.as_ref()).unwrap(), expected);
    }
}

#[test]
fn a_plain_pytorch_checkpoint_needs_no_description_and_says_so() {
    let store = sample();
    store.remove(DESCRIPTION_FILE);
    store.remove(COMMON_FILE);
    let checkpoint = open(&store).unwrap();
    assert!(checkpoint.notes()[0].starts_with("no metadata.json"));
    assert_eq!(checkpoint.common(), None);
}

#[test]
fn common_state_comes_from_the_file_first_and_then_from_the_object() {
    let store = sample();
    let item = object_item(&Object::List(vec![common_state(7, false)])).unwrap();
    let len = item.len() as u64;
    store.insert("c.distcp", item).unwrap();
    change(&store, |metadata| {
        let file = "c.distcp".to_owned();
        let entry = crate::torch_dist::ObjectEntry {
            file: file.into(),
            offset: 0,
            len,
        };
        metadata
            .objects
            .insert(COMMON_STATE_OBJECT.to_owned(), entry);
    });
    let both = open(&store).unwrap();
    assert_eq!(both.common(), Some(&common_state(42, false)));
    assert!(
        both.notes()[0].contains("not from common_state"),
        "{:?}",
        both.notes()
    );
    store.remove(COMMON_FILE);
    assert_eq!(
        open(&store).unwrap().common(),
        Some(&common_state(7, false))
    );
}

#[test]
fn missing_common_state_is_noted_and_a_broken_one_refused() {
    let store = sample();
    store.remove(COMMON_FILE);
    assert!(open(&store).unwrap().notes()[0].contains("no common state"));
    store
        .insert(COMMON_FILE, object_item(&Object::Int(1)).unwrap())
        .unwrap();
    assert!(matches!(open(&store), Err(Error::ItemMalformed { .. })));
    store.insert(COMMON_FILE, b"".as_slice()).unwrap();
    assert!(open(&store).is_err());
}

#[test]
fn both_forms_of_the_description_are_accepted_and_other_formats_named() {
    let store = sample();
    let two_keys = r#"{"sharded_backend": "torch_dist", "sharded_backend_version": 1}"#;
    store.insert(DESCRIPTION_FILE, two_keys).unwrap();
    assert!(open(&store).is_ok());
    for (text, slug) in [
        (
            r#"{"sharded_backend": "zarr", "sharded_backend_version": 1}"#,
            "torch_dist/sharded-backend",
        ),
        (
            r#"{"sharded_backend": "torch_dist", "sharded_backend_version": 2}"#,
            "torch_dist/sharded-backend",
        ),
        (
            r#"{"sharded_backend": 1}"#,
            "torch_dist/sharded-description",
        ),
        ("[]", "torch_dist/sharded-description"),
        ("{", "torch_dist/sharded-description"),
    ] {
        store.insert(DESCRIPTION_FILE, text).unwrap();
        let error = open(&store).unwrap_err();
        assert_eq!(error.slug(), slug, "{error}");
    }
}

#[test]
fn a_checkpoint_whose_last_step_is_missing_is_incomplete() {
    let store = sample();
    store.remove(METADATA_FILE);
    let error = open(&store).unwrap_err();
    assert_eq!(
        error.to_string(),
        "checkpoint is incomplete: it has no .metadata (iter_0000042)"
    );
    assert_eq!(error.code(), 2);
}

#[test]
fn absent_and_short_data_files_are_all_listed() {
    let store = sample();
    store.remove("__0_0.distcp");
    let mut bytes = store.bytes("__0_1.distcp").unwrap();
    bytes.pop();
    store.insert("__0_1.distcp", bytes).unwrap();
    let Err(Error::DataFiles { faults, .. }) = open(&store) else {
        panic!()
    };
    assert_eq!(faults.len(), 2);
    assert_eq!(
        faults[0].to_string(),
        "__0_0.distcp is absent (holds w and more)"
    );
    assert_eq!(faults[1].found, Some(faults[1].needed - 1));
}

#[test]
fn items_that_share_bytes_are_refused() {
    let store = sample();
    change(&store, |metadata| {
        let Chunk { file, offset, .. } = metadata.tensors["w"].chunks[0].clone();
        let object = metadata
            .objects
            .get_mut("w._extra_state/shard_0_1")
            .unwrap();
        object.file = file;
        object.offset = offset + 64;
        object.len = 64;
    });
    let error = open(&store).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("item overlaps that of w (iter_0000042/__0_0.distcp"),
        "{error}"
    );
}

#[test]
fn an_item_of_another_dtype_or_shape_is_refused() {
    let store = sample();
    change(&store, |metadata| {
        metadata.tensors.get_mut("w").unwrap().dtype = Dtype::F16
    });
    let checkpoint = open(&store).unwrap();
    let chunk = checkpoint.metadata().tensors["w"].chunks[0].clone();
    let error = checkpoint.locate("w", &chunk).unwrap_err();
    assert!(
        error.to_string().starts_with(
            "item holds BF16 [2, 2], expected F16 [2, 2] (iter_0000042/__0_0.distcp, tensor w"
        ),
        "{error}"
    );
    let error = checkpoint.locate("v", &chunk).unwrap_err();
    assert!(matches!(error, Error::NoSuchItem { .. }));
    assert!(matches!(
        checkpoint.object("v"),
        Err(Error::NoSuchItem { .. })
    ));
}

#[test]
fn data_files_are_opened_once_and_not_all_kept_open() {
    let store = sample();
    for number in 0..200 {
        store.insert(&format!("f{number}"), []).unwrap();
    }
    let checkpoint = open(&store).unwrap();
    let first = checkpoint.source("f0").unwrap();
    assert!(Arc::ptr_eq(&first, &checkpoint.source("f0").unwrap()));
    for number in 0..200 {
        checkpoint.source(&format!("f{number}")).unwrap();
    }
    assert_eq!(checkpoint.open_files.lock().unwrap().len(), MAX_OPEN_FILES);
    assert!(checkpoint.source("absent").is_err());
}

/// Opens a checkpoint and reads every tensor and object of it.
fn read_all(store: Arc<dyn Store>) -> Result<Vec<Vec<u8>>, Error> {
    let checkpoint = TorchDistCheckpoint::open(store)?;
    let mut read = Vec::new();
    for (name, entry) in &checkpoint.metadata().tensors {
        for chunk in &entry.chunks {
            let stored = checkpoint.locate(name, chunk)?;
            let source = checkpoint.source(&chunk.file)?;
            stored.verify(source.as_ref(), name)?;
            read.push(stored.read(source.as_ref())?);
        }
    }
    for name in checkpoint.metadata().objects.keys() {
        checkpoint.object(name)?;
    }
    Ok(read)
}

#[test]
fn data_files_may_have_any_name_inside_the_directory() {
    for name in [
        "f.bin",
        "a/b/c.distcp",
        "two words",
        "Grüße.distcp",
        ".hidden",
        ".hidden/f",
    ] {
        let store = sample();
        let bytes = store.remove("__0_1.distcp").unwrap();
        store.insert(name, bytes).unwrap();
        change(&store, |metadata| {
            metadata.tensors.get_mut("w").unwrap().chunks[1].file = name.into();
        });
        let read = read_all(Arc::new(store)).unwrap();
        assert_eq!(read[1], (8..16).collect::<Vec<u8>>(), "{name}");
    }
}

#[test]
fn fc_33_a_cut_data_file_names_its_sizes_and_the_first_tensor_whose_bytes_are_missing() {
    let store = sample();
    let file = "__0_1.distcp";
    let whole = store.bytes(file).unwrap();
    for len in 0..whole.len() {
        store.insert(file, &whole[..len]).unwrap();
        let faults = Faults::none();
        let error = read_all(Arc::new(FaultyStore::new(
            Arc::new(store.clone()),
            faults.clone(),
        )))
        .unwrap_err();
        let Error::DataFiles { faults: found, .. } = &error else {
            panic!("{error}")
        };
        let expected = DataFileFault {
            file: file.to_owned(),
            found: Some(len as u64),
            needed: whole.len() as u64,
            item: "w".to_owned(),
        };
        assert_eq!(*found, [expected]);
        let text = format!(
            "{file} has {len} bytes, needs {0}: bytes {len}..{0} are missing (first affected: w)",
            whole.len()
        );
        assert!(error.to_string().contains(&text), "{error}");
        // Neither this file nor another was opened for its data: description and metadata only.
        let opens = faults
            .calls()
            .into_iter()
            .filter(|&call| call == Call::Open);
        assert_eq!(opens.count(), 2);
    }
}

#[test]
fn fc_33_the_first_item_that_a_cut_reaches_is_named_and_the_last_one_says_what_is_needed() {
    let store = sample();
    let first = store.bytes("__0_0.distcp").unwrap();
    let second = store.bytes("__0_2.distcp").unwrap();
    let both = [first.clone(), second].concat();
    change(&store, |metadata| {
        let object = metadata
            .objects
            .get_mut("w._extra_state/shard_0_1")
            .unwrap();
        object.file = "__0_0.distcp".into();
        object.offset = first.len() as u64;
    });
    for (len, affected) in [
        (both.len() - 1, "w._extra_state/shard_0_1"),
        (first.len(), "w._extra_state/shard_0_1"),
        (first.len() - 1, "w"),
    ] {
        store.insert("__0_0.distcp", &both[..len]).unwrap();
        let Err(Error::DataFiles { faults, .. }) = open(&store) else {
            panic!()
        };
        assert_eq!(
            (faults[0].item.as_str(), faults[0].needed),
            (affected, both.len() as u64)
        );
    }
}

#[test]
fn fc_40_reading_a_directory_changes_nothing_in_it() {
    use std::os::unix::fs::PermissionsExt;

    let scratch = tempfile::tempdir().unwrap();
    let memory = sample();
    for file in memory.files().unwrap() {
        fs::write(
            scratch.path().join(&file.name),
            memory.bytes(&file.name).unwrap(),
        )
        .unwrap();
        let read_only = fs::Permissions::from_mode(0o444);
        fs::set_permissions(scratch.path().join(&file.name), read_only).unwrap();
    }
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let before = state_of(scratch.path());
    let store = Arc::new(LocalStore::open(scratch.path()).unwrap());
    assert_eq!(
        read_all(store).unwrap(),
        read_all(Arc::new(memory)).unwrap()
    );
    assert_eq!(state_of(scratch.path()), before);
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn fc_41_a_source_that_fails_at_any_call_is_an_ordinary_error() {
    let run = |faults: &Faults| {
        read_all(Arc::new(FaultyStore::new(
            Arc::new(sample()),
            faults.clone(),
        )))
    };
    let clean = Faults::none();
    run(&clean).unwrap();
    for (call, &kind) in clean.calls().iter().enumerate() {
        for fault in [Fault::Error(ErrorKind::Other), Fault::Short, Fault::Vanish] {
            let error = run(&Faults::at(call, fault)).unwrap_err();
            let says = format!("call {call} {kind:?} {fault:?}: {error}");
            assert!(error.to_string().contains("iter_0000042"), "{says}");
            // A file that is half as long when it is opened is for its reader to refuse; everything else is a failure to
            // read, and is not taken for damage.
            let is_ordinary = matches!(
                error,
                Error::Read { .. }
                    | Error::ShortRead { .. }
                    | Error::NotFound { .. }
                    | Error::DataFiles { .. }
            );
            assert!(
                is_ordinary || (kind, fault) == (Call::Open, Fault::Short),
                "{says}"
            );
        }
    }
}

#[test]
fn fc_42_a_command_in_any_file_of_a_checkpoint_is_not_run() {
    let scratch = tempfile::tempdir().unwrap();
    let mark = scratch.path().join("was-run");
    let command = format!("touch {}", mark.display());
    let run = |pickle: &mut PickleWriter| {
        pickle.global("os", "system");
        pickle.text(&command);
        pickle.tuple1();
        pickle.reduce();
    };
    let archive = |pickle: &[u8]| {
        let mut archive = crate::torch_dist::zip::ArchiveWriter::new("archive");
        archive.record("data.pkl", pickle);
        archive.record("version", b"3\n");
        archive.finish()
    };
    let mut bare = PickleWriter::new();
    run(&mut bare);
    let bare = bare.finish();
    // The same as a value of a dict, as common state may hold classes of the program that trained.
    let mut nested = PickleWriter::new();
    nested.dict(["iteration", "args"], |pickle, key| {
        pickle.text(key);
        if key == "args" {
            run(pickle)
        } else {
            pickle.int(7)
        }
    });
    let nested = nested.finish();

    let store = sample();
    store.insert(COMMON_FILE, archive(&nested)).unwrap();
    let common = open(&store).unwrap().common().unwrap().clone();
    assert_eq!(common.get("iteration"), Some(&Object::Int(7)));
    assert_eq!(
        common.get("args"),
        Some(&Object::Opaque("os.system".to_owned()))
    );
    store.insert(COMMON_FILE, archive(&bare)).unwrap();
    assert!(matches!(open(&store), Err(Error::ItemMalformed { .. })));

    let store = sample();
    for pickle in [&bare, &nested] {
        store.insert(METADATA_FILE, pickle.as_slice()).unwrap();
        assert!(matches!(open(&store), Err(Error::MetadataMalformed { .. })));
    }
    // Beside a true object graph, where newer versions keep fields that nobody here knows.
    let mut metadata = sample().bytes(METADATA_FILE).unwrap();
    assert_eq!(metadata.split_off(metadata.len() - 2), b"b.");
    metadata.extend(b"X\x07\x00\x00\x00unknown");
    metadata.extend(&bare[2..bare.len() - 1]);
    metadata.extend(b"sb.");
    store.insert(METADATA_FILE, metadata).unwrap();
    assert_eq!(
        read_all(Arc::new(store)).unwrap(),
        read_all(Arc::new(sample())).unwrap()
    );
    assert!(!mark.exists());
}

#[test]
fn a_cut_of_any_file_is_an_error_somewhere() {
    let store = sample();
    for file in [METADATA_FILE, COMMON_FILE, "__0_0.distcp", "__0_2.distcp"] {
        let whole = store.bytes(file).unwrap();
        for len in 0..whole.len() {
            store.insert(file, &whole[..len]).unwrap();
            assert!(open(&store).is_err(), "{file} cut at {len}");
        }
        store.insert(file, whole).unwrap();
    }
}

/// The digest of nothing, under these names.
fn integrity(names: &[&str]) -> String {
    let hex = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let files: serde_json::Map<_, _> = names
        .iter()
        .map(|name| ((*name).to_owned(), hex.into()))
        .collect();
    serde_json::json!({"algorithm": "sha256", "files": files}).to_string()
}

#[test]
fn digests_are_offered_and_listed_files_must_be_there() {
    let store = sample();
    assert_eq!(open(&store).unwrap().integrity(), None);
    store
        .insert(INTEGRITY_FILE, integrity(&["__0_0.distcp", ".metadata"]))
        .unwrap();
    let checkpoint = open(&store).unwrap();
    let digests = checkpoint.integrity().unwrap();
    assert_eq!(digests.files().len(), 2);
    let result = digests.verify(checkpoint.store().as_ref(), "__0_0.distcp", &mut |_| {
        Ok::<(), Error>(())
    });
    assert!(matches!(result, Err(Error::Digest { .. })));

    store
        .insert(
            INTEGRITY_FILE,
            integrity(&["__0_0.distcp", "a", ".hidden/b"]),
        )
        .unwrap();
    let Err(Error::IntegrityFiles { files, .. }) = open(&store) else {
        panic!()
    };
    assert_eq!(files, [".hidden/b", "a"]);
    store.insert(".hidden/b", "").unwrap();
    store.insert("a", "").unwrap();
    assert!(open(&store).is_ok());
    store
        .insert(INTEGRITY_FILE, r#"{"algorithm":"md5","files":{}}"#)
        .unwrap();
    assert!(matches!(
        open(&store),
        Err(Error::IntegrityAlgorithm { .. })
    ));
}

#[test]
fn deep_json_in_the_description_is_an_error() {
    let store = sample();
    for text in ["[".repeat(100_000), "{\"a\":".repeat(100_000)] {
        store.insert(DESCRIPTION_FILE, text).unwrap();
        assert!(matches!(
            open(&store),
            Err(Error::ShardedDescription { .. })
        ));
    }
    store
        .insert(DESCRIPTION_FILE, vec![b' '; (1 << 20) + 1])
        .unwrap();
    assert!(matches!(open(&store), Err(Error::FileTooLarge { .. })));
}
