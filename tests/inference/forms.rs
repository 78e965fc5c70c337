//! One model from checkpoints of both formats: the same bits.

use rialto_tensor::Dtype;

use crate::records::Golden;
use crate::world::{Load, MODELS, run};

/// Megatron checkpoints of each model.
const CHECKPOINTS: [(&str, &str); 9] = [
    ("glm52-tiny", "glm52-tiny-mtp-tp1"),
    ("glm52-tiny", "glm52-tiny-mtp-tp2pp2ep2"),
    ("glm52-tiny", "glm52-tiny-mtp-tp2ep2etp2"),
    ("glm5-tiny", "glm5-tiny-pp3ep2"),
    ("glm53-tiny", "glm53-tiny-mtp-ep5"),
    ("qwen3-tiny-tied", "qwen3-tied-tp1"),
    ("qwen3-tiny-tied", "qwen3-tied-tp2pp3"),
    ("qwen3-tiny-untied", "qwen3-untied-tp2"),
    ("qwen3-tiny-untied", "qwen3-untied-perlayer-tp1"),
];

#[test]
fn logits_of_both_formats_have_the_same_bits() {
    for activation in [Dtype::F32, Dtype::Bf16] {
        let load = Load {
            activation,
            ..Load::default()
        };
        for (name, checkpoint) in CHECKPOINTS {
            let tokens = Golden::open(name).tokens("input_ids");
            let theirs = run(
                &load.megatron(name, checkpoint),
                &tokens,
                &["logits", "hidden.final"],
            );
            let ours = run(
                &load.hugging_face(name),
                &tokens,
                &["logits", "hidden.final"],
            );
            assert!(ours == theirs, "{name} as {checkpoint} in {activation}");
        }
    }
}

/// FP8 weights that stay codes are the same model as those that were decoded: from either format, in either dtype.
#[test]
fn weights_kept_in_blocks_give_the_bits_of_decoded_ones_and_take_less_memory() {
    let name = "glm53-tiny";
    let tokens = Golden::open(name).tokens("input_ids");
    for activation in [Dtype::F32, Dtype::Bf16] {
        let kept = Load {
            activation,
            ..Load::default()
        };
        let decoded = Load {
            decodes_blocks: true,
            ..kept.clone()
        };
        let (kept, decoded) = (kept.hugging_face(name), decoded.hugging_face(name));
        assert!(kept.param_bytes() < decoded.param_bytes() * 2 / 3);
        let [a, b] = [&kept, &decoded].map(|model| run(model, &tokens, &["logits"]).remove(0));
        assert!(a == b, "{activation}");
    }
}

#[test]
fn every_golden_model_has_a_checkpoint_of_the_other_format() {
    for (name, _) in MODELS {
        assert!(
            CHECKPOINTS.iter().any(|(model, _)| *model == name),
            "{name}"
        );
    }
}
