//! The small things that Megatron-Core expects beside the weights, in the form its own import of a model leaves them.

use rialto_tensor::{Dtype, Shape};

use super::object::{Object, object_item};

/// The object in which Megatron-Core since 0.17 keeps the common state if there is no `common.pt`.
pub const COMMON_STATE_OBJECT: &str = "common_state/shard_0_1";

/// The common state of a checkpoint that holds model weights only. `per_layer` says that layers which are alike have keys of
/// their own all the same: a loader takes its word for which keys to ask for.
#[must_use]
pub fn common_state(iteration: u64, per_layer: bool) -> Object {
    let flag = |name: &str, value| (name.to_owned(), Object::Bool(value));
    let per_layer = per_layer.then(|| flag("non_homogeneous_layers", true));
    let content = [
        flag("singleton_local_shards", false),
        flag("chained_optim_avoid_prefix", true),
    ];
    Object::Dict(vec![
        ("checkpoint_version".to_owned(), Object::Float(3.0)),
        ("iteration".to_owned(), Object::Int(clamped(iteration))),
        (
            "content_metadata".to_owned(),
            Object::Dict(content.into_iter().chain(per_layer).collect()),
        ),
    ])
}

/// The file `common.pt`, which every Megatron-Core version reads. A checkpoint must not hold [`COMMON_STATE_OBJECT`] as well:
/// strict loading with version 0.16 refuses both together.
#[must_use]
pub fn common_pt(iteration: u64, per_layer: bool) -> Vec<u8> {
    item(&common_state(iteration, per_layer))
}

/// Megatron-Bridge's account of training so far, for a model that has not been trained: tensors without axes.
#[must_use]
pub fn train_state(step: u64) -> Object {
    let counter = |value: u64| Object::scalar(Dtype::I64, &clamped(value).to_le_bytes());
    let no = || Object::scalar(Dtype::Bool, &[0]);
    let fields = [
        ("step", counter(step)),
        ("consumed_train_samples", counter(0)),
        ("skipped_train_samples", counter(0)),
        ("consumed_valid_samples", counter(0)),
        (
            "floating_point_operations_so_far",
            Object::scalar(Dtype::F32, &0f32.to_le_bytes()),
        ),
        ("do_train", no()),
        ("do_valid", no()),
        ("do_test", no()),
    ];
    Object::Dict(fields.map(|(name, value)| (name.to_owned(), value)).into())
}

/// The files `train_state.pt` and `latest_train_state.pt`.
#[must_use]
pub fn train_state_pt(step: u64) -> Vec<u8> {
    item(&train_state(step))
}

/// The extra state of a Transformer Engine module that computes without FP8: `[tensor([], dtype=uint8)]`.
#[must_use]
pub fn empty_extra_state() -> Object {
    Object::List(vec![Object::Tensor {
        dtype: Dtype::U8,
        shape: Shape::new([0]),
        bytes: Vec::new(),
    }])
}

/// The extra state of a module that keeps none, such as the output layer: `[None]`.
#[must_use]
pub fn no_extra_state() -> Object {
    Object::List(vec![Object::None])
}

fn item(object: &Object) -> Vec<u8> {
    object_item(object).expect("made of parts that have an encoding")
}

/// Counters are signed in Python's tensors; no run reaches the end of them.
fn clamped(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untrained_model_is_at_the_step_it_is_given() {
        let state = train_state(7);
        assert_eq!(
            state.get("step"),
            Some(&Object::scalar(Dtype::I64, &[7, 0, 0, 0, 0, 0, 0, 0]))
        );
        assert_eq!(
            common_state(7, false).get("iteration"),
            Some(&Object::Int(7))
        );
    }

    #[test]
    fn the_files_are_the_same_every_time() {
        assert_eq!(common_pt(3, true), common_pt(3, true));
        assert_ne!(common_pt(3, true), common_pt(3, false));
        assert_eq!(train_state_pt(3), train_state_pt(3));
    }
}
