//! Megatron's past spellings: a checkpoint of an older Megatron is the same model under other keys.
//!
//! No such checkpoint is at hand, so they are made from those of the real Megatron-Core by renaming, splitting nothing but
//! what the past stored apart. The names are those that its modules and its checkpoints had; they are written down here a
//! second time and share nothing with the family's.

use std::sync::Arc;

use rialto_bridge::{Bridge, MtpPolicy};
use rialto_checkpoint::store::{LocalStore, MemoryStore, Store};
use rialto_engine::{Error, ExportOptions, ExportPlan, MegatronSource};
use rialto_tensor::Dtype;

use crate::export::expected;
use crate::world::{
    GOLDENS, Values, both_ways, delete, double, export, families, fixture, hugging_face, import,
    iteration, megatron, on_disk, options, rename, safetensors,
};
use crate::written::{self, Cut};

/// Which of the past's habits a checkpoint has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Past {
    /// A layer holds attention and MLP; below the prediction layer it is called this.
    gpt: Option<&'static str>,
    /// Every expert has keys of its own, under `local_experts`.
    local_experts: bool,
    /// Gate and up are stored apart, and every expert has keys of its own.
    halves: bool,
    /// The norm before a dense MLP stands alone.
    own_norm: bool,
    /// The norms of the latents lie in the projections after them.
    fused_norms: bool,
}

const TODAY: Past = Past {
    gpt: None,
    local_experts: false,
    halves: false,
    own_norm: false,
    fused_norms: false,
};

const GPT: Past = Past {
    gpt: Some("transformer_layer"),
    ..TODAY
};

/// Each habit alone, and what was seen together.
pub(crate) const PASTS: [Past; 10] = [
    GPT,
    Past {
        gpt: Some("mtp_model_layer"),
        ..TODAY
    },
    Past {
        local_experts: true,
        ..TODAY
    },
    Past {
        halves: true,
        ..TODAY
    },
    Past {
        own_norm: true,
        ..TODAY
    },
    Past {
        fused_norms: true,
        ..TODAY
    },
    Past {
        local_experts: true,
        fused_norms: true,
        ..GPT
    },
    Past {
        halves: true,
        own_norm: true,
        ..GPT
    },
    Past {
        gpt: Some("mtp_model_layer"),
        local_experts: true,
        halves: false,
        own_norm: true,
        fused_norms: true,
    },
    Past {
        halves: true,
        own_norm: true,
        fused_norms: true,
        ..TODAY
    },
];

impl Past {
    /// The key that today's key had.
    fn key(self, today: &str) -> String {
        let mut key = today.to_owned();
        if let Some(inner) = self.gpt {
            let components: Vec<&str> = today.split('.').collect();
            key = match components.as_slice() {
                ["decoder", "final_norm", "weight"] => "decoder.final_layernorm.weight".to_owned(),
                ["decoder", "layers", layer, rest @ ..] => {
                    let layer: u64 = layer.parse().unwrap();
                    format!("decoder.layers.{}.{}", layer / 2, rest.join("."))
                }
                [
                    "mtp",
                    "layers",
                    depth,
                    "mtp_model_layer",
                    "layers",
                    _,
                    rest @ ..,
                ] => {
                    format!("mtp.layers.{depth}.{inner}.{}", rest.join("."))
                }
                _ => key,
            };
        }
        if self.own_norm {
            key = key.replace(
                "mlp.linear_fc1.layer_norm_weight",
                "pre_mlp_layernorm.weight",
            );
        }
        if self.fused_norms {
            for norm in ["q", "kv"] {
                let (alone, fused) = (
                    format!("self_attention.{norm}_layernorm.weight"),
                    format!("self_attention.linear_{norm}_up_proj.layer_norm_weight"),
                );
                key = key.replace(&alone, &fused);
            }
        }
        key
    }

