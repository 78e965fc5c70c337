//! F32 end to end: logits, the residual stream, selections, experts, decoding, multi-token prediction. Prompts are three times as
//! long as what an indexer selects, so that two thirds of the rows are really sparse.

use std::collections::BTreeSet;
use std::sync::Arc;

use rialto_runtime::{GenerateOptions, Model, Rows, Tensor, Work, generate};

use crate::records::{Golden, rows};
use crate::world::{Load, MODELS, run, session};

/// Largest difference in a row of the residual stream, by its largest element.
///
/// Both programs evaluate the same sums in F32, in other orders. A sum of k terms is off by about sqrt(k) * 2^-24 of their size, k up to 136
/// here, and a layer has some ten of them one after the other, so that 8 layers are off by sqrt(8 * 10) * sqrt(136) * 2^-24 = 6e-6 of the
/// stream, in each of the two: 9e-6. Five standard deviations for the largest of some thousand elements.
pub(crate) const HIDDEN_RELATIVE: f32 = 5e-5;

/// Largest difference of logits, which are up to 6 here: the same error of the stream, through one more sum, would be 3e-4; what is asked is
/// two thirds of it.
pub(crate) const LOGITS_ATOL: f32 = 2e-4;

/// Scores nearer than this may be picked in either order: both are F32 sums of a few hundred terms of size one. The goldens were
/// chosen with a gap of 3e-4 or more at every boundary, so that no row is excused by it.
const SCORE_GAP: f32 = 1e-5;

/// Positions that an indexer of the fixtures selects.
pub(crate) const SELECTED: usize = 16;

/// What is wrong with a model's forward pass, if anything is, by the tolerances of the processor.
pub(crate) fn faults(name: &str, model: &Arc<Model>) -> Vec<String> {
    faults_within(name, model, (LOGITS_ATOL, HIDDEN_RELATIVE))
}

/// The same by others: of logits, and of the residual stream.
pub(crate) fn faults_within(
    name: &str,
    model: &Arc<Model>,
    (logits_atol, hidden_relative): (f32, f32),
) -> Vec<String> {
    let golden = Golden::open(name);
    let tokens = golden.tokens("input_ids");
    let count = tokens.len();
    let mut faults = Vec::new();
    let layers = golden.numbers("fp32.hidden.");
    let mut wanted: Vec<String> = layers
        .iter()
        .map(|layer| format!("hidden.{layer}"))
        .collect();
    wanted.push("hidden.final".to_owned());
    let full = golden.numbers("fp32.index_topk.");
    let sparse = golden.numbers("fp32.router_ids.");
    for layer in &full {
        wanted.extend(["index_scores", "selection"].map(|what| format!("layers.{layer}.{what}")));
    }
    for layer in &sparse {
        wanted
            .extend(["router.ids", "router.weights"].map(|what| format!("layers.{layer}.{what}")));
    }
    wanted.push("logits".to_owned());
    let names: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let values = run(model, &tokens, &names);
    let value = |name: &str| &values[wanted.iter().position(|wanted| wanted == name).unwrap()];
    for layer in layers
        .iter()
        .map(usize::to_string)
        .chain(["final".to_owned()])
    {
        let name = format!("hidden.{layer}");
        let worst = worst_relative(
            &golden.f32s(&format!("fp32.{name}")),
            &value(&name).to_f32(),
            count,
        );
        if worst.is_nan() || worst > hidden_relative {
            faults.push(format!(
                "{name} is off by {worst:e} of the largest in its row"
            ));
        }
    }
    for layer in full {
        let expected = golden.tensor(&format!("fp32.index_topk.{layer}")).to_i32();
        let scores = golden.f32s(&format!("fp32.index_scores.{layer}"));
        let found = value(&format!("layers.{layer}.selection")).to_i32();
        faults.extend(selection_faults(layer, count, &expected, &found, &scores));
        let found = value(&format!("layers.{layer}.index_scores"));
        faults.extend(score_faults(layer, count, (&scores, found), logits_atol));
    }
    for layer in sparse {
        let expected = golden.tensor(&format!("fp32.router_ids.{layer}")).to_i32();
        let found = value(&format!("layers.{layer}.router.ids")).to_i32();
        if expected != found {
            faults.push(format!("layer {layer} chooses other experts"));
        }
        let expected = golden.f32s(&format!("fp32.router_weights.{layer}"));
        let found = value(&format!("layers.{layer}.router.weights")).to_f32();
        let worst = worst_relative(&expected, &found, count);
        if worst.is_nan() || worst > hidden_relative {
            faults.push(format!("layer {layer} weighs experts off by {worst:e}"));
        }
    }
    let worst = worst_absolute(&golden.f32s("fp32.logits"), &value("logits").to_f32());
    if worst.is_nan() || worst > logits_atol {
        faults.push(format!("logits are off by {worst:e}"));
    }
    faults
}

