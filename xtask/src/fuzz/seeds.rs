//! Seeds: small inputs that are right, made from the fixtures, and a few that are odd, made by hand.
//!
//! A fuzzer starts from what it is given, and a zip archive or a pickle it would not find by itself. What can be written as
//! text lies in `fuzz/seeds`; a finding that is worth keeping goes there too.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::Target;
use crate::workspace::{CHECKPOINT, Workspace, remove};

const INDEX: &str = "model.safetensors.index.json";
const TORCH_DIST: &str = "tests/fixtures/torch-dist";
/// Files that `torch.save` wrote.
const OBJECTS: [&str; 2] = [
    "tests/fixtures/megatron/glm52-tiny-mtp-tp1/ckpt/iter_0000000/train_state.pt",
    "tests/fixtures/torch-dist/mcore013-w4/ckpt/iter_0000042/common.pt",
];
/// Files that hold items.
const DATA_FILES: [&str; 4] = [
    "tests/fixtures/megatron/glm52-tiny-mtp-tp1/ckpt/iter_0000000/__0_0.distcp",
    "tests/fixtures/torch-dist/sharded-w4/ckpt/__3_0.distcp",
    "tests/fixtures/torch-dist/mcore020-w4/ckpt/iter_0000042/__1_0.distcp",
    "tests/fixtures/torch-dist/plain-r1/ckpt/__0_0.distcp",
];
/// Tensors that a cut header or index keeps.
const KEPT: usize = 12;
/// Items of one data file that become seeds, each of another length.
const ITEMS: usize = 12;

/// Makes the seeds of a target in `folder`, which is emptied before. Errors: a fixture that is not there or not understood.
pub(super) fn write(workspace: &Workspace, target: &Target, folder: &Path) -> Result<()> {
    remove(folder)?;
    fs::create_dir_all(folder)?;
    let mut seeds = match target.name {
        "safetensors_header" => headers(workspace)?,
        "index" => indexes(workspace)?,
        "pickle" => pickles(workspace)?,
        "zip_item" => items(workspace)?,
        "metadata" => metadata(workspace)?,
        "config" => configs(workspace)?,
        _ => Vec::new(),
    };
    let by_hand = workspace.path("fuzz/seeds").join(target.name);
    if by_hand.is_dir() {
        for entry in fs::read_dir(&by_hand)? {
            seeds.push(fs::read(entry?.path())?);
        }
    }
    seeds.retain(|seed| seed.len() <= target.max_len);
    ensure!(!seeds.is_empty(), "no seed for {}", target.name);
    for (position, seed) in seeds.iter().enumerate() {
        fs::write(folder.join(format!("{position:03}")), seed)?;
    }
    Ok(())
}

fn read(workspace: &Workspace, name: &str) -> Result<Vec<u8>> {
    fs::read(workspace.path(name)).with_context(|| name.to_owned())
}

// --- JSON ---

/// The first tensors of every shard, as files of their own without their data, which the target puts there.
fn headers(workspace: &Workspace) -> Result<Vec<Vec<u8>>> {
    let mut seeds = vec![
        header(&json!({})),
        header(&json!({"__metadata__": {"format": "pt", "": "x"}})),
        header(&json!({
            "a": {"dtype": "U8", "shape": [], "data_offsets": [2, 3]},
            "b": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]},
            "c": {"dtype": "I64", "shape": [0, 7], "data_offsets": [3, 3]},
        })),
        [
            &[0],
            &read(
                workspace,
                &format!("{TORCH_DIST}/sharded-w4/expected.safetensors"),
            )?[..],
        ]
        .concat(),
    ];
    for number in 1..=3 {
        let name = format!("{CHECKPOINT}/model-0000{number}-of-00003.safetensors");
        let bytes = read(workspace, &name)?;
        let len = bytes.first_chunk().map(|len| u64::from_le_bytes(*len));
        let text = len.and_then(|len| bytes.get(8..8 + usize::try_from(len).ok()?));
        let document: Map<String, Value> =
            serde_json::from_slice(text.with_context(|| name.clone())?)?;
        let mut entries: Vec<(u64, String, Value)> = document
            .into_iter()
            .filter_map(|(name, entry)| Some((entry["data_offsets"][1].as_u64()?, name, entry)))
            .collect();
        entries.sort_by_key(|(end, ..)| *end);
        entries.truncate(KEPT);
        let entries: Map<String, Value> = entries
            .into_iter()
            .map(|(_, name, entry)| (name, entry))
            .collect();
        seeds.push(header(&Value::Object(entries)));
    }
    Ok(seeds)
}

