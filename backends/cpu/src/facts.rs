//! What the system says of the machine. The files are those of Linux: elsewhere less is known.

use std::fs;
use std::num::NonZeroUsize;
use std::thread;

/// The processor's name, or what kind it is.
pub(crate) fn processor() -> String {
    fact("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Bytes of memory.
pub(crate) fn memory_bytes() -> Option<u64> {
    kibibytes(&fact("/proc/meminfo", "MemTotal")?)
}

/// Bytes of memory that could be written without taking any from others.
pub(crate) fn available_bytes() -> Option<u64> {
    kibibytes(&fact("/proc/meminfo", "MemAvailable")?)
}

/// Bytes of memory that this process has written.
#[cfg(test)]
pub(crate) fn resident_bytes() -> Option<u64> {
    kibibytes(&fact("/proc/self/status", "VmRSS")?)
}

/// Cores that this process may use.
pub(crate) fn cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// The first value under a key in a file of lines `key : value`.
fn fact(file: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let mut facts = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = facts.find(|(found, _)| found.trim() == key)?;
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn kibibytes(text: &str) -> Option<u64> {
    let number: u64 = text.strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_in_kibibytes() {
        assert_eq!(kibibytes("16 kB"), Some(16384));
        assert_eq!(kibibytes("16"), None);
    }
}
