//! The documents of `bridge/1` and of the extensions, as they are kept in `documents/`: they are a part of the contract, as the tables are.
//!
//! Three sides are held against the files: the types that write them, a plugin that reads the requests and writes the replies,
//! and a host that does it the other way round. They are frozen: a difference is a break, and
//! `RIALTO_UPDATE_LAYOUT=1` writes only a file that is not there.

mod values;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rialto_abi::{BridgeHandle, BridgeTable, OwnedBytes, PROGRAM, ProgramTable, RSlice, Status};
use rialto_bridge::document::{CAPABILITIES, decode, encode};
use rialto_bridge::request::{
    ErrorDetail, MapConfigRequest, PipelineLayoutRequest, ProgramRequest,
};
use rialto_bridge::{
    Bridge, Claim, Codec, ConfigEdit, ConfigMapping, Cut, Dequantizer, Description, Error, Form,
    ForwardPass, MapOptions, MapRule, MeshAxis, ModelSpec, Padding, PipelineLayout,
    PipelineMapping, PipelineRequest, Placement, PlacementRule, ProgramOptions, RawConfig,
    StageChoice, WeightMap, WeightMapping,
};
use rialto_host::load;
use rialto_plugin::shim::{self, Export};
use rialto_program::Program;
use rialto_tests::compiler::library;
use serde::Serialize;
use serde_json::{Value, json};

use crate::library::{HOST, written};

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/abi/documents");

/// A request and its reply, under the entry's name and, after a `-`, what tells it from the entry's others.
struct Exchange {
    name: &'static str,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Exchange {
    fn entry(&self) -> &str {
        self.name.split('-').next().unwrap_or_default()
    }
}

/// As today's types write them.
fn exchanges() -> Vec<Exchange> {
    fn exchange<Q: Serialize, A: Serialize>(
        name: &'static str,
        request: &Q,
        requires: &[&str],
        reply: &A,
    ) -> Exchange {
        Exchange {
            name,
            request: encode(name, &[], request).unwrap(),
            reply: encode(name, requires, reply).unwrap(),
        }
    }
    let (spec, asked) = (values::spec(), values::spec_request());
    let map = values::weight_map();
    let mut all = vec![exchange("describe", &(), &[], &values::description())];
    for (name, (config, claim)) in ["claim", "claim-no"].iter().zip(values::claims()) {
        all.push(exchange(name, &values::claim_request(&config), &[], &claim));
    }
    let names = ["map_config", "map_config-absent", "map_config-plain"];
    for (name, options) in names.iter().zip(values::options()) {
        let request = values::map_config_request(&options);
        all.push(exchange(name, &request, &[], &spec));
    }
    let request = values::unmap_config_request();
    all.push(exchange("unmap_config", &request, &[], &values::edits()));
    all.push(exchange("weight_map", &asked, &map.requirements(), &map));
    all.push(exchange("placement", &asked, &[], &values::placement()));
    let names = [
        "pipeline_layout",
        "pipeline_layout-pattern",
        "pipeline_layout-family",
    ];
    for (name, request) in names.iter().zip(values::pipeline_requests()) {
        let request = values::pipeline_layout_request(&request);
        let layout = values::pipeline_layout();
        all.push(exchange(name, &request, &[], &layout));
    }
    all.push(exchange("codecs", &asked, &[], &values::codecs()));
    let answered = values::program_options()
        .into_iter()
        .zip(values::programs());
    for (name, (options, program)) in ["program", "program-least"].iter().zip(answered) {
        let requires = program.requirements();
        let requires: Vec<&str> = requires.iter().map(String::as_str).collect();
        let request = values::program_request(&options);
        all.push(exchange(name, &request, &requires, &program));
    }
    all
}

fn place(name: &str) -> PathBuf {
    Path::new(KEPT).join(format!("{name}.json"))
}

/// The kept file, a line.
fn kept(name: &str) -> Vec<u8> {
    let mut bytes = std::fs::read(place(name)).unwrap();
    assert_eq!(bytes.pop(), Some(b'\n'), "{name}");
    bytes
}

fn assert_kept(name: &str, made: &[u8]) {
    // What is frozen is never written again.
    if std::env::var_os("RIALTO_UPDATE_LAYOUT").is_some() && !place(name).exists() {
        std::fs::write(place(name), [made, b"\n"].concat()).unwrap();
    }
    assert_same(name, made);
}