/// The text of a header after an odd byte, by which the target knows it.
fn header(document: &Value) -> Vec<u8> {
    format!("\u{1}{document}").into_bytes()
}

fn indexes(workspace: &Workspace) -> Result<Vec<Vec<u8>>> {
    let mut index: Value =
        serde_json::from_slice(&read(workspace, &format!("{CHECKPOINT}/{INDEX}"))?)?;
    let tensors = index["weight_map"].as_object().context("no weight map")?;
    let first: Map<String, Value> = tensors.clone().into_iter().take(KEPT).collect();
    index["weight_map"] = Value::Object(first);
    Ok(vec![
        format!("{index:#}\n").into_bytes(),
        br#"{"weight_map":{}}"#.to_vec(),
        br#"{"extra":[[1e3,null]],"metadata":null,"weight_map":{"\u00e9\n":"a/b"}}"#.to_vec(),
    ])
}

fn configs(workspace: &Workspace) -> Result<Vec<Vec<u8>>> {
    let names = [
        "configs/glm-5",
        "configs/glm-5.1",
        "configs/glm-5.2",
        "glm52-tiny",
    ];
    names
        .iter()
        .map(|name| read(workspace, &format!("tests/fixtures/{name}/config.json")))
        .collect()
}

// --- torch.save streams ---

fn items(workspace: &Workspace) -> Result<Vec<Vec<u8>>> {
    let mut seeds = Vec::new();
    for name in OBJECTS {
        seeds.push(read(workspace, name)?);
    }
    for name in DATA_FILES {
        let bytes = read(workspace, name)?;
        let mut lens = BTreeSet::new();
        let mut items: Vec<&[u8]> = split(&bytes);
        items.retain(|item| lens.insert(item.len()));
        items.sort_by_key(|item| item.len());
        ensure!(!items.is_empty(), "{name} holds no item");
        seeds.extend(items.into_iter().take(ITEMS).map(<[u8]>::to_vec));
    }
    Ok(seeds)
}

/// The items of a data file, which lie one after another: each begins with the record of its pickle.
fn split(bytes: &[u8]) -> Vec<&[u8]> {
    let is_start = |&at: &usize| {
        let name = bytes[at..]
            .starts_with(b"PK\x03\x04")
            .then(|| record_name(bytes, at));
        name.flatten()
            .is_some_and(|name| name.ends_with(b"/data.pkl"))
    };
    let mut starts: Vec<usize> = (0..bytes.len()).filter(is_start).collect();
    starts.push(bytes.len());
    starts
        .windows(2)
        .map(|pair| &bytes[pair[0]..pair[1]])
        .collect()
}

/// The name in the local header that begins at `at`.
fn record_name(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let len = usize::from(u16_at(bytes, at + 26)?);
    bytes.get(at + 30..at + 30 + len)
}

