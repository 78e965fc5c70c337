//! What a training run keeps beside the weights, told apart by name.

use std::collections::BTreeSet;
use std::fmt;

use super::metadata::Metadata;

/// What a tensor or object of training state is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// Moments, main copies of the weights, parameter groups.
    Optimizer,
    /// The states of the random number generators, an object for each group of ranks.
    Rng,
    /// Learning rate and weight decay over time.
    Scheduler,
    /// The machine that reruns suspicious iterations.
    Rerun,
}

impl Part {
    fn word(self) -> &'static str {
        match self {
            Part::Optimizer => "optimizer",
            Part::Rng => "rng",
            Part::Scheduler => "scheduler",
            Part::Rerun => "rerun",
        }
    }

    /// Several optimizers of one model have their numbers before their names: `chained_0.optimizer.…`.
    fn of_tensor(name: &str) -> Option<Part> {
        let numbered = name.strip_prefix("chained_").and_then(|rest| {
            let (number, rest) = rest.split_once('.')?;
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then_some(rest)
        });
        let is_optimizer = numbered.unwrap_or(name).starts_with("optimizer.");
        is_optimizer.then_some(Part::Optimizer)
    }

    fn of_object(name: &str) -> Option<Part> {
        let begins = |key| name.starts_with(key);
        match Part::of_tensor(name) {
            Some(part) => Some(part),
            None if begins("rng_state/") => Some(Part::Rng),
            None if begins("opt_param_scheduler") => Some(Part::Scheduler),
            None if begins("rerun_state_machine") => Some(Part::Rerun),
            None => None,
        }
    }
}

/// The tensors and objects of a checkpoint that only training needs.
///
/// Printed, it says what and how much: `114 optimizer tensors, 1 rng object`. Source: the keys that Megatron-Core's
/// optimizers and Megatron-LM's checkpointing give their sharded state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainingState {
    tensors: BTreeSet<String>,
    objects: BTreeSet<String>,
}

impl Metadata {
    /// What of the checkpoint is training state; everything else is the model's.
    #[must_use]
    pub fn training_state(&self) -> TrainingState {
        let tensors = self.tensors.keys();
        let objects = self.objects.keys();
        TrainingState {
            tensors: tensors
                .filter(|name| Part::of_tensor(name).is_some())
                .cloned()
                .collect(),
            objects: objects
                .filter(|name| Part::of_object(name).is_some())
                .cloned()
                .collect(),
        }
    }
}

impl TrainingState {
    /// Names of the tensors.
    #[must_use]
    pub fn tensors(&self) -> &BTreeSet<String> {
        &self.tensors
    }

    /// Names of the objects.
    #[must_use]
    pub fn objects(&self) -> &BTreeSet<String> {
        &self.objects
    }

    /// Whether a tensor or object of that name belongs to it.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains(name) || self.objects.contains(name)
    }

    /// Whether the checkpoint holds a model and nothing of its training.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty() && self.objects.is_empty()
    }
}

impl fmt::Display for TrainingState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |objects: &BTreeSet<String>, part| {
            objects
                .iter()
                .filter(|name| Part::of_object(name) == Some(part))
                .count()
        };
        let mut counts = vec![(self.tensors.len(), Part::Optimizer, "tensor")];
        for part in [Part::Optimizer, Part::Rng, Part::Scheduler, Part::Rerun] {
            counts.push((count(&self.objects, part), part, "object"));
        }
        counts.retain(|&(count, ..)| count > 0);
        if counts.is_empty() {
            return f.write_str("none");
        }
        for (position, (count, part, noun)) in counts.into_iter().enumerate() {
            let comma = if position == 0 { "" } else { ", " };
            let plural = if count == 1 { "" } else { "s" };
            write!(f, "{comma}{count} {} {noun}{plural}", part.word())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rialto_tensor::{Dtype, Shape};

    use super::*;
    use crate::torch_dist::{ObjectEntry, TensorEntry};

    fn metadata(tensors: &[&str], objects: &[&str]) -> Metadata {
        let tensor = TensorEntry {
            dtype: Dtype::F32,
            shape: Shape::new([0]),
            chunks: Vec::new(),
        };
        let object = ObjectEntry {
            file: "f".into(),
            offset: 0,
            len: 0,
        };
        let named = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        };
        Metadata {
            tensors: named(tensors)
                .into_iter()
                .map(|name| (name, tensor.clone()))
                .collect(),
            objects: named(objects)
                .into_iter()
                .map(|name| (name, object.clone()))
                .collect(),
            ..Metadata::default()
        }
    }

    #[test]
    fn training_state_is_told_from_weights_and_counted_in_one_line() {
        let weights = [
            "embedding.word_embeddings.weight",
            "optimizer",
            "decoder.optimizer.weight",
            "chained_x.optimizer.a",
            "rng_state/shard_0_1",
        ];
        let states = [
            "optimizer.state.exp_avg.decoder.final_norm.weight",
            "optimizer.state.fp32_param.output_layer.weight",
            "chained_12.optimizer.state.param.a",
        ];
        let kept = [
            "common_state/shard_0_1",
            "decoder.layers.0.mlp._extra_state/shard_0_1",
        ];
        let objects = [
            "rng_state/shard_0.0_1.1",
            "opt_param_scheduler/shard_0_1",
            "rerun_state_machine_state/shard_0_1",
            "optimizer.distributed.dp_group_idx_0/shard_0_1",
        ];
        let all = metadata(
            &[&weights[..], &states].concat(),
            &[&kept[..], &objects].concat(),
        );
        let state = all.training_state();
        assert_eq!((state.tensors().len(), state.objects().len()), (3, 4));
        assert!(
            states
                .iter()
                .chain(&objects)
                .all(|name| state.contains(name))
        );
        assert!(!weights.iter().chain(&kept).any(|name| state.contains(name)));
        assert_eq!(
            state.to_string(),
            "3 optimizer tensors, 1 optimizer object, 1 rng object, 1 scheduler object, 1 rerun object"
        );
        let two = metadata(&[], &["rng_state/shard_0.0_2.1", "rng_state/shard_1.0_2.1"]);
        assert_eq!(two.training_state().to_string(), "2 rng objects");
    }

    #[test]
    fn a_checkpoint_of_weights_alone_has_none() {
        let state = metadata(&["w"], &["w._extra_state/shard_0_1"]).training_state();
        assert!(state.is_empty());
        assert_eq!(state.to_string(), "none");
    }
}
