//! Finding records by the central directory, with every number checked against the bytes it lies in.

use std::collections::BTreeMap;

use rialto_tensor::{ByteRange, Location};

use super::{
    CENTRAL_LEN, CENTRAL_SIGNATURE, END_LEN, END_SIGNATURE, IN_ZIP64, LOCAL_LEN, LOCAL_SIGNATURE,
    ZIP64_END_LEN, ZIP64_END_SIGNATURE, ZIP64_EXTRA, ZIP64_LOCATOR_LEN, ZIP64_LOCATOR_SIGNATURE,
};
use crate::Error;
use crate::store::Source;

/// An end record lies within this many last bytes: its own, a comment's longest, and some junk that torch lets pass.
const END_SEARCH_BYTES: u64 = 66_000;
/// Read at once from either end, so that a tensor item takes two reads: its pickle lies in the head, its directory in
/// the tail.
const HEAD_BYTES: u64 = 1024;
const TAIL_BYTES: u64 = 1024;
/// Longer directories belong to no checkpoint.
const MAX_DIRECTORY_BYTES: u64 = 64 << 20;
const ENCRYPTED: u16 = 1;

/// A zip archive inside a slice of a file.
#[derive(Debug)]
pub(crate) struct Archive<'s> {
    source: &'s dyn Source,
    location: Location,
    /// The slice, in bytes of the file.
    slice: ByteRange,
    /// By name without the root folder.
    records: BTreeMap<String, Record>,
    /// Where the directory begins, from the slice's start: records end before.
    directory_offset: u64,
    /// The root folder, with its `/`.
    root: String,
    /// The slice's first bytes.
    head: Vec<u8>,
    /// The slice's last bytes.
    tail: Vec<u8>,
}

/// A record as the central directory describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// The local header, from the slice's start.
    header_offset: u64,
    /// Bytes of data.
    pub(crate) len: u64,
    /// Bytes that the data takes in the archive: as many, unless it is compressed.
    stored_len: u64,
    /// As recorded; torch neither checks it nor always writes it.
    pub(crate) crc32: u32,
    method: u16,
    flags: u16,
}