/// The pickle of an item, its first record. Local headers keep no length, so the central directory is asked.
fn pickle_of(item: &[u8]) -> Option<&[u8]> {
    let central = item
        .windows(4)
        .rposition(|window| window == b"PK\x05\x06")?;
    let first = item[..central]
        .windows(4)
        .position(|window| window == b"PK\x01\x02")?;
    let len = usize::try_from(u32_at(item, first + 24)?).ok()?;
    let start = 30 + usize::from(u16_at(item, 26)?) + usize::from(u16_at(item, 28)?);
    item.get(start..start + len)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

// --- pickles ---

fn pickles(workspace: &Workspace) -> Result<Vec<Vec<u8>>> {
    let items = items(workspace)?;
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for item in &items {
        seeds.push(
            pickle_of(item)
                .context("an item without a pickle")?
                .to_vec(),
        );
    }
    seeds.sort();
    seeds.dedup();
    seeds.extend(ODD_PICKLES.iter().map(|pickle| pickle.to_vec()));
    seeds.push(tensor_pickle("64", "16", "(K\x04K\x04t", "(K\x04K\x01t"));
    seeds.push(tensor_pickle("64", "0", "(K\x04K\x10t", "(K\x01K\x04t"));
    // One element that is repeated, and a dozen lists that hold the one before ten times.
    seeds.push(tensor_pickle("64", "0", "(K\x04K\x7ft", "(K\x04K\x00t"));
    seeds.push(nested(12, 10));
    Ok(seeds)
}

/// What torch does not write, though a pickle may hold it.
const ODD_PICKLES: [&[u8]; 12] = [
    b"\x80\x02N.",
    b"\x80\x04\x95\x03\0\0\0\0\0\0\0K\x01.",
    b"\x80\x02(K\x01M\x02\x03J\xff\xff\xff\xff\x8a\x02\x01\x80\x8b\x09\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08\x09t.",
    b"\x80\x02(G\x7f\xf8\0\0\0\0\0\x01\x88\x89NU\x01aC\x02\xff\0T\x01\0\0\0bt.",
    b"\x80\x05(\x8d\x01\0\0\0\0\0\0\0a\x8e\x01\0\0\0\0\0\0\0b\x96\x01\0\0\0\0\0\0\0ct.",
    b"\x80\x04\x8f(K\x01K\x02\x90(K\x01\x91\x86.",
    b"\x80\x02}(U\x01aK\x01U\x01aK\x02uU\x01bNs.",
    b"\x80\x02ccollections\nOrderedDict\n)R(U\x01aK\x01u}b.",
    b"\x80\x04\x8c\x05torch\x8c\x04Size\x93(K\x02K\x03t\x85R.",
    b"\x80\x02ca\nb\n)}\x92(K\x01K\x02e}(NNub.",
    b"\x80\x02]q\0h\0a.",
    b"\x80\x02(K\x01K\x02(10N0K\x03r\x05\0\0\0j\x05\0\0\0\x94h\x01\x86\x87.",
];

/// A call that rebuilds a view of storage 0, in `torch.FloatStorage` elements or those of bytes.
fn tensor_pickle(count: &str, offset: &str, size: &str, strides: &str) -> Vec<u8> {
    let number = |text: &str| vec![b'K', text.parse().expect("a small number")];
    [
        &b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nByteStorage\nU\x010U\x03cpu"[..],
        &number(count),
        b"tQ",
        &number(offset),
        size.as_bytes(),
        strides.as_bytes(),
        b"\x89ccollections\nOrderedDict\n)RtR.",
    ]
    .concat()
}

/// Lists in lists, each holding the one before several times.
fn nested(depth: usize, times: usize) -> Vec<u8> {
    let mut pickle = b"\x80\x02(]q\0".to_vec();
    for _ in 0..depth {
        pickle.extend(b"](");
        pickle.extend([b'h', 0].repeat(times));
        pickle.extend(b"eq\0");
    }
    // All of them lie on the stack; the last one is fetched from the memo.
    pickle.extend(b"1h\0.");
    pickle
}

// --- .metadata ---

fn metadata(workspace: &Workspace) -> Result<Vec<Vec<u8>>> {
    let files = [
        "sharded-w4/ckpt/.metadata",
        "plain-r1/ckpt/.metadata",
        "plain-r1-torch241/ckpt/.metadata",
        // A part of a checkpoint, which does not tile its tensors.
        "per-rank-w2/ckpt/__0.metadata",
    ];
    let mut seeds = vec![small_metadata()];
    for file in files {
        seeds.push(read(workspace, &format!("{TORCH_DIST}/{file}"))?);
    }
    Ok(seeds)
}

/// A checkpoint with one tensor in two chunks, a scalar, an empty tensor, an object, and one of Megatron's reshaped tensors.
fn small_metadata() -> Vec<u8> {
    let metadata = "torch.distributed.checkpoint.metadata";
    let text = |text: &str| format!("U{}{text}", char::from(text.len() as u8));
    let object =
        |module: &str, class: &str, state: &str| format!("c{module}\n{class}\n)\u{7f}{state}b");
    let size = |extents: &[u8]| {
        let extents: String = extents
            .iter()
            .map(|&e| format!("K{}", char::from(e)))
            .collect();
        format!("ctorch\nSize\n(({extents}ttR")
    };
    let dict = |entries: &[(String, String)]| {
        let entries: String = entries
            .iter()
            .map(|(key, value)| format!("{key}{value}"))
            .collect();
        format!("}}({entries}u")
    };
    let properties = object(
        metadata,
        "TensorProperties",
        "(ctorch\nbfloat16\nctorch.serialization\n_get_layout\n(U\rtorch.stridedtRNNNt",
    );
    let chunk = |offsets: &[u8], sizes: &[u8]| {
        let state = [
            (text("offsets"), size(offsets)),
            (text("sizes"), size(sizes)),
        ];
        object(metadata, "ChunkStorageMetadata", &dict(&state))
    };
    let tensor = |extents: &[u8], chunks: &[String]| {
        let state = [
            (text("properties"), properties.clone()),
            (text("size"), size(extents)),
            (text("chunks"), format!("]({}e", chunks.concat())),
        ];
        object(metadata, "TensorStorageMetadata", &dict(&state))
    };
    let place = |name: &str, offset: Option<&[u8]>, at: u8| {
        let offset = offset.map_or("N".to_owned(), size);
        let key = [(text("fqn"), text(name)), (text("offset"), offset)];
        let state = [
            (text("relative_path"), text("__0_0.distcp")),
            (text("offset"), format!("K{}", char::from(at))),
            (text("length"), "K\u{9}".to_owned()),
        ];
        (
            object(metadata, "MetadataIndex", &dict(&key)),
            object(
                "torch.distributed.checkpoint.filesystem",
                "_StorageInfo",
                &dict(&state),
            ),
        )
    };
    let contents = [
        (
            text("a"),
            tensor(&[4, 2], &[chunk(&[0, 0], &[2, 2]), chunk(&[2, 0], &[2, 2])]),
        ),
        (text("b"), tensor(&[], &[chunk(&[], &[])])),
        (text("c"), tensor(&[0], &[chunk(&[0], &[0])])),
        (text("d"), tensor(&[4], &[chunk(&[0], &[4])])),
        (
            text("e"),
            format!("c{metadata}\nBytesStorageMetadata\n)\u{7f}"),
        ),
    ];
    let places = [
        place("a", Some(&[0, 0]), 0),
        place("a", Some(&[2, 0]), 9),
        place("b", Some(&[]), 18),
        place("c", Some(&[0]), 27),
        place("d", Some(&[0]), 36),
        place("e", None, 45),
    ];
    let reshaped = dict(&[(
        text("d"),
        dict(&[(text("nd_reformulated_orig_global_shape"), size(&[2, 2]))]),
    )]);
    let state = [
        (text("state_dict_metadata"), dict(&contents)),
        (text("storage_data"), dict(&places)),
        (text("mcore_data"), reshaped),
    ];
    let whole = object(metadata, "Metadata", &dict(&state));
    // NEWOBJ is no character; one that nothing else uses stands for it until here.
    let bytes = whole.into_bytes().into_iter();
    let bytes = bytes.map(|byte| if byte == 0x7f { 0x81 } else { byte });
    [vec![0x80, 2], bytes.collect(), vec![b'.']].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_lie_one_after_another_and_begin_with_their_pickle() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let bytes = fs::read(root.join(DATA_FILES[1])).unwrap();
        let items = split(&bytes);
        assert_eq!(items.len(), 11);
        assert_eq!(items.concat(), bytes);
        for item in items {
            let pickle = pickle_of(item).unwrap();
            assert!(pickle.starts_with(&[0x80, 2]) && pickle.ends_with(b"."));
        }
    }
}
