//! The machine that is measured on: what it is, what it is doing, and its caches.
//!
//! Everything is read from Linux's own files; each is parsed by a function of its text, so that the tests need no machine.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{Advice, fadvise, statfs, sync};
use serde_json::{Value, json};

/// What `statfs` says of tmpfs and of ramfs.
const MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Whether a directory lies in memory. Errors: it is not there.
pub(crate) fn is_memory(directory: &Path) -> Result<bool> {
    // A relative path without a folder means this one.
    let directory = match directory.as_os_str().is_empty() {
        true => Path::new("."),
        false => directory,
    };
    let found = statfs(directory).with_context(|| directory.display().to_string())?;
    Ok(MEMORY.contains(&(found.f_type.cast_unsigned() & 0xffff_ffff)))
}

/// What a record says about a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
    /// Of the directory that is written to.
    pub(crate) file_system: String,
}

impl Machine {
    /// This one. Errors: a file of Linux that cannot be read.
    pub(crate) fn read(work: &Path) -> Result<Machine> {
        let work = work.canonicalize()?;
        Ok(Machine {
            cpu: cpu(&text("/proc/cpuinfo")?).unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism()?.get(),
            memory_bytes: kibibytes(&text("/proc/meminfo")?, "MemTotal").context("MemTotal")?,
            kernel: text("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            file_system: file_system(&text("/proc/self/mounts")?, &work)
                .context("no mount holds the directory")?,
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "cpu": self.cpu,
            "cores": self.cores,
            "memory_bytes": self.memory_bytes,
            "kernel": self.kernel,
            "file_system": self.file_system,
        })
    }
}

fn text(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.to_owned())
}

fn cpu(cpuinfo: &str) -> Option<String> {
    let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let (_, name) = lines.find(|(key, _)| key.trim() == "model name")?;
    Some(name.trim().to_owned())
}

/// A line of `/proc/meminfo`, in bytes.
fn kibibytes(meminfo: &str, key: &str) -> Option<u64> {
    let mut lines = meminfo.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(found, _)| *found == key)?;
    let number: u64 = value.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(number * 1024)
}

/// The type of the deepest mount that a path is below; of two at one place the later one, which hides the other.
fn file_system(mounts: &str, path: &Path) -> Option<String> {
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (place, kind) = (words.nth(1)?, words.next()?);
        Some((PathBuf::from(place), kind))
    });
    let holding = mounts.filter(|(place, _)| path.starts_with(place));
    let (_, kind) = holding.max_by_key(|(place, _)| place.components().count())?;
    Some(kind.to_owned())
}

/// What the machine is doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moment {
    /// Of the last minute.
    pub(crate) load: f64,
    /// Memory that programs could still have.
    pub(crate) available_bytes: u64,
    ticks: Ticks,
}

/// CPU time of all cores since the machine began, in whatever unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    all: u64,
}

impl Moment {
    /// Now. Errors: a file of Linux that cannot be read.
    pub(crate) fn now() -> Result<Moment> {
        Moment::parse(
            &text("/proc/loadavg")?,
            &text("/proc/meminfo")?,
            &text("/proc/stat")?,
        )
        .context("/proc/loadavg, meminfo or stat is not as Linux writes it")
    }

    fn parse(loadavg: &str, meminfo: &str, stat: &str) -> Option<Moment> {
        Some(Moment {
            load: loadavg.split(' ').next()?.parse().ok()?,
            available_bytes: kibibytes(meminfo, "MemAvailable")?,
            ticks: Ticks::parse(stat)?,
        })
    }

    /// The share of all cores since then that somebody else kept busy, if a program had so many seconds of CPU in the
    /// `elapsed` seconds: other programs, other machines on the same hardware, and what the kernel does on its own account.
    pub(crate) fn others_since(
        &self,
        then: &Moment,
        cores: usize,
        elapsed: f64,
        cpu_seconds: f64,
    ) -> f64 {
        let all = self.ticks.all.saturating_sub(then.ticks.all);
        let busy = self.ticks.busy.saturating_sub(then.ticks.busy);
        if all == 0 || elapsed <= 0.0 {
            return 0.0;
        }
        let own = cpu_seconds / (elapsed * cores as f64);
        (busy as f64 / all as f64 - own).max(0.0)
    }
}

impl Ticks {
    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal; what guests had is in user and nice.
    fn parse(stat: &str) -> Option<Ticks> {
        let numbers = stat
            .lines()
            .next()?
            .strip_prefix("cpu ")?
            .split_whitespace();
        let numbers: Vec<u64> = numbers
            .take(8)
            .map(|number| number.parse().ok())
            .collect::<Option<_>>()?;
        let idle = numbers.get(3)? + numbers.get(4)?;
        let all = numbers.iter().sum();
        Some(Ticks {
            busy: all - idle,
            all,
        })
    }
}

