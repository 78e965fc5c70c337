//! A plain copier: the honest floor of a conversion.
//!
//! It moves the bytes of a directory by positioned reads and writes of large blocks in a few threads, past the page cache, into
//! files that have their room from the start, and ends when everything is on the disk. What converts as much does at least
//! this. With a write factor it writes some blocks more than once, so that it moves the volumes of a conversion that
//! reads less than it writes.
//!
//! Where a file system has no direct reads and writes, or is memory, it copies through the page cache in smaller blocks.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

use crate::machine::is_memory;

/// What direct reads and writes begin and end on.
const ALIGNMENT: usize = 4096;

/// Bytes of a block past the page cache: large enough that a disk is asked seldom.
const DIRECT_BLOCK: usize = 8 << 20;

/// Bytes of a block through the page cache: what is read is still in the core's cache when it is written.
const BUFFERED_BLOCK: usize = 1 << 20;

/// Where from, where to, and how.
#[derive(clap::Args)]
pub(crate) struct CopyArguments {
    /// Directory to copy, with what is below it.
    source: PathBuf,
    /// Directory to create. What exists is refused.
    target: PathBuf,
    /// Blocks that are under way at the same time.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,
    /// Bytes written for each byte read, such as 2 for FP8 that becomes BF16.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    write_factor: f64,
}

/// Copies. Errors: a factor that is none; the file system's.
pub(crate) fn run(arguments: &CopyArguments) -> Result<()> {
    let CopyArguments { source, target, .. } = arguments;
    let how = How {
        threads: usize::try_from(arguments.threads)?,
        write_factor: arguments.write_factor,
        is_direct: !is_memory(source)? && !is_memory(target.parent().unwrap_or(target))?,
    };
    let copied = copy(source, target, how).with_context(|| {
        format!(
            "{} was not copied to {}",
            source.display(),
            target.display()
        )
    })?;
    println!(
        "{} files, {} bytes read and {} written in {} threads, {}",
        copied.files,
        copied.read_bytes,
        copied.written_bytes,
        how.threads,
        if copied.is_direct {
            "direct"
        } else {
            "buffered"
        },
    );
    Ok(())
}

/// How to copy.
#[derive(Clone, Copy, Debug)]
struct How {
    threads: usize,
    write_factor: f64,
    /// Past the page cache, if the file systems let us.
    is_direct: bool,
}

/// What was copied.
#[derive(Debug, PartialEq, Eq)]
struct Copied {
    files: usize,
    read_bytes: u64,
    written_bytes: u64,
    is_direct: bool,
}

/// A file that is copied, open on both sides.
struct Pair {
    from: File,
    to: File,
    length: u64,
}

fn copy(source: &Path, target: &Path, how: How) -> Result<Copied> {
    let factor = how.write_factor;
    ensure!(
        (1.0 / 16.0..=16.0).contains(&factor),
        "a write factor of {factor}, expected 1/16 to 16"
    );
    let (mut directories, mut files) = (vec![PathBuf::new()], Vec::new());
    list(source, Path::new(""), &mut directories, &mut files)?;
    for directory in &directories {
        let directory = target.join(directory);
        fs::create_dir(&directory).with_context(|| directory.display().to_string())?;
    }
    let is_direct = how.is_direct && takes_direct(source, target, &files)?;
    let flags = if is_direct {
        OFlags::DIRECT
    } else {
        OFlags::empty()
    };
    let block_bytes = if is_direct {
        DIRECT_BLOCK
    } else {
        BUFFERED_BLOCK
    };
    let blocks = Blocks {
        bytes: block_bytes as u64,
        factor,
    };
    let mut pairs = Vec::new();
    for file in &files {
        let pair = Pair::open(&source.join(file), &target.join(file), flags, blocks);
        pairs.push(pair.with_context(|| file.display().to_string())?);
    }
    let work: Vec<(&Pair, u64)> = pairs
        .iter()
        .flat_map(|pair| (0..blocks.count(pair.length)).map(move |block| (pair, block)))
        .collect();
    in_threads(how.threads, &work, || {
        let mut buffer = Buffer::new(block_bytes);
        move |&(pair, block)| pair.copy(block, blocks, is_direct, buffer.bytes())
    })?;
    in_threads(how.threads, &pairs, || |pair: &Pair| pair.finish(blocks))?;
    for directory in &directories {
        File::open(target.join(directory))?.sync_all()?;
    }
    Ok(Copied {
        files: pairs.len(),
        read_bytes: pairs.iter().map(|pair| pair.length).sum(),
        written_bytes: pairs
            .iter()
            .map(|pair| blocks.target_length(pair.length))
            .sum(),
        is_direct,
    })
}