/// How far logits of prompts that end around what an indexer selects are from those of transformers. Of a longer prompt, which has all
/// of these at its beginning: nothing later is seen, whether or not anything is dropped.
pub(crate) fn worst_around_k(name: &str, model: &Arc<Model>) -> f32 {
    let golden = Golden::open(name);
    let (tokens, expected) = (golden.tokens("input_ids"), golden.f32s("fp32.logits"));
    let width = expected.len() / tokens.len();
    [1, SELECTED - 1, SELECTED, SELECTED + 1]
        .into_iter()
        .map(|length| {
            let found = run(model, &tokens[..length], &["logits"]).remove(0);
            worst_absolute(&expected[..length * width], &found.to_f32())
        })
        .fold(0.0, larger)
}

/// The largest difference of two elements.
pub(crate) fn worst_absolute(expected: &[f32], found: &[f32]) -> f32 {
    assert_eq!(expected.len(), found.len());
    let pairs = expected.iter().zip(found);
    pairs.fold(0.0, |worst, (a, b)| larger(worst, (a - b).abs()))
}

/// The largest difference in a row by the largest element of the row, over all rows.
pub(crate) fn worst_relative(expected: &[f32], found: &[f32], count: usize) -> f32 {
    assert_eq!(expected.len(), found.len());
    let pairs = rows(expected, count).zip(rows(found, count));
    pairs.fold(0.0, |worst, (a, b)| {
        let largest = a
            .iter()
            .fold(0.0f32, |largest, value| largest.max(value.abs()));
        larger(worst, worst_absolute(a, b) / largest)
    })
}

/// The larger; NaN if one is.
fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        f32::NAN
    } else {
        a.max(b)
    }
}

/// Rows whose selections are not the same sets. A row may differ in positions whose scores tie with the boundary.
fn selection_faults(
    layer: usize,
    count: usize,
    expected: &[i32],
    found: &[i32],
    scores: &[f32],
) -> Vec<String> {
    let mut faults = Vec::new();
    let width = expected.len() / count;
    for (row, (expected, found)) in expected.chunks(width).zip(found.chunks(width)).enumerate() {
        let behind = found.iter().position(|&index| index < 0).unwrap_or(width);
        let is_ascending = found[..behind].windows(2).all(|pair| pair[0] < pair[1]);
        if !is_ascending || found[behind..].iter().any(|&index| index != -1) {
            faults.push(format!(
                "layer {layer} row {row}: {found:?} is not ascending with -1 behind"
            ));
        }
        let [expected, found] = [expected, found].map(|indices| {
            let kept = indices.iter().copied().filter(|&index| index >= 0);
            kept.collect::<BTreeSet<i32>>()
        });
        let scores = &scores[row * count..][..count];
        let least = expected
            .iter()
            .map(|&index| scores[index as usize])
            .fold(f32::INFINITY, f32::min);
        let mut differing = expected.symmetric_difference(&found);
        let is_excused = |index: &i32| {
            let score = scores.get(*index as usize);
            score.is_some_and(|score| *index as usize <= row && (score - least).abs() <= SCORE_GAP)
        };
        if expected.len() != found.len() || !differing.all(is_excused) {
            faults.push(format!(
                "layer {layer} row {row} selects {found:?}, expected {expected:?}"
            ));
        }
    }
    faults
}

