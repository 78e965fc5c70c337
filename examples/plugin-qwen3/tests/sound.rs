//! What must hold of any family, for a model whose head is the embedding and for one that has a head of its own.

use std::path::{Path, PathBuf};

use rialto_plugin_test::{PluginTest, built_library};
use rialto_qwen3::Qwen3;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/qwen3")
        .join(name)
}

#[test]
fn the_family_is_sound() {
    PluginTest::new(Qwen3)
        .fixture(fixture("tiny-tied"))
        .fixture(fixture("tiny-untied"))
        .library(built_library("rialto_qwen3"))
        .check_all();
}
