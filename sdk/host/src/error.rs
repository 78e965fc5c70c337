//! The one error type of this crate: why a file is not a usable plugin, or why no plugin takes a config.

use std::path::PathBuf;

use rialto_abi::SYMBOL;
use rialto_abi::layout::LayoutMismatch;
use thiserror::Error as ThisError;

/// What can be wrong with a plugin file, a search or the config that was searched for. Every variant about a file names it.
#[derive(Clone, Debug, PartialEq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// There is no such file.
    #[error("plugin {} is not there", file.display())]
    NotFound {
        /// The file.
        file: PathBuf,
    },
    /// The file cannot be read.
    #[error("plugin {} cannot be read: {reason}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// A relative path in the search path: it would mean the working directory.
    #[error("plugin path {} is relative, an absolute one is expected", file.display())]
    Relative {
        /// The path.
        file: PathBuf,
    },
    /// A directory, a device or a pipe.
    #[error("plugin {} is {found}, a regular file is expected", file.display())]
    NotRegular {
        /// The file.
        file: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// Not a shared library of a kind this host can open.
    #[error("plugin {} is not a 64-bit ELF shared library: {reason}", file.display())]
    NotElf {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Its headers promise bytes that the file does not have. Opening it would kill the process.
    #[error("plugin {} is truncated: its headers need {expected} bytes, found {found}", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// Bytes the headers need.
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },
    /// Made for another processor.
    #[error("plugin {} is for machine {found}, this host is {expected}", file.display())]
    Machine {
        /// The file.
        file: PathBuf,
        /// ELF machine of the host.
        expected: String,
        /// ELF machine of the file.
        found: String,
    },
    /// The system's loader refused it.
    #[error("plugin {} cannot be opened: {reason}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// What the loader said.
        reason: String,
    },
    /// A library, but not a plugin.
    #[error("library {} is not a rialto plugin: it does not export {SYMBOL}", file.display())]
    Symbol {
        /// The file.
        file: PathBuf,
    },
    /// The symbol is not a declaration of this contract.
    #[error("plugin {} has magic {found}, this host expects {expected}", file.display())]
    Magic {
        /// The file.
        file: PathBuf,
        /// The host's.
        expected: String,
        /// The file's.
        found: String,
    },
    /// A declaration of another size.
    #[error("plugin {} has a declaration of {found} bytes, this host expects {expected}", file.display())]
    Size {
        /// The file.
        file: PathBuf,
        /// The host's.
        expected: u32,
        /// The file's.
        found: u32,
    },
    /// Built for another major version of the contract.
    #[error("plugin {} ({plugin}) is built for abi {found}, this host serves abi {expected}", file.display())]
    Major {
        /// The file.
        file: PathBuf,
        /// Name and version of the plugin.
        plugin: String,
        /// Version the host serves.
        expected: String,
        /// Version the plugin was built for.
        found: String,
    },
    /// Built for another target.
    #[error("plugin {} ({plugin}) is built for {found}, this host is {expected}", file.display())]
    Target {
        /// The file.
        file: PathBuf,
        /// Name and version of the plugin.
        plugin: String,
        /// Triple of the host.
        expected: String,
        /// Triple of the plugin.
        found: String,
    },
    /// Built so that a panic ends the process.
    #[error("plugin {} ({plugin}) has panic strategy {found}, expected none or unwind", file.display())]
    PanicStrategy {
        /// The file.
        file: PathBuf,
        /// Name and version of the plugin.
        plugin: String,
        /// What it says.
        found: String,
    },
    /// Its tables have another shape.
    #[error(
        "plugin {} ({plugin}) has tables of another layout: built with rialto-abi {}, this host has {}, types that differ: {}",
        file.display(), mismatch.found, mismatch.expected, mismatch.differences
    )]
    Layout {
        /// The file.
        file: PathBuf,
        /// Name and version of the plugin.
        plugin: String,
        /// What differs.
        mismatch: Box<LayoutMismatch>,
    },
    /// It would not make an instance.
    #[error("plugin {} ({plugin}) refused to open: {reason}", file.display())]
    Refused {
        /// The file.
        file: PathBuf,
        /// Name and version of the plugin.
        plugin: String,
        /// What it said.
        reason: Box<rialto_bridge::Error>,
    },
    /// An entry that must be there is null.
    #[error("plugin {} ({plugin}) has no {entry}, which every plugin needs", file.display())]
    Table {
        /// The file.
        file: PathBuf,
        /// Name and version of the plugin.
        plugin: String,
        /// The entry.
        entry: &'static str,
    },
    /// It could not say what it serves.
    #[error("plugin {} ({plugin}) could not describe itself: {reason}", file.display())]
    Describe {
        /// The file.
        file: PathBuf,
        /// Name and version of the plugin.
        plugin: String,
        /// What it said.
        reason: Box<rialto_bridge::Error>,
    },
    /// No plugin takes the config.
    #[error(
        "no plugin takes architecture {}, available: {}{}{}",
        listed(found),
        listed(available),
        shown("said no", reasons),
        shown("refused", refused)
    )]
    Unclaimed {
        /// Architectures in the config.
        found: Vec<String>,
        /// Architectures that plugins serve.
        available: Vec<String>,
        /// What each plugin said, as `name: reason`.
        reasons: Vec<String>,
        /// Why each file that was found is no usable plugin; every text names its file.
        refused: Vec<String>,
    },
    /// No plugin takes the config, and at least one found fault with it when asked: the plugin's error as it came, since it
    /// is the config that has to be mended.
    #[error("{reason}")]
    Config {
        /// What the plugin said.
        reason: Box<rialto_bridge::Error>,
    },
    /// No plugin takes the config, and at least one failed when asked.
    #[error("plugin {} failed when asked for its claim: {reason}", file.display())]
    Claim {
        /// The file.
        file: PathBuf,
        /// What it said.
        reason: Box<rialto_bridge::Error>,
    },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}