/// Scores of positions up to the row's own, which are off as logits are, by their size; those beyond are negative infinity.
fn score_faults(
    layer: usize,
    count: usize,
    (expected, found): (&[f32], &Tensor),
    atol: f32,
) -> Vec<String> {
    let width = *found.shape().extents().last().unwrap() as usize;
    let found = found.to_f32();
    let mut faults = Vec::new();
    for row in 0..count {
        let (expected, found) = (
            &expected[row * count..][..=row],
            &found[row * width..][..width],
        );
        let worst = worst_absolute(expected, &found[..=row]);
        let largest = expected
            .iter()
            .fold(1.0f32, |largest, score| largest.max(score.abs()));
        if worst.is_nan() || worst > atol * largest {
            faults.push(format!(
                "layer {layer} row {row}: scores are off by {worst:e}"
            ));
        }
        if found[row + 1..]
            .iter()
            .any(|&score| score != f32::NEG_INFINITY)
        {
            faults.push(format!("layer {layer} row {row} scores a later token"));
        }
    }
    faults
}

#[test]
fn logits_hidden_states_selections_and_experts_are_those_of_transformers() {
    for (name, _) in MODELS {
        let model = Load::default().hugging_face(name);
        assert_eq!(faults(name, &model), [] as [String; 0], "{name}");
    }
}

#[test]
fn fc_65_prompts_around_what_is_selected_have_the_logits_of_transformers() {
    for (name, _) in MODELS {
        let model = Load::default().hugging_face(name);
        let worst = worst_around_k(name, &model);
        assert!(worst <= LOGITS_ATOL, "{name}: {worst:e}");
    }
}

#[test]
fn greedy_decoding_gives_the_tokens_of_transformers() {
    for (name, _) in MODELS {
        let golden = Golden::open(name);
        let prompt = golden.tokens("input_ids")[..20].to_vec();
        let expected = golden.tokens("fp32.decode.tokens");
        let model = Load::default().hugging_face(name);
        // The goldens go on after tokens that end a text.
        let options = GenerateOptions {
            max_new_tokens: expected.len() as u64,
            ..GenerateOptions::default()
        };
        let generated = generate(
            &mut session(&model, "forward"),
            std::slice::from_ref(&prompt),
            &options,
            &mut |_| true,
        );
        assert_eq!(generated.unwrap()[0].tokens, expected, "{name}");
        if !golden.has("fp32.decode.logits") {
            continue;
        }
        // The logits of each step, too: a token may be right by luck.
        let mut session = session(&model, "forward");
        let sequence = session.begin();
        let mut found = Vec::new();
        let fed =
            std::iter::once(prompt.as_slice()).chain(expected[..expected.len() - 1].chunks(1));
        for tokens in fed {
            let work = Work {
                sequence,
                tokens,
                rows: Rows::Last,
            };
            let mut outputs = session.step(&[work], &[], &["logits"]).unwrap();
            found.extend(outputs.take("logits").unwrap().to_f32());
        }
        let worst = worst_absolute(&golden.f32s("fp32.decode.logits"), &found);
        assert!(worst <= LOGITS_ATOL, "{name}: {worst:e}");
    }
}

/// Rows of a golden but the last: what multi-token prediction is given.
fn all_but_last(golden: &Golden, name: &str) -> Tensor {
    let tensor = golden.tensor(name);
    let mut extents = tensor.shape().extents().to_vec();
    let row = tensor.bytes().len() / extents[0] as usize;
    extents[0] -= 1;
    let bytes = tensor.bytes()[..extents[0] as usize * row].to_vec();
    Tensor::new(tensor.dtype(), rialto_tensor::Shape::new(extents), bytes).unwrap()
}

