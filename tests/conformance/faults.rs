//! Faults that a device might have, each of which the check of its operation must find; and that a device without one passes.

mod edits;

use std::sync::Arc;

use rialto_backend::Backend;
use rialto_program::Op;
use rialto_program::op::{BinaryFunction, LinearOut, ReduceFunction, Scoring, UnaryFunction};
use rialto_tensor::Dtype;

use crate::checks::{self, Check};
use crate::devices::devices;
use crate::input::{Input, decode, encode};
use crate::numbers;
use crate::spoiled::{Fault, Spoiled};
use edits::*;

fn check_of(op: &str) -> Check {
    let found = checks::ALL.iter().find(|(name, _)| *name == op);
    found.unwrap_or_else(|| panic!("no check of {op}")).1
}

fn run(inner: &Arc<dyn Backend>, op: &str, fault: Fault) -> Result<(), String> {
    check_of(op)(&Spoiled::new(Arc::clone(inner), op, fault))
}

/// Also in a real device, which answers with other numbers of those that are right.
fn is_found(op: &str, fault: Fault) {
    for (name, inner) in &devices()[..2] {
        let verdict = run(inner, op, fault);
        assert!(verdict.is_err(), "{name}: a fault of {op} is not found");
    }
}

macro_rules! faults {
    ($($name:ident: $($op:literal),+ => $fault:expr;)+) => {
        $(#[test]
        fn $name() {
            $(is_found($op, $fault);)+
        })+
    };
}

/// An edit of the attributes of one operation.
macro_rules! with {
    ($variant:ident, $op:ident => $edit:expr) => {
        Fault::Attributes(|op| match op {
            Op::$variant(mut $op) => {
                $edit;
                $op.into()
            }
            other => other,
        })
    };
}

#[test]
fn a_device_without_a_fault_passes_every_check() {
    for (op, _) in checks::ALL {
        run(&devices()[0].1, op, Fault::None).unwrap_or_else(|reason| panic!("{reason}"));
    }
}

#[test]
fn an_output_that_is_not_written_is_found_whatever_the_operation() {
    for op in Op::NAMES {
        let signature = Op::signature_of(op).unwrap();
        for output in 0..signature.outputs.len() {
            let reason = run(&devices()[0].1, op, Fault::Leaves(output)).unwrap_err();
            let seen = reason.contains("was not written") || op.contains("quantize");
            assert!(seen, "{op}: {reason}");
        }
    }
}

#[test]
fn an_input_that_is_written_to_is_found_whatever_the_operation() {
    for op in Op::NAMES {
        for input in 0..Op::signature_of(op).unwrap().inputs.len() {
            is_found(op, Fault::Scribbles(input));
        }
    }
}

#[test]
fn a_recording_that_keeps_its_first_inputs_is_found_whatever_the_operation() {
    for op in Op::NAMES {
        is_found(op, Fault::Freezes);
    }
}

#[test]
fn bf16_that_is_truncated_is_found_wherever_it_is_made() {
    for op in [
        "rialto.rms_norm/1",
        "rialto.layer_norm/1",
        "rialto.linear/1",
        "rialto.rope/1",
        "rialto.mla_absorb/1",
        "rialto.mla_expand/1",
        "rialto.sparse_mla/1",
        "rialto.gqa/1",
        "rialto.experts/1",
        "rialto.swiglu/1",
        "rialto.unary/1",
        "rialto.binary/1",
        "rialto.scale/1",
        "rialto.softmax/1",
        "rialto.reduce/1",
        "rialto.embed/1",
        "rialto.cast/1",
    ] {
        is_found(op, Fault::Rounds(truncate));
    }
}