/// How many reasons a message shows; all of them are in the value.
const SHOWN: usize = 3;

/// The first few reasons, as the end of a message.
fn shown(what: &str, reasons: &[String]) -> String {
    if reasons.is_empty() {
        return String::new();
    }
    let first: Vec<&str> = reasons.iter().take(SHOWN).map(String::as_str).collect();
    let mut text = format!("; {what}: {}", first.join("; "));
    if reasons.len() > SHOWN {
        text.push_str(&format!("; and {} more", reasons.len() - SHOWN));
    }
    text
}

impl Error {
    /// That a plugin's claim failed: for the config if its kind says so, else for the plugin.
    pub(crate) fn of_claim(file: PathBuf, reason: rialto_bridge::Error) -> Error {
        let reason = Box::new(reason);
        if reason.slug().starts_with("config/") {
            Error::Config { reason }
        } else {
            Error::Claim { file, reason }
        }
    }

    /// Kinds of this crate as (slug, code); `docs/errors.md` lists them. The code of a kind that passes on a plugin's
    /// panic is 12, and that of a failed claim is the plugin's own.
    pub const KINDS: &'static [(&'static str, u32)] = &[
        ("plugin/not-found", 2),
        ("plugin/io", 5),
        ("plugin/relative", 1),
        ("plugin/not-regular", 8),
        ("plugin/not-elf", 8),
        ("plugin/truncated", 8),
        ("plugin/machine", 8),
        ("plugin/open", 8),
        ("plugin/symbol", 8),
        ("plugin/magic", 8),
        ("plugin/size", 8),
        ("plugin/major", 8),
        ("plugin/target", 8),
        ("plugin/panic-strategy", 8),
        ("plugin/layout", 8),
        ("plugin/refused", 8),
        ("plugin/table", 8),
        ("plugin/describe", 8),
        ("plugin/unclaimed", 3),
        ("plugin/claim", 13),
    ];

    /// The status code that crosses the ABI; see `docs/errors.md`.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Error::Refused { reason, .. } | Error::Describe { reason, .. }
                if reason.code() == rialto_abi::code::PANIC =>
            {
                reason.code()
            }
            Error::Claim { reason, .. } | Error::Config { reason } => reason.code(),
            _ => rialto_tensor::error::code_of(Error::KINDS, self.slug()),
        }
    }

    /// The stable name of this kind of error; see `docs/errors.md`.
    #[must_use]
    pub fn slug(&self) -> &str {
        match self {
            Error::NotFound { .. } => "plugin/not-found",
            Error::Io { .. } => "plugin/io",
            Error::Relative { .. } => "plugin/relative",
            Error::NotRegular { .. } => "plugin/not-regular",
            Error::NotElf { .. } => "plugin/not-elf",
            Error::Truncated { .. } => "plugin/truncated",
            Error::Machine { .. } => "plugin/machine",
            Error::Open { .. } => "plugin/open",
            Error::Symbol { .. } => "plugin/symbol",
            Error::Magic { .. } => "plugin/magic",
            Error::Size { .. } => "plugin/size",
            Error::Major { .. } => "plugin/major",
            Error::Target { .. } => "plugin/target",
            Error::PanicStrategy { .. } => "plugin/panic-strategy",
            Error::Layout { .. } => "plugin/layout",
            Error::Refused { .. } => "plugin/refused",
            Error::Table { .. } => "plugin/table",
            Error::Describe { .. } => "plugin/describe",
            Error::Unclaimed { .. } => "plugin/unclaimed",
            Error::Config { reason } => reason.slug(),
            Error::Claim { .. } => "plugin/claim",
        }
    }

    /// What to do about it; nothing only where a plugin's error has no advice.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        let text = match self {
            Error::NotFound { .. } => "correct the path",
            Error::Io { .. } => "check permissions and the disk",
            Error::NotElf { .. } => {
                "name the library file itself; one that was copied or built incompletely has to be made again"
            }
            Error::Open { .. } => {
                "the loader's reason is in the message: a library that it needs may be missing here"
            }
            Error::Symbol { .. } => {
                "it may be a library of another kind; a plugin exports itself with export_plugin!, or as rialto.h says"
            }
            Error::Table { .. } => "report it to the plugin's author",
            Error::Truncated { .. } => "copy or build the file again",
            Error::Relative { .. } => "write the whole path",
            Error::NotRegular { .. } => "name the library file itself",
            Error::Machine { .. } | Error::Target { .. } => "build the plugin for this host",
            Error::Magic { .. }
            | Error::Size { .. }
            | Error::Major { .. }
            | Error::Layout { .. } => {
                "build the plugin with this host's rialto-plugin or rialto.h, or use the host it was built for"
            }
            Error::PanicStrategy { .. } => {
                "build the plugin with panic = \"unwind\" in its cargo profile; one in C says RIALTO_PANIC_NONE"
            }
            Error::Unclaimed {
                available, refused, ..
            } if available.is_empty() && !refused.is_empty() => {
                "every plugin that was found is refused: mend one, or name another with --plugin"
            }
            Error::Unclaimed { available, .. } if available.is_empty() => {
                "no plugin was found: name one with --plugin, or list a folder in RIALTO_PLUGIN_PATH"
            }
            Error::Unclaimed { .. } => "name a plugin that serves it with --plugin",
            Error::Refused { reason, .. }
            | Error::Describe { reason, .. }
            | Error::Config { reason }
            | Error::Claim { reason, .. } => return reason.help(),
        };
        Some(text.to_owned())
    }

    /// Every reason of [`Error::Unclaimed`], where the message shows the first few, and what a plugin collected.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        match self {
            Error::Unclaimed {
                reasons, refused, ..
            } => reasons.iter().chain(refused).cloned().collect(),
            Error::Config { reason } | Error::Claim { reason, .. } => reason.findings(),
            _ => Vec::new(),
        }
    }

    /// The long text behind [`Error::Layout`], for a user who asks for all of it.
    #[must_use]
    pub fn layout_report(&self) -> Option<&str> {
        match self {
            Error::Layout { mismatch, .. } => Some(&mismatch.report),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim_failed(code: u32, slug: &str) -> Error {
        let reason = rialto_bridge::Error::Plugin {
            code,
            slug: slug.to_owned(),
            message: "no".to_owned(),
            help: Some("look".to_owned()),
            findings: vec!["one".to_owned()],
        };
        Error::of_claim("/p.so".into(), reason)
    }

    #[test]
    fn a_claim_that_fails_for_the_config_is_an_error_of_the_config_and_not_of_the_plugin() {
        let of_plugin = "plugin /p.so failed when asked for its claim: no";
        for (code, slug, expected, message) in [
            (4, "config/value", "config/value", "no"),
            (4, "config/syntax", "config/syntax", "no"),
            (
                3,
                "config/of-a-newer-plugin",
                "config/of-a-newer-plugin",
                "no",
            ),
            (7, "mine/own", "plugin/claim", of_plugin),
            (4, "configuration/own", "plugin/claim", of_plugin),
            (4, "plugin/config", "plugin/claim", of_plugin),
        ] {
            let error = claim_failed(code, slug);
            assert_eq!((error.code(), error.slug()), (code, expected));
            assert_eq!(error.to_string(), message, "{slug}");
            assert_eq!(error.help().as_deref(), Some("look"));
            assert_eq!(error.findings(), ["one"]);
        }
    }

    #[test]
    fn an_unclaimed_config_says_why_of_the_first_few() {
        let names = |letter: &str| (0..5).map(|at| format!("{letter}{at}")).collect::<Vec<_>>();
        let error = Error::Unclaimed {
            found: vec!["X".to_owned()],
            available: Vec::new(),
            reasons: names("a"),
            refused: names("b"),
        };
        assert_eq!(
            error.to_string(),
            "no plugin takes architecture X, available: none; said no: a0; a1; a2; and 2 more; \
             refused: b0; b1; b2; and 2 more"
        );
        assert_eq!(error.findings().len(), 10);
        let help = error.help().unwrap_or_default();
        assert!(help.contains("refused"), "{help}");
    }
}
