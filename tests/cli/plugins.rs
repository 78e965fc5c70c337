//! Finding, listing and checking plugins.

use serde_json::json;

use crate::world::{command, family, fixture, rialto, run, scratch, text};

#[test]
fn the_list_shows_what_was_found_shadowed_and_refused() {
    let scratch = scratch();
    let folder = scratch.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(family(), folder.join("librialto_copy.so")).unwrap();
    std::fs::write(folder.join("librialto_text.so"), "no library").unwrap();
    let mut command = command();
    command
        .env("RIALTO_PLUGIN_PATH", &folder)
        .args(["plugin", "list", "--json", "--plugin"])
        .arg(family());
    let list = run(&mut command).result();
    let of = |name: &str| {
        let lines = list.as_array().unwrap();
        lines
            .iter()
            .find(|line| line["file"].as_str().unwrap().ends_with(name))
            .unwrap_or_else(|| panic!("{name} in {list}"))
            .clone()
    };
    let first = of("librialto_glm5.so");
    assert_eq!(
        (&first["name"], &first["origin"]),
        (&json!("glm5"), &json!("explicit"))
    );
    assert_eq!(first["architectures"], json!(["GlmMoeDsaForCausalLM"]));
    assert_eq!(of("librialto_copy.so")["shadowed_by"], first["file"]);
    assert_eq!(of("librialto_text.so")["slug"], "plugin/not-elf");
}

#[test]
fn a_check_prints_every_step_and_its_answer_is_the_exit_code() {
    let good = rialto(["plugin", "check", text(&family()), "--json"]).result();
    let steps = good["steps"].as_array().unwrap();
    assert!(
        steps.len() > 10 && steps.iter().all(|step| step["outcome"] == "passed"),
        "{good}"
    );
    let bad = rialto([
        "plugin",
        "check",
        text(&fixture("glm52-tiny/config.json")),
        "--json",
    ])
    .error(4, "plugin/not-elf");
    let steps = bad["report"]["steps"].as_array().unwrap();
    assert!(
        steps.iter().any(|step| step["outcome"] == "failed"),
        "{bad}"
    );
    assert!(
        rialto(["plugin", "check", text(&family())])
            .stdout
            .contains("ready")
    );
}

#[test]
fn a_bad_plugin_given_by_hand_is_an_error_and_a_bad_one_found_is_not() {
    let scratch = scratch();
    let bad = scratch.path().join("librialto_bad.so");
    std::fs::write(&bad, b"\x7fELF but no more").unwrap();
    let plan = [
        "plan",
        text(&fixture("glm52-tiny")),
        "--json",
        "--plugin",
        text(&bad),
    ]
    .map(str::to_owned);
    let error = rialto(plan);
    assert_eq!(error.code, 4, "{error:?}");
    let folder = scratch.path().to_owned();
    let mut command = command();
    let path = std::env::join_paths([folder.clone(), family()]).unwrap();
    command
        .env("RIALTO_PLUGIN_PATH", path)
        .args(["plan", text(&fixture("glm52-tiny")), "--json"]);
    assert_eq!(run(&mut command).result()["source"]["tensors"], 296);
}

#[test]
fn fc_08_an_architecture_that_no_plugin_takes_is_named_with_those_available() {
    let scratch = scratch();
    std::fs::write(
        scratch.path().join("config.json"),
        r#"{"architectures": ["Glm5NextForCausalLM"]}"#,
    )
    .unwrap();
    let error = rialto(["plan", text(scratch.path()), "--json"]).error(4, "plugin/unclaimed");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("Glm5NextForCausalLM") && message.contains("GlmMoeDsaForCausalLM"),
        "{message}"
    );
}