    /// What today's tensors were stored as.
    pub(crate) fn of(self, today: &Values) -> Values {
        let mut values = Values::new();
        for (name, (dtype, shape, bytes)) in today {
            let key = self.key(name);
            let is_gated = key.ends_with("linear_fc1.weight");
            let mut add = |key: String, shape: &[u64], bytes: &[u8]| {
                let value = (*dtype, shape.to_vec(), bytes.to_vec());
                assert!(values.insert(key.clone(), value).is_none(), "{key} twice");
            };
            let mut add_matrix = |key: String, shape: &[u64], bytes: &[u8]| {
                if self.halves && is_gated {
                    let half = [shape[0] / 2, shape[1]];
                    let (gate, up) = bytes.split_at(bytes.len() / 2);
                    add(format!("{key}_w"), &half, gate);
                    add(format!("{key}_v"), &half, up);
                } else {
                    add(key, shape, bytes);
                }
            };
            match key.split_once(".mlp.experts.experts.") {
                Some((layer, rest)) if self.local_experts || self.halves => {
                    let word = if self.local_experts {
                        "local_experts"
                    } else {
                        "experts"
                    };
                    let each = bytes.len() / shape[0] as usize;
                    for (expert, bytes) in bytes.chunks(each).enumerate() {
                        let key = format!("{layer}.mlp.experts.{word}.{expert}.{rest}");
                        add_matrix(key, &shape[1..], bytes);
                    }
                }
                _ => add_matrix(key, shape, bytes),
            }
        }
        values
    }

    /// The spellings that the notices must name, as the user reads them.
    fn notices(self) -> Vec<&'static str> {
        let named = [
            (self.gpt.is_some(), "gpt"),
            (self.local_experts, "local-experts"),
            (self.halves, "halves"),
            (self.halves, "expert-halves"),
            (self.own_norm, "own-norm"),
            (self.fused_norms, "fused-norm"),
        ];
        let named = named.into_iter().filter(|(is_so, _)| *is_so);
        named.map(|(_, name)| name).collect()
    }
}

/// The model weights of checkpoints that the real Megatron-Core wrote: where from, with multi-token prediction, the tensors.
pub(crate) fn models() -> Vec<(&'static str, bool, Values)> {
    let wanted = [
        "glm52-tiny-mtp-tp1",
        "glm52-tiny-tp1",
        "glm5-tiny-pp3ep2",
        "glm53-tiny-mtp-ep5",
    ];
    let goldens = GOLDENS
        .iter()
        .filter(|golden| wanted.contains(&golden.name));
    let mut models: Vec<_> = goldens
        .map(|golden| {
            let has_mtp = golden.mtp == MtpPolicy::Keep && golden.source != "glm5-tiny";
            (golden.source, has_mtp, megatron(&iteration(golden.run())))
        })
        .collect();
    let mini = LocalStore::open(rialto_tests::megatron("mini-train-adam").join("ckpt")).unwrap();
    let mut mini = megatron(&iteration(Arc::new(mini)));
    mini.retain(|name, _| !name.starts_with("optimizer."));
    assert_eq!(mini.len(), 39);
    models.push(("mini-hf", false, mini));
    models
}

fn plan(family: &dyn Bridge, source: &str, run: MemoryStore) -> Result<ExportPlan, Error> {
    let run = MegatronSource::open(Arc::new(run), Some(on_disk(source)))?;
    ExportPlan::new(family, run, &ExportOptions::default())
}

#[test]
fn fc_13_every_past_spelling_exports_to_the_source_and_is_named() {
    let families = families();
    let mut turn = 0;
    for (source, has_mtp, today) in models() {
        let expected = expected(source, has_mtp);
        for past in PASTS {
            turn += 1;
            let (_, family) = &families[turn % 2];
            let cut = [Cut::Whole, Cut::Uneven][turn / 2 % 2];
            let run = written::megatron(&past.of(&today), cut);
            let named = plan(family.as_ref(), source, run.clone()).unwrap();
            let lines = named.summary().notices.iter();
            let lines = lines.filter_map(|line| line.strip_prefix("params in the spelling "));
            let lines: String = lines.collect::<Vec<_>>().join("+");
            for notice in past.notices() {
                let mut names = lines.split(['+', ':']);
                assert!(
                    names.any(|name| name == notice),
                    "{source} {past:?}: {lines}"
                );
            }
            let options = ExportOptions::default();
            let exported = export(
                family.as_ref(),
                Arc::new(run),
                Some(on_disk(source)),
                &options,
            );
            let exported = hugging_face(&exported.unwrap());
            assert_eq!(exported, expected, "{source} {past:?} {cut:?}");
        }
    }
}

#[test]
fn todays_spelling_is_not_remarked_upon() {
    both_ways(|family| {
        for (source, _, today) in models() {
            for cut in [Cut::Whole, Cut::Uneven] {
                let plan = plan(family, source, written::megatron(&today, cut)).unwrap();
                let mut notices = plan.summary().notices.iter();
                assert!(notices.all(|line| !line.contains("spelling")), "{source}");
            }
        }
    });
}

