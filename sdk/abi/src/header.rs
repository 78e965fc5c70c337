//! The C header, written from the tables and the codes: `include/rialto.h` is what [`header`] returns.
//!
//! A struct's fields, their order, their types and their comments are those of its definition in Rust. Only what C needs
//! beside them stands here: the views, the target's triple, guards.

use crate::decl::{ABI_MAJOR, ABI_MINOR, panic_strategy};
use crate::layout::{Code, FieldLayout, TABLES, TableLayout};
use crate::{DEQUANTIZE, MAGIC, PROGRAM, SYMBOL, code, dtype, level};

/// What abi_stable's views are called in C, how they begin in Rust, and what their pointer points to.
const VIEWS: &[(&str, &str, &str, &str)] = &[
    (
        "rialto_str",
        "RStr<>",
        "const char *",
        "Text: UTF-8, no NUL at the end.",
    ),
    ("rialto_bytes", "RSlice<u8>", "const uint8_t *", "Bytes."),
    (
        "rialto_bytes_mut",
        "RSliceMut<u8>",
        "uint8_t *",
        "Bytes to write.",
    ),
    (
        "rialto_tensors",
        "RSlice<TensorRef>",
        "const rialto_tensor *",
        "Tensors.",
    ),
];

/// Names in comments that are others in C.
const RENAMED: &[(&str, &str)] = &[
    ("MAGIC", "RIALTO_MAGIC"),
    ("ABI_MAJOR", "RIALTO_ABI_MAJOR"),
    ("ABI_MINOR", "RIALTO_ABI_MINOR"),
    ("LAYOUT_VERSION", "a name and its version"),
    ("panic_strategy", "RIALTO_PANIC_NONE and so on"),
    ("code::PANIC", "RIALTO_PANIC"),
    ("code", "RIALTO_OK and so on"),
    ("level", "RIALTO_ERROR and so on"),
    ("dtype::CODES", "RIALTO_DTYPE_BF16 and so on"),
    ("PluginDecl::open", "the plugin's open"),
    ("layout::report", "of Rust's types"),
];

const HEAD: &str = r#"/* The contract between rialto and its plugins, for authors in C and C++. docs/abi.md explains it.
 *
 * Made from the tables of the crate rialto-abi: do not edit. What is lent (rialto_str, rialto_bytes, rialto_bytes_mut,
 * rialto_tensor, rialto_tensors) is valid until the call returns; what is handed over (rialto_owned) is released by the side
 * that receives it, through the function that comes with it. Every entry may be called from any thread and by several
 * threads at once. */
#ifndef RIALTO_H
#define RIALTO_H

#include <stdint.h>

#if UINTPTR_MAX != UINT64_MAX
#error "rialto needs a target with 64-bit pointers"
#endif

"#;

/// glibc says who it is. musl on purpose does not, so it is known by how its headers guard their types.
const TARGET: &str = r#"/* Triple of the target, which must be the host's. -DRIALTO_TARGET="\"...\"" gives another: of a toolchain with a vendor of
 * its own, say, or of a C library that is not known here. */
#ifndef RIALTO_TARGET
#if defined(__linux__) && !defined(__ANDROID__) && !defined(__ILP32__)
#if defined(__x86_64__)
#define RIALTO_MACHINE "x86_64"
#elif defined(__aarch64__) && !defined(__AARCH64EB__)
#define RIALTO_MACHINE "aarch64"
#endif
#if defined(__GLIBC__) && !defined(__UCLIBC__)
#define RIALTO_LIBC "gnu"
#elif !defined(__GLIBC__) && defined(__DEFINED_uint64_t)
#define RIALTO_LIBC "musl"
#endif
#endif
#if !defined(RIALTO_MACHINE) || !defined(RIALTO_LIBC)
#error "rialto.h does not know this target: name its triple with -DRIALTO_TARGET"
#else
#define RIALTO_TARGET RIALTO_MACHINE "-unknown-linux-" RIALTO_LIBC
#endif
#endif

"#;

const VIEWS_HEAD: &str = r#"#ifdef __cplusplus
extern "C" {
#endif

/* Lent: a pointer and a length. A null pointer with length 0 is empty. */

"#;

const TEXT: &str = r#"/* Initializes a rialto_str: rialto_str name = RIALTO_TEXT("toy"); */
#define RIALTO_TEXT(literal) {literal, sizeof(literal) - 1}

"#;

const TAIL: &str = r#"
#ifdef __cplusplus
}
#endif

#endif
"#;