/// Directories and files below one, by their paths from it.
fn list(
    root: &Path,
    below: &Path,
    directories: &mut Vec<PathBuf>,
    files: &mut Vec<PathBuf>,
) -> Result<()> {
    let folder = root.join(below);
    let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort();
    for name in names {
        let path = below.join(name);
        if fs::metadata(root.join(&path))?.is_dir() {
            directories.push(path.clone());
            list(root, &path, directories, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// Whether both sides open files for direct access, tried on the first file.
fn takes_direct(source: &Path, target: &Path, files: &[PathBuf]) -> Result<bool> {
    let Some(first) = files.first() else {
        return Ok(true);
    };
    let flags = OFlags::DIRECT.bits().cast_signed();
    let opened = [
        OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(source.join(first)),
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(flags)
            .open(target.join(first)),
    ];
    fs::remove_file(target.join(first)).or_else(unless_not_found)?;
    for file in opened {
        match file {
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                return Ok(false);
            }
            file => file.map(drop)?,
        }
    }
    Ok(true)
}

fn unless_not_found(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

/// How files fall into blocks, and where each is written.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    bytes: u64,
    factor: f64,
}

impl Blocks {
    fn count(self, length: u64) -> u64 {
        length.div_ceil(self.bytes)
    }

    /// Which blocks of the target a block of the source becomes: as many more in all as the factor says, evenly. The last one,
    /// which is seldom whole, becomes one.
    fn places(self, block: u64, length: u64) -> std::ops::Range<u64> {
        let before = |block: u64| (block as f64 * self.factor).ceil() as u64;
        let begin = before(block);
        match block + 1 == self.count(length) {
            true => begin..begin + 1,
            false => begin..before(block + 1),
        }
    }

    fn target_length(self, length: u64) -> u64 {
        let Some(last) = self.count(length).checked_sub(1) else {
            return 0;
        };
        self.places(last, length).start * self.bytes + length - last * self.bytes
    }
}

impl Pair {
    fn open(from: &Path, to: &Path, flags: OFlags, blocks: Blocks) -> Result<Pair> {
        let flags = flags.bits().cast_signed();
        let from = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(from)?;
        let to = OpenOptions::new()
            .write(true)
            .create_new(true)
            .custom_flags(flags)
            .open(to)?;
        let length = from.metadata()?.len();
        let room = blocks
            .target_length(length)
            .next_multiple_of(ALIGNMENT as u64);
        if room > 0 {
            match fallocate(&to, FallocateFlags::empty(), 0, room) {
                // Then it takes its room as it is written.
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Pair { from, to, length })
    }

    /// Copies one block. A direct write ends on the alignment; what is too much is cut when the file is finished.
    fn copy(&self, block: u64, blocks: Blocks, is_direct: bool, buffer: &mut [u8]) -> Result<()> {
        let begin = block * blocks.bytes;
        let length = usize::try_from(blocks.bytes.min(self.length - begin))?;
        let whole = match is_direct {
            true => length.next_multiple_of(ALIGNMENT),
            false => length,
        };
        let found = self.from.read_at(&mut buffer[..whole], begin)?;
        ensure!(
            found == length,
            "{found} bytes at {begin}, expected {length}"
        );
        for place in blocks.places(block, self.length) {
            let at = place * blocks.bytes;
            let written = self.to.write_at(&buffer[..whole], at)?;
            ensure!(
                written == whole,
                "{written} bytes written at {at}, expected {whole}"
            );
        }
        Ok(())
    }

    fn finish(&self, blocks: Blocks) -> Result<()> {
        self.to.set_len(blocks.target_length(self.length))?;
        Ok(self.to.sync_data()?)
    }
}

/// Memory that begins on the alignment.
struct Buffer {
    memory: Vec<u8>,
    begin: usize,
    length: usize,
}

impl Buffer {
    fn new(length: usize) -> Buffer {
        let memory = vec![0; length + ALIGNMENT];
        let begin = memory.as_ptr().align_offset(ALIGNMENT);
        Buffer {
            memory,
            begin,
            length,
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..][..self.length]
    }
}

/// Does every item in one of some threads, each with a worker of its own. Errors: the first of any; the others stop after the
/// item they are at.
fn in_threads<T: Sync, W: FnMut(&T) -> Result<()>>(
    threads: usize,
    items: &[T],
    worker: impl Fn() -> W + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut work = worker();
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(item).inspect_err(|_| next.store(items.len(), Ordering::Relaxed))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a copying thread does not panic"))
    })
}

#[cfg(test)]
mod tests {
    use rialto_tests::random::Random;

    use super::*;

    fn how(is_direct: bool, write_factor: f64) -> How {
        How {
            threads: 2,
            write_factor,
            is_direct,
        }
    }

    fn random(length: usize) -> Vec<u8> {
        let mut random = Random(length as u64);
        let words = (0..length.div_ceil(8)).map(|_| random.bits().to_le_bytes());
        let mut bytes: Vec<u8> = words.flatten().collect();
        bytes.truncate(length);
        bytes
    }

    /// Around a sector and around a block of either kind.
    const LENGTHS: [usize; 9] = [
        0,
        1,
        4095,
        4096,
        4097,
        BUFFERED_BLOCK,
        BUFFERED_BLOCK + 1,
        DIRECT_BLOCK - 1,
        2 * DIRECT_BLOCK + 4097,
    ];

    #[test]
    fn every_byte_of_every_file_below_is_copied_both_ways() {
        let room = tempfile::tempdir().unwrap();
        let source = room.path().join("source");
        fs::create_dir_all(source.join("below")).unwrap();
        for length in LENGTHS {
            fs::write(source.join(format!("below/{length}")), random(length)).unwrap();
        }
        fs::write(source.join("beside"), "x").unwrap();
        for is_direct in [false, true] {
            let target = room.path().join(format!("target-{is_direct}"));
            let copied = copy(&source, &target, how(is_direct, 1.0)).unwrap();
            let bytes = LENGTHS.iter().sum::<usize>() as u64 + 1;
            assert_eq!(
                (copied.files, copied.read_bytes),
                (LENGTHS.len() + 1, bytes)
            );
            assert_eq!(copied.written_bytes, bytes);
            assert_eq!(fs::read(target.join("beside")).unwrap(), b"x");
            for length in LENGTHS {
                let found = fs::read(target.join(format!("below/{length}"))).unwrap();
                assert!(found == random(length), "{length} direct {is_direct}");
            }
        }
    }

    #[test]
    fn a_write_factor_writes_as_much_more_and_nothing_else() {
        let room = tempfile::tempdir().unwrap();
        let source = room.path().join("source");
        fs::create_dir(&source).unwrap();
        let bytes = random(10 * BUFFERED_BLOCK + 5);
        fs::write(source.join("file"), &bytes).unwrap();
        for (factor, blocks) in [(2.0, 20), (1.5, 15), (0.5, 5)] {
            let target = room.path().join(format!("target-{factor}"));
            let copied = copy(&source, &target, how(false, factor)).unwrap();
            let found = fs::read(target.join("file")).unwrap();
            assert_eq!(copied.written_bytes, found.len() as u64);
            let expected = blocks * BUFFERED_BLOCK;
            let off = found.len().abs_diff(expected);
            assert!(off <= BUFFERED_BLOCK, "{factor}: {} bytes", found.len());
            // Every block written is one of the source, in order.
            let mut wanted = bytes.chunks(BUFFERED_BLOCK).peekable();
            for block in found.chunks(BUFFERED_BLOCK) {
                while wanted.peek() != Some(&block) {
                    assert!(wanted.next().is_some(), "{factor}: a block of nowhere");
                }
            }
        }
    }

    #[test]
    fn blocks_lie_side_by_side_whatever_the_factor() {
        for factor in [0.3, 1.0, 1.63, 2.0] {
            let blocks = Blocks { bytes: 10, factor };
            let mut end = 0;
            for block in 0..1000 {
                let places = blocks.places(block, 10_001);
                assert_eq!(places.start, end, "{factor}");
                end = places.end;
            }
            assert_eq!(end, (1000.0 * factor).ceil() as u64);
            assert_eq!(blocks.places(1000, 10_001), end..end + 1);
            assert_eq!(blocks.target_length(10_001), 10 * end + 1);
        }
        let exact = Blocks {
            bytes: 10,
            factor: 1.0,
        };
        let lengths = [0, 1, 10, 25];
        assert_eq!(lengths.map(|length| exact.target_length(length)), lengths);
    }

    #[test]
    fn what_cannot_be_copied_is_an_error() {
        let room = tempfile::tempdir().unwrap();
        let source = room.path().join("source");
        fs::create_dir(&source).unwrap();
        let to = |name: &str| room.path().join(name);
        assert!(copy(&source, &source, how(true, 1.0)).is_err());
        assert!(copy(&to("none"), &to("target"), how(true, 1.0)).is_err());
        assert!(copy(&source, &to("target"), how(true, 0.0)).is_err());
        let copied = copy(&source, &to("empty"), how(true, 1.0)).unwrap();
        assert_eq!((copied.files, copied.written_bytes), (0, 0));
    }

    #[test]
    fn the_first_error_of_a_thread_is_the_one_told() {
        let items: Vec<u32> = (0..1000).collect();
        let error = in_threads(2, &items, || {
            |item: &u32| {
                ensure!(*item != 500, "item {item}");
                Ok(())
            }
        });
        assert_eq!(error.unwrap_err().to_string(), "item 500");
    }
}