/// What the plan of a spoiled checkpoint says, which it must not make.
fn refusal(family: &dyn Bridge, values: &Values) -> Vec<String> {
    let error = plan(family, "glm52-tiny", written::megatron(values, Cut::Whole));
    let error = error.expect_err("a plan that must fail");
    assert_eq!(error.slug(), "weight-map/not-total", "{error}");
    error.findings()
}

/// Spoils every key of several pasts in turn, and looks for lines that begin so.
fn spoil_each(spoil: impl Fn(&mut Values, &str), says: impl Fn(&str) -> Vec<String>) {
    let families = families();
    let (_, _, today) = models().remove(0);
    for past in [PASTS[1], PASTS[6], PASTS[7], PASTS[9]] {
        let whole = past.of(&today);
        for (turn, name) in whole.keys().enumerate() {
            let mut values = whole.clone();
            spoil(&mut values, name);
            let findings = refusal(families[turn % 2].1.as_ref(), &values);
            let expected = says(name);
            assert_eq!(
                findings.len(),
                expected.len(),
                "{past:?} {name}: {findings:?}"
            );
            for expected in expected {
                let mut findings = findings.iter();
                let is_there = findings.any(|line| line.starts_with(&expected));
                assert!(is_there, "{past:?} {name}: {expected}");
            }
        }
    }
}

#[test]
fn fc_13_any_key_of_a_past_deleted_is_named_as_the_past_named_it() {
    spoil_each(delete, |name| vec![format!("{name} is missing")]);
}

#[test]
fn fc_13_any_key_of_a_past_renamed_is_named_by_both_names() {
    spoil_each(rename, |name| {
        vec![format!("{name} is missing"), format!("{name}_old (")]
    });
}

#[test]
fn fc_13_any_key_of_a_past_doubled_is_named() {
    spoil_each(double, |name| vec![format!("{name}.copy (")]);
}

/// Each has all of the model once; what makes it suspect is that no program wrote the two halves.
#[test]
fn fc_13_a_mixture_of_eras_is_refused() {
    let (_, _, today) = models().remove(0);
    let mixed = |past: Past, is_old: &dyn Fn(&str) -> bool| -> Values {
        let (old, new): (Values, Values) = today
            .clone()
            .into_iter()
            .partition(|(name, _)| is_old(name));
        let mut values = past.of(&old);
        for (name, value) in new {
            assert!(values.insert(name.clone(), value).is_none(), "{name}");
        }
        values
    };
    let layer = |name: &str| -> Option<u64> {
        name.strip_prefix("decoder.layers.")?
            .split('.')
            .next()?
            .parse()
            .ok()
    };
    both_ways(|family| {
        let attention = |name: &str| name.contains(".linear_proj.");
        let last = |name: &str| layer(name).is_some_and(|layer| layer < 2);
        let prediction = |name: &str| name.starts_with("mtp.");
        for is_old in [&attention as &dyn Fn(&str) -> bool, &last, &prediction] {
            for past in [GPT, PASTS[6], PASTS[7]] {
                refusal(family, &mixed(past, is_old));
            }
        }
        // One layer's experts apart, the others' stacked; one norm fused, the other alone.
        let one = |name: &str| name.starts_with("decoder.layers.9.");
        for past in [PASTS[2], PASTS[3]] {
            refusal(family, &mixed(past, &one));
        }
        let one = |name: &str| name.contains(".q_layernorm.");
        refusal(family, &mixed(PASTS[5], &one));
    });
}

/// A key of today beside the same in the past's spelling: two answers to one question.
#[test]
fn fc_13_a_param_in_two_spellings_is_refused() {
    let (_, _, today) = models().remove(0);
    let families = families();
    let mut refused = 0;
    for (turn, past) in PASTS.iter().enumerate() {
        for (name, value) in &today {
            let mut values = past.of(&today);
            if values.insert(name.clone(), value.clone()).is_none() {
                let findings = refusal(families[turn % 2].1.as_ref(), &values);
                assert_eq!(findings.len(), 1, "{past:?} {name}: {findings:?}");
                assert!(
                    findings[0].starts_with(&format!("{name} (")),
                    "{findings:?}"
                );
                refused += 1;
            }
        }
    }
    assert!(refused > 200, "{refused}");
}

