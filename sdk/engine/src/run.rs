//! Running a plan: in units, on every core, under a budget of memory, by one process or by many, safe to kill.
//!
//! ```text
//! plan -> units (fixed by the plan alone)
//!      -> lanes: read, decode, hash, write                     each process its own files
//!      -> journal: units that are durable                      an attempt goes on where all journals end
//!      -> all units there? small files, manifest, report       the first process alone
//!      -> commit: synced, then renamed
//! ```

mod allot;
mod conversion;
mod digest;
mod journal;
mod lanes;
mod manifest;
mod report;
mod small;
mod unit;
mod world;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rialto_checkpoint::records::{MANIFEST_FILE, REPORT_FILE};
use rialto_checkpoint::store::{DIRECT_BLOCK, Journal, PAGE, Store, Target, read_whole};
use serde_json::{Map, Value};

use crate::array::WINDOW_BYTES;
use crate::locked::locked;
use crate::{Error, Progress, Summary};
use allot::{Allotment, Needs, allot};
use digest::Digest;
use journal::{Header, Past};
use lanes::{Lanes, Surroundings, group_at, joined};

pub use allot::{DEFAULT_MEMORY_BUDGET_BYTES, LEAST_MEMORY_BUDGET_BYTES};
pub(crate) use conversion::{Conversion, DataFile, Entry, Reading, WriteAt};
pub use manifest::{DataFileEntry, Manifest, TensorDigest};
pub use report::{ResultReport, RunReport, SourceReport};
pub use small::FileDigest;
pub(crate) use small::SmallFiles;
pub(crate) use unit::{Frame, Output};
pub use world::World;

/// How often the first of several processes looks whether the others are done.
const POLL: Duration = Duration::from_millis(200);

/// Longest report that is looked into.
const REPORT_LIMIT: u64 = 64 << 20;

/// Whether what is written is hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashChoice {
    /// BLAKE3 of every tensor, in a manifest in the result.
    #[default]
    Blake3,
    /// No digests and no manifest.
    None,
}

/// How a plan is run. Nothing here changes a byte of the result but for [`RunOptions::hash`], which adds the manifest.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Units that are worked on at once; 0 for twice the cores, at least 4.
    pub threads: usize,
    /// Memory for data buffers, at least [`LEAST_MEMORY_BUDGET_BYTES`]; the plan and the program come on top.
    pub memory_budget_bytes: u64,
    /// Whether what is written is hashed.
    pub hash: HashChoice,
    /// Whether a target that holds another plan's beginnings is refused; else they are begun anew.
    pub is_resumed: bool,
    /// Which of the processes this is that do the run together.
    pub world: World,
    /// How long the first process waits for others that make no progress.
    pub patience: Duration,
    /// How often what is done is made durable: what a killed run loses at most.
    pub sync_every: Duration,
    /// What the report says of the application.
    pub about: Map<String, Value>,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            threads: 0,
            memory_budget_bytes: DEFAULT_MEMORY_BUDGET_BYTES,
            hash: HashChoice::Blake3,
            is_resumed: false,
            world: World::ALONE,
            patience: Duration::from_secs(600),
            sync_every: Duration::from_secs(5),
            about: Map::new(),
        }
    }
}

impl RunOptions {
    fn check(&self) -> Result<(), Error> {
        if self.memory_budget_bytes < LEAST_MEMORY_BUDGET_BYTES {
            return Err(Error::Budget {
                budget: self.memory_budget_bytes,
                needed: LEAST_MEMORY_BUDGET_BYTES,
            });
        }
        let World { rank, size } = self.world;
        if rank >= size {
            return Err(Error::World { rank, size });
        }
        Ok(())
    }

    fn lanes(&self) -> usize {
        match self.threads {
            0 => {
                let cores = std::thread::available_parallelism();
                (2 * cores.map_or(2, std::num::NonZero::get)).max(4)
            }
            threads => threads,
        }
    }
}

