//! Runs that end before they write anything: no room, or nobody wants them. What fails on the way is `runs`'s.

use std::sync::{Arc, Mutex};

use rialto_bridge::{Bridge, MtpPolicy};
use rialto_checkpoint::store::{Faults, FaultyTarget, MemoryStore, MemoryTarget, Store};
use rialto_engine::{
    Error, ExportOptions, ExportPlan, ImportPlan, MegatronSource, Progress, RunOptions, Silent,
};

use crate::world::{both_ways, in_memory, options};

/// One unit after the other, so that calls come in the same order every time.
fn one_lane() -> RunOptions {
    RunOptions {
        threads: 1,
        ..RunOptions::default()
    }
}

type Outcome = (Result<(), Error>, Option<MemoryStore>);

fn import(
    family: &dyn Bridge,
    source: Arc<dyn Store>,
    target_faults: Faults,
    progress: &dyn Progress,
) -> Outcome {
    let slot = Arc::new(Mutex::new(None));
    let target = FaultyTarget::new(
        Box::new(MemoryTarget::new("run", Arc::clone(&slot))),
        target_faults,
    );
    let plan = ImportPlan::new(family, source, &options(MtpPolicy::Keep));
    let outcome = plan.and_then(|plan| {
        plan.run(family, Box::new(target), &one_lane(), progress)
            .map(drop)
    });
    let committed = slot.lock().unwrap().take();
    (outcome, committed)
}

/// Stops as soon as anything has been written.
struct Impatient;

impl Progress for Impatient {
    fn is_cancelled(&self) -> bool {
        true
    }
}

#[test]
fn a_run_that_is_stopped_commits_nothing() {
    both_ways(|family| {
        let (outcome, committed) = import(
            family,
            Arc::new(in_memory("glm52-tiny")),
            Faults::none(),
            &Impatient,
        );
        assert_eq!(outcome.unwrap_err().slug(), "engine/cancelled");
        assert!(committed.is_none());
    });
}

/// A target on a file system with no room at all; every write would be a failure of the test.
#[derive(Debug)]
struct Full;

impl rialto_checkpoint::store::Target for Full {
    fn name(&self) -> &str {
        "full"
    }
    fn create(
        &self,
        name: &str,
    ) -> Result<Box<dyn rialto_checkpoint::store::Sink>, rialto_checkpoint::Error> {
        panic!("{name} is created although there is no room")
    }
    fn reopen(
        &self,
        name: &str,
    ) -> Result<Box<dyn rialto_checkpoint::store::Sink>, rialto_checkpoint::Error> {
        panic!("{name} is opened although there is no room")
    }
    fn require_bytes(&self, needed: u64) -> Result<(), rialto_checkpoint::Error> {
        Err(rialto_checkpoint::Error::NoSpace {
            location: "full".to_owned(),
            needed,
            available: 0,
        })
    }
    fn commit(self: Box<Self>) -> Result<(), rialto_checkpoint::Error> {
        panic!("committed although there is no room")
    }
}

#[test]
fn fc_46_room_is_asked_for_before_anything_is_created() {
    both_ways(|family| {
        let source: Arc<dyn Store> = Arc::new(in_memory("glm52-tiny"));
        let plan = ImportPlan::new(family, Arc::clone(&source), &options(MtpPolicy::Keep)).unwrap();
        let error = plan
            .run(family, Box::new(Full), &one_lane(), &Silent)
            .unwrap_err();
        assert_eq!(error.slug(), "store/no-space");
        let run = crate::world::import(family, source, &options(MtpPolicy::Keep)).unwrap();
        let data = run.bytes("iter_0000000/__0_0.distcp").unwrap().len() as u64;
        let needed = |error: &Error| match error {
            Error::Checkpoint(rialto_checkpoint::Error::NoSpace { needed, .. }) => *needed,
            other => panic!("{other}"),
        };
        assert!(needed(&error) >= data, "{error}");
        let source = MegatronSource::open(Arc::new(run), None).unwrap();
        let plan = ExportPlan::new(family, source, &ExportOptions::default()).unwrap();
        let error = plan.run(Box::new(Full), &one_lane(), &Silent).unwrap_err();
        assert!(needed(&error) > plan.summary().target.bytes, "{error}");
    });
}
