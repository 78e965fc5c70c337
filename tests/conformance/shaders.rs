//! Faults that are planted into shaders. The check of an operation that uses one has to find each, on an adapter as it is or on one of
//! less: some shaders only run where something does not fit.

use std::collections::BTreeSet;
use std::path::Path;

use rialto_backend::Registry;
use rialto_tests::adapters::adapters;
use rialto_tests::device::device_or_skip;
use rialto_wgpu::{Settings, WgpuDriver};

use crate::checks;

/// A part of a shader, and what stands in its place.
type Fault = (&'static str, &'static str);

/// Every adapter's verdict of a faulty shader until one has found it. `None` without an adapter.
fn found(op: &str, shader: &'static str, (part, other): Fault) -> Option<String> {
    let (_, check) = checks::ALL.iter().find(|(name, _)| *name == op).unwrap();
    let mut is_missing = false;
    for (name, driver) in adapters() {
        let settings = Settings {
            edits: vec![(shader, part, other)],
            ..driver.settings().clone()
        };
        let registry = Registry::new().with(WgpuDriver::with_settings(settings));
        let Some(device) = device_or_skip(&registry, "wgpu") else {
            is_missing = true;
            continue;
        };
        if let Err(reason) = check(&*device) {
            return Some(format!("{name}: {reason}"));
        }
    }
    assert!(
        is_missing,
        "{op}: nobody finds {other:?} for {part:?} in {shader}"
    );
    None
}

macro_rules! faults {
    ($($shader:ident: $($op:literal $part:literal => $other:literal;)+)+) => {
        $(#[test]
        fn $shader() {
            $({
                let reason = found(concat!("rialto.", $op, "/1"), stringify!($shader), ($part, $other));
                // A shader that is no WGSL any more would be found by anything.
                let is_no_shader = reason.as_ref().is_some_and(|reason| reason.contains("refused"));
                assert!(!is_no_shader, "{}: {reason:?}", stringify!($shader));
            })+
        })+

        const SHADERS: &[&str] = &[$(stringify!($shader)),+];
    };
}

