//! Archives of our own, archives of other shapes, and archives that lie.

use rialto_tensor::{ByteRange, Location};

use super::*;
use crate::Error;
use crate::store::{MemoryStore, Source, Store};

fn source(bytes: &[u8]) -> Box<dyn Source> {
    let store = MemoryStore::new("m");
    store.insert("f", bytes).unwrap();
    store.open("f").unwrap()
}

fn open(source: &dyn Source) -> Result<Archive<'_>, Error> {
    Archive::open(source, ByteRange::new(0, source.len()), Location::file("f"))
}

fn contents(bytes: &[u8], name: &str) -> Result<Vec<u8>, Error> {
    let source = source(bytes);
    let archive = open(source.as_ref())?;
    archive.contents(name, 1 << 20).map(|(bytes, _)| bytes)
}

fn sample() -> Vec<u8> {
    let mut writer = ArchiveWriter::new("archive");
    writer.record("data.pkl", b"N.");
    writer.record("version", b"3\n");
    writer.aligned_record("data/0", b"tensor bytes");
    writer.finish()
}

/// Overwrites bytes at the last place where `before` is found.
fn patch(bytes: &mut [u8], before: &[u8], skip: usize, after: &[u8]) {
    let at = bytes
        .windows(before.len())
        .rposition(|window| window == before)
        .unwrap()
        + skip;
    bytes[at..at + after.len()].copy_from_slice(after);
}

#[test]
fn what_is_written_is_found_again_inside_a_larger_file() {
    let sample = sample();
    let file = [&[7u8; 100][..], &sample, &[9; 50]].concat();
    let source = source(&file);
    let slice = ByteRange::new(100, 100 + sample.len() as u64);
    let archive = Archive::open(source.as_ref(), slice, Location::file("f")).unwrap();
    assert_eq!(
        archive.names().collect::<Vec<_>>(),
        ["data.pkl", "data/0", "version"]
    );
    let (bytes, range) = archive.contents("data/0", 100).unwrap();
    assert_eq!(bytes, b"tensor bytes");
    assert_eq!((range.start - 100) % ALIGNMENT, 0);
    assert_eq!(
        &file[range.start as usize..range.end as usize],
        b"tensor bytes"
    );
    assert!(matches!(
        archive.require("data/1"),
        Err(Error::ZipRecordMissing { .. })
    ));
}

#[test]
fn a_plain_zip_of_another_tool_is_read() {
    // As `zip -0` writes it: no zip64 records, no padding.
    let mut plain = sample();
    let at = plain
        .windows(4)
        .rposition(|window| window == b"PK\x06\x06")
        .unwrap();
    plain.drain(at..at + ZIP64_END_LEN + ZIP64_LOCATOR_LEN);
    assert_eq!(contents(&plain, "version").unwrap(), b"3\n");
}

#[test]
fn junk_after_the_end_and_a_long_comment_are_passed_over() {
    for junk in [32, 5000, 65_535] {
        let mut bytes = sample();
        bytes.resize(bytes.len() + junk, b'j');
        assert_eq!(contents(&bytes, "version").unwrap(), b"3\n");
    }
    let mut bytes = sample();
    bytes.resize(bytes.len() + 70_000, b'j');
    assert!(matches!(
        contents(&bytes, "version"),
        Err(Error::ZipMalformed { .. })
    ));
}

#[test]
fn a_record_larger_than_four_gigabytes_takes_the_zip64_form() {
    for len in [u64::from(u32::MAX) - 1, u64::from(u32::MAX), 5 << 32] {
        let mut writer = ArchiveWriter::new("archive");
        writer.record("data.pkl", b"N.");
        let (prefix, rest) = writer.streamed_record("data/0", len);
        assert_eq!(prefix.len() as u64 % ALIGNMENT, 0);
        let suffix = rest.finish(1);
        // Nobody needs the data to find it: a source that has all but that.
        let source = Holed {
            prefix: prefix.clone(),
            len,
            suffix,
        };
        let archive = open(&source).unwrap();
        let record = archive.require("data/0").unwrap();
        assert_eq!(record.len, len);
        let range = archive.locate("data/0", record).unwrap();
        assert_eq!(
            range,
            ByteRange::new(prefix.len() as u64, prefix.len() as u64 + len)
        );
    }
}

/// A file with a hole that is never read.
#[derive(Debug)]
struct Holed {
    prefix: Vec<u8>,
    len: u64,
    suffix: Vec<u8>,
}

