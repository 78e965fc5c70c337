//! `rialto verify`: the answer is the exit code, and the document says where.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::world::{contents, fixture, rialto, scratch, text};

fn copied(source: &Path, target: PathBuf) -> PathBuf {
    std::fs::create_dir(&target).unwrap();
    for (name, bytes) in contents(source) {
        let file = target.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
    target
}

#[test]
fn fc_16_equal_checkpoints_of_two_formats_are_zero_and_have_one_digest() {
    let scratch = scratch();
    let (source, run, back) = (
        fixture("glm52-tiny"),
        scratch.path().join("run"),
        scratch.path().join("back"),
    );
    let import = [
        "import",
        text(&source),
        text(&run),
        "--tp",
        "2",
        "--ep",
        "4",
    ];
    assert_eq!(rialto(import).code, 0);
    assert_eq!(rialto(["export", text(&run), text(&back)]).code, 0);
    let golden = fixture("megatron/glm52-tiny-mtp-tp1/ckpt");
    let mut digests = Vec::new();
    for [ours, theirs] in [
        [&source, &run],
        [&run, &back],
        [&back, &source],
        // The config of one side serves the other, which has none.
        [&golden, &source],
        [&run, &golden],
    ] {
        let strict = ["--strict-dtype", "--strict-keys", "--json"];
        let arguments = ["verify", text(ours), text(theirs)];
        let found = rialto(arguments.iter().chain(&strict)).result();
        assert_eq!(
            (&found["is_equal"], &found["tensors"]),
            (&json!(true), &json!(296))
        );
        digests.push(found["digest"].as_str().unwrap().to_owned());
    }
    digests.dedup();
    assert_eq!(digests.len(), 1, "{digests:?}");
    let printed = rialto(["verify", text(&source), text(&run)]);
    assert_eq!(printed.code, 0);
    let last = printed.stdout.lines().last().unwrap();
    assert_eq!(last, format!("digest {}", digests[0]));
    assert!(
        printed
            .stdout
            .contains("compared 296 tensors, 927,872 elements"),
        "{printed:?}"
    );
}

/// The last element of a shard's last tensor has its sign turned.
#[test]
fn fc_16_a_difference_is_one_and_names_layer_expert_and_matrix() {
    let scratch = scratch();
    let source = fixture("glm52-tiny");
    let spoiled = copied(&source, scratch.path().join("spoiled"));
    let shard = spoiled.join("model-00002-of-00003.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let names: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let is_expert =
        |name: &str| name.contains(".mlp.experts.") && name.ends_with("down_proj.weight");
    let (name, entry) = names
        .as_object()
        .unwrap()
        .iter()
        .find(|(name, _)| is_expert(name))
        .unwrap();
    let end = entry["data_offsets"][1].as_u64().unwrap() as usize;
    let last = 8 + header + end - 1;
    bytes[last] ^= 0x80;
    std::fs::write(&shard, &bytes).unwrap();
    let components: Vec<&str> = name.split('.').collect();
    let [layer, expert] = [components[2], components[5]].map(|text| text.parse::<u64>().unwrap());

    let arguments = ["verify", text(&source), text(&spoiled)];
    let error = rialto(arguments.iter().chain(&["--json"])).error(1, "cli/differs");
    let report = &error["report"];
    assert_eq!(
        (&report["is_equal"], &report["digest"]),
        (&json!(false), &json!(null))
    );
    let [found] = report["differences"].as_array().unwrap().as_slice() else {
        panic!("{report}")
    };
    for (field, expected) in [
        ("tensor", json!(name)),
        ("layer", json!(layer)),
        ("expert", json!(expert)),
        ("matrix", json!("down_proj")),
        ("elements", json!(1)),
        ("of", json!(96 * 20)),
        ("first", json!([95, 19])),
        ("dtype", json!("BF16")),
    ] {
        assert_eq!(found[field], expected, "{found}");
    }
    let value = |bits: [u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(bits)) << 16);
    let theirs = value([bytes[last - 1], bytes[last]]);
    let shown = [
        format!("{:?}", -f64::from(theirs)),
        format!("{:?}", f64::from(theirs)),
    ];
    assert_eq!(found["values"], json!(shown));
    let printed = rialto(arguments);
    assert_eq!(printed.code, 1);
    for expected in [
        format!("layer {layer}, expert {expert}, down_proj: {name}"),
        "1 of 1,920 elements differ, first at [95, 19]".to_owned(),
        format!("{} in ours, {} in theirs", shown[0], shown[1]),
    ] {
        assert!(
            printed.stdout.contains(&expected),
            "{expected} is not in {}",
            printed.stdout
        );
    }
    assert!(
        printed.stderr.contains("differ, 1 tensor in values"),
        "{}",
        printed.stderr
    );
}

/// `glm5-tiny` has routers in F32, which Megatron keeps in BF16.
#[test]
fn fc_16_another_dtype_is_one_only_when_asked() {
    let scratch = scratch();
    let (source, run) = (fixture("glm5-tiny"), scratch.path().join("run"));
    let import = ["import", text(&source), text(&run), "--dtype", "bf16"];
    assert_eq!(rialto(import).code, 0);
    let arguments = ["verify", text(&source), text(&run), "--json"];
    let found = rialto(arguments).result();
    let [dtypes] = found["dtypes"].as_array().unwrap().as_slice() else {
        panic!("{found}")
    };
    assert_eq!(
        (&dtypes["ours"], &dtypes["theirs"]),
        (&json!("F32"), &json!("BF16"))
    );
    assert_eq!(
        (&dtypes["tensors"], &dtypes["rounded"]),
        (&json!(4), &json!(0))
    );
    rialto(arguments.iter().chain(&["--strict-dtype"])).error(1, "cli/differs");
}

#[test]
fn fc_16_an_absent_part_is_one_only_when_asked() {
    let scratch = scratch();
    let (source, run) = (fixture("glm52-tiny"), scratch.path().join("run"));
    assert_eq!(
        rialto(["import", text(&source), text(&run), "--mtp", "drop"]).code,
        0
    );
    let arguments = ["verify", text(&source), text(&run), "--json"];
    let found = rialto(arguments).result();
    let expected = json!([{
        "name": "multi-token prediction", "side": "ours", "params": 24, "is_difference": false
    }]);
    assert_eq!(found["one_sided"], expected);
    rialto(arguments.iter().chain(&["--strict-keys"])).error(1, "cli/differs");
}

#[test]
fn fc_16_without_a_config_names_are_compared_and_a_reference_makes_them_a_model() {
    let [with, without] = ["glm52-tiny-mtp-tp1", "glm52-tiny-tp1"]
        .map(|name| rialto_tests::megatron(name).join("ckpt"));
    let arguments = ["verify", text(&with), text(&without), "--json"];
    let error = rialto(arguments).error(1, "cli/differs");
    // By name they are keys like others, and each that is missing is a finding.
    assert_eq!(error["findings"].as_array().unwrap().len(), 24, "{error}");
    let reference = fixture("glm52-tiny");
    let given = ["--reference", text(&reference)];
    let found = rialto(arguments.iter().chain(&given)).result();
    assert_eq!(found["one_sided"][0]["params"], 24);
    let nowhere = ["--reference", "/nowhere/at/all"];
    rialto(arguments.iter().chain(&nowhere)).error(3, "store/not-found");
}

#[test]
fn fc_16_checkpoints_of_no_family_are_compared_by_name_if_they_are_of_one_format() {
    let scratch = scratch();
    let plain = fixture("torch-dist/plain-r1/ckpt");
    let found = rialto(["verify", text(&plain), text(&plain), "--json"]).result();
    assert_eq!(found["tensors"], 29);
    let notice = found["notices"][0].as_str().unwrap();
    assert!(notice.contains("name by name"), "{notice}");
    let older = fixture("torch-dist/plain-r1-torch241/ckpt");
    rialto(["verify", text(&plain), text(&older), "--json"]).error(1, "cli/differs");
    let unknown = copied(&fixture("mini-hf"), scratch.path().join("unknown"));
    let config = std::fs::read_to_string(unknown.join("config.json")).unwrap();
    let config = config.replace("GlmMoeDsaForCausalLM", "SomethingElse");
    std::fs::write(unknown.join("config.json"), config).unwrap();
    let error = rialto(["verify", text(&unknown), text(&plain), "--json"]);
    error.error(3, "engine/two-formats");
}

#[test]
fn fc_16_what_cannot_be_read_is_three_and_wrong_usage_two() {
    let scratch = scratch();
    let source = fixture("glm52-tiny");
    let cut = copied(&source, scratch.path().join("cut"));
    let shard = cut.join("model-00002-of-00003.safetensors");
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() - 1]).unwrap();
    for both in [[&source, &cut], [&cut, &source]] {
        let error = rialto(["verify", text(both[0]), text(both[1]), "--json"]);
        let error = error.error(3, "safetensors/truncated");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("model-00002-of-00003.safetensors"),
            "{message}"
        );
    }
    rialto(["verify", text(&source), "/nowhere/at/all", "--json"]).error(3, "store/not-found");
    rialto(["verify", text(&source), "--json"]).error(2, "cli/usage");
}
