//! Mistakes that are made in forward passes of this family, planted into its program: the goldens see each of them.

use std::collections::HashSet;
use std::sync::Arc;

use rialto_program::{Call, Program};
use serde_json::json;

use crate::goldens::{self, SELECTED, faults};
use crate::records::Golden;
use crate::world::{Load, run};

fn each(mut program: Program, op: &str, mut edit: impl FnMut(&mut Call)) -> Program {
    for phase in &mut program.phases {
        let calls = phase.calls.iter_mut().filter(|call| call.op == op);
        calls.for_each(&mut edit);
    }
    program
}

/// Without the params that nobody names any more.
fn tidy(mut program: Program) -> Program {
    let calls = program.phases.iter().flat_map(|phase| &phase.calls);
    let named: HashSet<String> = calls.flat_map(|call| call.inputs.clone()).collect();
    program.params.retain(|param| named.contains(&param.name));
    program
}

/// A plant, and what is told of it.
type Plant = (&'static str, fn(Program) -> Program);

/// Whose output a call makes.
fn makes(call: &Call, part: &str) -> bool {
    call.outputs.iter().any(|output| output.contains(part))
}

const PLANTS: [Plant; 9] = [
    ("half-split pairs in attention and indexer", |program| {
        each(program, "rialto.rope/1", |call| {
            call.with.insert("pairing".to_owned(), json!("half_split"));
        })
    }),
    (
        "the indexer's rotated part at the end of its heads",
        |program| {
            each(program, "rialto.rope/1", |call| {
                // Heads of the indexer are 32 wide, of which 16 are rotated.
                if call.inputs[0].contains("index") {
                    call.with.insert("first".to_owned(), json!(16));
                }
            })
        },
    ),
    ("an un-normalized query latent", |program| {
        let mut program = program;
        for phase in &mut program.phases {
            let is_norm = |call: &Call| {
                let weight = call.inputs.get(1);
                weight.is_some_and(|name| name.contains("layers.0.self_attn.q_a_layernorm"))
            };
            let Some(position) = phase.calls.iter().position(is_norm) else {
                continue;
            };
            let norm = phase.calls.remove(position);
            let inputs = phase.calls.iter_mut().flat_map(|call| &mut call.inputs);
            for input in inputs.filter(|input| **input == norm.outputs[0]) {
                input.clone_from(&norm.inputs[0]);
            }
        }
        program
    }),
    ("the scale of the absorbed head", |program| {
        each(program, "rialto.sparse_mla/1", |call| {
            call.with
                .insert("scale".to_owned(), json!((32.0f64 + 16.0).powf(-0.5)));
        })
    }),
    ("a router without its bias", |program| {
        each(program, "rialto.router/1", |call| {
            call.inputs.truncate(1);
        })
    }),
    ("weights of experts without their factor", |program| {
        each(program, "rialto.router/1", |call| {
            call.with.insert("scale".to_owned(), json!(1.0));
        })
    }),
    ("softmax for sigmoid", |program| {
        each(program, "rialto.router/1", |call| {
            call.with.insert("scoring".to_owned(), json!("softmax"));
        })
    }),
    ("one position fewer selected", |program| {
        each(program, "rialto.topk/1", |call| {
            call.with.insert("k".to_owned(), json!(15));
        })
    }),
    ("gate and up exchanged", |program| {
        each(program, "rialto.swiglu/1", |call| call.inputs.swap(0, 1))
    }),
];

#[test]
fn every_planted_mistake_is_seen_by_the_goldens() {
    for (what, edit) in PLANTS {
        let load = Load {
            edit: Arc::new(move |program| tidy(edit(program))),
            ..Load::default()
        };
        let model = load.hugging_face("glm52-tiny");
        assert!(!faults("glm52-tiny", &model).is_empty(), "{what}");
    }
}

/// Logits without a mistake and with one.
fn beside(edit: fn(Program) -> Program) -> [Vec<f32>; 2] {
    let load = Load {
        edit: Arc::new(edit),
        ..Load::default()
    };
    let tokens = Golden::open("glm52-tiny").tokens("input_ids");
    [Load::default(), load].map(|load| {
        let model = load.hugging_face("glm52-tiny");
        run(&model, &tokens, &["logits"]).remove(0).to_f32()
    })
}

/// A mistake of an indexer is seen only where it selects: with shorter prompts a test is blind.
fn is_seen_beyond_what_is_selected(edit: fn(Program) -> Program) {
    let [right, wrong] = beside(edit);
    let tokens = Golden::open("glm52-tiny").tokens("input_ids");
    let dense = SELECTED * right.len() / tokens.len();
    assert_eq!(right[..dense], wrong[..dense]);
    let beyond = goldens::worst_absolute(&right[dense..], &wrong[dense..]);
    assert!(beyond > 0.1, "{beyond}");
}

/// The mistake that hid for months in more than one program: pairs of the indexer alone.
#[test]
fn fc_66_wrong_pairs_in_the_indexer_are_seen_beyond_what_it_selects_and_not_before() {
    is_seen_beyond_what_is_selected(|program| {
        each(program, "rialto.rope/1", |call| {
            if makes(call, "index") {
                call.with.insert("pairing".to_owned(), json!("half_split"));
            }
        })
    });
}

/// The indexer's pairs do not come from attention's, nor attention's from the indexer's.
#[test]
fn fc_66_wrong_pairs_in_attention_alone_are_seen_at_once() {
    let [right, wrong] = beside(|program| {
        each(program, "rialto.rope/1", |call| {
            if !makes(call, "index") {
                call.with.insert("pairing".to_owned(), json!("half_split"));
            }
        })
    });
    let tokens = Golden::open("glm52-tiny").tokens("input_ids");
    let dense = SELECTED * right.len() / tokens.len();
    let before = goldens::worst_absolute(&right[..dense], &wrong[..dense]);
    assert!(before > 0.1, "{before}");
}

/// Attention still reads the normalized latent: only the indexer's query does not.
#[test]
fn fc_66_an_index_query_of_an_unnormalized_latent_is_seen_beyond_what_is_selected() {
    is_seen_beyond_what_is_selected(|mut program| {
        for phase in &mut program.phases {
            let norms: Vec<Call> = phase.calls.clone();
            for call in phase.calls.iter_mut().filter(|call| makes(call, "index_q")) {
                let norm = norms.iter().find(|norm| {
                    norm.op == "rialto.rms_norm/1" && norm.outputs[0] == call.inputs[0]
                });
                if let Some(norm) = norm {
                    call.inputs[0].clone_from(&norm.inputs[0]);
                }
            }
        }
        program
    });
}
