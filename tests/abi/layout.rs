//! The frozen contract: every table's size, alignment, offsets and types, and every code, compared with the kept file and with
//! `docs/abi.md`.
//!
//! `RIALTO_UPDATE_LAYOUT=1` adds to the file what has come. What stands in it never changes: a difference is a break.

use rialto_abi::layout::{Code, TABLES};
use rialto_abi::{code, decl, dtype, level};
use rialto_bridge::document::CAPABILITIES;
use rialto_tensor::Dtype;
use serde_json::{Map, Value, json};

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/abi/v1.layout.json");

/// The contract as this build has it.
fn contract() -> Value {
    let tables = TABLES.iter().map(|table| {
        let fields = table.fields.iter().map(|field| {
            let place = json!({"offset": field.offset, "c": field.in_c()});
            (field.name.to_owned(), place)
        });
        let layout = json!({
            "size": table.size,
            "align": table.align,
            "fields": Map::from_iter(fields),
        });
        (table.name.to_owned(), layout)
    });
    let named = |codes: &[Code]| -> Value {
        let codes = codes
            .iter()
            .map(|code| (code.name.to_owned(), json!(code.value)));
        codes.collect::<Map<_, _>>().into()
    };
    json!({
        "magic": String::from_utf8(rialto_abi::MAGIC.to_vec()).unwrap(),
        "symbol": rialto_abi::SYMBOL,
        "major": decl::ABI_MAJOR,
        "tables": Map::from_iter(tables),
        "codes": {
            "status": named(code::ALL),
            "level": named(level::ALL),
            "panic_strategy": named(decl::panic_strategy::ALL),
            "dtype": dtype::CODES.iter().map(|(code, name)| ((*name).to_owned(), json!(code))).collect::<Map<_, _>>(),
        },
    })
}

/// What has changed since it was kept: what is new is none. A table is kept whole, so a field more is a change.
fn changes(kept: &Value, found: &Value, place: &str) -> Vec<String> {
    match (kept, found) {
        (Value::Object(kept), Value::Object(found)) => {
            let mut all = Vec::new();
            for (name, kept) in kept {
                let place = format!("{place}/{name}");
                match found.get(name) {
                    Some(found) => all.extend(changes(kept, found, &place)),
                    None => all.push(format!("{place} is gone")),
                }
            }
            let is_table = kept.contains_key("offset") || place.ends_with("/fields");
            let new = found
                .keys()
                .filter(|name| is_table && !kept.contains_key(*name));
            all.extend(new.map(|name| format!("{place}/{name} is new")));
            all
        }
        _ if kept == found => Vec::new(),
        _ => vec![format!("{place} was {kept} and is {found}")],
    }
}

#[test]
fn the_contract_is_the_one_that_was_frozen() {
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(KEPT).unwrap()).unwrap();
    let found = contract();
    assert_eq!(changes(&kept, &found, ""), [""; 0]);
    if std::env::var_os("RIALTO_UPDATE_LAYOUT").is_some() {
        let text = serde_json::to_string_pretty(&found).unwrap() + "\n";
        std::fs::write(KEPT, text).unwrap();
    } else {
        assert_eq!(kept, found, "RIALTO_UPDATE_LAYOUT=1 adds what is new");
    }
}

#[test]
fn a_change_of_what_is_frozen_is_seen_and_what_is_new_is_none() {
    let kept = contract();
    let changed = |edit: &dyn Fn(&mut Value)| {
        let mut found = kept.clone();
        edit(&mut found);
        changes(&kept, &found, "").len()
    };
    assert_eq!(changed(&|_| ()), 0);
    assert_eq!(
        changed(&|found| found["tables"]["Later"] = json!({"size": 8})),
        0
    );
    assert_eq!(
        changed(&|found| found["codes"]["status"]["LATER"] = json!(99)),
        0
    );
    let fields = "/tables/HostTable/fields";
    for edit in [
        &(|found: &mut Value| found["magic"] = json!("RIALTOV2")) as &dyn Fn(&mut Value),
        &|found| found["tables"]["HostTable"]["size"] = json!(64),
        &|found| found["tables"]["Status"]["align"] = json!(16),
        &|found| found.pointer_mut(fields).unwrap()["log"]["offset"] = json!(48),
        &|found| found.pointer_mut(fields).unwrap()["log"]["c"] = json!("void *log"),
        &|found| {
            found.pointer_mut(fields).unwrap()["later"] =
                json!({"offset": 56, "c": "uint64_t later"})
        },
        &|found| found["codes"]["status"]["OK"] = json!(1),
        &|found| found["codes"]["dtype"]["BF16"] = json!(2),
        &|found| {
            found["tables"].as_object_mut().unwrap().remove("TensorRef");
        },
    ] {
        assert_eq!(changed(edit), 1);
    }
}

#[test]
fn every_element_type_has_a_code() {
    for &dtype in Dtype::ALL {
        let code = dtype::code_of(dtype.safetensors_name());
        let name = code.and_then(dtype::name_of);
        assert_eq!(name.map(str::parse), Some(Ok(dtype)), "{dtype}");
    }
    assert_eq!(dtype::CODES.len(), Dtype::ALL.len());
}

#[test]
fn the_page_says_what_the_tables_and_the_errors_say() {
    let page = include_str!("../../docs/abi.md");
    for table in TABLES {
        let head = format!(
            "`{}`, {} bytes, aligned to {}:",
            table.name, table.size, table.align
        );
        let at = page
            .find(&head)
            .unwrap_or_else(|| panic!("{head:?} is not on the page"));
        let rows = page[at..].lines().skip(4).zip(table.fields);
        for (row, field) in rows {
            assert!(
                row.starts_with(&format!("| {} | `{}` |", field.offset, field.name)),
                "{}: {row}",
                table.name
            );
        }
    }
    for (code, name) in dtype::CODES {
        assert!(page.contains(&format!("| {code} | {name} |")), "{name}");
    }
    for name in CAPABILITIES {
        assert!(page.contains(&format!("\"{name}\"")), "{name}");
    }
    for (slug, _) in rialto_host::Error::KINDS {
        assert!(page.contains(&format!("`{slug}`")), "{slug}");
    }
}