faults! {
    bf16_that_is_rounded_twice_is_found:
        "rialto.linear/1", "rialto.scale/1", "rialto.cast/1", "rialto.swiglu/1" => Fault::Rounds(twice);
    a_missing_rounding_in_between_is_found:
        "rialto.rms_norm/1", "rialto.experts/1" => Fault::Rounds(numbers::bf16);
    codes_that_are_not_rounded_to_bf16_are_found:
        "rialto.linear/1", "rialto.mla_absorb/1", "rialto.mla_expand/1" => Fault::Decodes;
    the_scale_of_another_row_of_blocks_is_found:
        "rialto.linear/1", "rialto.mla_absorb/1", "rialto.mla_expand/1"
        => Fault::ReadsScales(1, next_row_of_scales);
    scales_that_are_upside_down_are_found:
        "rialto.linear/1", "rialto.mla_absorb/1" => Fault::ReadsScales(1, scales_upside_down);
    the_scale_of_another_row_of_an_expert_is_found:
        "rialto.experts/1" => Fault::ReadsScales(5, next_row_of_scales);
    a_product_in_bf16_where_f32_is_asked_is_found:
        "rialto.linear/1" => Fault::Makes(0, |op, _, bytes| match op {
            Op::Linear(op) if op.out == LinearOut::F32 => each_f32(&bytes, numbers::bf16),
            _ => bytes,
        });
    a_row_that_depends_on_the_batch_is_found:
        "rialto.linear/1", "rialto.rms_norm/1", "rialto.softmax/1"
        => Fault::Makes(0, rows_depend_on_their_number);
    a_latent_that_is_not_normed_is_found: "rialto.rms_norm/1" => Fault::Makes(0, copies_its_input);
    a_norm_without_eps_is_found: "rialto.rms_norm/1" => with!(RmsNorm, op => op.eps = 0.0);
    a_norm_with_another_eps_is_found: "rialto.rms_norm/1" => with!(RmsNorm, op => op.eps *= 10.0);
    a_norm_without_weight_is_found:
        "rialto.rms_norm/1", "rialto.layer_norm/1" => Fault::Reads(1, |_, given, bytes| {
            encode(given[1].dtype(), &vec![1.0; bytes.len() / given[1].dtype().size_bytes() as usize])
        });
    a_layer_norm_without_eps_is_found: "rialto.layer_norm/1" => with!(LayerNorm, op => op.eps = 0.0);
    a_layer_norm_without_bias_is_found: "rialto.layer_norm/1" => Fault::Reads(2, zeros);
    swapped_halves_of_a_rotation_are_found: "rialto.rope/1" => Fault::Attributes(other_pairing);
    a_rotation_at_another_place_is_found: "rialto.rope/1" => with!(Rope, op => op.first += 1);
    a_rotation_with_another_base_is_found: "rialto.rope/1" => with!(Rope, op => op.theta = 1e6);
    a_position_that_is_off_by_one_is_found:
        "rialto.rope/1" => Fault::Reads(1, |_, _, bytes| each_int(&bytes, |at| at + 1));
    padding_that_is_rotated_is_found: "rialto.rope/1" => Fault::Reads(1, |_, _, bytes| each_int(&bytes, i32::abs));
    padding_that_is_written_is_found: "rialto.append/1" => Fault::Reads(2, minus_one_as_zero);
    a_page_that_is_not_looked_up_is_found:
        "rialto.append/1" => Fault::Reads(4, pages_in_order);
    a_page_that_is_read_without_the_table_is_found:
        "rialto.gqa/1", "rialto.indexer_scores/1" => Fault::Reads(5, pages_in_order);
    a_row_at_another_position_is_found: "rialto.append/1" => Fault::Reads(3, one_earlier);
    a_mask_that_is_off_by_one_is_found:
        "rialto.gqa/1", "rialto.indexer_scores/1" => Fault::Reads(4, one_later);
    a_token_that_does_not_see_itself_is_found:
        "rialto.gqa/1", "rialto.indexer_scores/1" => Fault::Reads(4, one_earlier);
    a_mask_of_sparse_attention_that_is_off_by_one_is_found:
        "rialto.sparse_mla/1" => Fault::Reads(5, one_later);
    a_token_that_does_not_see_itself_in_sparse_attention_is_found:
        "rialto.sparse_mla/1" => Fault::Reads(5, one_earlier);
    logits_without_their_scale_are_found: "rialto.gqa/1" => with!(Gqa, op => op.scale = 1.0);
    logits_with_the_scale_of_another_width_are_found:
        "rialto.sparse_mla/1" => with!(SparseMla, op => op.scale *= 0.97);
    heads_that_go_round_the_groups_are_found: "rialto.gqa/1" => Fault::Reads(0, heads_around);
    scores_without_their_scale_are_found:
        "rialto.indexer_scores/1" => with!(IndexerScores, op => op.scale = 1.0);
    scores_without_the_scale_of_heads_are_found:
        "rialto.indexer_scores/1" => with!(IndexerScores, op => op.head_scale = 1.0);
    scores_that_are_never_negative_are_found:
        "rialto.indexer_scores/1" => Fault::Reads(1, no_weight_below_zero);
    a_mask_that_is_a_number_is_found: "rialto.indexer_scores/1" => Fault::Makes(0, finite_mask);
    positions_in_the_order_of_scores_are_found: "rialto.topk/1" => Fault::Makes(0, by_score);
    ties_that_the_last_position_wins_are_found: "rialto.topk/1" => Fault::Makes(0, last_of_ties);
    a_missing_position_that_is_0_is_found:
        "rialto.topk/1" => Fault::Makes(0, |_, _, bytes| each_int(&bytes, |at| at.max(0)));
    a_first_score_that_is_not_seen_is_found: "rialto.topk/1" => Fault::Reads(0, |_, given, bytes| {
        let mut values = given[0].values();
        values.iter_mut().take(1).for_each(|score| *score = f64::NEG_INFINITY);
        match values.is_empty() {
            true => bytes,
            false => encode(Dtype::F32, &values),
        }
    });
    a_nan_that_is_selected_is_found: "rialto.topk/1" => Fault::Reads(0, |_, _, bytes| {
        each_f32(&bytes, |score| if score.is_nan() { f64::INFINITY } else { score })
    });
    an_index_of_minus_one_that_is_read_is_found: "rialto.sparse_mla/1" => Fault::Reads(2, minus_one_as_zero);
    a_duplicate_that_counts_once_is_found: "rialto.sparse_mla/1" => Fault::Reads(2, duplicates_once);
    a_later_index_that_is_clamped_is_found: "rialto.sparse_mla/1" => Fault::Reads(2, clamped_indices);
    a_leading_block_of_nothing_that_gives_nan_is_found:
        "rialto.sparse_mla/1" => Fault::Makes(0, leading_nothing_is_nan);
    a_rotated_part_that_is_left_out_is_found: "rialto.sparse_mla/1" => Fault::Reads(1, zeros);
    keys_for_values_of_a_head_are_found:
        "rialto.mla_absorb/1", "rialto.mla_expand/1" => Fault::Reads(1, |_, given, mut bytes| {
            // The rows are shifted by one.
            let row = bytes.len() / given[1].extent(0).max(1);
            bytes.rotate_left(row);
            bytes
        });
    a_router_without_its_bias_is_found: "rialto.router/1" => Fault::Forgets;
    weights_with_the_bias_are_found: "rialto.router/1" => Fault::Makes(1, bias_weighs);
    weights_that_are_not_normalized_are_found: "rialto.router/1" => with!(Router, op => op.normalize = false);
    weights_that_are_always_normalized_are_found: "rialto.router/1" => with!(Router, op => op.normalize = true);
    weights_without_their_factor_are_found: "rialto.router/1" => with!(Router, op => op.scale = 1.0);
    a_sum_without_epsilon_is_found: "rialto.router/1" => with!(Router, op => op.epsilon = 0.0);
    another_scoring_is_found: "rialto.router/1" => with!(Router, op => op.scoring = Scoring::Sigmoid);
    experts_of_groups_that_do_not_stay_are_found: "rialto.router/1" => with!(Router, op => op.top_groups = op.groups);
    experts_in_another_order_are_found: "rialto.router/1" => Fault::Makes(0, |op, _, bytes| match op {
        Op::Router(op) => rows_of(&bytes, op.top_k as usize, <[i32]>::reverse),
        _ => bytes,
    });
    experts_without_their_weights_are_found: "rialto.experts/1" => Fault::Reads(2, ones_f32);
    experts_with_the_weights_of_others_are_found: "rialto.experts/1" => Fault::Reads(1, reversed_pairs);
    the_next_expert_is_found: "rialto.experts/1" => Fault::Reads(1, next_expert);
    nobody_as_the_first_expert_is_found: "rialto.experts/1" => Fault::Reads(1, minus_one_as_zero);
    swapped_gate_and_up_of_experts_are_found: "rialto.experts/1" => Fault::Reads(3, |_, given, bytes| {
        match given[3].scales.is_none() {
            true => given[4].bytes.clone(),
            false => bytes,
        }
    });
    a_gate_in_place_of_what_it_gates_is_found: "rialto.swiglu/1" => Fault::Reads(0, swapped);
    another_function_is_found: "rialto.unary/1" => with!(Unary, op => op.function = match op.function {
        UnaryFunction::Silu => UnaryFunction::Relu,
        other => other,
    });
    a_difference_for_a_sum_is_found: "rialto.binary/1" => with!(Binary, op => op.function = match op.function {
        BinaryFunction::Subtract => BinaryFunction::Add,
        other => other,
    });
    a_factor_that_is_forgotten_is_found: "rialto.scale/1" => with!(Scale, op => op.factor = 1.0);
    shares_of_nothing_that_are_nan_are_found: "rialto.softmax/1" => Fault::Makes(0, |_, given, bytes| {
        let n = given[0].shape().last().copied().unwrap_or(1) as usize;
        let (x, mut made) = (given[0].values(), decode(given[0].dtype(), &bytes));
        for (row, made) in x.chunks_exact(n.max(1)).zip(made.chunks_exact_mut(n.max(1))) {
            if row.iter().all(|&x| x == f64::NEG_INFINITY) {
                made.fill(f64::NAN);
            }
        }
        encode(given[0].dtype(), &made)
    });
    a_sum_for_a_mean_is_found: "rialto.reduce/1" => with!(Reduce, op => op.function = match op.function {
        ReduceFunction::Mean => ReduceFunction::Sum,
        other => other,
    });
    a_maximum_that_passes_over_nan_is_found: "rialto.reduce/1" => Fault::Reads(0, |op, given, bytes| match op {
        Op::Reduce(op) if op.function == ReduceFunction::Max => {
            let values = given[0].values().into_iter();
            let values: Vec<f64> = values.map(|x| if x.is_nan() { f64::NEG_INFINITY } else { x }).collect();
            encode(given[0].dtype(), &values)
        }
        _ => bytes,
    });
    the_first_row_for_nobody_is_found: "rialto.gather/1" => Fault::Reads(1, minus_one_as_zero);
    the_first_row_for_no_token_is_found: "rialto.embed/1" => Fault::Reads(0, minus_one_as_zero);
    a_copy_that_loses_the_sign_of_zero_is_found:
        "rialto.gather/1", "rialto.slice/1", "rialto.reshape/1", "rialto.concat/1"
        => Fault::Makes(0, negative_zero_is_lost);
    a_part_that_begins_one_later_is_found: "rialto.slice/1" => with!(Slice, op => op.start += 1);
    rows_in_one_another_are_found: "rialto.concat/1" => Fault::Makes(0, |_, given, _| {
        [given[0].bytes.clone(), given[1].bytes.clone()].concat()
    });
    a_scale_of_0_for_zeros_is_found: "rialto.quantize_block/1" => Fault::Makes(1, no_scale_of_zeros);
    infinity_that_becomes_nan_is_found: "rialto.quantize_block/1" => Fault::Makes(0, infinity_as_nan);
    codes_that_are_truncated_are_found: "rialto.quantize_block/1" => Fault::Makes(0, codes_towards_zero);
    powers_of_two_that_are_forgotten_are_found:
        "rialto.quantize_block/1" => with!(QuantizeBlock, op => op.power_of_two = false);
    powers_of_two_that_are_rounded_down_are_found: "rialto.quantize_block/1" => Fault::Makes(1, |op, _, bytes| match op {
        Op::QuantizeBlock(op) if op.power_of_two => each_f32(&bytes, |scale| if scale == 2.0 { 1.0 } else { scale }),
        _ => bytes,
    });
    a_scale_of_another_block_is_found: "rialto.dequantize_block/1" => Fault::Reads(1, |_, given, mut bytes| {
        let across = given[1].extent(1) * 4;
        bytes.rotate_left(across.min(given[1].bytes.len()));
        bytes
    });
    values_of_codes_that_are_not_rounded_are_found: "rialto.dequantize_block/1" => Fault::Makes(0, |op, given, bytes| {
        let (Op::DequantizeBlock(op), Dtype::F32) = (op, dtype_of(given, &bytes)) else {
            return bytes;
        };
        let scales = crate::input::Scales {
            values: given[1].values(),
            shape: given[1].shape().to_vec(),
            block: op.block,
        };
        let codes = Input { scales: Some(scales), ..given[0].clone() };
        encode(Dtype::F32, &codes.unrounded())
    });
    the_last_of_equal_logits_is_found: "rialto.argmax/1" => Fault::Makes(0, last_of_equal_logits);
    a_temperature_that_is_forgotten_is_found: "rialto.sample/1" => Fault::Reads(1, ones_f32);
    a_top_k_that_is_forgotten_is_found: "rialto.sample/1" => Fault::Reads(2, zeros);
    a_top_p_that_is_forgotten_is_found: "rialto.sample/1" => Fault::Reads(3, ones_f32);
    a_min_p_that_is_forgotten_is_found: "rialto.sample/1" => Fault::Reads(4, zeros);
    a_draw_that_is_forgotten_is_found: "rialto.sample/1" => Fault::Reads(5, zeros);
}
