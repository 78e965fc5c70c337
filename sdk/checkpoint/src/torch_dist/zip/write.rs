//! An archive whose every length is known before its last record's bytes are.

use super::{
    ALIGNMENT, CENTRAL_SIGNATURE, DESCRIPTOR_SIGNATURE, END_SIGNATURE, IN_ZIP64, LOCAL_LEN,
    LOCAL_SIGNATURE, PADDING_EXTRA, ZIP64_END_LEN, ZIP64_END_SIGNATURE, ZIP64_EXTRA,
    ZIP64_LOCATOR_SIGNATURE,
};

/// Names are UTF-8.
const UTF8: u16 = 1 << 11;
/// CRC and sizes follow the data.
const DESCRIPTOR: u16 = 1 << 3;
/// Version 4.5 brought zip64.
const ZIP64_VERSION: u16 = 45;
/// A zip64 field of both sizes, with its head.
const ZIP64_SIZES_LEN: u64 = 20;

/// Lays out one archive. Records given whole are written at once; the last may be left to be streamed in.
///
/// Offsets count from the archive's first byte. The same calls with the same lengths give the same offsets, whatever the
/// bytes are.
#[derive(Debug, Default)]
pub(crate) struct ArchiveWriter {
    root: &'static str,
    /// What precedes the streamed record's data, or everything so far.
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    header_offset: u64,
    len: u64,
    crc32: u32,
    is_streamed: bool,
}

impl Entry {
    /// Whether the length needs 64 bits; an all-ones 32-bit length already means something else.
    fn is_large(&self) -> bool {
        self.len >= u64::from(IN_ZIP64)
    }

    fn flags(&self) -> u16 {
        if self.is_streamed {
            UTF8 | DESCRIPTOR
        } else {
            UTF8
        }
    }

    fn version(&self) -> u16 {
        if self.is_large() { ZIP64_VERSION } else { 0 }
    }
}

impl ArchiveWriter {
    /// An archive whose records lie in the folder `root`.
    pub(crate) fn new(root: &'static str) -> ArchiveWriter {
        ArchiveWriter {
            root,
            ..ArchiveWriter::default()
        }
    }

    /// Adds a record whose bytes are known.
    pub(crate) fn record(&mut self, name: &str, bytes: &[u8]) {
        self.header(
            name,
            bytes.len() as u64,
            crc32fast::hash(bytes),
            false,
            false,
        );
        self.bytes.extend(bytes);
    }

    /// Adds a record of tensor bytes, aligned.
    pub(crate) fn aligned_record(&mut self, name: &str, bytes: &[u8]) {
        self.header(
            name,
            bytes.len() as u64,
            crc32fast::hash(bytes),
            false,
            true,
        );
        self.bytes.extend(bytes);
    }

    /// Adds the last record, aligned, whose `len` bytes come later. Returns what precedes them, and the rest.
    pub(crate) fn streamed_record(mut self, name: &str, len: u64) -> (Vec<u8>, StreamedArchive) {
        self.header(name, len, 0, true, true);
        let rest = StreamedArchive {
            data_offset: self.bytes.len() as u64,
            entries: self.entries,
        };
        (self.bytes, rest)
    }

    /// Ends an archive of whole records.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let end = directory(&self.entries, self.bytes.len() as u64);
        self.bytes.extend(end);
        self.bytes
    }

    fn header(&mut self, name: &str, len: u64, crc32: u32, is_streamed: bool, is_aligned: bool) {
        let entry = Entry {
            name: format!("{}/{name}", self.root),
            header_offset: self.bytes.len() as u64,
            len,
            crc32,
            is_streamed,
        };
        let is_large = entry.is_large();
        let mut extra = Vec::new();
        if is_large {
            extra.extend(ZIP64_EXTRA.to_le_bytes());
            extra.extend(16u16.to_le_bytes());
            let known = if is_streamed { 0 } else { len };
            extra.extend(known.to_le_bytes());
            extra.extend(known.to_le_bytes());
        }
        if is_aligned {
            let start = entry.header_offset
                + LOCAL_LEN
                + entry.name.len() as u64
                + if is_large { ZIP64_SIZES_LEN } else { 0 };
            extra.extend(padding(start));
        }
        let size = match (is_large, is_streamed) {
            (true, _) => IN_ZIP64,
            (false, true) => 0,
            (false, false) => low_half(len),
        };
        let out = &mut self.bytes;
        out.extend(LOCAL_SIGNATURE.to_le_bytes());
        out.extend(entry.version().to_le_bytes());
        out.extend(entry.flags().to_le_bytes());
        out.extend([0; 6]); // stored; no time, no date
        out.extend(crc32.to_le_bytes());
        out.extend(size.to_le_bytes());
        out.extend(size.to_le_bytes());
        out.extend(short_len(entry.name.len()).to_le_bytes());
        out.extend(short_len(extra.len()).to_le_bytes());
        out.extend(entry.name.as_bytes());
        out.extend(extra);
        self.entries.push(entry);
    }
}

