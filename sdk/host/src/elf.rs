//! Whether a file can be opened without killing the process.
//!
//! The system's loader maps what the program headers name, without asking whether the file has it; the first touch of a
//! page beyond the end is a SIGBUS inside `dlopen`. So those headers are read here first. Section headers may be lost: no
//! loader reads them. Source: the ELF-64 object file format of the System V ABI.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// Bytes of an ELF-64 header.
const HEADER_BYTES: u64 = 64;
/// Bytes of an ELF-64 program header.
const SEGMENT_BYTES: u64 = 56;

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It cannot be read.
    Io(String),
    /// It is not a shared library of this kind.
    NotElf(String),
    /// It ends before its headers do.
    Truncated {
        /// Bytes needed.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// It is for another machine.
    Machine {
        /// The host's.
        expected: String,
        /// The file's.
        found: String,
    },
}

/// ELF's number and name of the machines this code may run on.
const MACHINES: &[(u16, &str)] = &[
    (3, "x86"),
    (8, "mips"),
    (20, "powerpc"),
    (21, "powerpc64"),
    (22, "s390x"),
    (40, "arm"),
    (62, "x86_64"),
    (183, "aarch64"),
    (243, "riscv64"),
    (258, "loongarch64"),
];

fn machine_name(number: u16) -> String {
    let found = MACHINES.iter().find(|(known, _)| *known == number);
    found.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}

/// Checks that a file is a shared library of the host's machine and has every byte its program headers name.
///
/// # Errors
///
/// The first [`Fault`] found.
pub fn check(file: &mut File) -> Result<(), Fault> {
    let unreadable = |error: io::Error| Fault::Io(error.to_string());
    let found = file.seek(SeekFrom::End(0)).map_err(unreadable)?;
    let mut header = [0; HEADER_BYTES as usize];
    let have = found.min(HEADER_BYTES);
    read_at(file, 0, &mut header[..have as usize])?;
    let not_elf = |reason: &str| Err(Fault::NotElf(reason.to_owned()));
    match &header[..have as usize] {
        [] => return not_elf("the file is empty"),
        [0x7f, b'E', b'L', b'F', ..] => {}
        _ => return not_elf("it does not begin with the ELF magic"),
    }
    if found < HEADER_BYTES {
        let expected = HEADER_BYTES;
        return Err(Fault::Truncated { expected, found });
    }
    if header[4] != 2 {
        return not_elf("its class is not 64-bit");
    }
    let order = if cfg!(target_endian = "little") { 1 } else { 2 };
    if header[5] != order {
        return not_elf("its byte order is not the host's");
    }
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let machine = machine_name(half(18));
    if machine != std::env::consts::ARCH {
        let expected = std::env::consts::ARCH.to_owned();
        return Err(Fault::Machine {
            expected,
            found: machine,
        });
    }
    if half(16) != 3 {
        return not_elf("its type is not shared object");
    }
    let (entry_bytes, count) = (u64::from(half(54)), u64::from(half(56)));
    if entry_bytes != SEGMENT_BYTES || count == 0 {
        return not_elf("it has no program headers");
    }
    let table = word(&header, 32);
    let mut expected = end_of(table, count * SEGMENT_BYTES)?;
    if expected > found {
        return Err(Fault::Truncated { expected, found });
    }
    let mut segments = vec![0; (count * SEGMENT_BYTES) as usize];
    read_at(file, table, &mut segments)?;
    for segment in segments.chunks_exact(SEGMENT_BYTES as usize) {
        expected = expected.max(end_of(word(segment, 8), word(segment, 32))?);
    }
    if expected > found {
        return Err(Fault::Truncated { expected, found });
    }
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

fn end_of(offset: u64, len: u64) -> Result<u64, Fault> {
    let overflow = || Fault::NotElf("a program header's end overflows 64 bits".to_owned());
    offset.checked_add(len).ok_or_else(overflow)
}

fn read_at(file: &mut File, offset: u64, out: &mut [u8]) -> Result<(), Fault> {
    file.seek(SeekFrom::Start(offset))
        .and_then(|_| file.read_exact(out))
        .map_err(|error| Fault::Io(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A header with one program header that names the bytes up to `end`.
    fn library(end: u64) -> Vec<u8> {
        let mut bytes = vec![0; (HEADER_BYTES + SEGMENT_BYTES) as usize];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        bytes[16] = 3;
        let machine = MACHINES
            .iter()
            .find(|(_, name)| *name == std::env::consts::ARCH);
        bytes[18..20].copy_from_slice(&machine.unwrap().0.to_le_bytes());
        bytes[32..40].copy_from_slice(&HEADER_BYTES.to_le_bytes());
        bytes[54] = SEGMENT_BYTES as u8;
        bytes[56] = 1;
        bytes[96..104].copy_from_slice(&end.to_le_bytes());
        bytes
    }

    fn checked(bytes: &[u8]) -> Result<(), Fault> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        check(&mut file)
    }

    #[test]
    fn a_file_as_long_as_its_headers_say_passes_and_one_byte_less_does_not() {
        let whole = library(120);
        assert_eq!(checked(&whole), Ok(()));
        for len in 4..whole.len() {
            assert!(
                matches!(checked(&whole[..len]), Err(Fault::Truncated { .. })),
                "{len}"
            );
        }
        let fault = Fault::Truncated {
            expected: 121,
            found: 120,
        };
        assert_eq!(checked(&library(121)), Err(fault));
    }

    #[test]
    fn what_is_not_a_library_of_this_machine_is_named() {
        for (at, value, word) in [
            (0, b'#', "magic"),
            (4, 1, "class"),
            (5, 2, "byte order"),
            (16, 2, "shared object"),
            (56, 0, "program headers"),
        ] {
            let mut bytes = library(120);
            bytes[at] = value;
            let Err(Fault::NotElf(reason)) = checked(&bytes) else {
                panic!("{word} was not noticed");
            };
            assert!(reason.contains(word), "{reason}");
        }
        let mut bytes = library(120);
        bytes[18..20].copy_from_slice(&[8, 0]);
        assert!(matches!(checked(&bytes), Err(Fault::Machine { found, .. }) if found == "mips"));
    }

    #[test]
    fn an_end_that_overflows_is_refused() {
        let mut bytes = library(u64::MAX);
        bytes[72] = 1;
        assert!(matches!(checked(&bytes), Err(Fault::NotElf(_))));
    }
}