impl<'s> Archive<'s> {
    /// Reads the directory of the archive in `slice` of `source`; `location` is what errors speak of.
    ///
    /// Errors: [`Error::NotTorchSave`], [`Error::ZipMalformed`], and those of reading.
    pub(crate) fn open(
        source: &'s dyn Source,
        slice: ByteRange,
        location: Location,
    ) -> Result<Archive<'s>, Error> {
        let location = location.with_bytes(slice.start, slice.end);
        let mut archive = Archive {
            source,
            location,
            slice,
            records: BTreeMap::new(),
            directory_offset: 0,
            root: String::new(),
            head: Vec::new(),
            tail: Vec::new(),
        };
        if slice.start > slice.end || slice.end > source.len() {
            return Err(archive.malformed("it reaches beyond its file"));
        }
        if slice.len() < END_LEN as u64 + 4 {
            return Err(archive.malformed("it is shorter than an empty archive"));
        }
        archive.head = archive.read(0, HEAD_BYTES.min(slice.len()))?;
        if !archive.head.starts_with(&LOCAL_SIGNATURE.to_le_bytes()) {
            return Err(Error::NotTorchSave {
                location: archive.location,
            });
        }
        archive.read_directory()?;
        Ok(archive)
    }

    /// The names of all records, without the root folder, in order.
    #[cfg(test)]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.records.keys().map(String::as_str)
    }

    /// A record that may be absent.
    pub(crate) fn record(&self, name: &str) -> Option<Record> {
        self.records.get(name).copied()
    }

    /// A record that must be there. Errors: [`Error::ZipRecordMissing`].
    pub(crate) fn require(&self, name: &str) -> Result<Record, Error> {
        self.record(name).ok_or_else(|| Error::ZipRecordMissing {
            record: name.to_owned(),
            location: self.location.clone(),
        })
    }

    /// Where a record's data lies, in bytes of the file.
    ///
    /// Errors: [`Error::ZipEncoded`], [`Error::ZipMalformed`].
    pub(crate) fn locate(&self, name: &str, record: Record) -> Result<ByteRange, Error> {
        if record.method != 0 || record.flags & ENCRYPTED != 0 {
            return Err(Error::ZipEncoded {
                record: name.to_owned(),
                method: record.method,
                location: self.location.clone(),
            });
        }
        // Only name and extra length count here: torch leaves sizes and CRC of local headers zero.
        let header = self.read(record.header_offset, LOCAL_LEN)?;
        if u32_at(&header, 0) != LOCAL_SIGNATURE {
            return Err(self.malformed("a record's header is not where the directory says"));
        }
        let name_len = u64::from(u16_at(&header, 26));
        let extra_len = u64::from(u16_at(&header, 28));
        let full_name = [self.root.as_bytes(), name.as_bytes()].concat();
        if self.read(record.header_offset + LOCAL_LEN, name_len)? != full_name {
            return Err(self.malformed("a record has another name than the directory says"));
        }
        let start = record.header_offset + LOCAL_LEN + name_len + extra_len;
        let end = start.checked_add(record.len);
        match end {
            Some(end) if end <= self.directory_offset => Ok(ByteRange::new(
                self.slice.start + start,
                self.slice.start + end,
            )),
            _ => Err(self.malformed("a record reaches into the directory")),
        }
    }

    /// Reads a whole record of at most `limit` bytes, and says where it lies in the file.
    pub(crate) fn contents(&self, name: &str, limit: u64) -> Result<(Vec<u8>, ByteRange), Error> {
        let range = self.locate(name, self.require(name)?)?;
        if range.len() > limit {
            return Err(self.malformed("a record is longer than any of its kind"));
        }
        Ok((
            self.read(range.start - self.slice.start, range.len())?,
            range,
        ))
    }

    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    /// Bytes of the slice, which must lie in it.
    fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > self.slice.len()) {
            return Err(self.malformed("a part of it reaches beyond its end"));
        }
        let size = usize::try_from(len).map_err(|_| self.malformed("a part of it is too long"))?;
        for (window, window_offset) in [(&self.head, 0), (&self.tail, self.tail_offset())] {
            let at = offset.checked_sub(window_offset).map(usize::try_from);
            if let Some(Ok(at)) = at
                && let Some(bytes) = at.checked_add(size).and_then(|end| window.get(at..end))
            {
                return Ok(bytes.to_vec());
            }
        }
        let mut bytes = vec![0; size];
        self.source.read_at(self.slice.start + offset, &mut bytes)?;
        Ok(bytes)
    }

    fn tail_offset(&self) -> u64 {
        self.slice.len() - self.tail.len() as u64
    }

    /// Reads the last bytes of the slice, as many as hold the end record, and says where in them it begins.
    fn read_tail(&mut self) -> Result<usize, Error> {
        for len in [TAIL_BYTES, END_SEARCH_BYTES] {
            let len = len.min(self.slice.len());
            let offset = self.slice.len() - len;
            self.tail = self.read(offset, len)?;
            match find_end(&self.tail) {
                // The locator before it must be in the tail as well.
                Some(at) if at >= ZIP64_LOCATOR_LEN || offset == 0 => return Ok(at),
                _ => {}
            }
        }
        Err(self.malformed("it has no end record"))
    }

    fn read_directory(&mut self) -> Result<(), Error> {
        let end_at = self.read_tail()?;
        let end = &self.tail[end_at..];
        let mut count = u64::from(u16_at(end, 10));
        let mut len = u64::from(u32_at(end, 12));
        let mut offset = u64::from(u32_at(end, 16));
        // The directory ends where its own end records begin.
        let mut limit = self.tail_offset() + end_at as u64;
        if let Some(locator_at) = end_at.checked_sub(ZIP64_LOCATOR_LEN)
            && u32_at(&self.tail, locator_at) == ZIP64_LOCATOR_SIGNATURE
        {
            limit = u64_at(&self.tail, locator_at + 8);
            let end = self.read(limit, ZIP64_END_LEN as u64)?;
            if u32_at(&end, 0) != ZIP64_END_SIGNATURE {
                return Err(self.malformed("its zip64 end record is not where the locator says"));
            }
            count = u64_at(&end, 32);
            len = u64_at(&end, 40);
            offset = u64_at(&end, 48);
        }
        if offset.checked_add(len).is_none_or(|end| end > limit) || len > MAX_DIRECTORY_BYTES {
            return Err(self.malformed("its directory does not fit before its end record"));
        }
        self.directory_offset = offset;
        let directory = self.read(offset, len)?;
        self.read_entries(&directory, count)
    }

    fn read_entries(&mut self, directory: &[u8], count: u64) -> Result<(), Error> {
        let mut rest = directory;
        let mut found = 0;
        // The least bytes that each record takes: its header, its name, its data.
        let mut taken = Vec::new();
        while !rest.is_empty() {
            let (name, record, len) = self.read_entry(rest)?;
            rest = &rest[len..];
            found += 1;
            let data = LOCAL_LEN + name.len() as u64;
            let end = (record.header_offset + data).saturating_add(record.stored_len);
            taken.push((record.header_offset, end));
            let Some(slash) = name.find('/') else {
                return Err(self.malformed("a record is in no folder"));
            };
            let (root, name) = name.split_at(slash + 1);
            if self.root.is_empty() {
                self.root = root.to_owned();
            }
            if self.root != root {
                return Err(self.malformed("records are in several root folders"));
            }
            if self.records.insert(name.to_owned(), record).is_some() {
                return Err(self.malformed("two records have one name"));
            }
        }
        if found != count {
            return Err(self.malformed("its directory has another number of records than it says"));
        }
        taken.sort_unstable();
        let overlaps = |pair: &[(u64, u64)]| pair[0].1 > pair[1].0;
        if taken.windows(2).any(overlaps) {
            return Err(self.malformed("two records share bytes"));
        }
        Ok(())
    }

    /// One entry of the directory: name, record, and how many bytes the entry takes.
    fn read_entry(&self, bytes: &[u8]) -> Result<(String, Record, usize), Error> {
        if bytes.len() < CENTRAL_LEN || u32_at(bytes, 0) != CENTRAL_SIGNATURE {
            return Err(self.malformed("an entry of its directory does not begin as one"));
        }
        let name_end = CENTRAL_LEN + usize::from(u16_at(bytes, 28));
        let extra_end = name_end + usize::from(u16_at(bytes, 30));
        let entry_len = extra_end + usize::from(u16_at(bytes, 32));
        if bytes.len() < entry_len {
            return Err(self.malformed("an entry of its directory is cut off"));
        }
        let Ok(name) = std::str::from_utf8(&bytes[CENTRAL_LEN..name_end]) else {
            return Err(self.malformed("a record's name is not UTF-8"));
        };
        let mut zip64 = zip64_field(&bytes[name_end..extra_end]);
        // The field holds, in this order, exactly those values whose 32-bit place is marked.
        let mut wide = |narrow: u32| {
            if narrow != IN_ZIP64 {
                return Some(u64::from(narrow));
            }
            let (value, rest) = zip64.split_first_chunk::<8>()?;
            zip64 = rest;
            Some(u64::from_le_bytes(*value))
        };
        let len = wide(u32_at(bytes, 24));
        let stored_len = wide(u32_at(bytes, 20));
        let header_offset = wide(u32_at(bytes, 42));
        let (Some(len), Some(stored_len), Some(header_offset)) = (len, stored_len, header_offset)
        else {
            return Err(self.malformed("a record's 64-bit sizes are missing"));
        };
        let method = u16_at(bytes, 10);
        if method == 0 && len != stored_len {
            return Err(self.malformed("a stored record has two lengths"));
        }
        if header_offset
            .checked_add(LOCAL_LEN)
            .is_none_or(|end| end > self.directory_offset)
        {
            return Err(self.malformed("a record's header reaches into the directory"));
        }
        let record = Record {
            header_offset,
            len,
            stored_len,
            crc32: u32_at(bytes, 16),
            method,
            flags: u16_at(bytes, 8),
        };
        Ok((name.to_owned(), record, entry_len))
    }

    fn malformed(&self, what: &'static str) -> Error {
        Error::ZipMalformed {
            what,
            location: self.location.clone(),
        }
    }
}

/// The last place at which an end record fits and begins.
fn find_end(tail: &[u8]) -> Option<usize> {
    let signature = END_SIGNATURE.to_le_bytes();
    let last = tail.len().checked_sub(END_LEN)?;
    (0..=last)
        .rev()
        .find(|&at| tail[at..].starts_with(&signature))
}

/// The payload of the zip64 extra field, empty if there is none.
fn zip64_field(mut extra: &[u8]) -> &[u8] {
    while extra.len() >= 4 {
        let len = usize::from(u16_at(extra, 2));
        let Some(payload) = extra[4..].get(..len) else {
            break;
        };
        if u16_at(extra, 0) == ZIP64_EXTRA {
            return payload;
        }
        extra = &extra[4 + len..];
    }
    &[]
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N]
        .try_into()
        .expect("the caller has checked the record's length")
}
