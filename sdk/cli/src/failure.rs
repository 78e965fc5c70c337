//! What went wrong, for a person and for a machine, and the exit code that says it.

use rialto_runtime::LoadError;
use serde::Serialize;
use serde_json::Value;

/// Exit code for wrong usage.
pub(crate) const USAGE: u8 = 2;

/// Slug and code of a kind of failure that is the command line's own; `docs/errors.md` lists them.
pub(crate) type Kind = (&'static str, u32);

/// Options or arguments that do not belong together.
pub(crate) const WRONG_USAGE: Kind = ("cli/usage", 1);
/// The result could not be written.
pub(crate) const STDOUT: Kind = ("cli/stdout", 5);
/// Two checkpoints differ.
pub(crate) const DIFFERS: Kind = ("cli/differs", 11);
/// Text where only token ids can be taken.
pub(crate) const NO_TOKENIZER: Kind = ("cli/no-tokenizer", 3);
/// Two models differ by more than was allowed.
pub(crate) const MODELS_DIFFER: Kind = ("cli/models-differ", 11);
/// A fault of ours.
pub(crate) const INTERNAL: Kind = ("cli/internal", 13);

/// One failure, whatever crate it comes from.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    /// Status code, as in `docs/errors.md`.
    pub(crate) code: u32,
    /// Stable name of the kind of error.
    pub(crate) slug: String,
    /// One line.
    pub(crate) message: String,
    /// What to do.
    pub(crate) help: Option<String>,
    /// Everything found, where the message shows only some.
    pub(crate) findings: Vec<String>,
    /// What a check found on the way, for a machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) report: Option<Value>,
}

impl Failure {
    /// A failure of the command line itself.
    pub(crate) fn own((slug, code): Kind, message: String) -> Failure {
        Failure {
            code,
            slug: slug.to_owned(),
            message,
            help: None,
            findings: Vec::new(),
            report: None,
        }
    }

    /// 0 done · 1 the answer is no · 2 usage · 3 bad input · 4 plugin or ABI · 5 device · 6 io, memory · 70 a bug of ours ·
    /// 130 interrupted.
    pub(crate) fn exit_code(&self) -> u8 {
        match self.code {
            _ if self.slug.starts_with("plugin/") => 4,
            _ if self.slug.starts_with("config/") => 3,
            1 => USAGE,
            2 | 3 | 4 | 10 => 3,
            5 | 6 => 6,
            7 => 5,
            8 | 12 => 4,
            9 => 130,
            11 => 1,
            _ => 70,
        }
    }
}

impl From<rialto_engine::Error> for Failure {
    fn from(error: rialto_engine::Error) -> Failure {
        Failure {
            code: error.code(),
            slug: error.slug().to_owned(),
            message: error.to_string(),
            help: error.help(),
            findings: error.findings(),
            report: None,
        }
    }
}

impl From<rialto_checkpoint::Error> for Failure {
    fn from(error: rialto_checkpoint::Error) -> Failure {
        rialto_engine::Error::from(error).into()
    }
}

impl From<rialto_bridge::Error> for Failure {
    fn from(error: rialto_bridge::Error) -> Failure {
        rialto_engine::Error::from(error).into()
    }
}

impl From<rialto_runtime::Error> for Failure {
    fn from(error: rialto_runtime::Error) -> Failure {
        Failure {
            code: error.code(),
            slug: error.slug().to_owned(),
            message: error.to_string(),
            help: error.help(),
            findings: error.findings(),
            report: None,
        }
    }
}

impl From<rialto_backend::Error> for Failure {
    fn from(error: rialto_backend::Error) -> Failure {
        rialto_runtime::Error::from(error).into()
    }
}

impl From<LoadError<rialto_engine::Error>> for Failure {
    fn from(error: LoadError<rialto_engine::Error>) -> Failure {
        match error {
            LoadError::Runtime(error) => error.into(),
            LoadError::Source(error) => error.into(),
        }
    }
}

impl From<rialto_host::Error> for Failure {
    fn from(error: rialto_host::Error) -> Failure {
        Failure {
            code: error.code(),
            slug: error.slug().to_owned(),
            message: error.to_string(),
            help: error.help(),
            findings: error.findings(),
            report: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_documented_with_its_code() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
        let text = std::fs::read_to_string(file).expect("docs/errors.md is there");
        let rows = text.lines().filter(|line| line.starts_with("| `cli/"));
        let rows: Vec<&str> = rows.collect();
        let kinds = [
            WRONG_USAGE,
            STDOUT,
            DIFFERS,
            NO_TOKENIZER,
            MODELS_DIFFER,
            INTERNAL,
        ];
        assert_eq!(rows.len(), kinds.len());
        for (row, (slug, code)) in rows.iter().zip(kinds) {
            assert!(row.starts_with(&format!("| `{slug}` | {code} |")), "{row}");
        }
    }

    #[test]
    fn every_status_code_has_its_exit_code() {
        let exit = |code| {
            Failure {
                code,
                ..Failure::own(WRONG_USAGE, String::new())
            }
            .exit_code()
        };
        let found: Vec<u8> = (1..=13).map(exit).collect();
        assert_eq!(found, [2, 3, 3, 3, 6, 6, 5, 4, 130, 3, 1, 4, 70]);
        let plugin = Failure {
            code: 2,
            slug: "plugin/not-found".to_owned(),
            ..Failure::own(WRONG_USAGE, String::new())
        };
        assert_eq!(plugin.exit_code(), 4);
        let config = Failure {
            code: 13,
            slug: "config/value".to_owned(),
            ..Failure::own(WRONG_USAGE, String::new())
        };
        assert_eq!(config.exit_code(), 3);
    }
}