impl Source for Holed {
    fn name(&self) -> &str {
        "holed"
    }

    fn len(&self) -> u64 {
        self.prefix.len() as u64 + self.len + self.suffix.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let suffix_at = self.prefix.len() as u64 + self.len;
        for (offset, byte) in (offset..).zip(buffer) {
            *byte = if offset < self.prefix.len() as u64 {
                self.prefix[offset as usize]
            } else if offset >= suffix_at {
                self.suffix[(offset - suffix_at) as usize]
            } else {
                0
            };
        }
        Ok(())
    }
}

#[test]
fn the_suffix_is_as_long_for_one_crc_as_for_another() {
    let layout = || {
        ArchiveWriter::new("archive")
            .streamed_record("data/0", 10)
            .1
    };
    assert_eq!(layout().finish(0).len(), layout().finish(u32::MAX).len());
}

#[test]
fn lies_about_offsets_and_lengths_are_errors() {
    let huge32 = u32::MAX - 1;
    let cases: &[(&[u8], usize, Vec<u8>)] = &[
        // the last central entry's sizes, header offset, name length
        (b"PK\x01\x02", 20, huge32.to_le_bytes().to_vec()),
        (b"PK\x01\x02", 24, huge32.to_le_bytes().to_vec()),
        (
            b"PK\x01\x02",
            20,
            [huge32.to_le_bytes(), huge32.to_le_bytes()].concat(),
        ),
        (b"PK\x01\x02", 20, vec![0xff; 8]),
        (b"PK\x01\x02", 42, huge32.to_le_bytes().to_vec()),
        (b"PK\x01\x02", 42, 1u32.to_le_bytes().to_vec()),
        (b"PK\x01\x02", 42, vec![0xff; 4]),
        (b"PK\x01\x02", 28, vec![0xff, 0xff]),
        (b"PK\x01\x02", 10, vec![8]),
        (b"PK\x01\x02", 8, vec![1]),
        // the zip64 end record's count, length and offset
        (b"PK\x06\x06", 32, vec![9]),
        (b"PK\x06\x06", 40, vec![0xff; 8]),
        (b"PK\x06\x06", 40, (1u64 << 63).to_le_bytes().to_vec()),
        (b"PK\x06\x06", 48, vec![0xff; 8]),
        (b"PK\x06\x06", 48, vec![1]),
        (b"PK\x06\x07", 8, vec![0xff; 8]),
        (b"PK\x06\x07", 8, vec![0]),
        // a local header's name length
        (b"PK\x03\x04", 26, vec![0xff, 0xff]),
        (b"PK\x03\x04", 28, vec![0xff, 0xff]),
        (b"PK\x03\x04", 31, b"X".to_vec()),
    ];
    for (signature, skip, value) in cases {
        let mut bytes = sample();
        patch(&mut bytes, signature, *skip, value);
        let result = contents(&bytes, "data/0");
        assert!(
            result.is_err(),
            "{signature:?}+{skip} = {value:?}: {result:?}"
        );
    }
}

/// The positions of a signature.
fn positions(bytes: &[u8], signature: &[u8]) -> Vec<usize> {
    let windows = bytes.windows(signature.len()).enumerate();
    windows
        .filter(|(_, window)| *window == signature)
        .map(|(at, _)| at)
        .collect()
}

#[test]
fn records_that_share_bytes_are_refused() {
    let whole = sample();
    let central = positions(&whole, b"PK\x01\x02");
    let local = positions(&whole, b"PK\x03\x04");
    let header = |bytes: &mut Vec<u8>, entry: usize, offset: usize| {
        let at = central[entry] + 42;
        bytes[at..at + 4].copy_from_slice(&u32::try_from(offset).unwrap().to_le_bytes());
    };
    let len = |bytes: &mut Vec<u8>, entry: usize, len: usize| {
        let len = u32::try_from(len).unwrap().to_le_bytes();
        bytes[central[entry] + 20..][..8].copy_from_slice(&[len, len].concat());
    };
    // Two records at one place; one that reaches into the next; one inside another's header.
    let mut same = whole.clone();
    header(&mut same, 1, local[0]);
    let mut into = whole.clone();
    len(&mut into, 0, local[1] - local[0]);
    let mut inside = whole.clone();
    header(&mut inside, 1, local[0] + 1);
    for bytes in [same, into, inside] {
        let error = contents(&bytes, "data/0").unwrap_err();
        assert!(
            error.to_string().contains("two records share bytes"),
            "{error}"
        );
    }
}

