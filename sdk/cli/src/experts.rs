//! What is told of experts that are in host memory.

use rialto_runtime::{ExpertCounts, ExpertMemory, LoadPlan, Model};
use serde::Serialize;

use crate::output::{bytes, count};

/// The phase that is the model itself.
pub(crate) const FORWARD: &str = "forward";

/// How the memory of experts is divided, and what a step costs for it.
#[derive(Default, Serialize)]
pub(crate) struct Experts {
    #[serde(flatten)]
    memory: ExpertMemory,
    /// How often a step is cut.
    cuts: u64,
    /// If the model has been run.
    #[serde(flatten)]
    counts: Option<ExpertCounts>,
}

impl Experts {
    /// Of a model that would be loaded so.
    pub(crate) fn planned(plan: &LoadPlan) -> Experts {
        Experts {
            memory: plan.experts(),
            cuts: plan.cuts(FORWARD).unwrap_or_default(),
            counts: None,
        }
    }

    /// Of a model that has been run.
    pub(crate) fn of(model: &Model) -> Experts {
        Experts {
            counts: Some(model.expert_counts()),
            ..Experts::planned(model.plan())
        }
    }

    /// How often what tokens chose was on the device. None if all experts are there.
    pub(crate) fn counted(&self) -> Option<String> {
        let counts = self.counts.filter(|_| self.cuts > 0)?;
        let [hits, misses] = [counts.hits, counts.misses].map(count);
        Some(format!(
            "experts were on the device {hits} times, and were brought to it {misses} times"
        ))
    }
}

/// What lies where, and how often a step is cut for it. None if all experts are on the device.
pub(crate) fn line(plan: &LoadPlan) -> Option<String> {
    let memory = plan.experts();
    if memory.host_layers == 0 {
        return None;
    }
    let cuts = match plan.cuts(FORWARD).unwrap_or_default() {
        1 => "once".to_owned(),
        cuts => format!("{cuts} times"),
    };
    Some(format!(
        "experts of {} of {} layers are in host memory, {}: a step is cut {cuts}, and the device has slots for {} of {} experts",
        memory.host_layers,
        memory.layers,
        bytes(memory.host_bytes),
        count(memory.slots),
        count(memory.host_experts),
    ))
}
