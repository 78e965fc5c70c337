//! One set of bytes, whoever writes it: any number of threads and processes, any budget, in one attempt or in many.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rialto_bridge::{Bridge, Mesh};
use rialto_checkpoint::records::{MANIFEST_FILE, REPORT_FILE};
use rialto_checkpoint::store::faulty::Call;
use rialto_checkpoint::store::memory::MemoryPartial;
use rialto_checkpoint::store::{
    Fault, Faults, FaultyStore, FaultyTarget, FileEntry, Journal, LocalStore, LocalTarget,
    MemoryStore, MemoryTarget, Overwrite, Sink, Source, Stamp, Store, Target, read_whole,
};
use rialto_engine::{
    Error, ExportOptions, ExportPlan, HashChoice, ImportPlan, Manifest, MegatronSource, Options,
    Progress, RunOptions, RunReport, Silent, World, audit,
};
use rialto_tensor::Location;
use serde_json::Value;

use crate::world::{both_ways, in_memory};

/// A conversion of one direction from a source.
#[derive(Clone, Copy)]
struct Job<'a> {
    family: &'a dyn Bridge,
    is_export: bool,
    files: Option<u64>,
    /// Tensor and expert parallel size of an import.
    tp: u64,
}

impl Job<'_> {
    fn run(
        &self,
        source: Arc<dyn Store>,
        target: Box<dyn Target>,
        options: &RunOptions,
        progress: &dyn Progress,
    ) -> Result<RunReport, Error> {
        if self.is_export {
            let options_of_plan = ExportOptions {
                files: self.files,
                ..ExportOptions::default()
            };
            let source = MegatronSource::open(source, None)?;
            let plan = ExportPlan::new(self.family, source, &options_of_plan)?;
            return plan.run(target, options, progress);
        }
        // Chunks of columns, so that groups of several outputs are among them.
        let mesh = Mesh {
            tp: self.tp,
            ep: self.tp,
            ..Mesh::SINGLE
        };
        let options_of_plan = Options {
            mesh,
            files: self.files,
            ..Options::default()
        };
        let plan = ImportPlan::new(self.family, source, &options_of_plan)?;
        plan.run(self.family, target, options, progress)
    }

    /// What one attempt of one process writes.
    fn plainly(&self, source: &MemoryStore, options: &RunOptions) -> BTreeMap<String, Vec<u8>> {
        let store = MemoryStore::written_by("out", |target| {
            self.run(Arc::new(source.clone()), target, options, &Silent)
                .map(drop)
        });
        bytes(&store.unwrap())
    }
}

/// Every file but the report, which says when and how.
fn bytes(store: &MemoryStore) -> BTreeMap<String, Vec<u8>> {
    let files = store.files().unwrap().into_iter();
    let files = files.filter(|file| file.name != REPORT_FILE);
    files
        .map(|file| (file.name.clone(), store.bytes(&file.name).unwrap()))
        .collect()
}

