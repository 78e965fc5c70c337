//! Field cases of weights in FP8 and of dtypes, from end to end.

use std::collections::BTreeMap;
use std::sync::Arc;

use rialto_bridge::MtpPolicy;
use rialto_checkpoint::store::Store;
use rialto_engine::{DtypeChoice, ExportOptions, ImportPlan, Options};
use rialto_tensor::Dtype;

use crate::field_cases::{digests, golden, imported_digests, refusal, tiny};
use crate::shards::sharded;
use crate::world::{Values, both_ways, export, families, hugging_face, import, on_disk, options};
use crate::written;

fn encoded() -> Values {
    hugging_face(on_disk("glm53-tiny").as_ref())
}

#[test]
fn fc_26_fc_27_any_encoded_weight_without_its_scale_is_named_with_it() {
    let whole = encoded();
    let weights: Vec<&String> = whole
        .iter()
        .filter(|(_, (dtype, ..))| *dtype == Dtype::F8E4m3)
        .map(|(name, _)| name)
        .collect();
    assert!(weights.iter().any(|name| name.contains(".indexer.")));
    let families = families();
    for (turn, name) in weights.iter().enumerate() {
        let mut values = whole.clone();
        let scale = format!("{name}_scale_inv");
        values.remove(&scale).unwrap();
        let findings = refusal(families[turn % 2].1.as_ref(), "glm53-tiny", &values);
        let expected = format!(
            "{name} is stored as F8_E4M3 in model.safetensors and needs {scale}, which is missing"
        );
        assert_eq!(findings, [expected]);
    }
}

#[test]
fn fc_28_a_grid_of_another_shape_is_refused_with_both_from_end_to_end() {
    let name = "model.layers.0.mlp.gate_proj.weight";
    let whole = encoded();
    assert_eq!(whole[name].1, [136, 136]);
    both_ways(|family| {
        for grid in [[1, 2], [2, 1], [1, 1], [2, 3], [136, 2]] {
            let mut values = whole.clone();
            let scale = values.get_mut(&format!("{name}_scale_inv")).unwrap();
            let elements = (grid[0] * grid[1]) as usize;
            (scale.1, scale.2) = (grid.to_vec(), vec![0; 4 * elements]);
            let findings = refusal(family, "glm53-tiny", &values);
            assert_eq!(findings.len(), 1, "{findings:?}");
            let line = format!(
                "{name}_scale_inv is F32 {grid:?} in model.safetensors, expected F32 [2, 2]"
            );
            assert!(findings[0].starts_with(&line), "{findings:?}");
        }
    });
}

#[test]
fn fc_29_scales_under_another_name_are_taken_if_their_shape_proves_them_and_nothing_else_is() {
    let whole = encoded();
    let golden = golden("glm53-tiny-mtp-ep5");
    let expected = digests(golden);
    // Every scale renamed.
    let renamed: Values = whole
        .clone()
        .into_iter()
        .map(|(name, value)| (name.replace("_scale_inv", "_scale"), value))
        .collect();
    let store: Arc<dyn Store> = Arc::new(written::hugging_face("glm53-tiny", &renamed));
    let scales = whole
        .keys()
        .filter(|name| name.ends_with("_scale_inv"))
        .count();
    let weight = "model.layers.2.self_attn.o_proj.weight";
    let published = format!("{weight}_scale_inv");
    both_ways(|family| {
        let plan = ImportPlan::new(family, Arc::clone(&store), &golden.options()).unwrap();
        let notices = plan.summary().notices.join("\n");
        let line = format!("which their shapes prove: {scales}, the first");
        assert!(
            notices.contains(&line) && notices.contains(".weight_scale"),
            "{notices}"
        );
        assert_eq!(
            imported_digests(family, Arc::clone(&store), &golden.options()),
            expected
        );
        // Instead of the published name: an alias of another shape or dtype, another name.
        let scalar = (Dtype::F32, vec![1], vec![0; 4]);
        let flat = (Dtype::F32, vec![4], whole[&published].2.clone());
        let narrow = (Dtype::Bf16, vec![2, 2], vec![0; 8]);
        for (suffix, value) in [
            ("_scale", scalar.clone()),
            ("_scale", flat),
            ("_scale", narrow),
            ("_scales", whole[&published].clone()),
            (".scale", whole[&published].clone()),
        ] {
            let mut values = whole.clone();
            values.remove(&published).unwrap();
            values.insert(format!("{weight}{suffix}"), value);
            let text = refusal(family, "glm53-tiny", &values).join("\n");
            assert!(
                text.contains(&format!("needs {published}, which is missing")),
                "{text}"
            );
            assert!(text.contains(&format!("{weight}{suffix} (")), "{text}");
        }
        // Beside it: two answers, or a scale of something that is not read.
        let input = weight.replace(".weight", ".input_scale");
        for (name, value) in [
            (format!("{weight}_scale"), whole[&published].clone()),
            (input, scalar.clone()),
            ("model.norm.weight_scale_inv".to_owned(), scalar),
        ] {
            let mut values = whole.clone();
            values.insert(name.clone(), value);
            let findings = refusal(family, "glm53-tiny", &values);
            assert!(
                findings.len() == 1 && findings[0].starts_with(&name),
                "{findings:?}"
            );
        }
    });
}

