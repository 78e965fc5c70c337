//! The pickle inside an item, in an archive that is otherwise whole.
//!
//! Input: the pickle. It stands as `data.pkl` beside two storages, `data/0` of 64 bytes and `data/1` of 4.

use crate::zip_item::check_item;

const STORAGES: [(&str, &[u8]); 2] = [("a/data/0", &[7; 64]), ("a/data/1", &[7; 4])];

/// What [`crate::zip_item`] checks. Before it, most inputs would break the archive instead of the pickle.
pub fn check(input: &[u8]) {
    check_item(&archive(input));
}

fn archive(pickle: &[u8]) -> Vec<u8> {
    let records = [("a/data.pkl", pickle), ("a/version", b"3\n")];
    let records = records.into_iter().chain(STORAGES);
    let mut archive = Vec::with_capacity(pickle.len() + 1024);
    let mut directory = Vec::with_capacity(512);
    let mut count = 0u16;
    for (name, bytes) in records {
        let offset = size(archive.len());
        archive.extend(b"PK\x03\x04\0\0\0\0\0\0\0\0\0\0");
        let facts = facts(name, bytes);
        archive.extend(&facts);
        archive.extend(name.as_bytes());
        archive.extend(bytes);

        directory.extend(b"PK\x01\x02\0\0\0\0\0\0\0\0\0\0\0\0");
        directory.extend(&facts);
        directory.extend([0; 10]);
        directory.extend(offset);
        directory.extend(name.as_bytes());
        count += 1;
    }
    let offset = size(archive.len());
    archive.extend(&directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend(count.to_le_bytes());
    archive.extend(count.to_le_bytes());
    archive.extend(size(directory.len()));
    archive.extend(offset);
    archive.extend([0; 2]);
    archive
}

/// What local and central headers share: checksum (none), length twice, length of the name, no extra field.
fn facts(name: &str, bytes: &[u8]) -> Vec<u8> {
    let name_len = [name.len() as u8, 0, 0, 0];
    [[0; 4], size(bytes.len()), size(bytes.len()), name_len].concat()
}

fn size(len: usize) -> [u8; 4] {
    u32::try_from(len).expect("inputs are short").to_le_bytes()
}