/// How the files of a source came to be cold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cold {
    /// Every cache of the machine was dropped.
    Dropped,
    /// The kernel was advised to let go of these files' pages, which is all that a user may do.
    Advised,
    /// They lie in memory: nothing is cold.
    Memory,
}

impl Cold {
    /// As a record has it.
    pub(crate) fn says(self) -> &'static str {
        match self {
            Cold::Dropped => "cold: caches dropped before every run",
            Cold::Advised => {
                "cold: pages of the source let go before every run (posix_fadvise); dropping all caches is not permitted here"
            }
            Cold::Memory => "in memory: nothing is cold",
        }
    }
}

/// Writes back what waits to be written, and makes a source cold. Errors: the file system's.
pub(crate) fn cool(source: &Path) -> Result<Cold> {
    sync();
    if is_memory(source)? {
        return Ok(Cold::Memory);
    }
    // Pages, and what is known of names.
    if fs::write(DROP_CACHES, "3").is_ok() {
        return Ok(Cold::Dropped);
    }
    advise(source)?;
    Ok(Cold::Advised)
}

fn advise(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            advise(&path)?;
        } else {
            fadvise(File::open(&path)?, 0, None, Advice::DontNeed)
                .with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// Bytes of all files below a directory. Errors: the file system's.
pub(crate) fn bytes_below(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let entry = entry?;
        let metadata = fs::metadata(entry.path())?;
        bytes += match metadata.is_dir() {
            true => bytes_below(&entry.path())?,
            false => metadata.len(),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_mount_names_the_file_system() {
        let mounts = "\
/dev/vda / ext4 rw,relatime 0 0
tmpfs /dev/shm tmpfs rw 0 0
/dev/vdb /data xfs rw 0 0
overlay /data overlay rw 0 0
";
        let of = |path: &str| file_system(mounts, Path::new(path)).unwrap();
        assert_eq!(of("/home/me"), "ext4");
        assert_eq!(of("/dev/shm/work"), "tmpfs");
        assert_eq!(of("/database"), "ext4");
        assert_eq!(of("/data/work"), "overlay");
    }

    #[test]
    fn cpu_and_memory_are_read_from_what_linux_writes() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nflags\t: a: b\n";
        assert_eq!(cpu(cpuinfo).unwrap(), "A CPU @ 2 GHz");
        let meminfo = "MemTotal:       24607080 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(kibibytes(meminfo, "MemAvailable"), Some(20_480_000_000));
        assert_eq!(kibibytes(meminfo, "Mem"), None);
    }

    fn moment(stat: &str) -> Moment {
        let stat = format!("cpu  {stat}\ncpu0 1 2 3\n");
        Moment::parse("0.50 0.40 0.30 1/100 4242", "MemAvailable: 1 kB\n", &stat).unwrap()
    }

    #[test]
    fn others_had_what_the_cores_did_and_the_program_did_not() {
        // Two cores for ten seconds at 100 ticks: 2,000 ticks, of which 900 idle, 100 waiting, 200 stolen.
        let then = moment("1000 100 500 7000 300 10 90 0 5 5");
        let now = moment("1600 100 650 7900 400 20 130 200 5 5");
        assert_eq!(now.load, 0.5);
        assert_eq!(now.available_bytes, 1024);
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
        // Busy one half; the program had 8 of 20 seconds.
        near(now.others_since(&then, 2, 10.0, 8.0), 0.1);
        near(now.others_since(&then, 2, 10.0, 0.0), 0.5);
        // Its time is counted to the microsecond and that of the cores is not.
        near(now.others_since(&then, 2, 10.0, 10.1), 0.0);
        near(then.others_since(&then, 2, 0.0, 0.0), 0.0);
    }

    #[test]
    fn this_machine_can_be_read_and_cooled() {
        let room = tempfile::tempdir().unwrap();
        let machine = Machine::read(room.path()).unwrap();
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 20);
        assert!(Moment::now().unwrap().available_bytes > 0);
        fs::create_dir(room.path().join("below")).unwrap();
        fs::write(room.path().join("below/file"), "12345").unwrap();
        fs::write(room.path().join("beside"), "1").unwrap();
        advise(room.path()).unwrap();
        assert_eq!(bytes_below(room.path()).unwrap(), 6);
        let memory = ["tmpfs", "ramfs"].contains(&machine.file_system.as_str());
        assert_eq!(is_memory(room.path()).unwrap(), memory);
    }
}
