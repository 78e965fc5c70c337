//! Shaders as they are written, and as the device gets them.
//!
//! A shader is a file of WGSL in `shaders/`. Lines that begin with `#` stand for text that many shaders need; what they become is WGSL of
//! the core language. There are three:
//!
//! | line | becomes |
//! |---|---|
//! | `#include NAME` | the file `NAME.wgsl` |
//! | `#floats NAME BINDING` | a read-only buffer of F32 or BF16 elements, `fn NAME_at(index: u32) -> f32`, and `fn NAME_bits(index: u32) -> u32`, the same as the bits of an F32, for copies: a driver may change NaN on its way through a float |
//! | `#weight NAME BINDING` | a matrix of F32, BF16 or E4M3 in blocks, its scales at the binding after it, and `fn NAME_at(batch: u32, row: u32, column: u32) -> f32`; `NAME_four` is four columns from a multiple of four on, where `Weight::has_fours`. The shader defines `fn NAME_shape() -> vec4<u32>`: rows, columns, rows and columns of a block |
//!
//! What elements are is an `override` constant, [`KIND`] behind the name: a pipeline is made for each combination that comes up. Sizes are
//! in a uniform buffer, `params`, so that no pipeline is made for a number of tokens.

use std::fmt::Write as _;

use rialto_tensor::Dtype;

/// What stands behind a name in the constant that says what its elements are.
pub(crate) const KIND: &str = "kind";

/// The number of codes in blocks.
pub(crate) const E4M3: u32 = 2;

/// The number of an element type in shaders.
pub(crate) fn kind(dtype: Dtype) -> Option<u32> {
    match dtype {
        Dtype::F32 => Some(0),
        Dtype::Bf16 => Some(1),
        Dtype::F8E4m3 => Some(E4M3),
        _ => None,
    }
}

macro_rules! shaders {
    ($($name:literal)*) => {
        /// Every file, by name.
        pub(crate) const FILES: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../shaders/", $name, ".wgsl"))),)*
        ];
    };
}

shaders! {
    "common" "pages" "sigmoid" "product" "order" "tree" "exact" "attend"
    "pack" "elementwise" "rows" "gemv" "columns" "tile" "gated" "weighed" "router"
    "norm" "softmax" "reduce" "rope" "block_scales" "quantize" "dequantize" "argmax" "sample"
    "append" "indexer_scores" "topk" "sparse_mla" "gqa"
}

/// Files that only others include: they are no shaders.
#[cfg(test)]
pub(crate) const INCLUDED: &[&str] = &[
    "common", "pages", "sigmoid", "product", "order", "tree", "exact", "attend",
];

/// The text of a shader, with its lines of the table expanded.
///
/// # Panics
///
/// For a name or a line that is none: shaders are part of this crate, and a test expands all of them.
pub(crate) fn source(name: &str) -> String {
    let (_, text) = FILES
        .iter()
        .find(|(known, _)| *known == name)
        .unwrap_or_else(|| panic!("no shader {name}"));
    let mut expanded = String::with_capacity(2 * text.len());
    for line in text.lines() {
        let Some(words) = line.strip_prefix('#') else {
            expanded.push_str(line);
            expanded.push('\n');
            continue;
        };
        let words: Vec<&str> = words.split_whitespace().collect();
        match words.as_slice() {
            ["include", name] => expanded.push_str(&source(name)),
            ["floats", name, binding] => expanded.push_str(&floats(name, binding)),
            ["weight", name, binding] => {
                let binding = binding.parse().expect("a number of a binding");
                expanded.push_str(&weight(name, binding));
            }
            _ => panic!("shader {name}: {line:?} is no line to expand"),
        }
    }
    expanded
}

fn floats(name: &str, binding: &str) -> String {
    format!(
        "@group(0) @binding({binding}) var<storage, read> {name}: array<u32>;
override {name}_{KIND}: u32;
fn {name}_bits(index: u32) -> u32 {{
    if ({name}_{KIND} == F32) {{
        return {name}[index];
    }}
    return bf16_of({name}[index >> 1u], index & 1u);
}}
fn {name}_at(index: u32) -> f32 {{
    return bitcast<f32>({name}_bits(index));
}}
"
    )
}