/// A relative of the family, with weights that would each be an error to read.
#[test]
fn fc_08_a_relative_is_refused_by_every_command_before_its_weights_are_read() {
    let scratch = scratch();
    let (source, target) = (scratch.path().join("source"), scratch.path().join("target"));
    std::fs::create_dir(&source).unwrap();
    let shard = std::fs::File::create(source.join("model-00001-of-00002.safetensors")).unwrap();
    // A header that claims more than there is, in front of more than fits in memory.
    shard.set_len(1 << 40).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&shard, &u64::MAX.to_le_bytes(), 0).unwrap();
    std::fs::write(source.join("model.safetensors.index.json"), "{").unwrap();
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixture("glm52-tiny/config.json")).unwrap()).unwrap();
    let run = fixture("megatron/glm52-tiny-mtp-tp1/ckpt");
    for (architecture, model_type, found) in [
        (
            "Glm5NextForCausalLM",
            "glm5_next",
            "architectures is Glm5NextForCausalLM",
        ),
        (
            "GlmMoeDsaForCausalLM",
            "glm5_next",
            "model_type is \"glm5_next\"",
        ),
        (
            "GlmMoeDsaForCausalLm",
            "glm_moe_dsa",
            "architectures is GlmMoeDsaForCausalLm",
        ),
    ] {
        config["architectures"] = json!([architecture]);
        config["model_type"] = json!(model_type);
        std::fs::write(source.join("config.json"), config.to_string()).unwrap();
        for arguments in [
            vec!["plan", text(&source)],
            vec!["import", text(&source), text(&target)],
            vec![
                "export",
                text(&run),
                text(&target),
                "--reference",
                text(&source),
            ],
        ] {
            let error =
                rialto(arguments.into_iter().chain(["--json"])).error(4, "plugin/unclaimed");
            let message = error["message"].as_str().unwrap();
            assert!(
                message.contains(found) && message.contains("GlmMoeDsaForCausalLM"),
                "{message}"
            );
            assert!(!target.exists());
        }
    }
}

#[test]
fn an_empty_list_says_where_plugins_were_looked_for_in_order() {
    // Beside the binary itself the build puts a plugin.
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_rialto"));
    let folder = tempfile::tempdir_in(binary.parent().unwrap()).unwrap();
    let alone = folder.path().join("rialto");
    std::fs::hard_link(binary, &alone).unwrap();
    let list = |variable: &str| {
        let mut command = std::process::Command::new(&alone);
        command
            .env_clear()
            .env("RIALTO_PLUGIN_PATH", variable)
            .env("XDG_DATA_HOME", "/data");
        command
    };
    let empty = run(list("/a:/b").args(["plugin", "list"]));
    // A place that is not there is a refused file.
    assert!(empty.stdout.contains("/a: refused"), "{empty:?}");
    let empty = run(list("").args(["plugin", "list"]));
    let folder = text(folder.path());
    let expected = format!(
        "no plugin found; looked for in this order:\n\
         \x20 --plugin: none given\n\
         \x20 RIALTO_PLUGIN_PATH: none given\n\
         \x20 librialto_*.so beside rialto: {folder}\n\
         \x20 plugins beside rialto: {folder}/plugins\n\
         \x20 XDG_DATA_HOME or HOME/.local/share: /data/rialto/plugins\n"
    );
    assert_eq!((empty.code, empty.stdout), (0, expected));
    assert_eq!(
        run(list("").args(["plugin", "list", "--json"])).result(),
        json!([])
    );
}

#[test]
fn a_plugin_that_was_found_and_refused_is_named_when_none_takes_the_config() {
    let scratch = scratch();
    let bad = scratch.path().join("librialto_bad.so");
    std::fs::write(&bad, "no library").unwrap();
    let mut command = command();
    let folder = scratch.path().join("model");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(
        folder.join("config.json"),
        r#"{"architectures": ["OtherForCausalLM"]}"#,
    )
    .unwrap();
    let path = std::env::join_paths([bad.clone(), family()]).unwrap();
    command
        .env("RIALTO_PLUGIN_PATH", path)
        .args(["plan", text(&folder), "--json"]);
    let error = run(&mut command).error(4, "plugin/unclaimed");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("architectures is OtherForCausalLM, not") && message.contains(text(&bad)),
        "{message}"
    );
    // Each once, whatever else lies in the program's folder.
    let findings = error["findings"].as_array().unwrap();
    for word in [text(&bad), "glm5: architectures is"] {
        let mut findings = findings.iter().map(|finding| finding.as_str().unwrap());
        assert!(findings.any(|finding| finding.contains(word)), "{word}");
    }
}