#[test]
fn fc_30_a_weight_and_its_scale_may_lie_in_different_files() {
    let (scales, weights): (Values, Values) = encoded()
        .into_iter()
        .partition(|(name, _)| name.ends_with("_scale_inv"));
    let golden = golden("glm53-tiny-mtp-ep5");
    let expected = digests(golden);
    // The scales before the weights and after them.
    both_ways(|family| {
        for (file, other) in [
            ("a.safetensors", "b.safetensors"),
            ("z.safetensors", "b.safetensors"),
        ] {
            let shards = BTreeMap::from([(file, scales.clone()), (other, weights.clone())]);
            let store = Arc::new(sharded("glm53-tiny", &shards));
            assert_eq!(imported_digests(family, store, &golden.options()), expected);
        }
    });
}

/// Values that BF16 does not hold, so that any narrowing on the way shows.
#[test]
fn fc_31_the_correction_bias_stays_f32_bit_for_bit_whatever_dtype_is_asked_for() {
    let mut source = tiny();
    let mut biases = 0u32;
    for (name, (dtype, _, bytes)) in &mut source {
        if name.ends_with("e_score_correction_bias") {
            assert_eq!(*dtype, Dtype::F32);
            for element in bytes.chunks_mut(4) {
                biases += 1;
                element.copy_from_slice(&(0.1f32 + biases as f32 * 1.234_567e-5).to_le_bytes());
            }
        }
    }
    assert_eq!(biases, 6 * 8);
    let store: Arc<dyn Store> = Arc::new(written::hugging_face("glm52-tiny", &source));
    both_ways(|family| {
        for (dtype, back) in [
            (DtypeChoice::Bf16, DtypeChoice::Bf16),
            (DtypeChoice::Keep, DtypeChoice::Bf16),
            (DtypeChoice::Bf16, DtypeChoice::Keep),
        ] {
            let asked = Options {
                dtype,
                ..options(MtpPolicy::Keep)
            };
            let run = import(family, Arc::clone(&store), &asked).unwrap();
            let asked = ExportOptions {
                dtype: back,
                ..ExportOptions::default()
            };
            let exported = export(family, Arc::new(run), None, &asked).unwrap();
            assert_eq!(hugging_face(&exported), source);
        }
        // A bias that is not F32 is no bias of this model.
        let mut narrow = source.clone();
        let name = "model.layers.4.mlp.gate.e_score_correction_bias";
        *narrow.get_mut(name).unwrap() = (Dtype::Bf16, vec![8], vec![0; 16]);
        let findings = refusal(family, "glm52-tiny", &narrow);
        assert!(
            findings[0].starts_with(&format!("{name} has dtype BF16")),
            "{findings:?}"
        );
    });
}
