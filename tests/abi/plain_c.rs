//! A plugin written in C from the header, and the header against the tables.

use std::path::{Path, PathBuf};
use std::process::Command;

use rialto_abi::layout::TABLES;
use rialto_abi::{MAGIC, TARGET};
use rialto_bridge::{EncodedTensor, Error, MapOptions, Mesh, PipelineRequest, RawConfig};
use rialto_host::{check, load};
use rialto_tensor::{Dtype, Shape, TensorView};

use crate::library::{refused, written};

const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/abi/include");
const PLAIN: &str = include_str!("../plugins/plain_c/plain.c");

/// Compiles C to a library; `cc` is there, since Rust links with it.
fn compiled(folder: &Path, name: &str, source: &str) -> PathBuf {
    let library = folder.join(format!("lib{name}.so"));
    let source = written(folder, &format!("{name}.c"), source.as_bytes());
    let output = Command::new("cc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused",
            "-fPIC",
            "-shared",
        ])
        .args(["-I", HEADERS, &format!("-DRIALTO_TARGET=\"{TARGET}\"")])
        .arg("-o")
        .args([library, source.clone()])
        .output()
        .expect("cc runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    source.with_file_name(format!("lib{name}.so"))
}

#[test]
fn the_header_has_the_sizes_and_offsets_of_the_tables() {
    let mut source = String::from("#include <stddef.h>\n#include \"rialto_plugin.h\"\n");
    for table in TABLES {
        let name = match table.name {
            "PluginDecl" => "rialto_plugin_decl",
            "HostTable" => "rialto_host_table",
            "BridgeHandle" => "rialto_bridge_handle",
            "BridgeTable" => "rialto_bridge_table",
            "DequantizeTable" => "rialto_dequantize_table",
            "TensorRef" => "rialto_tensor",
            "Status" => "rialto_status",
            "OwnedBytes" => "rialto_owned",
            other => panic!("{other} is not in the header"),
        };
        let mut claim = |left: String, right: usize| {
            source += &format!("_Static_assert({left} == {right}, \"{left} is not {right}\");\n");
        };
        claim(format!("sizeof({name})"), table.size);
        claim(format!("_Alignof({name})"), table.align);
        for (field, offset) in table.fields {
            claim(format!("offsetof({name}, {field})"), *offset);
        }
    }
    for view in [
        "rialto_bytes",
        "rialto_bytes_mut",
        "rialto_str",
        "rialto_tensors",
    ] {
        source += &format!(
            "_Static_assert(sizeof({view}) == 16, \"{view} is a pointer and a length\");\n"
        );
    }
    let magic = String::from_utf8(MAGIC.to_vec()).unwrap();
    let header = std::fs::read_to_string(format!("{HEADERS}/rialto_plugin.h")).unwrap();
    assert!(header.contains(&format!("#define RIALTO_MAGIC \"{magic}\"")));
    let folder = tempfile::tempdir().unwrap();
    compiled(folder.path(), "layout", &source);
}

#[test]
fn a_plugin_in_c_loads_and_answers() {
    let folder = tempfile::tempdir().unwrap();
    let file = compiled(folder.path(), "plain", PLAIN);
    let report = check(&file);
    assert!(report.error.is_none(), "{:?}", report.error);
    assert_eq!(report.steps[9].detail, "no report that this host can read");
    let plugin = load(&file).unwrap();
    assert_eq!(
        (plugin.package(), plugin.extensions()),
        ("plain 1.0", &[][..])
    );
    let bridge = plugin.bridge();
    let config = RawConfig::parse(br#"{"architectures": ["PlainForCausalLM"]}"#).unwrap();
    let spec = bridge.map_config(&config, &MapOptions::default()).unwrap();
    assert_eq!(spec.dims.hidden, 2);
    assert_eq!(
        bridge
            .weight_map(&spec)
            .unwrap()
            .resolve()
            .unwrap()
            .pieces()
            .len(),
        1
    );
    assert!(bridge.codecs(&spec).unwrap().is_empty());
    let error = bridge.unmap_config(&spec, &config).unwrap_err();
    assert_eq!(
        (error.code(), error.to_string().as_str()),
        (3, "a plain config cannot be made")
    );
    let error = bridge.placement(&spec).unwrap_err();
    assert!(
        matches!(&error, Error::Requirement { missing, .. } if missing == "placement/spiral/1"),
        "{error}"
    );
    let error = bridge
        .pipeline_layout(&spec, &PipelineRequest::new(Mesh::SINGLE))
        .unwrap_err();
    assert_eq!(error.slug(), "document/unreadable");
    let shape = Shape::new([1]);
    let tensor = TensorView::new(Dtype::U8, &shape, &[0]).unwrap();
    let encoded = EncodedTensor {
        codec: "any/1",
        tensor,
        companions: Vec::new(),
    };
    assert_eq!(
        bridge.dequantize(&encoded, &mut [0]).unwrap_err().slug(),
        "codec/unknown"
    );
}

#[test]
fn a_table_with_a_hole_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, whole, torn, word) in [
        ("no_open", ".open = open_plain", ".open = NULL", "no open"),
        (
            "no_table",
            "handle->table = &TABLE",
            "handle->table = NULL",
            "no bridge table",
        ),
        (
            "no_codecs",
            "pipeline_layout, codecs,",
            "pipeline_layout, NULL,",
            "no codecs",
        ),
    ] {
        assert!(PLAIN.contains(whole), "{whole}");
        let file = compiled(folder.path(), name, &PLAIN.replace(whole, torn));
        refused(&file, "plugin/table", 8, &[word, "plain 1.0"]);
    }
}