/// Runs a conversion into a target. `summary` is what the report says of the plan.
///
/// Errors: what is wrong with the source or the target; [`Error::Cancelled`]. If units are durable by then and another attempt
/// could use them, the target keeps them and the error is [`Error::Suspended`], or [`Error::NotCommitted`] if all of them are;
/// else the target is as it was before.
pub(crate) fn run(
    conversion: &dyn Conversion,
    summary: &Summary,
    mut target: Box<dyn Target>,
    options: &RunOptions,
    progress: &dyn Progress,
) -> Result<RunReport, Error> {
    options.check()?;
    let begin = Instant::now();
    let header = header(conversion, options)?;
    check_unchanged(conversion, &header, target.name())?;
    target.enter(&header.id()?)?;
    if options.is_resumed {
        refuse_others(target.as_mut(), &header)?;
    }
    let is_first = options.world.rank == 0;
    if is_first {
        // Nothing is committed before the first process has had its say.
        conversion.check_before(progress)?;
        target.remove_other_plans()?;
    }
    let name = options.world.rank.to_string();
    let (journal, past) = journal::open(target.as_ref(), &name, &header)?;
    let attempt = Attempt {
        conversion,
        summary,
        target: target.as_ref(),
        options,
        progress,
        header: &header,
        begin,
        alive: Mutex::default(),
    };
    let outcome = attempt.run(journal.as_ref(), past);
    drop(journal);
    let error = match outcome {
        Ok(report) if is_first => {
            let place = target.name().to_owned();
            let is_kept = (target.journals()).is_ok_and(|journals| !journals.is_empty());
            target.commit().map_err(|error| match error {
                rialto_checkpoint::Error::Unsettled { .. } => error.into(),
                error if is_kept => Error::NotCommitted {
                    place,
                    source: Box::new(error.into()),
                },
                error => error.into(),
            })?;
            tracing::info!(target: "rialto::engine", bytes = report.bytes, "committed");
            return Ok(report);
        }
        Ok(report) => {
            target.suspend()?;
            return Ok(report);
        }
        Err(error) => error,
    };
    let past = Past::of(target.as_ref(), &header);
    // Where a device was found to differ, nobody knows since when. A sample is taken before it makes anything.
    let is_spoiled = matches!(error, Error::DeviceDiffers { .. })
        && conversion
            .device()
            .is_some_and(|device| device.decoded_bytes > 0);
    let is_worth_it = !is_spoiled && past.is_ok_and(|past| !past.units.is_empty());
    // Others may be at work in what this process would remove.
    if is_worth_it || options.world.size > 1 {
        let place = target.name().to_owned();
        target.suspend()?;
        return Err(Error::Suspended {
            place,
            source: Box::new(error),
        });
    }
    // What went wrong first is what is told.
    let _ = target.discard();
    Err(error)
}

/// Refuses to resume at a target where only other plans were begun: what was to be gone on with is one of them.
fn refuse_others(target: &mut dyn Target, header: &Header) -> Result<(), Error> {
    if !target.journals()?.is_empty() {
        return Ok(());
    }
    for plan in target.other_plans()? {
        target.enter(&plan)?;
        let begun = journal::begun(target)?;
        target.enter(&header.id()?)?;
        if let Some(begun) = begun {
            header.check(&begun, target.name())?;
        }
    }
    Ok(())
}

/// Whether a directory is the result of this conversion, of this source as it is now, by what its report says. A process among
/// several that comes late finds it so.
///
/// Errors: those of looking at the source; a directory that cannot be read is no result.
pub(crate) fn has_made(
    conversion: &dyn Conversion,
    options: &RunOptions,
    store: &dyn Store,
) -> Result<bool, Error> {
    let header = header(conversion, options)?;
    let report = read_whole(store, REPORT_FILE, REPORT_LIMIT);
    let report = report
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let said = |pointer| report.as_ref()?.pointer(pointer)?.as_str();
    Ok(said("/result/plan_blake3") == Some(&header.plan)
        && said("/source/stamps_blake3") == Some(&stamps_digest(&header)?))
}

/// Digest of what the files of a source look like.
fn stamps_digest(header: &Header) -> Result<String, Error> {
    let stamps = serde_json::to_string(&header.source);
    let stamps = stamps.map_err(|error| Error::journal(&error.to_string()))?;
    Ok(digest::hex(blake3::hash(stamps.as_bytes()).as_bytes()))
}

