//! A plugin written in C from the header, whole and with holes.

use std::path::{Path, PathBuf};

use rialto_bridge::{
    EncodedTensor, Error, MapOptions, Mesh, PipelineRequest, ProgramOptions, RawConfig,
};
use rialto_host::{check, load};
use rialto_tensor::{Dtype, Shape, TensorView};
use rialto_tests::compiler::library;

use crate::library::{refused, written};

pub(crate) const PLAIN: &str = include_str!("../plugins/plain_c/plain.c");

/// Compiles C to a library.
pub(crate) fn compiled(folder: &Path, name: &str, source: &str) -> PathBuf {
    let made = folder.join(format!("lib{name}.so"));
    let source = written(folder, &format!("{name}.c"), source.as_bytes());
    library(&source, "c11", &made);
    made
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
    let error = bridge.program(&spec, &ProgramOptions::default());
    assert_eq!(error.unwrap_err().slug(), "bridge/no-forward-pass");
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
        // What the table no longer names is not used.
        let ignored = ["function", "const-variable"]
            .map(|what| format!("#pragma GCC diagnostic ignored \"-Wunused-{what}\"\n"));
        let source = ignored.concat() + &PLAIN.replace(whole, torn);
        let file = compiled(folder.path(), name, &source);
        refused(&file, "plugin/table", 8, &[word, "plain 1.0"]);
    }
}
