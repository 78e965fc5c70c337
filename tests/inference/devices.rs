//! The same models on other devices than the processor: what transformers computed, in F32, and the same bits from one run to the next.

use std::sync::Arc;

use rialto_backend::{Backend, Registry};
use rialto_runtime::{GenerateOptions, Rows, Work, generate};
use rialto_tensor::Dtype;
use rialto_tests::adapters::adapters;
use rialto_tests::device::device_or_skip;
use rialto_wgpu::WgpuDriver;

use crate::bf16::each_layer;
use crate::goldens::{faults_within, multi_token_prediction, worst_absolute, worst_around_k};
use crate::offload::{SPARSE, expert_bytes, within};
use crate::records::Golden;
use crate::world::{Load, MODELS, run, session, step};

/// Five times what the processor is allowed: a device adds in other orders, and its exponentials, divisions and roots are off by some
/// units of the last place, where the processor's are exact.
const LOGITS_ATOL: f32 = 1e-3;
const HIDDEN_RELATIVE: f32 = 2.5e-4;

/// Prompts in pieces may be multiplied in tiles of other sizes.
const PIECES_ATOL: f32 = 1e-4;

/// Each way to load models on a device that this machine has.
fn each(drivers: &[(&str, WgpuDriver)], check: impl Fn(&str, &Load)) {
    for (name, driver) in drivers {
        let registry = Registry::new().with(driver.clone());
        let device: Option<Arc<dyn Backend>> = device_or_skip(&registry, "wgpu");
        if device.is_some() {
            check(
                name,
                &Load {
                    device,
                    ..Load::default()
                },
            );
        }
    }
}

#[test]
fn logits_hidden_states_selections_and_experts_are_those_of_transformers() {
    each(&adapters(), |device, load| {
        for (name, _) in MODELS {
            let model = load.hugging_face(name);
            let found = faults_within(name, &model, (LOGITS_ATOL, HIDDEN_RELATIVE));
            assert_eq!(found, [] as [String; 0], "{name} on {device}");
        }
    });
}

#[test]
fn fc_65_prompts_around_what_is_selected_have_the_logits_of_transformers() {
    each(&adapters()[..1], |device, load| {
        for (name, _) in MODELS {
            let worst = worst_around_k(name, &load.hugging_face(name));
            assert!(worst <= LOGITS_ATOL, "{name} on {device}: {worst:e}");
        }
    });
}

#[test]
fn multi_token_prediction_is_that_of_transformers_classes() {
    each(&adapters(), |_, load| {
        multi_token_prediction(load, (LOGITS_ATOL, HIDDEN_RELATIVE));
    });
}

#[test]
fn each_layer_in_bf16_is_that_of_transformers_within_what_roundings_explain() {
    each(&adapters(), |_, load| {
        each_layer(&Load {
            activation: Dtype::Bf16,
            ..load.clone()
        });
    });
}

#[test]
fn greedy_decoding_gives_the_tokens_of_transformers() {
    each(&adapters(), |device, load| {
        for (name, _) in MODELS {
            let golden = Golden::open(name);
            let prompt = golden.tokens("input_ids")[..20].to_vec();
            let expected = golden.tokens("fp32.decode.tokens");
            let options = GenerateOptions {
                max_new_tokens: expected.len() as u64,
                ..GenerateOptions::default()
            };
            let model = load.hugging_face(name);
            let mut session = session(&model, "forward");
            let generated = generate(&mut session, &[prompt], &options, &mut |_| true);
            assert_eq!(generated.unwrap()[0].tokens, expected, "{name} on {device}");
        }
    });
}

#[test]
fn two_runs_give_the_same_bits_and_pieces_of_a_prompt_nearly_so() {
    each(&adapters()[..1], |device, load| {
        for (name, _) in MODELS {
            let tokens = Golden::open(name).tokens("input_ids");
            let model = load.hugging_face(name);
            let whole = run(&model, &tokens, &["logits"]).remove(0);
            assert!(
                run(&model, &tokens, &["logits"]).remove(0) == whole,
                "{name} on {device}"
            );
            for length in [1, 7, 20] {
                let mut session = session(&model, "forward");
                let sequence = session.begin();
                let mut pieces = Vec::new();
                for tokens in tokens.chunks(length) {
                    let work = Work {
                        sequence,
                        tokens,
                        rows: Rows::All,
                    };
                    let mut outputs = session.step(&[work], &[], &["logits"]).unwrap();
                    pieces.extend(outputs.take("logits").unwrap().to_f32());
                }
                let worst = worst_absolute(&whole.to_f32(), &pieces);
                assert!(
                    worst <= PIECES_ATOL,
                    "{name} in pieces of {length} on {device}: {worst:e}"
                );
            }
        }
    });
}

/// FP8 weights stay packed on the device.
#[test]
fn weights_kept_in_blocks_are_the_decoded_ones() {
    each(&adapters(), |device, load| {
        let tokens = Golden::open("glm53-tiny").tokens("input_ids");
        let decoded = Load {
            decodes_blocks: true,
            ..load.clone()
        };
        let (kept, decoded) = (
            load.hugging_face("glm53-tiny"),
            decoded.hugging_face("glm53-tiny"),
        );
        assert!(kept.param_bytes() < decoded.param_bytes() * 2 / 3);
        let [a, b] =
            [&kept, &decoded].map(|model| run(model, &tokens, &["logits"]).remove(0).to_f32());
        let worst = worst_absolute(&a, &b);
        assert!(worst <= PIECES_ATOL, "{device}: {worst:e}");
    });
}

/// Experts in host memory are brought to the device as the processor's are: a row is multiplied alike, whatever rows are with it and
/// however many experts.
#[test]
fn experts_in_host_memory_give_the_logits_of_those_on_the_device() {
    each(&adapters()[..1], |_, load| {
        for (name, per_token) in SPARSE {
            let tokens = Golden::open(name).tokens("input_ids");
            let whole = load.hugging_face(name);
            let (bytes, count) = expert_bytes(name, &whole);
            let expected = run(&whole, &tokens, &["logits"]).remove(0).to_f32();
            for experts in [per_token, count / 2] {
                let model = within(load, experts * bytes).hugging_face(name);
                assert!(model.plan().cuts("forward").unwrap() > 0);
                let mut session = session(&model, "forward");
                let sequence = session.begin();
                let mut found = Vec::new();
                let (prompt, decoded) = tokens.split_at(tokens.len() - 8);
                for piece in std::iter::once(prompt).chain(decoded.chunks(1)) {
                    let logits = step(&mut session, sequence, piece, &["logits"]).remove(0);
                    found.extend(logits.to_f32());
                }
                assert!(found == expected, "{name}, {experts}");
            }
        }
    });
}
