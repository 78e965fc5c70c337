//! What a decode step asks of an adapter: one submit, no copy to the host but of the token, and no more dispatches and bytes than the table
//! `counts.tsv` has. `RIALTO_COUNTS=write` writes it.

use std::path::Path;
use std::sync::Arc;

use rialto_backend::{Backend, Counts, Registry};
use rialto_runtime::{Event, GenerateOptions, generate};
use rialto_tensor::Dtype;
use rialto_tests::adapters::core;
use rialto_tests::counting::{Counting, differences};
use rialto_tests::device::device_or_skip;

use crate::records::Golden;
use crate::world::{Load, MODELS, session};

const STEPS: u64 = 4;

#[test]
fn a_decode_step_is_one_submit_and_asks_no_more_than_it_did() {
    let registry = Registry::new().with(core());
    let Some(device) = device_or_skip(&registry, "wgpu") else {
        return;
    };
    let counting = Arc::new(Counting::new(device));
    let mut lines = Vec::new();
    for (name, _) in MODELS {
        for activation in [Dtype::F32, Dtype::Bf16] {
            let load = Load {
                activation,
                device: Some(Arc::clone(&counting) as Arc<dyn Backend>),
                ..Load::default()
            };
            let model = load.hugging_face(name);
            // Longer than what is selected.
            let prompt = Golden::open(name).tokens("input_ids")[..20].to_vec();
            let mut asked = Vec::new();
            let mut session = session(&model, "forward");
            let options = GenerateOptions {
                max_new_tokens: STEPS + 2,
                ..GenerateOptions::default()
            };
            let _ = counting.take();
            let generated = generate(&mut session, &[prompt], &options, &mut |event| {
                if matches!(event, Event::Token { .. }) {
                    asked.push(counting.take());
                }
                true
            });
            let generated = generated.unwrap();
            assert!(generated[0].tokens.len() as u64 > STEPS, "{name}");
            // The last ones: what comes before is the prompt.
            let steps = &asked[asked.len() - STEPS as usize..];
            for step in steps {
                assert_eq!(step, &steps[0], "{name}: steps are alike");
                let Counts { submits, .. } = step.counts;
                assert_eq!((step.replays, submits), (1, 1), "{name}");
                assert_eq!(step.read_bytes, 4, "{name}: a token, which is 4 bytes");
            }
            let what = format!("{name} {}", activation.safetensors_name());
            lines.push((what, 1, steps[0].counts));
        }
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("inference/counts.tsv");
    assert_eq!(differences(&file, &lines), [] as [String; 0]);
}