/// What is made of what.
fn header(conversion: &dyn Conversion, options: &RunOptions) -> Result<Header, Error> {
    let mut hasher = blake3::Hasher::new();
    conversion.identify(&mut hasher);
    let mut say = |text: String| {
        hasher.update(text.as_bytes());
    };
    say(format!("{:?}\n", options.hash));
    for file in conversion.files() {
        say(format!("{file:?}\n"));
        for position in file.outputs.clone() {
            let output = conversion.output(position);
            let frame = output.frame.as_ref().map(|frame| frame.offset);
            say(format!(
                "{} {:?} {} {:?} {frame:?}\n",
                output.subject, output.region, output.dtype, output.data
            ));
        }
    }
    let plan = digest::hex(hasher.finalize().as_bytes());
    let (direction, planned) = (conversion.direction(), conversion.planned_stamps().clone());
    Ok(Header::new(direction, plan, planned))
}

/// Refuses a source that is not what it was when it was planned with: what was read of it may be of two.
fn check_unchanged(conversion: &dyn Conversion, header: &Header, place: &str) -> Result<(), Error> {
    let mut now = header.clone();
    now.source = conversion.stamps()?;
    now.check(header, place)
}

/// One attempt of one process.
struct Attempt<'a> {
    conversion: &'a dyn Conversion,
    summary: &'a Summary,
    target: &'a dyn Target,
    options: &'a RunOptions,
    progress: &'a dyn Progress,
    header: &'a Header,
    begin: Instant,
    /// Journals of other processes that were seen held.
    alive: Mutex<BTreeSet<String>>,
}