/// The stack is one tensor with one grid: a block of it may hold rows of gate and up alike.
#[test]
fn fc_14_fused_experts_in_fp8_are_dequantized_by_the_grid_of_the_stack() {
    let source = hugging_face(on_disk("glm53-tiny").as_ref());
    let table = safetensors(&std::fs::read(fixture("fp8-cases/cases.safetensors")).unwrap());
    let codes = &table["table.codes"].2;
    let mut value_of = [0f32; 256];
    for (&code, value) in codes.iter().zip(table["table.f32"].2.chunks(4)) {
        value_of[usize::from(code)] = f32::from_le_bytes(value.try_into().unwrap());
    }
    // Rounded to BF16, ties to even, as PyTorch does; none of these is a NaN.
    let bf16 = |value: f32| {
        let bits = value.to_bits();
        let rounded = bits + 0x7fff + (bits >> 16 & 1);
        ((rounded >> 16) as u16).to_le_bytes()
    };
    let mut values = source.clone();
    values.retain(|name, _| !name.contains(".mlp.experts."));
    let mut params = Values::new();
    for (layer, param) in [
        (1, "decoder.layers.3"),
        (2, "decoder.layers.5"),
        (3, "decoder.layers.7"),
        (4, "mtp.layers.0.mtp_model_layer.layers.1"),
    ] {
        let name = |expert: u64, matrix: &str| {
            format!("model.layers.{layer}.mlp.experts.{expert}.{matrix}.weight")
        };
        let [mut stack, mut grid, mut down, mut down_grid] = [const { Vec::new() }; 4];
        let (mut expected_in, mut expected_out) = (Vec::new(), Vec::new());
        for expert in 0..5 {
            for matrix in ["gate_proj", "up_proj"] {
                stack.extend_from_slice(&source[&name(expert, matrix)].2);
            }
            // 48 rows are in one block, 136 columns in two: 1 x 2 scales an expert, each another.
            let scales = [0, 1].map(|block| 0.001 + expert as f32 * 0.01 + block as f32 * 0.37);
            grid.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
            for row in stack[expert as usize * 48 * 136..].chunks(136) {
                for (column, &code) in row.iter().enumerate() {
                    let scale = scales[column / 128];
                    expected_in.extend(bf16(value_of[usize::from(code)] * scale));
                }
            }
            let (_, shape, codes) = &source[&name(expert, "down_proj")];
            assert_eq!(shape, &[136, 24]);
            down.extend_from_slice(codes);
            let scales = [0, 1].map(|block| 0.002 + expert as f32 * 0.03 + block as f32 * 0.41);
            down_grid.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
            for (row, codes) in codes.chunks(24).enumerate() {
                for &code in codes {
                    expected_out.extend(bf16(value_of[usize::from(code)] * scales[row / 128]));
                }
            }
        }
        let fused = |matrix: &str| format!("model.layers.{layer}.mlp.experts.{matrix}");
        let mut add = |name: String, dtype, shape: &[u64], bytes| {
            values.insert(name, (dtype, shape.to_vec(), bytes));
        };
        let (gate_up, down_proj) = (fused("gate_up_proj"), fused("down_proj"));
        add(format!("{gate_up}_scale_inv"), Dtype::F32, &[5, 1, 2], grid);
        add(gate_up, Dtype::F8E4m3, &[5, 48, 136], stack);
        add(
            format!("{down_proj}_scale_inv"),
            Dtype::F32,
            &[5, 2, 1],
            down_grid,
        );
        add(down_proj, Dtype::F8E4m3, &[5, 136, 24], down);
        for (matrix, shape, bytes) in [
            ("fc1", vec![5, 48, 136], expected_in),
            ("fc2", vec![5, 136, 24], expected_out),
        ] {
            let key = format!("{param}.mlp.experts.experts.linear_{matrix}.weight");
            params.insert(key, (Dtype::Bf16, shape, bytes));
        }
    }
    let store = Arc::new(written::hugging_face("glm53-tiny", &values));
    both_ways(|family| {
        for (etp, ep) in [(1, 1), (2, 5)] {
            let mut options = options(MtpPolicy::Keep);
            (options.mesh.etp, options.mesh.ep) = (etp, ep);
            let run = import(family, Arc::clone(&store) as Arc<dyn Store>, &options).unwrap();
            let mut found = megatron(&iteration(Arc::new(run)));
            found.retain(|name, _| name.contains(".experts.experts."));
            assert_eq!(found, params);
        }
    });
}
