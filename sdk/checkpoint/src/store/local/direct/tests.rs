use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;

const ALL: [Access; 3] = [Access::Auto, Access::Direct, Access::Buffered];

/// Bytes of which no two pages are alike.
fn noise(len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect()
}

fn reader(path: &Path, access: Access) -> DirectFile {
    DirectFile::for_reading(File::open(path).unwrap(), path.to_owned(), access)
}

fn writer(path: &Path, access: Access) -> DirectFile {
    let file = File::options().write(true).open(path).unwrap();
    DirectFile::for_writing(file, path.to_owned(), access)
}

/// A scratch directory, unless its file system has no direct I/O at all.
fn scratch() -> Option<tempfile::TempDir> {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("probe");
    fs::write(&path, [0; 4096]).unwrap();
    let file = reader(&path, Access::Direct);
    if file.open_direct().is_err() {
        println!("SKIP: no direct I/O on {}", scratch.path().display());
        return None;
    }
    Some(scratch)
}

/// A number within a few of a multiple of a page or a block, or of no special one, below 2.5 MiB.
fn place() -> impl Strategy<Value = usize> {
    let near = |unit: usize, most: usize| {
        (0..most, 0usize..5).prop_map(move |(times, off)| (times * unit + off).saturating_sub(2))
    };
    prop_oneof![
        near(PAGE_LEN, 640),
        near(DIRECT_MIN as usize, 10),
        near(DIRECT_BLOCK as usize, 3),
        0usize..(5 << 19),
    ]
}

/// How far into a page the memory of a call begins: with `None` as far as the offset.
fn alignment() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![Just(None), (0..PAGE).prop_map(Some), Just(Some(0))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_read_gives_what_is_in_the_file_wherever_it_begins_and_ends(
        len in place(),
        calls in prop::collection::vec((place(), place(), 0usize..2, alignment()), 1..12),
    ) {
        let Some(scratch) = scratch() else { return Ok(()) };
        let path = scratch.path().join("f");
        let model = noise(len);
        fs::write(&path, &model).unwrap();
        for access in ALL {
            let file = reader(&path, access);
            let mut buffer = PageBuffer::new();
            for &(offset, len, beyond, alignment) in &calls {
                // At the end of the file, and a byte beyond, rather than far behind it.
                let offset = offset.min(model.len());
                let len = len.min(model.len() - offset + beyond);
                let buffer = buffer.at(alignment.unwrap_or(offset as u64), len);
                buffer.fill(0xa5);
                match model.get(offset..offset + len) {
                    Some(expected) => {
                        file.read_exact_at(offset as u64, buffer).unwrap();
                        prop_assert!(buffer == expected, "{access:?} {offset}+{len} {alignment:?}");
                    }
                    None => {
                        let error = file.read_exact_at(offset as u64, buffer).unwrap_err();
                        prop_assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                    }
                }
            }
        }
    }

    #[test]
    fn a_write_changes_its_own_bytes_wherever_it_begins_and_ends(
        reserved in prop::option::of(place()),
        calls in prop::collection::vec((place(), place(), alignment()), 1..12),
    ) {
        let Some(scratch) = scratch() else { return Ok(()) };
        let path = scratch.path().join("f");
        for access in ALL {
            let mut model = vec![0; reserved.unwrap_or(0)];
            fs::write(&path, &model).unwrap();
            let file = writer(&path, access);
            let mut buffer = PageBuffer::new();
            for (call, &(offset, len, alignment)) in calls.iter().enumerate() {
                let bytes = buffer.at(alignment.unwrap_or(offset as u64), len);
                bytes.copy_from_slice(&noise(len + call)[call..]);
                file.write_all_at(offset as u64, bytes).unwrap();
                if len > 0 {
                    model.resize(model.len().max(offset + len), 0);
                    model[offset..offset + len].copy_from_slice(bytes);
                }
            }
            prop_assert!(fs::read(&path).unwrap() == model, "{access:?}");
        }
    }
}

/// How many bytes this thread has had read from devices, if the system counts them.
fn bytes_from_devices() -> Option<u64> {
    let counts = fs::read_to_string("/proc/thread-self/io").ok()?;
    let count = counts
        .lines()
        .find_map(|l| l.strip_prefix("read_bytes: "))?;
    count.parse().ok()
}

/// Whether a byte of a file lies in the page cache, where it lies afterwards.
fn is_cached(path: &Path, offset: u64) -> bool {
    let before = bytes_from_devices();
    let file = File::open(path).unwrap();
    file.read_exact_at(&mut [0], offset).unwrap();
    before == bytes_from_devices()
}

#[test]
fn nothing_large_is_left_in_the_page_cache() {
    let Some(scratch) = scratch() else { return };
    let probe = scratch.path().join("probe");
    let mut page = PageBuffer::new();
    let direct = writer(&probe, Access::Direct).open_direct().unwrap();
    direct.write_all_at(page.at(0, PAGE_LEN), 0).unwrap();
    if is_cached(&probe, 0) || !is_cached(&probe, 0) {
        println!("SKIP: {} does not tell", scratch.path().display());
        return;
    }
    let mut buffer = PageBuffer::new();
    let bytes = buffer.at(1, 3 << 20);
    let middle = 1_500_000;
    for access in ALL {
        for offset in [1, 100] {
            let name = |what| scratch.path().join(format!("{what}-{access:?}-{offset}"));
            for path in [name("written"), name("read")] {
                fs::write(&path, []).unwrap();
                let file = writer(&path, access);
                file.write_all_at(offset, bytes).unwrap();
                file.buffered().sync_all().unwrap();
                if access == Access::Buffered {
                    file.drop_cached(0, 0);
                }
            }
            assert!(!is_cached(&name("written"), middle), "{access:?} {offset}");
            let file = reader(&name("read"), access);
            file.read_exact_at(offset, bytes).unwrap();
            assert!(!is_cached(&name("read"), middle), "{access:?} {offset}");
        }
    }
}

