//! Where plugins are looked for, in which order, and what a bad file among them does.

use std::path::Path;

use rialto_bridge::RawConfig;
use rialto_host::{Origin, Registry, SearchPath};

use crate::library::{faulty, toy, toy_config, written};

/// A copy of a library at a place, folders included.
fn copied(library: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(library, to).unwrap();
}

#[test]
fn the_order_is_explicit_variable_executable_plugins_data_and_the_first_of_a_name_wins() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in [
        "given/libtoy.so",
        "listed/libtoy.so",
        "single.so",
        "bin/librialto_toy.so",
        "bin/libother.so",
        "bin/plugins/libtoy.so",
        "data/rialto/plugins/libtoy.so",
    ] {
        copied(&toy(), &at(name));
    }
    let variable = format!("{}::{}", at("listed").display(), at("single.so").display());
    let path = SearchPath::new()
        .plugin(at("given/libtoy.so"))
        .variable(variable)
        .executable_folder(at("bin"))
        .data_home(at("data"));
    let registry = Registry::search(&path).unwrap();
    let listing = registry.list();
    let order: Vec<_> = listing
        .iter()
        .map(|line| (line.origin, line.file.clone()))
        .collect();
    let expected = [
        (Origin::Explicit, at("given/libtoy.so")),
        (Origin::Variable, at("listed/libtoy.so")),
        (Origin::Variable, at("single.so")),
        (Origin::ExecutableFolder, at("bin/librialto_toy.so")),
        (Origin::PluginsFolder, at("bin/plugins/libtoy.so")),
        (Origin::DataFolder, at("data/rialto/plugins/libtoy.so")),
    ];
    assert_eq!(order, expected);
    assert_eq!(listing[0].shadowed_by, None);
    for line in &listing[1..] {
        assert_eq!(
            line.shadowed_by,
            Some(at("given/libtoy.so").display().to_string())
        );
    }
    assert_eq!(listing[0].name.as_deref(), Some("toy"));
    assert_eq!(listing[0].version.as_deref(), Some("0.1.0"));
    assert_eq!(listing[0].architectures, ["ToyForCausalLM"]);
    let config = toy_config();
    let claimed = registry.claim(&config).unwrap();
    assert_eq!(claimed.plugin.file(), at("given/libtoy.so"));
    assert!(claimed.others.is_empty(), "a shadowed plugin is not asked");
}

#[test]
fn a_bad_file_is_listed_with_its_reason_and_stops_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(toy()).unwrap();
    written(folder.path(), "a_text.so", b"text");
    written(folder.path(), "b_cut.so", &bytes[..4096]);
    written(folder.path(), "c_whole.so", &bytes);
    written(folder.path(), "readme.txt", b"not looked at");
    let missing = folder.path().join("d_missing.so");
    let variable = format!(
        "{}:{}:relative/e.so",
        folder.path().display(),
        missing.display()
    );
    let registry = Registry::search(&SearchPath::new().variable(variable)).unwrap();
    let slugs: Vec<_> = registry
        .refused()
        .iter()
        .map(|refused| refused.error.slug())
        .collect();
    assert_eq!(
        slugs,
        [
            "plugin/not-elf",
            "plugin/truncated",
            "plugin/not-found",
            "plugin/relative"
        ]
    );
    assert_eq!(registry.usable().count(), 1);
    let listing = registry.list();
    let order: Vec<_> = listing.iter().map(|line| line.slug.as_deref()).collect();
    let expected = [
        Some("plugin/not-elf"),
        Some("plugin/truncated"),
        None,
        Some("plugin/not-found"),
        Some("plugin/relative"),
    ];
    assert_eq!(order, expected, "the order of the search");
    for refused in listing.iter().filter(|line| line.slug.is_some()) {
        let reason = refused.reason.as_deref().unwrap();
        assert!(reason.contains(refused.file.to_str().unwrap()), "{reason}");
    }
    serde_json::to_string(&listing).unwrap();
    registry.claim(&toy_config()).unwrap();
}