fn assert_same(name: &str, made: &[u8]) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(made), text(&kept(name)), "{name}");
}

/// A plugin that knows the kept requests and no others, and answers with the kept replies.
struct Kept;

impl Export for Kept {
    fn construct() -> Box<dyn Bridge> {
        Box::new(Kept)
    }
}

impl Bridge for Kept {
    fn describe(&self) -> Description {
        values::description()
    }
}

impl ConfigMapping for Kept {
    fn claim(&self, config: &RawConfig) -> Result<Claim, Error> {
        let found = values::claims().into_iter().find(|(of, _)| of == config);
        Ok(found.expect("a kept config").1)
    }

    fn map_config(&self, config: &RawConfig, options: &MapOptions) -> Result<ModelSpec, Error> {
        assert_eq!(*config, values::config());
        assert!(values::options().contains(options), "{options:?}");
        Ok(values::spec())
    }

    fn unmap_config(&self, spec: &ModelSpec, of: &RawConfig) -> Result<Vec<ConfigEdit>, Error> {
        assert_eq!((spec, of), (&values::spec(), &values::config()));
        Ok(values::edits())
    }
}

impl WeightMapping for Kept {
    fn weight_map(&self, spec: &ModelSpec) -> Result<WeightMap, Error> {
        assert_eq!(*spec, values::spec());
        Ok(values::weight_map())
    }

    fn placement(&self, spec: &ModelSpec) -> Result<Placement, Error> {
        assert_eq!(*spec, values::spec());
        Ok(values::placement())
    }
}

impl PipelineMapping for Kept {
    fn pipeline_layout(
        &self,
        spec: &ModelSpec,
        request: &PipelineRequest,
    ) -> Result<PipelineLayout, Error> {
        assert_eq!(*spec, values::spec());
        let is_kept = values::pipeline_requests().contains(request);
        assert!(is_kept, "{request:?}");
        Ok(values::pipeline_layout())
    }
}

impl Dequantizer for Kept {
    fn codecs(&self, spec: &ModelSpec) -> Result<Vec<Codec>, Error> {
        assert_eq!(*spec, values::spec());
        Ok(values::codecs())
    }
}

impl ForwardPass for Kept {
    fn program(&self, spec: &ModelSpec, options: &ProgramOptions) -> Result<Program, Error> {
        assert_eq!(*spec, values::spec());
        let mut answered = values::program_options()
            .into_iter()
            .zip(values::programs());
        let found = answered.find(|(asked, _)| asked == options);
        Ok(found.expect("kept options").1)
    }
}

/// A fresh instance of [`Kept`], behind the table that a library would export.
struct Instance(BridgeHandle);

impl Instance {
    fn open() -> Instance {
        let mut handle = BridgeHandle::EMPTY;
        let open = shim::declare::<Kept>("kept", "1.0").open.unwrap();
        // SAFETY: the host table is static, the handle is valid for a write.
        let status = unsafe { open(&raw const HOST, &raw mut handle) };
        assert_eq!(status.code, 0);
        Instance(handle)
    }

    /// The table of `program/1`.
    fn extension(&self) -> &'static ProgramTable {
        // SAFETY: `open` said OK, and the table is valid for the life of the process.
        let table: &BridgeTable = unsafe { &*self.0.table };
        // SAFETY: the instance is open, and the id lives until the call returns.
        let found = unsafe { (table.query_extension)(self.0.instance, PROGRAM.into()) };
        // SAFETY: an extension's table is of its id's type and static.
        unsafe { found.cast::<ProgramTable>().as_ref() }.unwrap()
    }

    /// Code and detail, or the reply.
    fn ask(&self, entry: &str, request: &[u8]) -> Result<Vec<u8>, (u32, Value)> {
        // SAFETY: `open` said OK, and the table is valid for the life of the process.
        let table: &BridgeTable = unsafe { &*self.0.table };
        let call = match entry {
            "describe" => table.describe,
            "claim" => table.claim,
            "map_config" => table.map_config,
            "unmap_config" => table.unmap_config,
            "weight_map" => table.weight_map,
            "placement" => table.placement,
            "pipeline_layout" => table.pipeline_layout,
            "codecs" => table.codecs,
            "program" => self.extension().program,
            other => panic!("no entry {other}"),
        };
        let mut reply = OwnedBytes::EMPTY;
        // SAFETY: the instance is open; request and reply live until the call returns.
        let status: Status =
            unsafe { call(self.0.instance, RSlice::from_slice(request), &mut reply) };
        match status.code {
            0 => Ok(reply.bytes().to_vec()),
            code => Err((code, serde_json::from_slice(status.detail.bytes()).unwrap())),
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: `open` said OK, and the table is valid for the life of the process.
        let table: &BridgeTable = unsafe { &*self.0.table };
        // SAFETY: no call is running, and none follows.
        let status = unsafe { (table.release)(self.0.instance) };
        assert_eq!(status.code, 0);
    }
}