fn weight(name: &str, binding: u32) -> String {
    let mut text = format!(
        "@group(0) @binding({binding}) var<storage, read> {name}: array<u32>;
@group(0) @binding({}) var<storage, read> {name}_scales: array<u32>;
override {name}_{KIND}: u32;
",
        binding + 1
    );
    // Rows, columns, rows and columns of a block: the shader says where they stand in its params.
    let _ = write!(
        text,
        "fn {name}_at(batch: u32, row: u32, column: u32) -> f32 {{
    let shape = {name}_shape();
    let index = (batch * shape.x + row) * shape.y + column;
    if ({name}_{KIND} == F32) {{
        return bitcast<f32>({name}[index]);
    }}
    if ({name}_{KIND} == BF16) {{
        return bitcast<f32>(bf16_of({name}[index >> 1u], index & 1u));
    }}
    let code = ({name}[index >> 2u] >> (8u * (index & 3u))) & 0xffu;
    let across = (shape.y + shape.w - 1u) / shape.w;
    let down = (shape.x + shape.z - 1u) / shape.z;
    let block = (batch * down + row / shape.z) * across + column / shape.w;
    return bf16_round(e4m3(code) * bitcast<f32>({name}_scales[block]));
}}
fn {name}_four(batch: u32, row: u32, column: u32) -> vec4<f32> {{
    let shape = {name}_shape();
    let index = (batch * shape.x + row) * shape.y + column;
    if ({name}_{KIND} == F32) {{
        return bitcast<vec4<f32>>(vec4<u32>({name}[index], {name}[index + 1u], {name}[index + 2u], {name}[index + 3u]));
    }}
    if ({name}_{KIND} == BF16) {{
        let low = {name}[index >> 1u];
        let high = {name}[(index >> 1u) + 1u];
        return bitcast<vec4<f32>>(vec4<u32>(bf16_of(low, 0u), bf16_of(low, 1u), bf16_of(high, 0u), bf16_of(high, 1u)));
    }}
    let word = {name}[index >> 2u];
    let across = (shape.y + shape.w - 1u) / shape.w;
    let down = (shape.x + shape.z - 1u) / shape.z;
    let block = (batch * down + row / shape.z) * across + column / shape.w;
    let scale = bitcast<f32>({name}_scales[block]);
    return vec4<f32>(
        bf16_round(e4m3(word & 0xffu) * scale),
        bf16_round(e4m3((word >> 8u) & 0xffu) * scale),
        bf16_round(e4m3((word >> 16u) & 0xffu) * scale),
        bf16_round(e4m3(word >> 24u) * scale),
    );
}}
"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a device: every shader is valid, and Vulkan, Metal and DirectX get a translation of it.
    #[test]
    fn every_shader_is_valid_and_translates_for_every_platform() {
        use naga::back::{hlsl, msl, spv};
        use naga::valid::{Capabilities, ValidationFlags, Validator};
        for (name, _) in FILES.iter().filter(|(name, _)| !INCLUDED.contains(name)) {
            let text = source(name);
            let module = naga::front::wgsl::parse_str(&text)
                .unwrap_or_else(|error| panic!("{name}: {}", error.emit_to_string(&text)));
            // What WebGPU promises everywhere, and nothing more.
            let mut validator = Validator::new(ValidationFlags::all(), Capabilities::empty());
            let info = validator
                .validate(&module)
                .unwrap_or_else(|error| panic!("{name}: {}", error.emit_to_string(&text)));
            // Constants that a pipeline sets get any value: translations have none left.
            let constants = module.overrides.iter().filter_map(|(_, constant)| {
                let name = constant.name.clone()?;
                constant.init.is_none().then_some((name, 0.0))
            });
            let constants: naga::back::PipelineConstants = constants.collect();
            let (module, info) =
                naga::back::pipeline_constants::process_overrides(&module, &info, None, &constants)
                    .unwrap_or_else(|error| panic!("{name}: {error:?}"));
            spv::write_vec(&module, &info, &spv::Options::default(), None)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            msl::write_string(
                &module,
                &info,
                &msl::Options {
                    fake_missing_bindings: true,
                    ..msl::Options::default()
                },
                &msl::PipelineOptions::default(),
            )
            .unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut text = String::new();
            let options = hlsl::Options::default();
            let pipeline = hlsl::PipelineOptions::default();
            hlsl::Writer::new(&mut text, &options, &pipeline)
                .write(&module, &info, None)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    #[should_panic(expected = "no shader")]
    fn an_include_of_nothing_is_found() {
        source("nothing");
    }
}
