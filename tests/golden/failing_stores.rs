//! Reads and writes that fail, fall short or vanish: one clear error, no target, the source as it was.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

use rialto_bridge::{Bridge, MtpPolicy};
use rialto_checkpoint::store::faulty::Call;
use rialto_checkpoint::store::{
    Fault, Faults, FaultyStore, FaultyTarget, Journal, MemoryStore, MemoryTarget, Sink, Store,
    Target,
};
use rialto_engine::{
    Error, ExportOptions, ExportPlan, ImportPlan, MegatronSource, Progress, Silent,
};

use crate::world::{both_ways, in_memory, options};

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
    let outcome = plan.and_then(|plan| plan.run(family, Box::new(target), progress));
    let committed = slot.lock().unwrap().take();
    (outcome, committed)
}

fn export(family: &dyn Bridge, run: Arc<dyn Store>, target_faults: Faults) -> Outcome {
    let slot = Arc::new(Mutex::new(None));
    let target = FaultyTarget::new(
        Box::new(MemoryTarget::new("out", Arc::clone(&slot))),
        target_faults,
    );
    let plan = MegatronSource::open(run, None)
        .and_then(|source| ExportPlan::new(family, source, &ExportOptions::default()));
    let outcome = plan.and_then(|plan| plan.run(Box::new(target), &Silent));
    let committed = slot.lock().unwrap().take();
    (outcome, committed)
}

fn snapshot(store: &MemoryStore) -> Vec<(String, Option<Vec<u8>>)> {
    store
        .files()
        .unwrap()
        .into_iter()
        .map(|file| (file.name.clone(), store.bytes(&file.name)))
        .collect()
}

/// Every call of a run that is not a write or a read, and of those the first, the last and every 41st.
fn chosen(calls: &[Call]) -> Vec<usize> {
    let is_rare = |call: &Call| !matches!(call, Call::Read | Call::Write);
    let all = calls.iter().enumerate();
    let picked = all.filter(|(at, call)| is_rare(call) || at % 41 == 0 || *at + 1 == calls.len());
    picked.map(|(at, _)| at).collect()
}

#[test]
fn whichever_call_fails_an_import_says_so_and_commits_nothing() {
    both_ways(|family| {
        let source = in_memory("glm52-tiny");
        let before = snapshot(&source);
        let counted = (Faults::none(), Faults::none());
        let faulty: Arc<dyn Store> = Arc::new(FaultyStore::new(
            Arc::new(source.clone()),
            counted.0.clone(),
        ));
        let (outcome, committed) = import(family, faulty, counted.1.clone(), &Silent);
        outcome.unwrap();
        assert!(committed.is_some());
        for call in chosen(&counted.0.calls()) {
            for fault in [Fault::Error(ErrorKind::Other), Fault::Short, Fault::Vanish] {
                let faulty = FaultyStore::new(Arc::new(source.clone()), Faults::at(call, fault));
                let (outcome, committed) =
                    import(family, Arc::new(faulty), Faults::none(), &Silent);
                if let Err(error) = outcome {
                    assert!([2, 4, 5].contains(&error.code()), "{error}");
                    assert!(committed.is_none());
                } else {
                    // Some calls only ask whether a file is there; then the answer must not have changed the result.
                    assert!(
                        !matches!(counted.0.calls()[call], Call::Read),
                        "a failed read was not noticed"
                    );
                }
            }
        }
        for call in chosen(&counted.1.calls()) {
            let (outcome, committed) = import(
                family,
                Arc::new(source.clone()),
                Faults::at(call, Fault::Error(ErrorKind::StorageFull)),
                &Silent,
            );
            let error = outcome.expect_err("a failed write must be noticed");
            assert_eq!(error.slug(), "store/write", "{error}");
            assert!(committed.is_none());
        }
        assert_eq!(snapshot(&source), before);
    });
}

#[test]
fn whichever_call_fails_an_export_says_so_and_commits_nothing() {
    both_ways(|family| {
        let source = in_memory("glm52-tiny");
        let (outcome, run) = import(family, Arc::new(source), Faults::none(), &Silent);
        outcome.unwrap();
        let run = run.unwrap();
        let before = snapshot(&run);
        let counted = (Faults::none(), Faults::none());
        let faulty: Arc<dyn Store> =
            Arc::new(FaultyStore::new(Arc::new(run.clone()), counted.0.clone()));
        export(family, faulty, counted.1.clone()).0.unwrap();
        for call in chosen(&counted.0.calls()) {
            let faulty = FaultyStore::new(
                Arc::new(run.clone()),
                Faults::at(call, Fault::Error(ErrorKind::Other)),
            );
            let (outcome, committed) = export(family, Arc::new(faulty), Faults::none());
            if outcome.is_err() {
                assert!(committed.is_none());
            } else {
                assert!(
                    !matches!(counted.0.calls()[call], Call::Read),
                    "a failed read was not noticed"
                );
            }
        }
        for call in chosen(&counted.1.calls()) {
            let (outcome, committed) = export(
                family,
                Arc::new(run.clone()),
                Faults::at(call, Fault::Error(ErrorKind::StorageFull)),
            );
            assert_eq!(
                outcome.expect_err("a failed write must be noticed").slug(),
                "store/write"
            );
            assert!(committed.is_none());
        }
        assert_eq!(snapshot(&run), before);
    });
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

impl Target for Full {
    fn name(&self) -> &str {
        "full"
    }
    fn create(&self, name: &str) -> Result<Box<dyn Sink>, rialto_checkpoint::Error> {
        panic!("{name} is created although there is no room")
    }
    fn reopen(&self, name: &str) -> Result<Box<dyn Sink>, rialto_checkpoint::Error> {
        panic!("{name} is opened although there is no room")
    }
    fn retain(&self, _: &BTreeSet<String>) -> Result<(), rialto_checkpoint::Error> {
        Ok(())
    }
    fn journal(&self, name: &str) -> Result<Box<dyn Journal>, rialto_checkpoint::Error> {
        panic!("journal {name} is begun although there is no room")
    }
    fn journals(&self) -> Result<Vec<String>, rialto_checkpoint::Error> {
        Ok(Vec::new())
    }
    fn read_journal(&self, name: &str) -> Result<Vec<u8>, rialto_checkpoint::Error> {
        panic!("there is no journal {name}")
    }
    fn is_held(&self, name: &str) -> Result<Option<bool>, rialto_checkpoint::Error> {
        panic!("there is no journal {name}")
    }
    fn require_bytes(&self, needed: u64) -> Result<(), rialto_checkpoint::Error> {
        Err(rialto_checkpoint::Error::NoSpace {
            location: "full".to_owned(),
            needed,
            available: 0,
        })
    }
    fn suspend(self: Box<Self>) -> Result<(), rialto_checkpoint::Error> {
        Ok(())
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
        let error = plan.run(family, Box::new(Full), &Silent).unwrap_err();
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
        let error = plan.run(Box::new(Full), &Silent).unwrap_err();
        assert!(needed(&error) > plan.summary().target.bytes, "{error}");
    });
}