/// A library that gives the kept reply to each kept request, byte for byte, and anything else back as an error.
fn recorded(folder: &Path) -> Arc<dyn Bridge> {
    let mut source = String::from(
        "#include <stdlib.h>\n#include <string.h>\n#include \"rialto.h\"\n\
         typedef struct { const char *entry; const uint8_t *request; uint64_t asked; const uint8_t *reply; uint64_t len; } exchange;\n",
    );
    let mut table = String::from("static const exchange EXCHANGES[] = {\n");
    for (position, exchange) in exchanges().iter().enumerate() {
        let (name, entry) = (exchange.name, exchange.entry());
        for side in ["request", "reply"] {
            let bytes = kept(&format!("{name}.{side}"));
            source += &format!("static const uint8_t {side}_{position}[] = {{");
            source += &bytes
                .iter()
                .map(|byte| format!("{byte},"))
                .collect::<String>();
            source += "};\n";
        }
        table += &format!(
            "{{\"{entry}\", request_{position}, sizeof request_{position}, reply_{position}, sizeof reply_{position}}},\n"
        );
    }
    source += &table;
    source += r#"};
static void free_bytes(uint8_t *data, uint64_t len, void *context) { (void)len, (void)context, free(data); }
static rialto_status play(const char *entry, rialto_bytes request, rialto_owned *reply) {
    rialto_status status = {RIALTO_OK, {NULL, 0, NULL, NULL}};
    for (size_t at = 0; at < sizeof EXCHANGES / sizeof *EXCHANGES; at++) {
        const exchange *kept = &EXCHANGES[at];
        if (strcmp(entry, kept->entry) == 0 && request.len == kept->asked && memcmp(request.data, kept->request, kept->asked) == 0) {
            reply->data = (uint8_t *)kept->reply;
            reply->len = kept->len;
            return status;
        }
    }
    status.code = RIALTO_UNSUPPORTED;
    status.detail.data = malloc(request.len);
    if (status.detail.data == NULL) return status;
    memcpy(status.detail.data, request.data, request.len);
    status.detail.len = request.len;
    status.detail.release = free_bytes;
    return status;
}
#define ENTRY(name) static rialto_status name(void *instance, rialto_bytes request, rialto_owned *reply) { (void)instance; return play(#name, request, reply); }
ENTRY(describe) ENTRY(claim) ENTRY(map_config) ENTRY(unmap_config) ENTRY(weight_map) ENTRY(placement) ENTRY(pipeline_layout) ENTRY(codecs) ENTRY(program)
static const rialto_program_table PROGRAM = {program};
static const void *query_extension(void *instance, rialto_str id) {
    (void)instance;
    return id.len == sizeof RIALTO_PROGRAM - 1 && memcmp(id.data, RIALTO_PROGRAM, id.len) == 0 ? &PROGRAM : NULL;
}
static rialto_status release(void *instance) { (void)instance; const rialto_status status = {RIALTO_OK, {NULL, 0, NULL, NULL}}; return status; }
static const rialto_bridge_table TABLE = {describe, claim, map_config, unmap_config, weight_map, placement, pipeline_layout, codecs, query_extension, release};
static rialto_status open_it(const rialto_host_table *host, rialto_bridge_handle *handle) { (void)host; handle->instance = NULL; handle->table = &TABLE; return release(NULL); }
const rialto_plugin_decl rialto_plugin_v1 = {RIALTO_MAGIC, sizeof(rialto_plugin_decl), RIALTO_ABI_MAJOR, RIALTO_ABI_MINOR, RIALTO_PANIC_NONE,
    RIALTO_TARGET, "", "", "recorded", "1.0", NULL, open_it};
"#;
    let source = written(folder, "recorded.c", source.as_bytes());
    let made = folder.join("librecorded.so");
    library(&source, "c11", &made);
    load(&made).unwrap().bridge()
}

