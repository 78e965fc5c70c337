//! Size, alignment and offsets of every table, compared with the kept file and with `docs/abi.md`.
//!
//! `RIALTO_UPDATE_LAYOUT=1` writes the file anew. Before the freeze that goes with a new digit in the magic; after it, a
//! difference is a break.

use rialto_abi::dtype;
use rialto_abi::layout::TABLES;
use rialto_bridge::document::CAPABILITIES;
use rialto_tensor::Dtype;
use serde_json::{Map, Value, json};

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/abi/layout.json");

#[test]
fn every_table_stands_as_it_was_kept() {
    let tables = TABLES.iter().map(|table| {
        let fields = table
            .fields
            .iter()
            .map(|field| (field.name.to_owned(), json!(field.offset)));
        let layout = json!({
            "size": table.size,
            "align": table.align,
            "offsets": Map::from_iter(fields),
        });
        (table.name.to_owned(), layout)
    });
    let magic = String::from_utf8(rialto_abi::MAGIC.to_vec()).unwrap();
    let found = json!({"magic": magic, "tables": Map::from_iter(tables)});
    let text = serde_json::to_string_pretty(&found).unwrap() + "\n";
    if std::env::var_os("RIALTO_UPDATE_LAYOUT").is_some() {
        std::fs::write(KEPT, &text).unwrap();
    }
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(KEPT).unwrap()).unwrap();
    assert_eq!(found, kept, "a table has changed");
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