/// The header's text.
///
/// ```
/// let header = rialto_abi::header::header();
/// assert!(header.contains("} rialto_plugin_decl;") && header.contains("RIALTO_DTYPE_BF16 = 1,"));
/// ```
///
/// # Panics
///
/// If a table has a field of a type that has no spelling in C yet.
#[must_use]
pub fn header() -> String {
    let mut text = HEAD.to_owned();
    let magic = MAGIC.map(|byte| format!("'{}'", byte.escape_ascii()));
    let magic = magic.join(", ");
    let mut define = |name: &str, value: &str, about: &str| {
        text += &format!("/* {about} */\n#define RIALTO_{name} {value}\n\n");
    };
    let about = "First bytes of a declaration: as characters, since a text would have a NUL.";
    define("MAGIC", &format!("{{{magic}}}"), about);
    let about = "Another major number does not load, any minor number does.";
    define("ABI_MAJOR", &format!("{ABI_MAJOR}u"), about);
    text.truncate(text.len() - 1);
    text += &format!("#define RIALTO_ABI_MINOR {ABI_MINOR}u\n\n");
    text += &format!(
        "/* Id of rialto_dequantize_table. */\n#define RIALTO_DEQUANTIZE \"{DEQUANTIZE}\"\n\n"
    );
    text += &format!(
        "/* Id of rialto_program_table; since 1.1. */\n#define RIALTO_PROGRAM \"{PROGRAM}\"\n\n"
    );
    text += TARGET;
    text += &codes("How a library's panics end.", "PANIC_", panic_strategy::ALL);
    text += &codes("How a call ended.", "", code::ALL);
    text += &codes("How much a line of log matters.", "", level::ALL);
    let of_dtype = |&(value, name)| Code {
        name,
        value,
        about: "",
    };
    let dtypes: Vec<Code> = dtype::CODES.iter().map(of_dtype).collect();
    text += &codes(
        "Element types, by their safetensors names.",
        "DTYPE_",
        &dtypes,
    );
    text += VIEWS_HEAD;
    text += &structs();
    text += &format!(
        "/* The one symbol that a plugin defines. */\n#if defined(__GNUC__)\n__attribute__((visibility(\"default\")))\n#endif\n\
         extern const rialto_plugin_decl {SYMBOL};\n"
    );
    text + TAIL
}

/// An enumeration of codes.
fn codes(about: &str, prefix: &str, codes: &[Code]) -> String {
    let lines = codes.iter().enumerate().map(|(position, code)| {
        let comma = if position + 1 < codes.len() { "," } else { "" };
        let about = first_sentence(code.about);
        let about = if about.is_empty() {
            about
        } else {
            format!(" /* {about} */")
        };
        format!(
            "    RIALTO_{prefix}{} = {}{comma}{about}\n",
            code.name, code.value
        )
    });
    format!(
        "/* {about} */\nenum {{\n{}}};\n\n",
        lines.collect::<String>()
    )
}

/// Views and tables, each after what its fields name.
fn structs() -> String {
    let views = VIEWS.iter().map(|(name, _, pointer, about)| {
        let body = format!("    {pointer}data;\n    uint64_t len;\n");
        (*name, definition(name, about, &body))
    });
    let tables = TABLES.iter().map(|table| {
        let fields = table.fields.iter().map(|field| {
            let about = first_sentence(field.about);
            format!("    /* {about} */\n    {};\n", field.in_c())
        });
        let about = first_sentence(table.about);
        (
            table.c_name,
            definition(table.c_name, &about, &fields.collect::<String>()),
        )
    });
    let mut left: Vec<(&str, String)> = views.chain(tables).collect();
    let mut text = String::new();
    while !left.is_empty() {
        let is_free = |(name, body): &(&str, String)| {
            let mut others = left.iter().filter(|(other, _)| other != name);
            others.all(|(other, _)| !words(body).any(|word| word == *other))
        };
        let next = left
            .iter()
            .position(is_free)
            .expect("no table contains itself");
        let (name, body) = left.remove(next);
        text += &body;
        if name == "rialto_str" {
            text += TEXT;
        }
    }
    text
}