#[test]
fn the_types_write_the_documents_as_they_are_kept() {
    for exchange in exchanges() {
        assert_kept(&format!("{}.request", exchange.name), &exchange.request);
        assert_kept(&format!("{}.reply", exchange.name), &exchange.reply);
    }
    for (name, detail) in values::details() {
        let made = serde_json::to_vec(&detail).unwrap();
        assert_kept(name, &made);
        let read: ErrorDetail = serde_json::from_slice(&kept(name)).unwrap();
        assert_eq!(read, detail);
    }
}

/// More may come; none goes.
#[test]
fn every_capability_of_1_0_is_still_there() {
    let kept: Vec<String> = serde_json::from_slice(&kept("capabilities")).unwrap();
    assert_eq!(kept.len(), 7);
    for capability in &kept {
        assert!(CAPABILITIES.contains(&capability.as_str()), "{capability}");
    }
}

#[test]
fn a_plugin_reads_the_kept_requests_and_writes_the_kept_replies() {
    let instance = Instance::open();
    for exchange in exchanges() {
        let request = kept(&format!("{}.request", exchange.name));
        let reply = instance.ask(exchange.entry(), &request);
        let reply = reply.unwrap_or_else(|refused| panic!("{}: {refused:?}", exchange.name));
        assert_same(&format!("{}.reply", exchange.name), &reply);
    }
}

#[test]
fn a_host_writes_the_kept_requests_and_reads_the_kept_replies() {
    let folder = tempfile::tempdir().unwrap();
    let bridge = recorded(folder.path());
    let (spec, config) = (values::spec(), values::config());
    assert_eq!(bridge.describe(), values::description());
    for (config, claim) in values::claims() {
        assert_eq!(bridge.claim(&config).unwrap(), claim);
    }
    for options in values::options() {
        assert_eq!(bridge.map_config(&config, &options).unwrap(), spec);
    }
    assert_eq!(
        bridge.unmap_config(&spec, &config).unwrap(),
        values::edits()
    );
    assert_eq!(bridge.weight_map(&spec).unwrap(), values::weight_map());
    assert_eq!(bridge.placement(&spec).unwrap(), values::placement());
    for request in values::pipeline_requests() {
        let layout = bridge.pipeline_layout(&spec, &request).unwrap();
        assert_eq!(layout, values::pipeline_layout());
    }
    assert_eq!(bridge.codecs(&spec).unwrap(), values::codecs());
    for (options, program) in values::program_options().iter().zip(values::programs()) {
        assert_eq!(bridge.program(&spec, options).unwrap(), program);
    }
    // The library knows these requests and no others.
    let error = bridge.claim(&RawConfig::parse(b"{}").unwrap()).unwrap_err();
    let other = r#"{"schema":1,"requires":[],"body":{"config":"{}"}}"#;
    assert_eq!(error.to_string(), other);
}

