//! Built libraries, copies of them, and damage.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr;

use rialto_abi::{HostTable, MAGIC, RStr};
use rialto_bridge::RawConfig;
use rialto_host::{Error, LoadedPlugin, load};
use rialto_tests::built_library;

unsafe extern "C" fn log(_: *mut c_void, _: u32, _: RStr<'_>, _: RStr<'_>) {}

unsafe extern "C" fn query_extension(_: *mut c_void, _: RStr<'_>) -> *const c_void {
    ptr::null()
}

/// A host that hears nothing, has nothing further, and is newer than any plugin.
pub(crate) static HOST: HostTable = HostTable {
    struct_size: HostTable::SIZE,
    abi_major: 1,
    abi_minor: 9,
    reserved: 0,
    // Read through pointers only; `From` is not const.
    capabilities: RStr::from_str(r#"["rule/map/1"]"#),
    context: ptr::null_mut(),
    log,
    query_extension,
};

/// A config that the toy takes.
pub(crate) const TOY_CONFIG: &str = r#"{
  "architectures": ["ToyForCausalLM"],
  "num_hidden_layers": 2,
  "hidden_size": 4,
  "intermediate_size": 8,
  "vocab_size": 16,
  "rms_norm_eps": 0.9856906946328695,
  "surprise": {"b": 1e-05, "a": [1.50]}
}
"#;

pub(crate) fn toy_config() -> RawConfig {
    RawConfig::parse(TOY_CONFIG.as_bytes()).unwrap()
}

/// The toy's config with one more key.
pub(crate) fn toy_config_that_panics_in(entry: &str) -> RawConfig {
    let text = TOY_CONFIG.replacen('{', &format!("{{\"panic\": \"{entry}\","), 1);
    RawConfig::parse(text.as_bytes()).unwrap()
}

pub(crate) fn toy() -> PathBuf {
    built_library("toy_plugin")
}

pub(crate) fn faulty() -> PathBuf {
    built_library("faulty_plugin")
}

/// Where `mark` stands in a file; it must stand there once.
pub(crate) fn position(bytes: &[u8], mark: &[u8]) -> usize {
    // As text, byte for byte: the search of `str` is fast in an unoptimized build, too.
    let ascii = bytes
        .iter()
        .map(|&byte| if byte.is_ascii() { byte } else { b'?' });
    let text = String::from_utf8(ascii.collect()).unwrap();
    let mark = str::from_utf8(mark).unwrap();
    let first = text.find(mark).expect("the mark is in the file");
    assert_eq!(
        text.rfind(mark),
        Some(first),
        "the mark stands twice in the file"
    );
    first
}

/// A copy of a library in `folder`, after an edit of its declaration's bytes.
pub(crate) fn with_declaration(
    folder: &Path,
    library: &Path,
    edit: impl FnOnce(&mut [u8]),
) -> PathBuf {
    let mut bytes = std::fs::read(library).unwrap();
    let at = position(&bytes, &MAGIC);
    edit(&mut bytes[at..]);
    written(folder, "libdamaged.so", &bytes)
}

/// A copy of the faulty plugin in `folder` that panics in `entry`.
pub(crate) fn faulty_in(folder: &Path, entry: &str) -> PathBuf {
    let mut bytes = std::fs::read(faulty()).unwrap();
    let at = position(&bytes, b"FAULT-AT:nothing") + 9;
    let name = format!("{entry:.<23}");
    bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
    written(folder, &format!("libfaulty_in_{entry}.so"), &bytes)
}

/// A new file. A library that is loaded must never be written again: it is mapped, and its code would change under it.
pub(crate) fn written(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let file = folder.join(name);
    std::fs::write(&file, bytes).unwrap();
    file
}

/// Loads a file that must be refused; the message must name it, on one line, and what was found.
pub(crate) fn refused(file: &Path, slug: &str, code: u32, words: &[&str]) -> Error {
    let error = load(file)
        .map(|plugin| plugin.package().to_owned())
        .unwrap_err();
    let message = error.to_string();
    assert_eq!((error.slug(), error.code()), (slug, code), "{message}");
    for word in words.iter().copied().chain([file.to_str().unwrap()]) {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
    assert!(!message.contains('\n'), "{message}");
    // The host goes on: another plugin loads and answers.
    assert_answers(&load(&toy()).unwrap());
    error
}

/// A toy that works.
pub(crate) fn assert_answers(toy: &LoadedPlugin) {
    let spec = toy
        .bridge()
        .map_config(&toy_config(), &Default::default())
        .unwrap();
    assert_eq!(
        toy.bridge()
            .weight_map(&spec)
            .unwrap()
            .resolve()
            .unwrap()
            .pieces()
            .len(),
        7
    );
}
