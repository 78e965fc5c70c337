//! What must hold of any family, for the releases whose models ship in the tree.

use rialto_glm5::Glm5;
use rialto_plugin_test::{PluginTest, built_library};

fn of(fixture: &str) -> PluginTest {
    PluginTest::new(Glm5).fixture(format!("../../tests/fixtures/{fixture}"))
}

#[test]
fn glm_5_2_is_sound() {
    of("glm52-tiny").check_all();
}

/// Whose weights are stored in FP8.
#[test]
fn glm_5_3_is_sound() {
    of("glm53-tiny").check_all();
}

/// Both in one, since only configs and answers are compared.
#[test]
fn the_library_says_what_the_linked_family_says() {
    let library = built_library("rialto_glm5");
    let both = of("glm52-tiny").fixture("../../tests/fixtures/glm53-tiny");
    let findings = both.library(library).check_library();
    assert!(findings.is_empty(), "{findings:#?}");
}
