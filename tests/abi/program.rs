//! `program/1` of a plugin in C: what it may send, and what a host makes of what it may not.

use rialto_bridge::{Error, MapOptions, ProgramOptions, RawConfig};
use rialto_host::load;
use rialto_program::{Error as Unsound, Program};
use serde_json::{Value, json};

use crate::plain_c::{PLAIN, compiled};

/// Calls one matrix.
fn body() -> Value {
    let embed =
        json!({"op": "rialto.embed/1", "in": ["tokens", "model.weight"], "out": ["hidden.0"]});
    let param = json!({"name": "model.weight", "shape": [2, 2], "element": "activation",
        "stored": {"whole": "model.weight"}});
    let forward = json!({"name": "forward", "calls": [embed], "outputs": ["hidden.0"]});
    json!({"params": [param], "phases": [forward]})
}

fn document(requires: &[&str], body: &Value) -> String {
    json!({"schema": 1, "requires": requires, "body": body}).to_string()
}

/// The plain plugin with a table for `program/1`, whose entry is this.
fn with_entry(name: &str, entry: &str) -> (Vec<String>, Result<Program, Error>) {
    let before = "static const void *query_extension(void *instance, rialto_str id) {\n    (void)instance, (void)id;\n";
    assert_eq!(PLAIN.matches(before).count(), 1);
    let asked = "static const void *query_extension(void *instance, rialto_str id) {\n    (void)instance;\n\
        if (id.len == sizeof RIALTO_PROGRAM - 1 && memcmp(id.data, RIALTO_PROGRAM, id.len) == 0) return &PROGRAM;\n";
    let table = "static const rialto_program_table PROGRAM = {program};\n";
    let source = PLAIN.replace(before, &format!("{entry}{table}{asked}"));
    let folder = tempfile::tempdir().unwrap();
    let plugin = load(&compiled(folder.path(), name, &source)).unwrap();
    let bridge = plugin.bridge();
    let config = RawConfig::parse(b"{}").unwrap();
    let spec = bridge.map_config(&config, &MapOptions::default()).unwrap();
    let answer = bridge.program(&spec, &ProgramOptions::default());
    // Whatever it was, the instance goes on.
    assert!(bridge.weight_map(&spec).is_ok());
    (plugin.extensions().to_vec(), answer)
}

/// A function that answers with this document.
fn answering(name: &str, document: &str) -> Result<Program, Error> {
    let text = Value::from(document).to_string();
    let entry = format!(
        "static rialto_status program(void *instance, rialto_bytes request, rialto_owned *reply) {{\n\
         (void)instance, (void)request;\nreturn answer(reply, {text});\n}}\n"
    );
    let (extensions, answer) = with_entry(name, &entry);
    assert_eq!(extensions, ["program/1"]);
    answer
}

#[test]
fn a_plugin_in_c_has_a_forward_pass() {
    let program = answering("sound", &document(&["op/rialto.embed/1"], &body())).unwrap();
    assert_eq!(program, serde_json::from_value(body()).unwrap());
    // What a reply requires may be left out where its reader has it anyhow.
    let least = json!({"schema": 1, "body": body()}).to_string();
    assert_eq!(answering("least", &least).unwrap(), program);
}

#[test]
fn an_operation_that_the_host_lacks_is_refused_by_name() {
    let mut later = body();
    later["phases"][0]["calls"][0]["op"] = json!("them.spiral/2");
    // Before the body is read: it may be of a form that only readers with the operation know.
    let unread = document(
        &["op/rialto.embed/1", "op/them.spiral/2"],
        &json!({"spiral": 1}),
    );
    for (name, reply) in [
        ("announced", document(&["op/them.spiral/2"], &later)),
        ("unread", unread),
    ] {
        let expected = Error::Requirement {
            document: "plain's program reply".to_owned(),
            missing: "op/them.spiral/2".to_owned(),
        };
        assert_eq!(answering(name, &reply).unwrap_err(), expected);
        assert_eq!(
            (expected.code(), expected.slug()),
            (3, "document/requirement")
        );
    }
    // Also of an author who forgot to say so.
    let error = answering("unannounced", &document(&[], &later)).unwrap_err();
    let op = "them.spiral/2".to_owned();
    assert_eq!(error, Error::Program(Unsound::UnknownOp { op }));
    assert_eq!((error.code(), error.slug()), (3, "program/unknown-op"));
    assert!(error.to_string().contains("them.spiral/2"), "{error}");
}

#[test]
fn a_program_that_is_not_sound_is_refused_with_all_that_is_wrong() {
    let mut unsound = body();
    unsound["phases"][0]["outputs"] = json!(["logits"]);
    unsound["phases"][0]["calls"][0]["in"] = json!(["words", "model.weight"]);
    unsound["caches"] = json!([{"name": "keys", "width": 0}]);
    let error = answering("unsound", &document(&[], &unsound)).unwrap_err();
    assert_eq!((error.code(), error.slug()), (4, "program/unsound"));
    assert_eq!(
        error.findings(),
        [
            "cache \"keys\" has rows of no elements",
            "phase forward, call 0 (rialto.embed/1), \"words\" is no param, no cache, and no value made before",
            "phase forward, output \"logits\" is made by no call",
            "no call names cache \"keys\"",
        ]
    );
    let help = error.help().unwrap();
    assert!(help.contains("a fault of the plugin"), "{help}");
}

#[test]
fn a_reply_that_is_no_program_is_refused() {
    let mut torn = body();
    torn["spiral"] = json!(1);
    for (name, reply) in [
        ("field", document(&[], &torn)),
        ("list", document(&[], &json!([]))),
        ("words", "not JSON".to_owned()),
        ("nothing", String::new()),
    ] {
        let error = answering(name, &reply).unwrap_err();
        assert_eq!(error.slug(), "document/unreadable", "{error}");
        assert!(
            error.to_string().contains("plain's program reply"),
            "{error}"
        );
    }
}

#[test]
fn an_error_of_the_extension_comes_back_as_it_was_told() {
    let entry = r#"
static rialto_status program(void *instance, rialto_bytes request, rialto_owned *reply) {
    (void)instance, (void)request, (void)reply;
    rialto_status status = {RIALTO_UNSUPPORTED, constant("{\"slug\": \"bridge/no-forward-pass\", \"message\": \"not of plain-1\"}")};
    return status;
}
"#;
    let (_, answer) = with_entry("refusing", entry);
    let error = answer.unwrap_err();
    assert_eq!((error.code(), error.slug()), (3, "bridge/no-forward-pass"));
    assert_eq!(error.to_string(), "not of plain-1");
}

#[test]
fn a_table_without_its_entry_is_as_none() {
    let entry = "#define program NULL\n";
    let (_, answer) = with_entry("hole", entry);
    assert_eq!(answer.unwrap_err().slug(), "bridge/no-forward-pass");
}

#[test]
fn a_host_publishes_its_operations() {
    // Says what it was told.
    let entry = r#"
static rialto_status program(void *instance, rialto_bytes request, rialto_owned *reply) {
    (void)instance, (void)request, (void)reply;
    rialto_status status = {RIALTO_UNSUPPORTED, {(uint8_t *)host->capabilities.data, host->capabilities.len, NULL, NULL}};
    return status;
}
"#;
    let (_, answer) = with_entry("published", entry);
    let published: Vec<String> = serde_json::from_str(&answer.unwrap_err().to_string()).unwrap();
    assert_eq!(published, rialto_bridge::document::capabilities());
    for known in ["rule/map/1", "op/rialto.linear/1"] {
        assert!(published.contains(&known.to_owned()), "{known}");
    }
}