fn definition(name: &str, about: &str, body: &str) -> String {
    format!("/* {about} */\ntypedef struct {name} {{\n{body}}} {name};\n\n")
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// The first sentence of a comment, without what only Rust's documentation knows.
fn first_sentence(about: &str) -> String {
    let end = about.find(". ").map_or(about.len(), |at| at + 1);
    let mut parts = about[..end].trim().split('`');
    let mut text = parts.next().unwrap_or_default().to_owned();
    while let Some(name) = parts.next() {
        // A link is `[`name`]`, with or without a place in parentheses.
        let is_link = text.ends_with('[');
        if is_link {
            text.pop();
        }
        let table = TABLES.iter().find(|table| table.name == name);
        let renamed = RENAMED.iter().find(|(known, _)| is_link && *known == name);
        text += match (table, renamed) {
            (Some(table), _) => table.c_name,
            (None, Some((_, renamed))) => renamed,
            (None, None) => name,
        };
        let rest = parts.next().unwrap_or_default();
        let rest = if is_link {
            rest.strip_prefix(']').unwrap_or(rest)
        } else {
            rest
        };
        let place = rest
            .strip_prefix('(')
            .and_then(|place| place.split_once(')'));
        text += place.filter(|_| is_link).map_or(rest, |(_, rest)| rest);
    }
    text
}

impl FieldLayout {
    /// Its declaration in C, without the semicolon.
    ///
    /// # Panics
    ///
    /// As [`header`].
    #[must_use]
    pub fn in_c(&self) -> String {
        let name = self.name;
        let written: String = self
            .written
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        let written = written
            .strip_prefix("Option<")
            .and_then(|inner| inner.strip_suffix('>'))
            .unwrap_or(&written);
        if let Some(signature) = written.strip_prefix("unsafe extern \"C\" fn(") {
            let (parameters, returned) = signature
                .rsplit_once(')')
                .expect("a signature has parentheses");
            let returned = returned
                .trim()
                .strip_prefix("-> ")
                .map_or("void".to_owned(), c_type);
            let parameters = split(parameters).into_iter().map(|parameter| {
                let (name, written) = parameter.split_once(": ").expect("a parameter has a name");
                declared(&c_type(written), name)
            });
            let parameters = parameters.collect::<Vec<_>>().join(", ");
            // Without a word in them, C before C23 and C++ read the parentheses differently.
            let parameters = match parameters.as_str() {
                "" => "void",
                _ => &parameters,
            };
            return format!(
                "{}({parameters})",
                declared(&returned, &format!("(*{name})"))
            );
        }
        if let Some(count) = written
            .strip_prefix("[u8; ")
            .and_then(|rest| rest.strip_suffix(']'))
        {
            return format!("char {name}[{count}]");
        }
        declared(&c_type(written), name)
    }
}

/// Parameters between commas that stand in no angle brackets.
fn split(parameters: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut found) = (0, 0, Vec::new());
    for (at, c) in parameters.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            ',' if depth == 0 => {
                found.push(parameters[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    found.push(parameters[begin..].trim());
    found.retain(|parameter| !parameter.is_empty());
    found
}

fn declared(of: &str, name: &str) -> String {
    let space = if of.ends_with('*') { "" } else { " " };
    format!("{of}{space}{name}")
}

/// A type that is no function and no array.
fn c_type(written: &str) -> String {
    for (pointer, prefix) in [("*const ", "const "), ("*mut ", ""), ("&mut ", "")] {
        if let Some(target) = written.strip_prefix(pointer) {
            return format!("{prefix}{} *", c_type(target));
        }
    }
    let plain = ["'_, ", "'_", "'static"]
        .iter()
        .fold(written.to_owned(), |text, lifetime| {
            text.replace(lifetime, "")
        });
    let view = VIEWS
        .iter()
        .find(|(_, rust, ..)| *rust == plain)
        .map(|(name, ..)| *name);
    let table = TABLES
        .iter()
        .find(|table| table.name == plain)
        .map(|table: &TableLayout| table.c_name);
    let number = match plain.as_str() {
        "u8" => Some("uint8_t"),
        "u32" => Some("uint32_t"),
        "u64" => Some("uint64_t"),
        "c_void" => Some("void"),
        _ => None,
    };
    let known = view.or(table).or(number);
    known
        .unwrap_or_else(|| panic!("{written} has no spelling in C"))
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_declared_with_the_types_and_names_of_its_parameters() {
        let field = |name, written| {
            let (offset, about) = (0, "");
            let field = FieldLayout {
                name,
                offset,
                written,
                about,
            };
            field.in_c()
        };
        let written = "Option<unsafe extern \"C\" fn(a: *const HostTable, b: RSliceMut<'_, u8>, c: &mut OwnedBytes)>";
        let expected = "void (*f)(const rialto_host_table *a, rialto_bytes_mut b, rialto_owned *c)";
        assert_eq!(field("f", written), expected);
        let written = "unsafe extern \"C\" fn() -> *const c_void";
        assert_eq!(field("f", written), "const void *(*f)(void)");
        assert_eq!(field("name", "[u8; 64]"), "char name[64]");
    }

    #[test]
    fn a_comment_is_its_first_sentence_in_the_words_of_c() {
        let about =
            " One of [`code`]: see [`PluginDecl::open`](crate::PluginDecl::open) and `x`. More.";
        let expected = "One of RIALTO_OK and so on: see the plugin's open and x.";
        assert_eq!(first_sentence(about), expected);
        assert_eq!(first_sentence(" A `PluginDecl`"), "A rialto_plugin_decl");
    }
}