#[test]
fn a_file_system_without_direct_io_is_read_through_the_cache_or_refused() {
    // No file of procfs can be opened so.
    let path = Path::new("/proc/self/status");
    let large = DIRECT_MIN as usize;
    for access in [Access::Auto, Access::Buffered] {
        let file = reader(path, access);
        assert!(file.direct_for(0, large).unwrap().is_none());
        file.read_exact_at(0, &mut [0; 8]).unwrap();
    }
    let file = reader(path, Access::Direct);
    file.read_exact_at(0, &mut [0; 8]).unwrap();
    assert!(file.direct_for(0, large - 1).unwrap().is_none());
    let error = file.read_exact_at(0, &mut vec![0; large]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_call_that_is_refused_is_made_up_for_through_the_cache_and_not_tried_again() {
    let Some(scratch) = scratch() else { return };
    let path = scratch.path().join("f");
    let bytes = noise(1 << 20);
    fs::write(&path, &bytes).unwrap();
    for errno in [Errno::INVAL, Errno::OPNOTSUPP] {
        let file = reader(&path, Access::Auto);
        assert!(file.direct_for(0, bytes.len()).unwrap().is_some());
        assert_eq!(file.proceed(8, |_| Err(errno.into())).unwrap(), 0);
        assert!(file.direct_for(0, bytes.len()).unwrap().is_none());
        let mut buffer = vec![0; bytes.len()];
        file.read_exact_at(0, &mut buffer).unwrap();
        assert!(buffer == bytes);
        let file = reader(&path, Access::Direct);
        let error = file.proceed(8, |_| Err(errno.into())).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()));
    }
    let file = reader(&path, Access::Auto);
    assert!(file.proceed(8, |_| Err(Errno::IO.into())).is_err());
    assert!(file.direct_for(0, bytes.len()).unwrap().is_some());
}

#[test]
fn a_call_that_is_interrupted_or_falls_short_is_continued_in_whole_pages() {
    let Some(scratch) = scratch() else { return };
    let file = reader(&scratch.path().join("probe"), Access::Direct);
    let run = |len: usize, steps: &[io::Result<usize>]| {
        let (mut steps, mut places) = (steps.iter(), Vec::new());
        let done = file.proceed(len, |done| {
            places.push(done);
            match steps.next().unwrap() {
                Ok(more) => Ok(*more),
                Err(error) => Err(error.kind().into()),
            }
        });
        (done.unwrap(), places)
    };
    let interrupted = || Err(io::ErrorKind::Interrupted.into());
    assert_eq!(run(0, &[]), (0, vec![]));
    assert_eq!(run(8192, &[interrupted(), Ok(8192)]), (8192, vec![0, 0]));
    assert_eq!(
        run(12288, &[Ok(4096), interrupted(), Ok(4096), Ok(4096)]),
        (12288, vec![0, 4096, 4096, 8192])
    );
    assert_eq!(run(12288, &[Ok(4096), Ok(100)]), (4196, vec![0, 4096]));
    assert_eq!(run(12288, &[Ok(4096), Ok(0)]), (4096, vec![0, 4096]));
}

#[test]
fn blocks_are_written_in_order_until_one_falls_short() {
    let block = DIRECT_BLOCK as usize;
    let bytes = noise(2 * block + 8192);
    for (short, expected) in [
        (0, 0),
        (block + 4096, block + 4096),
        (usize::MAX, bytes.len()),
    ] {
        let mut blocks = Vec::new();
        let done = by_blocks(&bytes, |done, copy| {
            assert!(copy.as_ptr().addr() % PAGE_LEN == 0 && copy == &bytes[done..][..copy.len()]);
            blocks.push(done);
            Ok(copy.len().min(short - done.min(short)))
        });
        assert_eq!(done.unwrap(), expected);
        let reached = [0, block, 2 * block].into_iter();
        assert!(blocks.into_iter().eq(reached.filter(|&at| at <= short)));
    }
}

#[test]
fn another_file_under_the_same_name_is_not_mistaken_for_the_one_that_was_opened() {
    let Some(scratch) = scratch() else { return };
    let path = scratch.path().join("f");
    let bytes = noise(1 << 20);
    fs::write(&path, &bytes).unwrap();
    let (auto, direct) = (reader(&path, Access::Auto), reader(&path, Access::Direct));
    fs::rename(&path, scratch.path().join("g")).unwrap();
    let mut buffer = vec![0; bytes.len()];
    assert!(direct.read_exact_at(0, &mut buffer).is_err());
    fs::write(&path, vec![1; bytes.len()]).unwrap();
    assert!(direct.read_exact_at(0, &mut buffer).is_err());
    auto.read_exact_at(0, &mut buffer).unwrap();
    assert!(buffer == bytes);
}

#[test]
fn an_offset_beyond_all_files_is_an_error() {
    let Some(scratch) = scratch() else { return };
    let bytes = vec![0; 1 << 20];
    for access in ALL {
        let file = writer(&scratch.path().join("probe"), access);
        for offset in [
            u64::MAX,
            u64::MAX - (1 << 19),
            u64::MAX - (1 << 20),
            1 << 63,
        ] {
            assert!(file.write_all_at(offset, &bytes).is_err(), "{offset}");
        }
    }
}