impl Attempt<'_> {
    fn run(&self, journal: &dyn Journal, mut past: Past) -> Result<RunReport, Error> {
        let conversion = self.conversion;
        let lengths: Vec<u64> = conversion.files().iter().map(|file| file.len).collect();
        let owned = self.options.world.owned(&lengths);
        let allotment = self.allotment(&owned)?;
        let mut missing = 0u64;
        for (number, file) in conversion.files().iter().enumerate() {
            if self.target.length(&file.name)? == Some(file.len) {
                continue;
            }
            // What a journal says of a file that is not there is of no use.
            past.forget(number, file);
            if owned[number] {
                missing = missing.saturating_add(file.len);
            }
        }
        if self.options.world.rank == 0 {
            missing = missing.saturating_add(conversion.small_bytes());
        }
        self.target.require_bytes(missing)?;
        for file in self.owned_files(&owned) {
            self.target.reopen(&file.name)?.reserve(file.len)?;
        }
        let past = &past;
        let (all, done) = self.bytes(&owned, past);
        if done < all {
            conversion.prepare(allotment.lanes, self.progress)?;
        }
        self.progress.begin(conversion.direction().verb(), all);
        self.progress.advance(done);
        let around = Surroundings {
            conversion,
            target: self.target,
            journal,
            progress: self.progress,
            past,
            owned: &owned,
            watch: &|| drop(self.watch()),
        };
        let hashes = self.options.hash == HashChoice::Blake3;
        let lanes = Lanes::new(around, allotment, hashes, self.options.sync_every);
        let digests = lanes.run();
        self.progress.end();
        let digests = digests?;
        if self.options.world.rank > 0 {
            return self.report(allotment, done, None);
        }
        let digests = match self.options.world.size == 1 {
            true => digests,
            false => self.await_others(digests, &owned)?,
        };
        self.finish(allotment, done, &digests)
    }

    /// Looks which other processes are at work; returns the journals of those that were and have ended. A file system that cannot
    /// say is not asked again in vain: whoever makes no progress is noticed all the same, if later.
    fn watch(&self) -> BTreeSet<String> {
        let mut ended = BTreeSet::new();
        // Only the first waits for others.
        if self.options.world.size == 1 || self.options.world.rank > 0 {
            return ended;
        }
        let mut alive = locked(&self.alive);
        for name in self.target.journals().unwrap_or_default() {
            match self.target.is_held(&name) {
                Ok(Some(true)) => {
                    alive.insert(name);
                }
                Ok(Some(false)) if alive.contains(&name) => {
                    ended.insert(name);
                }
                _ => {}
            }
        }
        ended
    }

    /// Bytes of the outputs in the owned files, and how many of them are done.
    fn bytes(&self, owned: &[bool], past: &Past) -> (u64, u64) {
        let (mut all, mut done) = (0, 0);
        self.each_group(owned, |group| {
            for output in &group.outputs {
                all += output.data.len();
                for id in group.ids().filter(|id| past.units.contains_key(id)) {
                    done += group.bytes_of(output, id.number).len();
                }
            }
        });
        (all, done)
    }

    fn owned_files<'a>(&'a self, owned: &'a [bool]) -> impl Iterator<Item = &'a DataFile> {
        let files = self.conversion.files().iter().zip(owned);
        files.filter_map(|(file, is_owned)| is_owned.then_some(file))
    }

    fn each_group(&self, owned: &[bool], mut visit: impl FnMut(unit::Group)) {
        for file in self.owned_files(owned) {
            let mut position = file.outputs.start;
            while let Some(group) = group_at(self.conversion, position, file) {
                position += group.outputs.len();
                visit(group);
            }
        }
    }

    /// How many lanes, and how much each holds. Errors: [`Error::Budget`].
    fn allotment(&self, owned: &[bool]) -> Result<Allotment, Error> {
        let mut needs = Needs::default();
        self.each_group(owned, |group| {
            let reading = self.conversion.reading(group.outputs[0].subject);
            needs.raise(|band, is_whole| reading.lane_bytes(&group, band, is_whole));
        });
        // Besides: runs that are read together, and what a direct call passes through on each side.
        let beside = WINDOW_BYTES + 2 * (DIRECT_BLOCK + PAGE);
        let options = self.options;
        allot(options.memory_budget_bytes, options.lanes(), &needs, beside)
    }

    /// Waits until the journals say that every unit of every file is done, and adds the digests of what others did.
    ///
    /// Errors: [`Error::OthersStopped`] if none of them makes progress for too long, or one that was at work has ended.
    fn await_others(
        &self,
        mut digests: Vec<Option<Digest>>,
        owned: &[bool],
    ) -> Result<Vec<Option<Digest>>, Error> {
        let others: Vec<bool> = owned.iter().map(|is_owned| !is_owned).collect();
        let (mut units, mut framed) = (Vec::new(), Vec::new());
        self.each_group(&others, |group| {
            units.extend(group.ids());
            if !group.has_no_frames() {
                framed.push(group.first);
            }
        });
        let files: Vec<usize> = (0..others.len()).filter(|&file| others[file]).collect();
        let (mut seen, mut since) = (0, Instant::now());
        let past = loop {
            if self.progress.is_cancelled() {
                return Err(Error::Cancelled);
            }
            // Asked before the journals are read: who ended in between had its say by then.
            let ended = self.watch();
            let begin = Instant::now();
            let past = Past::of(self.target, self.header)?;
            let is_done = units.iter().all(|id| past.units.contains_key(id))
                && framed.iter().all(|group| past.framed.contains(group))
                && files.iter().all(|file| past.fixed.contains(file));
            if is_done {
                break past;
            }
            let missing = units
                .iter()
                .filter(|id| !past.units.contains_key(id))
                .count();
            let found = past.units.len() + past.fixed.len();
            if found > seen {
                (seen, since) = (found, Instant::now());
            }
            let is_over = since.elapsed() >= self.options.patience;
            if is_over || !ended.is_empty() {
                let owners = self.owners_missing(&past);
                if is_over || ended.iter().any(|name| owners.contains(name)) {
                    return Err(Error::OthersStopped {
                        place: self.target.name().to_owned(),
                        ranks: owners.into_iter().collect(),
                        missing: missing as u64,
                        waited: since.elapsed(),
                    });
                }
            }
            // Reading takes longer the more there is to read: never half of the time.
            std::thread::sleep(POLL.max(2 * begin.elapsed()));
        };
        let mut failed = None;
        self.each_group(&others, |group| {
            let parts: Vec<_> = group.ids().map(|id| past.units.get(&id).cloned()).collect();
            match joined(&group, &parts, self.options.hash == HashChoice::Blake3) {
                Ok(joined) => {
                    for (position, (_, digest)) in (group.first..).zip(joined) {
                        digests[position] = digest;
                    }
                }
                Err(error) => failed = Some(error),
            }
        });
        failed.map_or(Ok(digests), Err)
    }

    /// The processes in whose files something is not done, as their journals are called.
    fn owners_missing(&self, past: &Past) -> BTreeSet<String> {
        let lengths: Vec<u64> = self
            .conversion
            .files()
            .iter()
            .map(|file| file.len)
            .collect();
        let size = self.options.world.size;
        let ranks = (1..size).filter(|&rank| {
            let owned = World { rank, size }.owned(&lengths);
            let mut is_done =
                (0..owned.len()).all(|file| !owned[file] || past.fixed.contains(&file));
            self.each_group(&owned, |group| {
                let is_framed = group.has_no_frames() || past.framed.contains(&group.first);
                let mut ids = group.ids();
                is_done = is_done && is_framed && ids.all(|id| past.units.contains_key(&id));
            });
            !is_done
        });
        ranks.map(|rank| rank.to_string()).collect()
    }

    /// Writes all that is no tensor data and removes what is not of this plan.
    fn finish(
        &self,
        allotment: Allotment,
        done: u64,
        digests: &[Option<Digest>],
    ) -> Result<RunReport, Error> {
        let mut small = SmallFiles::new(self.target, self.progress);
        self.conversion.write_small(&mut small)?;
        let mut names: BTreeSet<String> =
            small.written.iter().map(|file| file.name.clone()).collect();
        names.extend(self.conversion.files().iter().map(|file| file.name.clone()));
        names.insert(REPORT_FILE.to_owned());
        let manifest = match self.options.hash {
            HashChoice::None => None,
            HashChoice::Blake3 => {
                let written = std::mem::take(&mut small.written);
                let text = Manifest::new(self.conversion, digests, written)?.text()?;
                small.write(MANIFEST_FILE, text.as_bytes())?;
                names.insert(MANIFEST_FILE.to_owned());
                Some(digest::hex(blake3::hash(text.as_bytes()).as_bytes()))
            }
        };
        check_unchanged(self.conversion, self.header, self.target.name())?;
        let report = self.report(allotment, done, manifest)?;
        small.write(REPORT_FILE, report.text()?.as_bytes())?;
        self.target.retain(&names)?;
        Ok(report)
    }

    fn report(
        &self,
        allotment: Allotment,
        done: u64,
        manifest_blake3: Option<String>,
    ) -> Result<RunReport, Error> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut not_verified = vec![
            "the source's own correctness: values are carried as they are".to_owned(),
            "the result, by reading it again: `rialto verify` does that".to_owned(),
        ];
        if manifest_blake3.is_none() && self.options.world.rank == 0 {
            not_verified.push("digests: hashing was off".to_owned());
        }
        let budget_bytes = self.options.memory_budget_bytes;
        let mut summary = self.summary.clone();
        let device_bytes = (self.conversion).device_bytes(allotment.lanes, budget_bytes);
        summary.set_memory(budget_bytes, device_bytes);
        Ok(RunReport {
            schema: 1,
            rialto: env!("CARGO_PKG_VERSION").to_owned(),
            about: self.options.about.clone(),
            began_unix_s: now.saturating_sub(self.begin.elapsed()).as_secs(),
            seconds: self.begin.elapsed().as_secs_f64(),
            bytes: self.summary.target.bytes,
            bytes_found_done: done,
            rank: self.options.world.rank,
            world_size: self.options.world.size,
            threads: allotment.lanes,
            memory_budget_bytes: budget_bytes,
            device: self.conversion.device(),
            source: SourceReport {
                files: self.header.source.len() as u64,
                bytes: self.header.source.values().map(|stamp| stamp.len).sum(),
                stamps_blake3: stamps_digest(self.header)?,
            },
            result: ResultReport {
                place: self.target.name().to_owned(),
                manifest_blake3,
                plan_blake3: self.header.plan.clone(),
            },
            summary,
            not_verified,
        })
    }
}