/// Both directions, with the source of each.
fn jobs(family: &dyn Bridge, test: impl Fn(Job<'_>, &MemoryStore)) {
    for (fixture, files, tp) in [("glm52-tiny", Some(5), 2), ("glm53-tiny", Some(3), 1)] {
        let source = in_memory(fixture);
        let job = Job {
            family,
            is_export: false,
            files,
            tp,
        };
        test(job, &source);
        let run = MemoryStore::written_by("run", |target| {
            job.run(
                Arc::new(source.clone()),
                target,
                &RunOptions::default(),
                &Silent,
            )
            .map(drop)
        });
        let export = Job {
            is_export: true,
            ..job
        };
        test(export, &run.unwrap());
    }
}

/// What is durable at once, so that even a short run has something to go on from.
fn eager() -> RunOptions {
    RunOptions {
        sync_every: Duration::ZERO,
        threads: 1,
        ..RunOptions::default()
    }
}

fn same(found: &BTreeMap<String, Vec<u8>>, expected: &BTreeMap<String, Vec<u8>>, what: &str) {
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{what}");
    for (name, bytes) in expected {
        assert!(found[name] == *bytes, "{what}: {name} has other bytes");
    }
}

#[test]
fn threads_and_memory_change_no_byte() {
    both_ways(|family| {
        jobs(family, |job, source| {
            let expected = job.plainly(source, &eager());
            assert!(expected.contains_key(MANIFEST_FILE));
            for threads in [1, 2, 8] {
                for memory_budget_bytes in [64 << 20, 256 << 20] {
                    let options = RunOptions {
                        threads,
                        memory_budget_bytes,
                        ..RunOptions::default()
                    };
                    same(&job.plainly(source, &options), &expected, "threads");
                }
            }
            let mut without = job.plainly(
                source,
                &RunOptions {
                    hash: HashChoice::None,
                    ..RunOptions::default()
                },
            );
            assert!(!without.contains_key(MANIFEST_FILE));
            without.insert(MANIFEST_FILE.to_owned(), expected[MANIFEST_FILE].clone());
            same(&without, &expected, "without digests");
        });
    });
}

/// Runs all ranks at once, each in a thread, and returns what they said and what came of it.
fn in_a_world(
    job: Job<'_>,
    source: &MemoryStore,
    size: u64,
    partial: &MemoryPartial,
) -> (Vec<Result<RunReport, Error>>, Option<MemoryStore>) {
    let slot = Arc::new(Mutex::new(None));
    let outcomes = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let slot = Arc::clone(&slot);
                scope.spawn(move || {
                    let target: Box<dyn Target> = match rank {
                        0 => Box::new(MemoryTarget::resume("out", slot, partial)),
                        _ => Box::new(MemoryTarget::join("out", partial)),
                    };
                    let options = RunOptions {
                        world: World { rank, size },
                        patience: Duration::from_secs(20),
                        ..eager()
                    };
                    job.run(Arc::new(source.clone()), target, &options, &Silent)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let committed = slot.lock().unwrap().take();
    (outcomes, committed)
}

#[test]
fn ranks_change_no_byte_also_where_there_are_more_of_them_than_files() {
    both_ways(|family| {
        jobs(family, |job, source| {
            let expected = job.plainly(source, &eager());
            for size in [1, 2, 4, 7] {
                let (outcomes, store) = in_a_world(job, source, size, &MemoryPartial::default());
                for outcome in outcomes {
                    outcome.unwrap();
                }
                same(&bytes(&store.unwrap()), &expected, &format!("{size} ranks"));
            }
        });
    });
}

/// A rank that never starts: the first waits as long as it is told to, says who is missing, and what is done is kept for a
/// world of another size.
#[test]
fn a_rank_that_is_missing_is_named_and_its_files_are_done_by_whoever_comes_next() {
    both_ways(|family| {
        jobs(family, |job, source| {
            let expected = job.plainly(source, &eager());
            let partial = MemoryPartial::default();
            let slot = Arc::new(Mutex::new(None));
            let target = MemoryTarget::resume("out", Arc::clone(&slot), &partial);
            let options = RunOptions {
                world: World { rank: 0, size: 3 },
                patience: Duration::from_millis(1),
                ..eager()
            };
            let outcome = job.run(
                Arc::new(source.clone()),
                Box::new(target),
                &options,
                &Silent,
            );
            let error = outcome.unwrap_err();
            assert_eq!(error.slug(), "engine/others-stopped", "{error}");
            assert!(error.to_string().contains("rank 1, 2"), "{error}");
            assert!(slot.lock().unwrap().is_none());
            let (outcomes, store) = in_a_world(job, source, 2, &partial);
            let reports: Vec<RunReport> = outcomes.into_iter().map(Result::unwrap).collect();
            assert!(reports.iter().any(|report| report.bytes_found_done > 0));
            same(
                &bytes(&store.unwrap()),
                &expected,
                "after a rank was missing",
            );
        });
    });
}

/// Stops a run after so many bytes.
pub(crate) struct StopAfter(pub(crate) u64, pub(crate) AtomicU64);

impl Progress for StopAfter {
    fn advance(&self, bytes: u64) {
        self.1.fetch_add(bytes, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.1.load(Ordering::Relaxed) >= self.0
    }
}

#[test]
fn a_run_that_was_stopped_goes_on_where_it_was() {
    both_ways(|family| {
        jobs(family, |job, source| {
            let expected = job.plainly(source, &eager());
            let partial = MemoryPartial::default();
            let (mut attempts, mut earlier) = (0, 0);
            let store = loop {
                attempts += 1;
                let slot = Arc::new(Mutex::new(None));
                let target = MemoryTarget::resume("out", Arc::clone(&slot), &partial);
                // What was done before is told at once.
                let stop = StopAfter(earlier + 200_000, AtomicU64::new(0));
                let options = RunOptions {
                    is_resumed: true,
                    ..eager()
                };
                let outcome = job.run(Arc::new(source.clone()), Box::new(target), &options, &stop);
                match outcome {
                    Ok(report) => {
                        assert_eq!(report.bytes_found_done, earlier);
                        break slot.lock().unwrap().take().unwrap();
                    }
                    Err(error) => {
                        assert_eq!(error.slug(), "engine/cancelled");
                        let help = error.help().unwrap();
                        assert!(
                            help.contains("out.partial: run again with `--resume`"),
                            "{help}"
                        );
                        earlier = stop.1.load(Ordering::Relaxed);
                    }
                }
            };
            assert!(attempts > 3, "{attempts} attempts");
            same(&bytes(&store), &expected, "stopped and resumed");
        });
    });
}

/// Fails at every call in turn, of the source and of the target, in every way; what is left is gone on from.
fn every_fault(job: Job<'_>, source: &MemoryStore, step: usize) {
    let expected = job.plainly(source, &eager());
    let before = bytes(source);
    let counted = [Faults::none(), Faults::none()];
    let attempt = |faults: [Faults; 2], partial: &MemoryPartial| {
        let slot = Arc::new(Mutex::new(None));
        let target = MemoryTarget::resume("out", Arc::clone(&slot), partial);
        let [of_source, of_target] = faults;
        let target = Box::new(FaultyTarget::new(Box::new(target), of_target));
        let store = Arc::new(FaultyStore::new(Arc::new(source.clone()), of_source));
        let outcome = job.run(store, target, &eager(), &Silent);
        (outcome, slot.lock().unwrap().take())
    };
    attempt(counted.clone(), &MemoryPartial::default())
        .0
        .unwrap();
    let faults = [
        Fault::Error(ErrorKind::Other),
        Fault::Error(ErrorKind::StorageFull),
        Fault::Short,
        Fault::Vanish,
    ];
    let (mut failed, mut continued) = (0, 0);
    for side in [0, 1] {
        let calls = counted[side].calls();
        for call in (0..calls.len()).step_by(step) {
            let fault = faults[call / step % faults.len()];
            let what = format!(
                "{:?} {call} of {}, {fault:?}",
                calls[call],
                ["source", "target"][side]
            );
            let partial = MemoryPartial::default();
            let mut with = [Faults::none(), Faults::none()];
            with[side] = Faults::at(call, fault);
            let (outcome, committed) = attempt(with, &partial);
            if let Err(error) = outcome {
                failed += 1;
                // A file that seems shorter when it is looked at has changed.
                let codes = [2, 4, 5];
                let is_known =
                    codes.contains(&error.code()) || error.slug() == "engine/source-changed";
                assert!(is_known, "{what}: {error}");
                assert!(committed.is_none(), "{what}: {error}");
                assert!(!error.to_string().contains('\n'), "{what}: {error}");
            } else {
                // Not every call matters: some ask what could also be answered otherwise.
                same(&bytes(&committed.unwrap()), &expected, &what);
                continue;
            }
            let (outcome, committed) = attempt([Faults::none(), Faults::none()], &partial);
            let report = outcome.unwrap_or_else(|error| panic!("rerun after {what}: {error}"));
            continued += u32::from(report.bytes_found_done > 0);
            same(&bytes(&committed.unwrap()), &expected, &what);
        }
    }
    same(&bytes(source), &before, "the source");
    assert!(
        failed > 20 && continued > 5,
        "{failed} failed, {continued} were continued"
    );
}

#[test]
fn fc_46_whatever_fails_at_any_call_is_one_error_and_a_rerun_goes_on() {
    // The step is no divisor of what a unit calls, so that all kinds of calls have their turn.
    jobs(&rialto_glm5::Glm5, |job, source| {
        every_fault(job, source, 7)
    });
}

#[test]
fn fc_46_every_call_of_a_small_import_may_fail() {
    let job = Job {
        family: &rialto_glm5::Glm5,
        is_export: false,
        files: Some(2),
        tp: 1,
    };
    every_fault(job, &in_memory("glm5-tiny"), 1);
}

/// Every file of a directory but the report.
fn bytes_on_disk(directory: &std::path::Path) -> BTreeMap<String, Vec<u8>> {
    let store = LocalStore::open(directory).unwrap();
    let files = store.files().unwrap().into_iter();
    let files = files.filter(|file| file.name != REPORT_FILE);
    files
        .map(|file| {
            (
                file.name.clone(),
                read_whole(&store, &file.name, 64 << 20).unwrap(),
            )
        })
        .collect()
}

/// Puts a directory of somebody else's in the place of the target when all is converted.
struct TakenBySomebody(std::path::PathBuf);

impl Progress for TakenBySomebody {
    fn end(&self) {
        std::fs::create_dir(&self.0).unwrap();
        std::fs::write(self.0.join("theirs"), "x").unwrap();
    }
}

#[test]
fn a_result_that_cannot_be_put_in_its_place_is_kept_and_put_there_by_the_next_attempt() {
    jobs(&rialto_glm5::Glm5, |job, source| {
        let expected = job.plainly(source, &eager());
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("x/out");
        let refused = Faults::at_nth(Call::Commit, 0, Fault::Error(ErrorKind::PermissionDenied));
        let taken = TakenBySomebody(out.clone());
        for (slug, advice, faults, progress) in [
            (
                "store/write",
                "check permissions",
                refused,
                &Silent as &dyn Progress,
            ),
            ("store/target-exists", "--force", Faults::none(), &taken),
        ] {
            let target = Box::new(LocalTarget::create(&out, Overwrite::Refuse).unwrap());
            let target = Box::new(FaultyTarget::new(target, faults));
            let source = Arc::new(source.clone());
            let outcome = job.run(source.clone(), target, &eager(), progress);
            let error = outcome.unwrap_err();
            assert_eq!(error.slug(), slug, "{error}");
            let help = error.help().unwrap();
            let partial = scratch.path().join("x/out.partial");
            for part in [
                advice,
                "--resume",
                &format!("complete in {}", partial.display()),
            ] {
                assert!(help.contains(part), "{part}: {help}");
            }
            assert!(partial.is_dir());
            let target = Box::new(LocalTarget::resume(&out, Overwrite::Replace).unwrap());
            let options = RunOptions {
                is_resumed: true,
                ..eager()
            };
            let report = job.run(source, target, &options, &Silent).unwrap();
            assert_eq!(report.bytes_found_done, report.bytes, "{slug}");
            same(&bytes_on_disk(&out), &expected, slug);
            std::fs::remove_dir_all(&out).unwrap();
            // Nothing else is left of it.
            std::fs::remove_dir(scratch.path().join("x")).unwrap();
        }
    });
}

#[test]
fn a_source_found_corrupt_on_the_way_says_what_is_kept_and_a_mended_one_is_gone_on_with() {
    let job = Job {
        family: &rialto_glm5::Glm5,
        is_export: true,
        files: None,
        tp: 1,
    };
    let good = crate::world::import(
        job.family,
        Arc::new(in_memory("glm52-tiny")),
        &Options::default(),
    );
    let good = good.unwrap();
    let data = good.bytes("iter_0000000/__0_0.distcp").unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("x/out");
    let bad = good.clone();
    let mut flipped = data.clone();
    flipped[data.len() / 2] ^= 1;
    bad.insert("iter_0000000/__0_0.distcp", flipped).unwrap();
    let target = Box::new(LocalTarget::create(&out, Overwrite::Refuse).unwrap());
    let error = job
        .run(Arc::new(bad.clone()), target, &eager(), &Silent)
        .unwrap_err();
    assert_eq!(error.code(), 4, "{error}");
    let help = error.help().unwrap();
    let partial = scratch.path().join("x/out.partial");
    let kept = format!("kept in {}", partial.display());
    assert!(help.contains(&kept) && help.contains("--resume"), "{help}");
    assert!(partial.is_dir() && !out.exists());
    bad.insert("iter_0000000/__0_0.distcp", data).unwrap();
    let target = Box::new(LocalTarget::resume(&out, Overwrite::Refuse).unwrap());
    let report = job.run(Arc::new(bad), target, &eager(), &Silent).unwrap();
    assert!(report.bytes_found_done > 0);
    same(
        &bytes_on_disk(&out),
        &job.plainly(&good, &eager()),
        "mended",
    );
}

#[test]
fn a_source_that_changed_is_refused_file_by_file_and_the_beginnings_are_kept() {
    let job = Job {
        family: &rialto_glm5::Glm5,
        is_export: false,
        files: None,
        tp: 1,
    };
    let source = in_memory("glm52-tiny");
    let partial = MemoryPartial::default();
    let attempt = |source: &MemoryStore, is_resumed| {
        let slot = Arc::new(Mutex::new(None));
        let target = MemoryTarget::resume("out", Arc::clone(&slot), &partial);
        let stop = StopAfter(400_000, AtomicU64::new(0));
        let options = RunOptions {
            is_resumed,
            ..eager()
        };
        job.run(Arc::new(source.clone()), Box::new(target), &options, &stop)
    };
    let stopped = attempt(&source, true).unwrap_err();
    assert_eq!(stopped.slug(), "engine/cancelled");
    let mut changed = source.clone();
    changed.insert("tokenizer.json", vec![1, 2]).unwrap();
    let error = attempt(&changed, true).unwrap_err();
    assert_eq!(error.slug(), "engine/source-changed", "{error}");
    assert!(
        error.to_string().contains("tokenizer.json is new"),
        "{error}"
    );
    changed = source.clone();
    changed.remove("tokenizer.json");
    // As it was: what was done is still there.
    let slot = Arc::new(Mutex::new(None));
    let target = MemoryTarget::resume("out", Arc::clone(&slot), &partial);
    let options = RunOptions {
        is_resumed: true,
        ..eager()
    };
    let report = job
        .run(Arc::new(changed), Box::new(target), &options, &Silent)
        .unwrap();
    assert!(report.bytes_found_done > 0);
}

/// Two plans in turn at one target, by worlds of different sizes, each stopped: neither takes the other's work for its own.
#[test]
fn two_plans_at_one_target_never_take_each_others_work() {
    let job = |tp| Job {
        family: &rialto_glm5::Glm5,
        is_export: false,
        files: Some(5),
        tp,
    };
    let source = in_memory("glm52-tiny");
    let expected = [1, 2].map(|tp| job(tp).plainly(&source, &eager()));
    let partial = MemoryPartial::default();
    let stopped = |tp, world, bytes| {
        let target: Box<dyn Target> = match world {
            World { rank: 0, .. } => Box::new(MemoryTarget::resume(
                "out",
                Arc::new(Mutex::new(None)),
                &partial,
            )),
            _ => Box::new(MemoryTarget::join("out", &partial)),
        };
        let stop = StopAfter(bytes, AtomicU64::new(0));
        let options = RunOptions { world, ..eager() };
        let _ = job(tp).run(Arc::new(source.clone()), target, &options, &stop);
    };
    for (rank, size) in [(3, 4), (1, 4)] {
        stopped(1, World { rank, size }, 200_000);
    }
    stopped(2, World { rank: 1, size: 2 }, 300_000);
    for (tp, size) in [(1, 4), (2, 3), (1, 2)] {
        let (outcomes, store) = in_a_world(job(tp), &source, size, &partial);
        outcomes
            .into_iter()
            .for_each(|outcome| drop(outcome.unwrap()));
        let expected = &expected[tp as usize - 1];
        same(&bytes(&store.unwrap()), expected, "after another plan");
        stopped(3 - tp, World::ALONE, 400_000);
    }
}

/// Files whose first sync fails, as when a disk loses what it was given: the next one succeeds, and speaks of other bytes.
#[derive(Debug)]
struct Forgetful(MemoryTarget, Arc<AtomicU64>);

#[derive(Debug)]
struct ForgetfulSink(Box<dyn Sink>, Arc<AtomicU64>);

impl Sink for ForgetfulSink {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), rialto_checkpoint::Error> {
        self.0.write_at(offset, bytes)
    }
    fn sync(&self) -> Result<(), rialto_checkpoint::Error> {
        match self.1.fetch_add(1, Ordering::Relaxed) {
            2 => Err(rialto_checkpoint::Error::Write {
                location: Location::file(self.name()),
                source: ErrorKind::Other.into(),
            }),
            _ => self.0.sync(),
        }
    }
}

impl Target for Forgetful {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn create(&self, name: &str) -> Result<Box<dyn Sink>, rialto_checkpoint::Error> {
        self.0.create(name)
    }
    fn reopen(&self, name: &str) -> Result<Box<dyn Sink>, rialto_checkpoint::Error> {
        let sink = self.0.reopen(name)?;
        Ok(Box::new(ForgetfulSink(sink, Arc::clone(&self.1))))
    }
    fn enter(&mut self, plan: &str) -> Result<(), rialto_checkpoint::Error> {
        self.0.enter(plan)
    }
    fn journal(&self, name: &str) -> Result<Box<dyn Journal>, rialto_checkpoint::Error> {
        self.0.journal(name)
    }
    fn journals(&self) -> Result<Vec<String>, rialto_checkpoint::Error> {
        self.0.journals()
    }
    fn read_journal(&self, name: &str) -> Result<Vec<u8>, rialto_checkpoint::Error> {
        self.0.read_journal(name)
    }
    fn length(&self, name: &str) -> Result<Option<u64>, rialto_checkpoint::Error> {
        self.0.length(name)
    }
    fn suspend(self: Box<Self>) -> Result<(), rialto_checkpoint::Error> {
        Box::new(self.0).suspend()
    }
    fn commit(self: Box<Self>) -> Result<(), rialto_checkpoint::Error> {
        Box::new(self.0).commit()
    }
}

#[test]
fn what_a_disk_has_lost_is_in_no_journal_though_the_next_sync_succeeds() {
    jobs(&rialto_glm5::Glm5, |job, source| {
        let partial = MemoryPartial::default();
        let inner = MemoryTarget::resume("out", Arc::new(Mutex::new(None)), &partial);
        let syncs = Arc::new(AtomicU64::new(0));
        let target = Box::new(Forgetful(inner, Arc::clone(&syncs)));
        let outcome = job.run(Arc::new(source.clone()), target, &eager(), &Silent);
        assert_eq!(outcome.unwrap_err().slug(), "store/write");
        // Two syncs before it have made a record each durable, and none after it.
        let mut reader = MemoryTarget::join("out", &partial);
        let plan = reader.other_plans().unwrap().remove(0);
        reader.enter(&plan).unwrap();
        let journal = String::from_utf8(reader.read_journal("0").unwrap()).unwrap();
        assert!(journal.lines().count() <= 1 + 2 * 2, "{journal}");
        assert_eq!(
            syncs.load(Ordering::Relaxed),
            3,
            "a failed file is not synced again"
        );
    });
}

#[test]
fn what_a_journal_says_of_a_file_that_is_gone_is_of_no_use() {
    jobs(&rialto_glm5::Glm5, |job, source| {
        let expected = job.plainly(source, &eager());
        let partial = MemoryPartial::default();
        let attempt = |bytes| {
            let slot = Arc::new(Mutex::new(None));
            let target = Box::new(MemoryTarget::resume("out", Arc::clone(&slot), &partial));
            let stop = StopAfter(bytes, AtomicU64::new(0));
            let outcome = job.run(Arc::new(source.clone()), target, &eager(), &stop);
            (outcome, slot.lock().unwrap().take())
        };
        assert_eq!(attempt(700_000).0.unwrap_err().slug(), "engine/cancelled");
        let mut vandal = MemoryTarget::join("out", &partial);
        let plan = vandal.other_plans().unwrap().remove(0);
        vandal.enter(&plan).unwrap();
        vandal.retain(&std::collections::BTreeSet::new()).unwrap();
        let (outcome, store) = attempt(u64::MAX);
        assert_eq!(outcome.unwrap().bytes_found_done, 0);
        same(
            &bytes(&store.unwrap()),
            &expected,
            "after its files were gone",
        );
    });
}

#[test]
fn a_stream_gives_every_tensor_of_either_side_and_its_end_is_the_models() {
    use rialto_engine::Names;
    for fixture in ["glm52-tiny", "glm53-tiny"] {
        let source = in_memory(fixture);
        let family: Arc<dyn Bridge> = Arc::new(rialto_glm5::Glm5);
        let plan = |store: &MemoryStore| {
            ImportPlan::new(
                family.as_ref(),
                Arc::new(store.clone()),
                &Options::default(),
            )
            .unwrap()
        };
        let import = Arc::new(plan(&source));
        let run = MemoryStore::written_by("run", |target| {
            import
                .run(family.as_ref(), target, &eager(), &Silent)
                .map(drop)
        });
        let run = run.unwrap();
        let exported = |run: &MemoryStore| {
            let source = MegatronSource::open(Arc::new(run.clone()), None).unwrap();
            ExportPlan::new(family.as_ref(), source, &ExportOptions::default()).unwrap()
        };
        let export = Arc::new(exported(&run));
        let out = MemoryStore::written_by("out", |target| {
            exported(&run).run(target, &eager(), &Silent).map(drop)
        });
        let manifest = Manifest::read(&out.unwrap(), MANIFEST_FILE).unwrap();
        for part_bytes in [1000, 1 << 20] {
            let streams = [
                import.stream(
                    Arc::clone(&family),
                    Names::Source,
                    part_bytes,
                    Arc::new(Silent),
                ),
                export.stream(Names::Target, part_bytes, Arc::new(Silent)),
            ];
            for stream in streams {
                let mut tensors: BTreeMap<String, Vec<u8>> = BTreeMap::new();
                for part in stream {
                    let part = part.unwrap();
                    assert!(part.bytes.len() as u64 <= part_bytes);
                    tensors.entry(part.name).or_default().extend(part.bytes);
                }
                assert_eq!(tensors.len(), manifest.tensors.len());
                for tensor in &manifest.tensors {
                    let digest = blake3::hash(&tensors[&tensor.name]).to_hex();
                    assert_eq!(tensor.blake3, digest.as_str(), "{}", tensor.name);
                }
            }
            let sides = [
                import.stream(
                    Arc::clone(&family),
                    Names::Target,
                    part_bytes,
                    Arc::new(Silent),
                ),
                export.stream(Names::Source, part_bytes, Arc::new(Silent)),
            ];
            let [ours, theirs] = sides.map(|stream| {
                let mut params: BTreeMap<String, Vec<u8>> = BTreeMap::new();
                for part in stream {
                    let part = part.unwrap();
                    params.entry(part.name).or_default().extend(part.bytes);
                }
                params
            });
            assert!(ours == theirs && !ours.is_empty());
        }
        // A caller that has enough takes no more, and one that asks to stop is told.
        let mut some = import.stream(Arc::clone(&family), Names::Target, 100, Arc::new(Silent));
        assert!(some.next().unwrap().is_ok());
        drop(some);
        let stop = Arc::new(StopAfter(5000, AtomicU64::new(0)));
        let parts: Vec<_> = export.stream(Names::Target, 1000, stop).collect();
        let (last, before) = parts.split_last().unwrap();
        assert_eq!(last.as_ref().unwrap_err().slug(), "engine/cancelled");
        assert!(before.iter().all(Result::is_ok));
    }
}

/// A source whose files seem to be written to while they are read.
#[derive(Debug)]
struct Restless(MemoryStore, AtomicU64);

impl Store for Restless {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn files(&self) -> Result<Vec<FileEntry>, rialto_checkpoint::Error> {
        self.0.files()
    }
    fn open(&self, name: &str) -> Result<Box<dyn Source>, rialto_checkpoint::Error> {
        self.0.open(name)
    }
    fn stamp(&self, name: &str) -> Result<Stamp, rialto_checkpoint::Error> {
        let stamp = self.0.stamp(name)?;
        let modified_ns = Some(self.1.fetch_add(1, Ordering::Relaxed));
        Ok(Stamp {
            modified_ns,
            ..stamp
        })
    }
}

#[test]
fn a_source_that_changes_while_it_is_read_gives_no_result() {
    jobs(&rialto_glm5::Glm5, |job, source| {
        let slot = Arc::new(Mutex::new(None));
        let target = Box::new(MemoryTarget::new("out", Arc::clone(&slot)));
        let restless = Arc::new(Restless(source.clone(), AtomicU64::new(0)));
        let error = job.run(restless, target, &eager(), &Silent).unwrap_err();
        assert_eq!(error.slug(), "engine/source-changed");
        assert!(slot.lock().unwrap().is_none());
    });
}

/// A source whose large reads wait until so many of them are under way at once.
#[derive(Debug)]
struct Meeting {
    inner: MemoryStore,
    state: Arc<(Mutex<(usize, usize)>, Condvar)>,
    expected: usize,
}

#[derive(Debug)]
struct Meeter {
    inner: Box<dyn Source>,
    state: Arc<(Mutex<(usize, usize)>, Condvar)>,
    expected: usize,
}

impl Store for Meeting {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn files(&self) -> Result<Vec<FileEntry>, rialto_checkpoint::Error> {
        self.inner.files()
    }
    fn open(&self, name: &str) -> Result<Box<dyn Source>, rialto_checkpoint::Error> {
        Ok(Box::new(Meeter {
            inner: self.inner.open(name)?,
            state: Arc::clone(&self.state),
            expected: self.expected,
        }))
    }
}

impl Source for Meeter {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), rialto_checkpoint::Error> {
        // Headers are read before anything runs; matrices are larger than any of them.
        if buffer.len() >= 8192 && std::thread::current().name() != Some("main") {
            let (count, met) = &*self.state;
            let mut here = count.lock().unwrap();
            here.0 += 1;
            here.1 = here.1.max(here.0);
            met.notify_all();
            let (mut here, _) = met
                .wait_timeout_while(here, Duration::from_millis(20), |here| {
                    here.1 < self.expected
                })
                .unwrap();
            here.0 -= 1;
        }
        self.inner.read_at(offset, buffer)
    }
}

#[test]
fn fc_50_so_many_reads_are_under_way_at_once_as_there_are_threads() {
    both_ways(|family| {
        jobs(family, |job, source| {
            for threads in [1, 2, 8] {
                let state = Arc::new((Mutex::new((0, 0)), Condvar::new()));
                let meeting = Meeting {
                    inner: source.clone(),
                    state: Arc::clone(&state),
                    expected: threads,
                };
                let options = RunOptions {
                    threads,
                    ..RunOptions::default()
                };
                let store = MemoryStore::written_by("out", |target| {
                    job.run(Arc::new(meeting), target, &options, &Silent)
                        .map(drop)
                });
                store.unwrap();
                assert_eq!(state.0.lock().unwrap().1, threads);
            }
        });
    });
}

#[test]
fn a_manifest_sees_every_byte_that_is_another() {
    jobs(&rialto_glm5::Glm5, |job, source| {
        let written = MemoryStore::written_by("out", |target| {
            job.run(Arc::new(source.clone()), target, &eager(), &Silent)
                .map(drop)
        });
        let written = written.unwrap();
        let manifest = Manifest::read(&written, MANIFEST_FILE).unwrap();
        let found = |store: &MemoryStore| {
            let store: Arc<dyn Store> = Arc::new(store.clone());
            audit(&store, &manifest, &Silent).unwrap().findings
        };
        assert_eq!(found(&written), [""; 0]);
        let spoiled = |spoil: &dyn Fn(&MemoryStore)| {
            let copy = MemoryStore::new("out");
            for file in written.files().unwrap() {
                copy.insert(&file.name, written.bytes(&file.name).unwrap())
                    .unwrap();
            }
            spoil(&copy);
            found(&copy)
        };
        for tensor in manifest
            .tensors
            .iter()
            .filter(|tensor| tensor.bytes > 0)
            .step_by(17)
        {
            for at in [tensor.begin, tensor.begin + tensor.bytes - 1] {
                let findings = spoiled(&|copy| {
                    let mut bytes = copy.bytes(&tensor.file).unwrap();
                    bytes[at as usize] ^= 1;
                    copy.insert(&tensor.file, bytes).unwrap();
                });
                assert_eq!(findings.len(), 1, "{findings:?}");
                assert!(findings[0].contains(&tensor.name), "{findings:?}");
            }
        }
        for file in &manifest.files {
            let findings = spoiled(&|copy| {
                let mut bytes = copy.bytes(&file.name).unwrap();
                bytes[0] ^= 1;
                copy.insert(&file.name, bytes).unwrap();
            });
            assert!(findings[0].starts_with(&file.name), "{findings:?}");
            let gone = spoiled(&|copy| drop(copy.remove(&file.name)));
            assert_eq!(gone, [format!("{} is missing", file.name)]);
        }
        let data = &manifest.data_files[0];
        let short = spoiled(&|copy| {
            let mut bytes = copy.bytes(&data.name).unwrap();
            bytes.pop();
            copy.insert(&data.name, bytes).unwrap();
        });
        assert!(short[0].contains("expected"), "{short:?}");
        let more = spoiled(&|copy| copy.insert("more", vec![0]).unwrap());
        assert_eq!(more, ["more is not in the manifest"]);
    });
}

/// The digests are those that `b3sum` would give, and the report counts what was done.
#[test]
fn digests_are_plain_blake3_and_the_report_names_what_was_run() {
    jobs(&rialto_glm5::Glm5, |job, source| {
        let mut options = eager();
        options
            .about
            .insert("command".to_owned(), Value::from("test"));
        let written = MemoryStore::written_by("out", |target| {
            job.run(Arc::new(source.clone()), target, &options, &Silent)
                .map(drop)
        });
        let written = written.unwrap();
        let manifest = Manifest::read(&written, MANIFEST_FILE).unwrap();
        for tensor in &manifest.tensors {
            let bytes = written.bytes(&tensor.file).unwrap();
            let data = &bytes[tensor.begin as usize..(tensor.begin + tensor.bytes) as usize];
            assert_eq!(
                tensor.blake3,
                blake3::hash(data).to_hex().as_str(),
                "{}",
                tensor.name
            );
        }
        let report: Value = serde_json::from_slice(&written.bytes(REPORT_FILE).unwrap()).unwrap();
        assert_eq!(report["command"], "test");
        let manifest_bytes = written.bytes(MANIFEST_FILE).unwrap();
        let digest = blake3::hash(&manifest_bytes).to_hex().to_string();
        assert_eq!(report["result"]["manifest_blake3"], digest);
        assert_eq!(report["summary"]["target"]["bytes"], report["bytes"]);
        assert!(
            report["not_verified"]
                .as_array()
                .is_some_and(|list| !list.is_empty())
        );
    });
}

#[test]
fn a_budget_below_the_least_and_a_rank_of_no_world_are_refused() {
    let job = Job {
        family: &rialto_glm5::Glm5,
        is_export: false,
        files: None,
        tp: 1,
    };
    let refused = |options: RunOptions| {
        let target = Box::new(MemoryTarget::new("out", Arc::new(Mutex::new(None))));
        let source = Arc::new(in_memory("glm52-tiny"));
        job.run(source, target, &options, &Silent).unwrap_err()
    };
    let error = refused(RunOptions {
        memory_budget_bytes: (64 << 20) - 1,
        ..eager()
    });
    assert_eq!(error.slug(), "engine/budget");
    assert_eq!(
        error.help().unwrap(),
        "give at least `--memory-budget 64MiB`"
    );
    let error = refused(RunOptions {
        world: World { rank: 2, size: 2 },
        ..eager()
    });
    assert_eq!(error.slug(), "engine/world");
}
