//! Where in the input or output an error happened.

use std::fmt;

/// A half-open range of bytes in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl ByteRange {
    /// The range `start..end`.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    /// The number of bytes, 0 if the range is reversed.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether no byte is in the range.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// The file, tensor and bytes that an error speaks of, each as far as known.
///
/// Prints as ` (model-00001-of-00003.safetensors, tensor model.norm.weight, bytes 0..192)`, with a leading space, and as
/// nothing when nothing is known, so that a message can end in `{location}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Location {
    /// The file, as the user named it or relative to the checkpoint.
    pub file: Option<String>,
    /// The tensor, param or object.
    pub tensor: Option<String>,
    /// The bytes in the file.
    pub bytes: Option<ByteRange>,
}

impl Location {
    /// A place in a file.
    pub fn file(file: impl Into<String>) -> Location {
        Location {
            file: Some(file.into()),
            ..Location::default()
        }
    }

    /// A tensor whose file is not known.
    pub fn tensor(tensor: impl Into<String>) -> Location {
        Location {
            tensor: Some(tensor.into()),
            ..Location::default()
        }
    }

    /// The same place, and the tensor in it.
    #[must_use]
    pub fn with_tensor(mut self, tensor: impl Into<String>) -> Location {
        self.tensor = Some(tensor.into());
        self
    }

    /// The same place, and the bytes in it.
    #[must_use]
    pub fn with_bytes(mut self, start: u64, end: u64) -> Location {
        self.bytes = Some(ByteRange::new(start, end));
        self
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = " (";
        let mut part = |f: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>| {
            let result = write!(f, "{separator}{text}");
            separator = ", ";
            result
        };
        if let Some(file) = &self.file {
            part(f, format_args!("{file}"))?;
        }
        if let Some(tensor) = &self.tensor {
            part(f, format_args!("tensor {tensor}"))?;
        }
        if let Some(bytes) = &self.bytes {
            part(f, format_args!("bytes {bytes}"))?;
        }
        if self.file.is_some() || self.tensor.is_some() || self.bytes.is_some() {
            f.write_str(")")
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_only_what_is_known() {
        assert_eq!(Location::default().to_string(), "");
        assert_eq!(Location::file("a.bin").to_string(), " (a.bin)");
        let full = Location::file("a.bin").with_tensor("w").with_bytes(8, 16);
        assert_eq!(full.to_string(), " (a.bin, tensor w, bytes 8..16)");
    }
}