/// Of a reply as an author in C writes it, and of a request as far as it was read so.
#[test]
fn what_is_left_out_of_a_document_has_the_value_that_it_always_had() {
    fn read<T: serde::de::DeserializeOwned>(body: Value) -> T {
        let document = json!({"schema": 1, "body": body}).to_string();
        decode("least", document.as_bytes()).unwrap()
    }
    let spec = values::spec();
    let least = ModelSpec {
        extra: Value::Null,
        unread_keys: Vec::new(),
        notices: Vec::new(),
        ..spec.clone()
    };
    let body = json!({"release": "kept-1", "architecture": "KeptForCausalLM", "dims": spec.dims,
        "provider_target": "kept.Provider", "provider": spec.provider});
    assert_eq!(read::<ModelSpec>(body), least);
    let rule = json!({"rule": "map", "name": "least", "group": "mlp", "param": "p", "shape": [2],
        "dtype": {"accepts": ["F32"]}, "parts": [{"tensor": "t", "shape": [2]}]});
    let map: WeightMap = read(json!({"rules": [rule]}));
    assert_eq!(map, WeightMap::new([values::least_rule()]));
    let rules = json!([{"param": "a"}, {"param": "b", "cuts": [{"axis": 1, "over": "tp"}]}]);
    let cut = Cut {
        axis: 1,
        over: MeshAxis::Tp,
        blocks: 1,
        is_stacked: false,
        granule: 1,
        of: "indices".to_owned(),
    };
    let rule = |param: &str, cuts: &[Cut]| PlacementRule {
        param: param.to_owned(),
        cuts: cuts.to_vec(),
    };
    let rules_read = read::<Placement>(json!({"rules": rules})).rules;
    assert_eq!(rules_read, [rule("a", &[]), rule("b", &[cut])]);
    let request: MapConfigRequest = read(json!({"config": "{}", "options": {"mtp": "keep"}}));
    assert_eq!(request.options, MapOptions::default());
    let mesh = json!({"tp": 1, "pp": 1, "ep": 1, "etp": 1});
    let request: PipelineLayoutRequest = read(json!({"spec": spec, "request": {"mesh": mesh}}));
    assert_eq!(request.request.stages, StageChoice::Family);
    let request: ProgramRequest = read(json!({"spec": spec, "options": {}}));
    assert_eq!(request.options, ProgramOptions::default());
    let param = json!({"name": "table", "shape": [9, 4], "element": "activation",
        "stored": {"whole": "embed.weight"}});
    let call = json!({"op": "rialto.embed/1", "in": ["tokens", "table"], "out": ["x"]});
    let phase = json!({"name": "forward", "calls": [call], "outputs": ["x"]});
    let program: Program = read(json!({"params": [param], "phases": [phase]}));
    assert_eq!(program, values::programs()[1]);
    let detail: ErrorDetail =
        serde_json::from_value(json!({"slug": "a/b", "message": "no", "later": 1})).unwrap();
    let read = (detail.help, detail.findings, detail.entry);
    assert_eq!(read, (None, Vec::new(), None));
}

/// A kept document with a requirement of a later contract; it need not even be of today's form.
fn announced(document: &[u8]) -> Vec<u8> {
    let mut value: Value = serde_json::from_slice(document).unwrap();
    value["requires"] = json!(["rule/map/1", "later/spiral/1"]);
    value["body"] = json!({"spiral": [value["body"].take()]});
    value.to_string().into_bytes()
}

/// Objects whose members are names of somebody else's, not fields of ours.
const OPEN: [&str; 5] = ["provider", "extra", "settings", "value", "with"];

/// An object with one member, whose name says of which kind it is.
const KIND: &str = "/stored";

/// A kept document with a field that nothing announces: once for each place where one could stand.
fn unannounced(document: &[u8]) -> Vec<(String, Vec<u8>)> {
    fn objects(value: &Value, place: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                found.push(place.to_owned());
                for (name, member) in members {
                    if !OPEN.contains(&name.as_str()) {
                        objects(member, &format!("{place}/{name}"), found);
                    }
                }
            }
            Value::Array(list) => {
                for (position, member) in list.iter().enumerate() {
                    objects(member, &format!("{place}/{position}"), found);
                }
            }
            _ => {}
        }
    }
    let whole: Value = serde_json::from_slice(document).unwrap();
    let mut places = Vec::new();
    objects(&whole["body"], "/body", &mut places);
    let with_field = |place: String| {
        let mut value = whole.clone();
        value.pointer_mut(&place).unwrap()["spiral"] = json!(1);
        (place, value.to_string().into_bytes())
    };
    places.into_iter().map(with_field).collect()
}

#[test]
fn a_plugin_refuses_a_request_beyond_what_it_knows_by_name_and_goes_on() {
    let instance = Instance::open();
    for exchange in exchanges() {
        let name = format!("{}.request", exchange.name);
        let later = announced(&kept(&name));
        let (code, detail) = instance.ask(exchange.entry(), &later).unwrap_err();
        assert_eq!(
            (code, &detail["slug"]),
            (3, &json!("document/requirement")),
            "{name}"
        );
        let words = detail["message"].as_str().unwrap();
        let expected = format!(
            "{} request document requires later/spiral/1",
            exchange.entry()
        );
        assert!(words.contains(&expected), "{words}");
        let help = json!("use a plugin as new as the host, or do without what it asked for");
        assert_eq!(detail["help"], help);
        for (place, later) in unannounced(&kept(&name)) {
            let refused = instance.ask(exchange.entry(), &later);
            let (code, detail) = refused.expect_err(&format!("{name}{place}"));
            let found = (code, &detail["slug"]);
            assert_eq!(found, (4, &json!("document/unreadable")), "{name}{place}");
        }
        assert!(instance.ask(exchange.entry(), &kept(&name)).is_ok());
    }
}

