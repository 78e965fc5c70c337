//! The header of a safetensors shard.
//!
//! Input: a byte, and then if it is even the file, if it is odd the text of the header, before which its length is put.
//! The data may be missing: as many zeros as the header promises then follow. So one change of the text is enough to get from
//! one right file to another, where the format itself says everything twice.

use std::collections::HashSet;

use rialto_checkpoint::Error;
use rialto_checkpoint::safetensors::Header;

use crate::memory::bounded;
use crate::source::BytesSource;

/// Most zeros that are put after an input; nobody reads them, but a length in the header may claim them.
const MAX_ZEROS: u64 = 1 << 20;

/// What is read describes its file completely: names are unique, every range is as long as dtype and shape need, and
/// sorted ranges touch from the header's end to the file's. Laid out again, the same tensors are read again.
pub fn check(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    if kind % 2 == 0 {
        check_file(rest);
    } else {
        check_file(&[&(rest.len() as u64).to_le_bytes(), rest].concat());
    }
}

fn check_file(input: &[u8]) {
    let (mut bytes, mut zeros) = (input, 0);
    let mut result = read(bytes, zeros);
    // An error of length says which length would be right; so the fuzzer needs not find a second number for each.
    match result {
        Err(Error::Truncated { expected, .. }) => {
            zeros = expected.saturating_sub(input.len() as u64);
            if zeros > MAX_ZEROS {
                return;
            }
            result = read(bytes, zeros);
            let again =
                matches!(result, Err(Error::Truncated { expected: next, .. }) if next <= expected);
            assert!(!again, "{expected} bytes are not enough after all");
        }
        Err(Error::TrailingBytes { expected, .. }) => {
            bytes = &input[..expected as usize];
            result = read(bytes, zeros);
            assert!(result.is_ok(), "{expected} bytes are not right after all");
        }
        _ => {}
    }
    let Ok(header) = result else {
        return;
    };
    let file_len = bytes.len() as u64 + zeros;

    let prefix = bytes.first_chunk().expect("a header has a length");
    let mut covered = 8 + u64::from_le_bytes(*prefix);
    let mut in_order: Vec<_> = header.tensors().iter().collect();
    in_order.sort_by_key(|tensor| tensor.range);
    let mut names = HashSet::new();
    for tensor in in_order {
        assert!(names.insert(&tensor.name), "{} is there twice", tensor.name);
        assert_eq!(tensor.range.start, covered, "a hole before {}", tensor.name);
        covered = tensor.range.end;
        let size = tensor.shape.size_bytes(tensor.dtype);
        assert_eq!(
            size,
            Ok(tensor.range.len()),
            "the length of {}",
            tensor.name
        );
    }
    assert_eq!(covered, file_len, "bytes that belong to no tensor");

    let tensors = header.tensors().iter();
    let tensors = tensors.map(|tensor| (tensor.name.clone(), tensor.dtype, tensor.shape.clone()));
    let planned =
        Header::plan("fuzz", tensors, header.metadata()).expect("what was read can be laid out");
    let data_len = planned.len - planned.header_bytes.len() as u64;
    let again = BytesSource::with_zeros(&planned.header_bytes, data_len);
    let again = Header::read(&again).expect("what was laid out can be read");
    assert_eq!(again.tensors(), planned.tensors);
    assert_eq!(again.metadata(), header.metadata());
}

fn read(bytes: &[u8], zeros: u64) -> Result<Header, Error> {
    let file = BytesSource::with_zeros(bytes, zeros);
    bounded(bytes.len() + zeros as usize, || Header::read(&file))
}
