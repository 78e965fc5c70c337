//! Shaders as they are written, and as the device gets them.
//!
//! A shader is a file of WGSL in `shaders/`. Lines that begin with `#` stand for text that many shaders need; what they become is WGSL of
//! the core language. There are these:
//!
//! | line | becomes |
//! |---|---|
//! | `#include NAME` | the file `NAME.wgsl` |
//! | `#floats NAME BINDING` | a read-only buffer of F32 or BF16 elements, `fn NAME_at(index: u32) -> f32`, and `fn NAME_bits(index: u32) -> u32`, the same as the bits of an F32, for copies: a driver may change NaN on its way through a float |
//! | `#words NAME BINDING` | a read-only buffer of words, `fn NAME_word(index: u32) -> u32` |
//! | `#result NAME BINDING` | a buffer of words that is written, `fn NAME_put(index: u32, bits: u32)`, and read by `fn NAME_word` |
//! | `#weight NAME BINDING` | a matrix of F32, BF16 or E4M3 in blocks, its scales at the binding after it, and `fn NAME_at(batch: u32, row: u32, column: u32) -> f32`; `NAME_four` is four columns from a multiple of four on, where `Weight::has_fours`. The shader defines `fn NAME_shape() -> vec4<u32>`: rows, columns, rows and columns of a block |
//! | `#base NAME BINDING` | `fn NAME_base() -> u32`, for a buffer that the shader declares itself |
//!
//! A binding may be a part of a tensor. Shaders count through all of it; what these functions add is the base of the binding, which makes of
//! it the place in the part. Numbers are of 32 bits and wrap.
//!
//! What elements are is an `override` constant, [`KIND`] behind the name: a pipeline is made for each combination that comes up. So is
//! `LANES`, the invocations of a workgroup, where a shader takes any number. Sizes are in a uniform buffer, `params`, so that no pipeline is
//! made for a number of tokens: from [`BASES`] on the bases by number of binding, at [`SPAN`] the units of the dispatch.

use std::fmt::Write as _;

use rialto_tensor::Dtype;

/// Vectors of the uniform.
pub(crate) const PARAMS: usize = 12;

/// The vector of the first four bases.
pub(crate) const BASES: usize = 8;

/// The vector of the first unit and the end of them, and of those of another axis.
pub(crate) const SPAN: usize = 11;

/// What stands behind a name in the constant that says what its elements are.
pub(crate) const KIND: &str = "kind";

/// The number of BF16.
pub(crate) const BF16: u32 = 1;

/// The number of codes in blocks.
pub(crate) const E4M3: u32 = 2;

/// The number of an element type in shaders.
pub(crate) fn kind(dtype: Dtype) -> Option<u32> {
    match dtype {
        Dtype::F32 => Some(0),
        Dtype::Bf16 => Some(BF16),
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
    "common" "pages" "sigmoid" "product" "order" "tree" "exact" "attend" "rank" "scan"
    "pack" "elementwise" "rows" "gemv" "columns" "tile" "gated" "weighed" "router"
    "norm" "softmax" "reduce" "rope" "block_scales" "quantize" "dequantize" "argmax" "sample"
    "append" "indexer_scores" "topk" "topk_pick" "topk_count" "topk_place" "sparse_mla" "gqa" "attended" "permute"
}

/// Files that only others include: they are no shaders.
#[cfg(test)]
pub(crate) const INCLUDED: &[&str] = &[
    "common", "pages", "sigmoid", "product", "order", "tree", "exact", "attend", "rank", "scan",
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
        let Some(rest) = line.strip_prefix('#') else {
            expanded.push_str(line);
            expanded.push('\n');
            continue;
        };
        let parts: Vec<&str> = rest.split_whitespace().collect();
        match parts.as_slice() {
            ["include", name] => expanded.push_str(&source(name)),
            [kind, name, binding] => {
                let binding = binding.parse().expect("a number of a binding");
                let text = match *kind {
                    "floats" => floats(name, binding),
                    "words" => words(name, binding, "read"),
                    "result" => words(name, binding, "read_write"),
                    "weight" => weight(name, binding),
                    "base" => format!(
                        "fn {name}_base() -> u32 {{\n    return {};\n}}\n",
                        base(binding)
                    ),
                    _ => panic!("shader {name}: {line:?} is no line to expand"),
                };
                expanded.push_str(&text);
            }
            _ => panic!("shader {name}: {line:?} is no line to expand"),
        }
    }
    expanded
}