#[test]
fn an_end_record_that_points_anywhere_is_an_error_or_the_truth() {
    // With and without the zip64 records, whose numbers count instead.
    let with = sample();
    let mut without = with.clone();
    let at = positions(&without, b"PK\x06\x06")[0];
    without.drain(at..at + ZIP64_END_LEN + ZIP64_LOCATOR_LEN);
    let fields = [
        (&with, &b"PK\x06\x06"[..], 40, 8),
        (&with, b"PK\x06\x06", 48, 8),
        (&with, b"PK\x06\x07", 8, 8),
        (&without, b"PK\x05\x06", 12, 4),
        (&without, b"PK\x05\x06", 16, 4),
    ];
    for (bytes, signature, field, width) in fields {
        let at = positions(bytes, signature)[0] + field;
        let truth = bytes[at..at + width].to_vec();
        let anywhere =
            (0..bytes.len() as u64 + 2).chain([1 << 31, u64::from(u32::MAX), 1 << 63, u64::MAX]);
        for value in anywhere {
            let value = &value.to_le_bytes()[..width];
            let mut bytes = bytes.clone();
            bytes[at..at + width].copy_from_slice(value);
            let result = contents(&bytes, "data/0");
            assert_eq!(
                result.is_ok(),
                value == truth,
                "{signature:?}+{field} = {value:?}: {result:?}"
            );
        }
    }
}

#[test]
fn a_record_that_claims_more_than_the_archive_has_allocates_nothing() {
    let mut bytes = sample();
    let at = *positions(&bytes, b"PK\x01\x02").last().unwrap();
    // Sizes in a zip64 field, which replaces the last four bytes of the entry's own name and so need not be read.
    for huge in [1u64 << 62, u64::MAX] {
        bytes[at + 20..at + 28].copy_from_slice(&[0xff; 8]);
        let extra = [
            &1u16.to_le_bytes()[..],
            &16u16.to_le_bytes(),
            &huge.to_le_bytes(),
            &huge.to_le_bytes(),
        ]
        .concat();
        let mut changed = bytes.clone();
        let name_end =
            at + CENTRAL_LEN + usize::from(u16::from_le_bytes([bytes[at + 28], bytes[at + 29]]));
        changed[at + 30..at + 32].copy_from_slice(&20u16.to_le_bytes());
        changed.splice(name_end..name_end, extra);
        let end = positions(&changed, b"PK\x06\x06")[0];
        let len = u64::from_le_bytes(changed[end + 40..end + 48].try_into().unwrap()) + 20;
        changed[end + 40..end + 48].copy_from_slice(&len.to_le_bytes());
        let locator = positions(&changed, b"PK\x06\x07")[0];
        changed[locator + 8..locator + 16].copy_from_slice(&(end as u64).to_le_bytes());
        let error = contents(&changed, "data/0").unwrap_err();
        assert!(
            error.to_string().contains("reaches into the directory"),
            "{error}"
        );
    }
}

#[test]
fn two_records_of_one_name_are_refused() {
    let mut writer = ArchiveWriter::new("archive");
    writer.record("data.pkl", b"N.");
    writer.record("data.pkl", b"N.");
    assert!(matches!(
        contents(&writer.finish(), "data.pkl"),
        Err(Error::ZipMalformed { .. })
    ));
}

#[test]
fn something_that_is_no_zip_says_so() {
    let bytes = vec![b'{'; 200];
    assert!(matches!(
        contents(&bytes, "version"),
        Err(Error::NotTorchSave { .. })
    ));
}

#[test]
fn every_cut_is_an_error() {
    let bytes = sample();
    for len in 0..bytes.len() {
        assert!(contents(&bytes[..len], "data/0").is_err(), "cut at {len}");
    }
    let source = source(&bytes);
    let beyond = ByteRange::new(0, source.len() + 1);
    assert!(Archive::open(source.as_ref(), beyond, Location::file("f")).is_err());
    assert!(Archive::open(source.as_ref(), ByteRange::new(9, 3), Location::file("f")).is_err());
}

proptest::proptest! {
    #[test]
    fn no_changed_byte_makes_the_reader_panic(position in 0usize..1000, byte in proptest::num::u8::ANY) {
        let mut bytes = sample();
        let len = bytes.len();
        bytes[position % len] = byte;
        let _ = contents(&bytes, "data/0");
    }
}
