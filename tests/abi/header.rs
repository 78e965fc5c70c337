//! The C header: what the tables say, in C99, C11 and C++17.

use rialto_abi::header::header;
use rialto_abi::layout::{Code, TABLES};
use rialto_abi::{MAGIC, TARGET, code, decl, dtype, level};
use rialto_tests::compiler::{headers, library};

use crate::library::written;

/// Compiles a source that includes the header.
fn compiles(standard: &str, body: &str) {
    let folder = tempfile::tempdir().unwrap();
    let end = if standard.contains("++") { "cpp" } else { "c" };
    let text = format!("#include \"rialto.h\"\n#include <stddef.h>\n{body}");
    let source = written(folder.path(), &format!("source.{end}"), text.as_bytes());
    library(&source, standard, &folder.path().join("libsource.so"));
}

#[test]
fn the_header_is_what_the_tables_say() {
    let kept = headers().join("rialto.h");
    if std::env::var_os("RIALTO_UPDATE_LAYOUT").is_some() {
        std::fs::write(&kept, header()).unwrap();
    }
    let (kept, made) = (std::fs::read_to_string(kept).unwrap(), header());
    for (number, (kept, made)) in kept.lines().zip(made.lines()).enumerate() {
        assert_eq!(kept, made, "line {}", number + 1);
    }
    assert!(
        kept == made,
        "RIALTO_UPDATE_LAYOUT=1 writes the header anew"
    );
}

/// Twice over, too.
#[test]
fn the_header_stands_alone_in_every_standard() {
    for standard in ["c99", "c11", "c17", "c++11", "c++17", "c++20"] {
        compiles(
            standard,
            "#include \"rialto.h\"\nstatic const rialto_str NAME = RIALTO_TEXT(\"toy\");\n\
             const rialto_str *name(void);\nconst rialto_str *name(void) { return &NAME; }\n",
        );
    }
}

#[test]
fn the_header_has_the_sizes_offsets_and_codes_of_the_tables() {
    let mut claims = Vec::new();
    for table in TABLES {
        let name = table.c_name;
        claims.push((format!("sizeof({name})"), table.size));
        claims.push((format!("_Alignof({name})"), table.align));
        for field in table.fields {
            claims.push((format!("offsetof({name}, {})", field.name), field.offset));
        }
        // No field of C's own: the last one ends where the struct does, but for padding.
        let last = table.fields.last().unwrap().name;
        let end = format!("offsetof({name}, {last}) + sizeof((({name} *)0)->{last})");
        claims.push((end, table.size));
    }
    for view in [
        "rialto_bytes",
        "rialto_bytes_mut",
        "rialto_str",
        "rialto_tensors",
    ] {
        claims.push((format!("sizeof({view})"), 16));
        claims.push((format!("offsetof({view}, data)"), 0));
        claims.push((format!("offsetof({view}, len)"), 8));
    }
    let mut numbers = |prefix: &str, codes: &[Code]| {
        let codes = codes.iter();
        claims.extend(
            codes.map(|code| (format!("RIALTO_{prefix}{}", code.name), code.value as usize)),
        );
    };
    numbers("", code::ALL);
    numbers("", level::ALL);
    numbers("PANIC_", decl::panic_strategy::ALL);
    let dtypes = dtype::CODES.iter();
    claims.extend(dtypes.map(|(code, name)| (format!("RIALTO_DTYPE_{name}"), *code as usize)));
    claims.push(("RIALTO_ABI_MAJOR".to_owned(), decl::ABI_MAJOR as usize));
    claims.push(("RIALTO_ABI_MINOR".to_owned(), decl::ABI_MINOR as usize));
    let claims = claims.iter().map(|(left, right)| {
        format!("_Static_assert({left} == {right}, \"{left} is not {right}\");\n")
    });
    compiles("c11", &claims.collect::<String>());
}

/// As an author in C++ writes it, whose texts know their length and whose constants are nobody else's.
#[test]
fn a_declaration_in_cpp_has_the_magic_and_the_target_of_this_build() {
    let folder = tempfile::tempdir().unwrap();
    let text = "#include \"rialto.h\"\n\
        extern \"C\" const rialto_plugin_decl rialto_plugin_v1 = {\n\
        RIALTO_MAGIC, sizeof(rialto_plugin_decl), RIALTO_ABI_MAJOR, RIALTO_ABI_MINOR, RIALTO_PANIC_NONE,\n\
        RIALTO_TARGET, \"\", \"\", \"in-cpp\", \"1.0\", nullptr, nullptr};\n";
    let source = written(folder.path(), "in_cpp.cpp", text.as_bytes());
    let made = folder.path().join("libin_cpp.so");
    library(&source, "c++17", &made);
    // Every step passes up to the one for which it has no function.
    let error = rialto_host::check(&made).error.unwrap();
    assert_eq!(error.slug(), "plugin/table", "{error}");
    let bytes = std::fs::read(&made).unwrap();
    let declared = [&MAGIC[..], &296_u32.to_le_bytes()].concat();
    assert!(bytes.windows(declared.len()).any(|found| found == declared));
    assert!(
        bytes
            .windows(TARGET.len())
            .any(|found| found == TARGET.as_bytes())
    );
}