/// The base of a binding, in a shader.
fn base(binding: u32) -> String {
    let vector = BASES as u32 + binding / 4;
    let part = ["x", "y", "z", "w"][binding as usize % 4];
    format!("params[{vector}].{part}")
}

fn floats(name: &str, binding: u32) -> String {
    let base = base(binding);
    format!(
        "@group(0) @binding({binding}) var<storage, read> {name}: array<u32>;
override {name}_{KIND}: u32;
fn {name}_bits(index: u32) -> u32 {{
    let place = index + {base};
    if ({name}_{KIND} == F32) {{
        return {name}[place];
    }}
    return bf16_of({name}[place >> 1u], place & 1u);
}}
fn {name}_at(index: u32) -> f32 {{
    return bitcast<f32>({name}_bits(index));
}}
"
    )
}

fn words(name: &str, binding: u32, access: &str) -> String {
    let base = base(binding);
    let mut text = format!(
        "@group(0) @binding({binding}) var<storage, {access}> {name}: array<u32>;
fn {name}_word(index: u32) -> u32 {{
    return {name}[index + {base}];
}}
"
    );
    if access == "read_write" {
        let _ = write!(
            text,
            "fn {name}_put(index: u32, bits: u32) {{
    {name}[index + {base}] = bits;
}}
"
        );
    }
    text
}

fn weight(name: &str, binding: u32) -> String {
    let (base, base_of_scales) = (base(binding), base(binding + 1));
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
        "fn {name}_scale(shape: vec4<u32>, batch: u32, row: u32, column: u32) -> f32 {{
    let across = (shape.y + shape.w - 1u) / shape.w;
    let down = (shape.x + shape.z - 1u) / shape.z;
    let block = (batch * down + row / shape.z) * across + column / shape.w;
    return bitcast<f32>({name}_scales[block + {base_of_scales}]);
}}
fn {name}_at(batch: u32, row: u32, column: u32) -> f32 {{
    let shape = {name}_shape();
    let place = (batch * shape.x + row) * shape.y + column + {base};
    if ({name}_{KIND} == F32) {{
        return bitcast<f32>({name}[place]);
    }}
    if ({name}_{KIND} == BF16) {{
        return bitcast<f32>(bf16_of({name}[place >> 1u], place & 1u));
    }}
    let code = ({name}[place >> 2u] >> (8u * (place & 3u))) & 0xffu;
    return bf16_round(e4m3(code) * {name}_scale(shape, batch, row, column));
}}
fn {name}_four(batch: u32, row: u32, column: u32) -> vec4<f32> {{
    let shape = {name}_shape();
    let place = (batch * shape.x + row) * shape.y + column + {base};
    if ({name}_{KIND} == F32) {{
        return bitcast<vec4<f32>>(vec4<u32>({name}[place], {name}[place + 1u], {name}[place + 2u], {name}[place + 3u]));
    }}
    if ({name}_{KIND} == BF16) {{
        let low = {name}[place >> 1u];
        let high = {name}[(place >> 1u) + 1u];
        return bitcast<vec4<f32>>(vec4<u32>(bf16_of(low, 0u), bf16_of(low, 1u), bf16_of(high, 0u), bf16_of(high, 1u)));
    }}
    let word = {name}[place >> 2u];
    let scale = {name}_scale(shape, batch, row, column);
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
        use naga::back::pipeline_constants::process_overrides;
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
            // What a pipeline may set: translations have no constant left.
            for (lanes, other) in [(128.0, 0.0), (256.0, 1.0)] {
                let constants = module.overrides.iter().filter_map(|(_, constant)| {
                    let name = constant.name.clone()?;
                    let value = if name == "LANES" { lanes } else { other };
                    constant.init.is_none().then_some((name, value))
                });
                let constants: naga::back::PipelineConstants = constants.collect();
                let (module, info) = process_overrides(&module, &info, None, &constants)
                    .unwrap_or_else(|error| panic!("{name}: {error:?}"));
                let stored: u32 = module
                    .global_variables
                    .iter()
                    .filter(|(_, variable)| variable.space == naga::AddressSpace::WorkGroup)
                    .map(|(_, variable)| module.types[variable.ty].inner.size(module.to_ctx()))
                    .sum();
                assert!(
                    stored <= 16 << 10,
                    "{name}: {stored} bytes of workgroup memory"
                );
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
    }

    #[test]
    #[should_panic(expected = "no shader")]
    fn an_include_of_nothing_is_found() {
        source("nothing");
    }
}