#[test]
fn a_host_refuses_a_reply_beyond_what_it_knows_by_name() {
    fn refused<T: serde::de::DeserializeOwned + std::fmt::Debug>(exchange: &Exchange) {
        let name = format!("{} reply", exchange.entry());
        let kept = kept(&format!("{}.reply", exchange.name));
        let error = decode::<T>(&name, &announced(&kept)).unwrap_err();
        let expected = Error::Requirement {
            document: name.clone(),
            missing: "later/spiral/1".to_owned(),
        };
        assert_eq!(error, expected);
        assert_eq!(error.help().unwrap(), "use a rialto as new as the plugin");
        for (place, later) in unannounced(&kept) {
            let read = decode::<T>(&name, &later);
            // What a plugin says of itself may be more than its host understands.
            if exchange.entry() == "describe" {
                assert!(read.is_ok(), "{place}: {read:?}");
                continue;
            }
            let error = read.expect_err(&place);
            assert_eq!(error.slug(), "document/unreadable", "{place}");
            let is_named = error.to_string().contains("spiral");
            assert!(is_named || place.ends_with(KIND), "{place}: {error}");
        }
    }
    for exchange in exchanges() {
        match exchange.entry() {
            "describe" => refused::<Description>(&exchange),
            "claim" => refused::<Claim>(&exchange),
            "map_config" => refused::<ModelSpec>(&exchange),
            "unmap_config" => refused::<Vec<ConfigEdit>>(&exchange),
            "weight_map" => refused::<WeightMap>(&exchange),
            "placement" => refused::<Placement>(&exchange),
            "pipeline_layout" => refused::<PipelineLayout>(&exchange),
            "program" => refused::<Program>(&exchange),
            _ => refused::<Vec<Codec>>(&exchange),
        }
    }
}

#[test]
fn a_rule_of_a_kind_that_nobody_knows_is_refused_by_name() {
    let document = |requires: &[&str]| {
        let body = json!({"rules": [{"rule": "spiral", "turns": 3}]});
        json!({"schema": 1, "requires": requires, "body": body}).to_string()
    };
    let read =
        |requires: &[&str]| decode::<WeightMap>("weight_map reply", document(requires).as_bytes());
    let error = read(&["rule/spiral/1"]).unwrap_err();
    assert_eq!(error.slug(), "document/requirement");
    assert!(error.to_string().contains("rule/spiral/1"), "{error}");
    // Also from an author who forgot to say so.
    let error = read(&[]).unwrap_err();
    assert_eq!(error.slug(), "document/unreadable");
    assert!(error.to_string().contains("spiral"), "{error}");
}

/// The rule by which fields come: each requirement of a rule stands in a document exactly if its field is used.
#[test]
fn a_weight_map_requires_what_it_uses_and_no_more() {
    let requirements = |edit: fn(&mut MapRule)| {
        let mut rule = values::least_rule();
        edit(&mut rule);
        WeightMap::new([rule]).requirements()
    };
    assert_eq!(requirements(|_| ()), ["rule/map/1"]);
    let beside = requirements(|rule| rule.beside = Some("x".to_owned()));
    assert_eq!(beside, ["rule/beside/1", "rule/map/1"]);
    let encoded = requirements(|rule| rule.encoded = Some("x".to_owned()));
    assert_eq!(encoded, ["rule/encoded/1", "rule/map/1"]);
    let padded = requirements(|rule| {
        let (axis, multiple) = (0, 1);
        rule.padding = Some(Padding { axis, multiple });
    });
    assert_eq!(padded, ["rule/map/1", "rule/padding/1"]);
    let stacked = requirements(|rule| rule.stack = Some("x".to_owned()));
    assert_eq!(stacked, ["rule/map/1", "rule/stack/1"]);
    let copied = requirements(|rule| rule.copies.push("x".to_owned()));
    assert_eq!(copied, ["rule/copies/1", "rule/map/1"]);
    let spelled = [
        requirements(|rule| rule.tensor_forms.push(Form::new("x", []))),
        requirements(|rule| rule.param_forms.push(Form::new("x", []))),
    ];
    assert_eq!(spelled, [["rule/forms/1", "rule/map/1"]; 2]);
    // The kept map has all of 1.0.0, and nothing that came later.
    let of_1_0: Vec<String> = serde_json::from_slice(&kept("capabilities")).unwrap();
    assert_eq!(values::weight_map().requirements().len(), of_1_0.len());
}