#[test]
fn a_bad_file_that_was_named_by_hand_fails_the_search() {
    let folder = tempfile::tempdir().unwrap();
    let text = written(folder.path(), "text.so", b"text");
    let path = SearchPath::new().plugin(&text).plugin(toy());
    let error = Registry::search(&path).unwrap_err();
    assert_eq!(error.slug(), "plugin/not-elf");
    assert!(
        error.to_string().contains(text.to_str().unwrap()),
        "{error}"
    );
}

#[test]
fn a_file_that_comes_up_twice_counts_where_it_came_up_first() {
    let path = SearchPath::new()
        .plugin(toy())
        .plugin(toy())
        .variable(toy());
    let registry = Registry::search(&path).unwrap();
    assert_eq!(registry.found().len(), 1);
    assert_eq!(registry.found()[0].origin, Origin::Explicit);
}

#[test]
fn an_architecture_that_nobody_serves_is_named_with_those_available() {
    let path = SearchPath::new().plugin(faulty()).plugin(toy());
    let registry = Registry::search(&path).unwrap();
    let config = RawConfig::parse(br#"{"architectures": ["ToyForCausalLm"]}"#).unwrap();
    let error = registry.claim(&config).unwrap_err();
    assert_eq!((error.slug(), error.code()), ("plugin/unclaimed", 3));
    let expected = "no plugin takes architecture ToyForCausalLm, available: FaultyForCausalLM, ToyForCausalLM; \
                    said no: faulty: it serves nobody; toy: it does not name ToyForCausalLM";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_plugin_that_was_found_and_refused_is_named_when_none_takes_the_config() {
    let folder = tempfile::tempdir().unwrap();
    let text = written(folder.path(), "text.so", b"text");
    let registry = Registry::search(&SearchPath::new().variable(&text)).unwrap();
    let error = registry.claim(&toy_config()).unwrap_err();
    assert_eq!((error.slug(), error.code()), ("plugin/unclaimed", 3));
    let message = error.to_string();
    for word in ["refused", text.to_str().unwrap(), "ELF"] {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
    assert!(!error.help().unwrap().contains("no plugin was found"));
}

#[test]
fn a_fault_of_the_config_that_a_plugin_finds_in_its_claim_keeps_its_kind() {
    let registry = Registry::search(&SearchPath::new().plugin(toy())).unwrap();
    for wrong in [
        "[1]",
        "\"ToyForCausalLM\"",
        "7",
        "{}",
        "[[\"ToyForCausalLM\"]]",
    ] {
        let config = format!(r#"{{"architectures": {wrong}}}"#);
        let config = RawConfig::parse(config.as_bytes()).unwrap();
        let error = registry.claim(&config).unwrap_err();
        assert_eq!((error.slug(), error.code()), ("config/value", 4));
        // It is the config that has to be mended, so nothing is said of the plugin.
        let wrong: serde_json::Value = serde_json::from_str(wrong).unwrap();
        let expected = format!("config.json: architectures is {wrong}, expected a list of names");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn the_places_of_a_search_are_told_in_their_order() {
    let path = SearchPath::new()
        .data_home("/data")
        .executable_folder("/bin")
        .variable("/a:/b.so")
        .plugin("/given.so");
    let places: Vec<_> = path.places();
    let expected = [
        (Origin::Explicit, "/given.so"),
        (Origin::Variable, "/a"),
        (Origin::Variable, "/b.so"),
        (Origin::ExecutableFolder, "/bin"),
        (Origin::PluginsFolder, "/bin/plugins"),
        (Origin::DataFolder, "/data/rialto/plugins"),
    ];
    assert_eq!(
        places,
        expected.map(|(origin, place)| (origin, place.into()))
    );
}

#[test]
fn the_working_directory_is_never_searched() {
    let folder = tempfile::tempdir().unwrap();
    copied(&toy(), &folder.path().join("librialto_toy.so"));
    copied(&toy(), &folder.path().join("plugins/libtoy.so"));
    // Whatever the working directory is, no entry of an empty or relative path leads to it.
    for variable in ["", ":", ".", "./", "plugins", "..:"] {
        let registry = Registry::search(&SearchPath::new().variable(variable)).unwrap();
        assert_eq!(registry.found().len(), 0, "{variable:?}");
    }
}