/// What comes before the final norm is another input: a layer that is given it predicts half as well, and nothing else shows it.
#[test]
fn multi_token_prediction_of_what_comes_before_the_final_norm_is_seen() {
    let golden = Golden::open("glm52-tiny");
    let tokens = &golden.tokens("input_ids")[1..];
    let model = Load::default().hugging_face("glm52-tiny");
    let logits = |name: &str| {
        let hidden = all_but_last(&golden, name);
        let mut session = session(&model, "mtp");
        let sequence = session.begin();
        let work = Work {
            sequence,
            tokens,
            rows: Rows::All,
        };
        let inputs = [("mtp.hidden", &hidden)];
        let mut outputs = session.step(&[work], &inputs, &["mtp.logits"]).unwrap();
        outputs.take("mtp.logits").unwrap().to_f32()
    };
    let expected = golden.f32s("fp32.mtp.logits");
    assert!(worst_absolute(&expected, &logits("fp32.hidden.final")) <= LOGITS_ATOL);
    assert!(worst_absolute(&expected, &logits("fp32.hidden.8")) > 0.1);
}

#[test]
fn multi_token_prediction_is_that_of_transformers_classes() {
    multi_token_prediction(&Load::default(), (LOGITS_ATOL, HIDDEN_RELATIVE));
}

/// Asserts it for the device of a load: logits within so much, hidden states within so much of the largest of their row.
pub(crate) fn multi_token_prediction(load: &Load, (logits, hidden_states): (f32, f32)) {
    for name in ["glm52-tiny", "glm53-tiny"] {
        let golden = Golden::open(name);
        let tokens = &golden.tokens("input_ids")[1..];
        let hidden = all_but_last(&golden, "fp32.hidden.final");
        let count = tokens.len();
        let model = load.hugging_face(name);
        let mut session = session(&model, "mtp");
        let sequence = session.begin();
        let work = Work {
            sequence,
            tokens,
            rows: Rows::All,
        };
        let names = [
            ("mtp.proj", "proj"),
            ("mtp.layer_out", "hidden"),
            ("mtp.normed", "hidden_normed"),
        ];
        let wanted = [
            "mtp.proj",
            "mtp.layer_out",
            "mtp.normed",
            "mtp.selection",
            "mtp.logits",
        ];
        let inputs = [("mtp.hidden", &hidden)];
        let mut outputs = session.step(&[work], &inputs, &wanted).unwrap();
        for (ours, theirs) in names {
            let found = outputs.take(ours).unwrap().to_f32();
            let worst = worst_relative(&golden.f32s(&format!("fp32.mtp.{theirs}")), &found, count);
            assert!(worst <= hidden_states, "{name} {ours}: {worst:e}");
        }
        let scores = golden.f32s("fp32.mtp.index_scores");
        let expected = golden.tensor("fp32.mtp.index_topk").to_i32();
        let found = outputs.take("mtp.selection").unwrap().to_i32();
        assert_eq!(
            selection_faults(0, count, &expected, &found, &scores),
            [] as [String; 0],
            "{name}"
        );
        let found = outputs.take("mtp.logits").unwrap().to_f32();
        let worst = worst_absolute(&golden.f32s("fp32.mtp.logits"), &found);
        assert!(worst <= logits, "{name}: {worst:e}");
    }
}

/// What Megatron and vLLM compute: the same model by another number, which is seen.
#[test]
fn the_eps_of_latent_norms_is_a_setting() {
    let tokens = Golden::open("glm52-tiny").tokens("input_ids");
    let logits =
        |load: &Load| run(&load.hugging_face("glm52-tiny"), &tokens, &["logits"]).remove(0);
    let with = |eps: f64| {
        let settings = serde_json::json!({"latent_eps": eps});
        Load {
            settings: settings.as_object().unwrap().clone(),
            ..Load::default()
        }
    };
    let by_default = logits(&Load::default());
    assert_eq!(logits(&with(1e-6)), by_default);
    let apart = worst_absolute(&by_default.to_f32(), &logits(&with(1e-5)).to_f32());
    // Latents have a mean square near one, of which eps is a millionth part: more than rounding, far less than a layer.
    assert!(apart > 1e-6 && apart < 1e-2, "{apart:e}");
}
