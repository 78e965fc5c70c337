//! What went wrong, for a person and for a machine, and the exit code that says it.

use serde::Serialize;
use serde_json::Value;

/// Exit code for wrong usage.
pub(crate) const USAGE: u8 = 2;

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
    pub(crate) fn usage(message: &str) -> Failure {
        let (slug, message) = ("cli/usage".to_owned(), message.to_owned());
        Failure {
            code: 1,
            slug,
            message,
            help: None,
            findings: Vec::new(),
            report: None,
        }
    }

    pub(crate) fn internal(message: String) -> Failure {
        Failure {
            code: 13,
            slug: "cli/internal".to_owned(),
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

impl From<rialto_host::Error> for Failure {
    fn from(error: rialto_host::Error) -> Failure {
        Failure {
            code: error.code(),
            slug: error.slug().to_owned(),
            message: error.to_string(),
            help: error.help(),
            findings: Vec::new(),
            report: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_code_has_its_exit_code() {
        let exit = |code| {
            Failure {
                code,
                ..Failure::usage("")
            }
            .exit_code()
        };
        let found: Vec<u8> = (1..=13).map(exit).collect();
        assert_eq!(found, [2, 3, 3, 3, 6, 6, 5, 4, 130, 3, 1, 4, 70]);
        let plugin = Failure {
            code: 2,
            slug: "plugin/not-found".to_owned(),
            ..Failure::usage("")
        };
        assert_eq!(plugin.exit_code(), 4);
    }
}