faults! {
    append:
        "append" "bf16_bits(bits) << (16u * half)" => "bf16_bits(bits)";
        "append" "select(0xffff0000u, 0x0000ffffu, half == 1u)" => "0u";
        "append" "row >= page_rows().x &&" => "row > page_rows().x &&";
        "append" "if (sequence >= shape.z ||" => "if (";
        "append" "page * shape.y + position % shape.y" => "page * shape.y";
    argmax:
        "argmax" "b.y < a.y" => "b.y > a.y";
        "argmax" "key != NAN_KEY && " => "";
        "argmax" "select(0xffffffffu, best[0].y, best[0].x != 0u)" => "best[0].y";
    attended:
        "gqa" "bitcast<f32>(state_word(begin + column)) / total" => "bitcast<f32>(state_word(begin + column))";
        "sparse_mla" "seen == 2u || total == 0.0" => "seen == 2u";
    block_scales:
        "quantize_block" "max(quotient(most, LARGEST), 0x00800000u)" => "quotient(most, LARGEST)";
        "quantize_block" "scale + 0x7fffffu" => "scale";
        "quantize_block" "min(params[1].x, params[0].z - top)" => "1u";
    columns:
        "mla_absorb" "min(begin + CHUNK, k)" => "begin + CHUNK";
        "mla_absorb" "total += part;" => "total = part;";
    dequantize:
        "dequantize_block" "bf16_bits(product(code, scales_word(block))) << 16u" => "product(code, scales_word(block))";
        "dequantize_block" "select(-9," => "select(-10,";
        "dequantize_block" "row / params[1].x * params[0].z" => "0u";
    elementwise:
        "unary" "index >= end_unit()" => "index + 1u >= end_unit()";
        "unary" "select(x, 0.0, x <= 0.0)" => "x";
        "unary" "min(x, 40.0)" => "min(x, 1.0)";
        "binary" "y_at(index % params[0].y)" => "y_at(index)";
        "swiglu" "default: { return x * sigmoid(x) * y; }" => "default: { return x * sigmoid(y) * y; }";
        "scale" "return x * bitcast<f32>(params[1].x);" => "return x;";
    gated:
        "experts" "gate * sigmoid(gate) * up" => "up * sigmoid(up) * gate";
        "experts" "gate = bf16_round(gate);" => "";
    gemv:
        "linear" "first < k)" => "first + CHUNK < k)";
        "linear" "total += parts[lane + i];" => "total = parts[lane + i];";
        "experts" "expert = ids_word(row);" => "expert = ids_word(0u);";
    gqa:
        "gqa" "head / (params[0].x / groups)" => "head % groups";
        "gqa" "min(own + 1u," => "min(own,";
        "gqa" "total *= factor;" => "";
        "gqa" "sums *= factor;" => "";
        "gqa" "sums[four] += share * value_at" => "sums[four] += value_at";
    indexer_scores:
        "indexer_scores" "select(logit, 0.0, logit <= 0.0)" => "logit";
        "indexer_scores" "if (position <= own) {" => "if (true) {";
        "indexer_scores" "head_scale * bitcast" => "bitcast";
        "indexer_scores" "score += factor" => "score = factor";
    norm:
        "rms_norm" "(x_at(start + column) - mean) / root" => "x_at(start + column) / 2.0";
        "rms_norm" " + eps)" => ")";
        "rms_norm" "normed = bf16_round(normed);" => "";
        "layer_norm" "value += bias_at(column);" => "value += bias_at(0u);";
        "layer_norm" "mean = sum_of_all(lane, sum) / f32(columns);" => "";
    pack:
        "cast" "0x7fffu + ((bits >> 16u) & 1u)" => "0x8000u";
        "cast" "first + 1u < elements" => "first + 2u < elements";
        "cast" "return select(0xffffu, bits >> 16u, (bits & 0xffffu) == 0u);" => "return 0u;";
    permute:
        "experts" "min(first + params[0].y, end)" => "first + params[0].y";
        "experts" "atomicStore(&order[counters + expert], begin);" => "";
        "experts" "if (expert < experts) {\n            atomicAdd" => "if (expert + 1u < experts) {\n            atomicAdd";
    quantize:
        "quantize_block" "((magnitude >> 20u) & 1u)" => "1u";
        "quantize_block" "return 0x7eu;" => "return 0x7fu;";
        "quantize_block" "a.exponent - b.exponent - 29" => "a.exponent - b.exponent - 28";
    reduce:
        "reduce" "max(key, key_of(bits))" => "max(key, bits)";
        "reduce" "total / f32(columns)" => "total";
        "reduce" "sums[lane] += sums[lane + step];" => "";
    rope:
        "rope" "params[0].w == 1u" => "params[0].w == 0u";
        "rope" "position < 0 || " => "";
        "rope" "pair = element - first;" => "pair = element;";
        "rope" "select(-sine_cosine.x, sine_cosine.x, is_second)" => "sine_cosine.x";
        "rope" "(high + 0x20000000u) >> 30u" => "high >> 30u";
        "rope" " + upper(position, frequency.y)" => "";
    router:
        "router" "before += u32(key > mine || (key == mine && other < e));" => "before += u32(key > mine || (key == mine && other > e));";
        "router" "sum += bitcast<f32>(params[2].x);" => "";
        "router" "before >= params[1].x" => "before > params[1].x";
        "router" "weights_put(token * top_k + count, work_word(scores + e));" => "weights_put(token * top_k + count, work_word(keys + e));";
    rows:
        "gather" "found = indices_word(row);" => "found = indices_word(0u);";
        "embed" "if (found >= params[1].y) {" => "if (found == 7777777u) {";
        "embed" "found < params[11].z || " => "";
        "concat" "+ column - of_x" => "+ column";
        "slice" "params[1].x + column" => "column";
    sample:
        "sample" "place >= last.place" => "place > last.place";
        "sample" "below / 52.0 > by" => "below / 2.0 > by";
        "sample" "top_k_word(row), ALL" => "top_k_word(row) + 1u, ALL";
        "sample" "bitcast<f32>(part) * whole" => "bitcast<f32>(part)";
    softmax:
        "softmax" "> 60.0" => "> 2.0";
        "softmax" "most_bits == LEAST_BITS" => "false";
        "softmax" "exp(x - most)" => "exp(x)";
    sparse_mla:
        "sparse_mla" "if (position > own ||" => "if (";
        "sparse_mla" "spoiled || total == 0.0" => "spoiled";
        "sparse_mla" "next = max(next, logits[at]);" => "";
        "sparse_mla" "select(0u, 0x7fc00000u, any)" => "0x7fc00000u";
        "sparse_mla" "q_rope_at(row * params[0].z + column - latent)" => "q_rope_at(row * params[0].z)";
    tile:
        "linear" "total_0 += part_0;" => "total_0 = part_0;";
        "linear" "4u * (four % 4u)" => "4u * (four % 2u)";
        "linear" "row_at(tile, my_row + HALF)" => "row_at(tile, my_row)";
        "experts" "return order_word(params[5].x + at);" => "return at;";
        "experts" "if (expert >= params[4].z && expert < params[4].w) {" => "if (true) {";
        "mla_absorb" "weight_begin(batch) + begin + i, left + column" => "weight_begin(batch) + i, left + column";
    topk:
        "topk" "(is_equal && equal_before < of_least)" => "is_equal";
        "topk" "bits == 0x80000000u || bits == 0u" => "false";
        "topk" "is_nan(bits) || " => "";
        "topk" "all_above + of_least + lane" => "k";
    topk_count:
        "topk" "if (rank != 0u && begins) {" => "if (rank != 0u) {";
        "topk" "rank > least);" => "rank >= least);";
        "topk" "chunk * params[0].y;" => "chunk * params[0].y + 1u;";
    topk_pick:
        "topk" "of_least = want - before;" => "of_least = want;";
        "topk" "state_put(at, above);" => "";
    topk_place:
        "topk" "above_before + min(equal_before, of_least)" => "above_before";
        "topk" "(is_equal && equal_before < of_least)" => "is_equal";
    weighed:
        "experts" "fma(bitcast<f32>(weights_word(choice)), product, total)" => "fma(bitcast<f32>(weights_word(token)), product, total)";
        "experts" "ids_word(choice) < params[0].w" => "ids_word(choice) < 1u";
}

/// A new shader has to have faults, too.
#[test]
fn every_shader_has_faults() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../backends/wgpu/shaders");
    let mut shaders = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Others are only included.
        if std::fs::read_to_string(&path).unwrap().contains("@compute") {
            shaders.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
        }
    }
    let faulty: BTreeSet<String> = SHADERS.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(faulty, shaders);
}