/// An archive that waits for the bytes of its last record.
#[derive(Debug)]
pub(crate) struct StreamedArchive {
    data_offset: u64,
    entries: Vec<Entry>,
}

impl StreamedArchive {
    /// What follows the streamed bytes: as long for one CRC as for another.
    pub(crate) fn finish(mut self, crc32: u32) -> Vec<u8> {
        let entry = self
            .entries
            .last_mut()
            .expect("the streamed record is an entry");
        entry.crc32 = crc32;
        let mut out = Vec::new();
        out.extend(DESCRIPTOR_SIGNATURE.to_le_bytes());
        out.extend(crc32.to_le_bytes());
        if entry.is_large() {
            out.extend(entry.len.to_le_bytes());
            out.extend(entry.len.to_le_bytes());
        } else {
            out.extend(low_half(entry.len).to_le_bytes());
            out.extend(low_half(entry.len).to_le_bytes());
        }
        let start = self.data_offset + entry.len + out.len() as u64;
        out.extend(directory(&self.entries, start));
        out
    }
}

/// The extra field that moves data from `start` to the next multiple of 64, or nothing if it lies there already.
fn padding(start: u64) -> Vec<u8> {
    if start.is_multiple_of(ALIGNMENT) {
        return Vec::new();
    }
    let filler = (start + 4).next_multiple_of(ALIGNMENT) - (start + 4);
    let filler = u16::try_from(filler).expect("less than the alignment");
    let mut extra = PADDING_EXTRA.to_le_bytes().to_vec();
    extra.extend(filler.to_le_bytes());
    extra.resize(extra.len() + usize::from(filler), b'Z');
    extra
}

/// Central directory, zip64 end record, its locator and the end record. The zip64 records are always there, as torch
/// writes them: so one form is in use and tested, whatever the size.
fn directory(entries: &[Entry], start: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        central_entry(&mut out, entry);
    }
    let len = out.len() as u64;
    let end = start + len;
    let count = entries.len() as u64;

    out.extend(ZIP64_END_SIGNATURE.to_le_bytes());
    out.extend((ZIP64_END_LEN as u64 - 12).to_le_bytes());
    out.extend(ZIP64_VERSION.to_le_bytes()); // made by
    out.extend(ZIP64_VERSION.to_le_bytes()); // needed
    out.extend([0; 8]); // disks
    out.extend(count.to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend(len.to_le_bytes());
    out.extend(start.to_le_bytes());

    out.extend(ZIP64_LOCATOR_SIGNATURE.to_le_bytes());
    out.extend([0; 4]); // disk
    out.extend(end.to_le_bytes());
    out.extend(1u32.to_le_bytes()); // disks

    let short_count = u16::try_from(count).unwrap_or(u16::MAX);
    out.extend(END_SIGNATURE.to_le_bytes());
    out.extend([0; 4]); // disks
    out.extend(short_count.to_le_bytes());
    out.extend(short_count.to_le_bytes());
    out.extend(low_or_marked(len).to_le_bytes());
    out.extend(low_or_marked(start).to_le_bytes());
    out.extend([0; 2]); // comment
    out
}

fn central_entry(out: &mut Vec<u8>, entry: &Entry) {
    let mut zip64 = Vec::new();
    if entry.is_large() {
        zip64.extend(entry.len.to_le_bytes());
        zip64.extend(entry.len.to_le_bytes());
    }
    let header_offset = low_or_marked(entry.header_offset);
    if header_offset == IN_ZIP64 {
        zip64.extend(entry.header_offset.to_le_bytes());
    }
    let mut extra = Vec::new();
    if !zip64.is_empty() {
        extra.extend(ZIP64_EXTRA.to_le_bytes());
        extra.extend(short_len(zip64.len()).to_le_bytes());
        extra.extend(zip64);
    }
    out.extend(CENTRAL_SIGNATURE.to_le_bytes());
    out.extend(entry.version().to_le_bytes()); // made by
    out.extend(entry.version().to_le_bytes()); // needed
    out.extend(entry.flags().to_le_bytes());
    out.extend([0; 6]); // stored; no time, no date
    out.extend(entry.crc32.to_le_bytes());
    out.extend(low_or_marked(entry.len).to_le_bytes());
    out.extend(low_or_marked(entry.len).to_le_bytes());
    out.extend(short_len(entry.name.len()).to_le_bytes());
    out.extend(short_len(extra.len()).to_le_bytes());
    out.extend([0; 10]); // comment, disk, attributes
    out.extend(header_offset.to_le_bytes());
    out.extend(entry.name.as_bytes());
    out.extend(extra);
}

fn low_or_marked(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(IN_ZIP64)
}

fn low_half(value: u64) -> u32 {
    u32::try_from(value).expect("longer records take the zip64 form")
}

fn short_len(len: usize) -> u16 {
    u16::try_from(len).expect("record names and extra fields are short")
}
