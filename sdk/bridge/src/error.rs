//! The one error type of this crate; also how a loaded plugin's errors look to its host.

use std::any::Any;

use rialto_tensor::error::code_of;
use thiserror::Error as ThisError;

use crate::placement::MAX_CHUNKS;
use crate::{Mesh, MeshRefusal, SettingFault, Violation};

/// How many findings a message shows; all of them are in the value.
const SHOWN: usize = 20;

/// What can be wrong with a config, a rule, a mapping or a request to a family.
#[derive(Clone, Debug, PartialEq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// `config.json` is not a JSON object, or holds a key twice.
    #[error("config.json cannot be read: {reason}")]
    ConfigSyntax {
        /// What is wrong.
        reason: String,
    },
    /// A config value is absent or not what the family needs.
    #[error("config.json: {key} is {found}, expected {expected}")]
    ConfigValue {
        /// The key, with dots into nested objects.
        key: String,
        /// What would have been right.
        expected: String,
        /// What stands there, `absent` if nothing does.
        found: String,
    },
    /// Something that exists and is understood, and that this version does not do.
    #[error("{what} is not supported: found {found}, supported: {supported}")]
    Unsupported {
        /// The thing asked for.
        what: String,
        /// The value asked for.
        found: String,
        /// The values that would have been accepted.
        supported: String,
    },
    /// A mesh that does not divide what it should share out.
    #[error("{}", refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Mesh {
        /// Each dimension that does not fit.
        refusals: Vec<MeshRefusal>,
        /// What to do about it other than to choose another size.
        advice: Option<String>,
    },
    /// A mesh that cuts a model into more chunks than a checkpoint may have.
    #[error("mesh {mesh} makes {chunks} chunks, at most {MAX_CHUNKS} are written")]
    Chunks {
        /// The mesh.
        mesh: Mesh,
        /// How many chunks it makes.
        chunks: u64,
    },
    /// A pipeline that the model cannot be cut into.
    #[error("{}; valid for this model: {valid}", faults.join("; "))]
    Pipeline {
        /// Each stage or number that does not fit.
        faults: Vec<String>,
        /// What would fit.
        valid: String,
    },
    /// Provider fields that a user may not set to what was asked.
    #[error("{}", faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Settings {
        /// Each of them.
        faults: Vec<SettingFault>,
    },
    /// A template or index expression that cannot be read or evaluated.
    #[error("template {template:?}: {reason}")]
    Template {
        /// The text.
        template: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A mapping that is not total, or a checkpoint that is not what the mapping describes.
    #[error("{}", not_total(violations))]
    NotTotal {
        /// Everything that is wrong, none left out.
        violations: Vec<Violation>,
        /// What to do about it, if one thing explains it all.
        advice: Option<String>,
    },
    /// A document of the ABI that this version cannot read.
    #[error("{document} document cannot be read: {reason}")]
    Document {
        /// Which document.
        document: String,
        /// What is wrong.
        reason: String,
    },
    /// A document that needs something this version does not have.
    #[error("{document} document requires {missing}, which this version does not have")]
    Requirement {
        /// Which document.
        document: String,
        /// The first requirement that is missing.
        missing: String,
    },
    /// A codec that the family does not have.
    #[error("codec {codec:?} is not known to this family")]
    UnknownCodec {
        /// Its name.
        codec: String,
    },
    /// An encoded tensor that its codec cannot decode.
    #[error("codec {codec}: {reason}")]
    Codec {
        /// Its name.
        codec: String,
        /// What is wrong with the tensor or its companions.
        reason: String,
    },
    /// A family that converts checkpoints and has no forward pass.
    #[error("the plugin has no forward pass for {release}")]
    NoForwardPass {
        /// The model's release.
        release: String,
    },
    /// A forward pass that is not sound.
    #[error(transparent)]
    Program(#[from] rialto_program::Error),
    /// An error that a loaded plugin returned, as it came.
    #[error("{message}")]
    Plugin {
        /// Its code.
        code: u32,
        /// Its slug.
        slug: String,
        /// Its message.
        message: String,
        /// Its advice.
        help: Option<String>,
        /// All that it found.
        findings: Vec<String>,
    },
    /// A plugin that panicked: the call failed, the instance answers no more, the host goes on.
    #[error("plugin panicked in {entry}: {message}")]
    Panic {
        /// The entry point.
        entry: String,
        /// The panic's message.
        message: String,
    },
}

impl Error {
    /// Kinds of this crate as (slug, code); `docs/errors.md` lists them.
    pub const KINDS: &'static [(&'static str, u32)] = &[
        ("config/syntax", 4),
        ("config/value", 4),
        ("bridge/unsupported", 3),
        ("bridge/mesh", 3),
        ("bridge/chunks", 3),
        ("bridge/pipeline", 3),
        ("bridge/settings", 3),
        ("weight-map/template", 4),
        ("weight-map/not-total", 10),
        ("document/unreadable", 4),
        ("document/requirement", 3),
        ("codec/unknown", 3),
        ("codec/refused", 4),
        ("bridge/no-forward-pass", 3),
        ("plugin/panic", 12),
    ];

    /// The status code that crosses the ABI; see `docs/errors.md`.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Error::Plugin { code, .. } => *code,
            Error::Program(error) => error.code(),
            _ => code_of(Error::KINDS, self.slug()),
        }
    }

    /// The stable name of this kind of error; see `docs/errors.md`.
    #[must_use]
    pub fn slug(&self) -> &str {
        match self {
            Error::ConfigSyntax { .. } => "config/syntax",
            Error::ConfigValue { .. } => "config/value",
            Error::Unsupported { .. } => "bridge/unsupported",
            Error::Mesh { .. } => "bridge/mesh",
            Error::Chunks { .. } => "bridge/chunks",
            Error::Pipeline { .. } => "bridge/pipeline",
            Error::Settings { .. } => "bridge/settings",
            Error::Template { .. } => "weight-map/template",
            Error::NotTotal { .. } => "weight-map/not-total",
            Error::Document { .. } => "document/unreadable",
            Error::Requirement { .. } => "document/requirement",
            Error::UnknownCodec { .. } => "codec/unknown",
            Error::Codec { .. } => "codec/refused",
            Error::NoForwardPass { .. } => "bridge/no-forward-pass",
            Error::Program(error) => error.slug(),
            Error::Plugin { slug, .. } => slug,
            Error::Panic { .. } => "plugin/panic",
        }
    }

    /// What to do about it, if there is one thing to do.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            Error::ConfigSyntax { .. } => Some("fetch the file again, or mend it".to_owned()),
            Error::ConfigValue { .. } => {
                Some("correct the value in config.json, or fetch the file again".to_owned())
            }
            Error::NotTotal { advice, .. } => advice.clone(),
            Error::Mesh { advice, .. } => {
                let advice = advice.clone();
                advice.or_else(|| Some("choose sizes that the message lists".to_owned()))
            }
            Error::Unsupported { .. } | Error::Pipeline { .. } => {
                Some("choose one of those that the message lists".to_owned())
            }
            Error::Settings { .. } => {
                Some("leave the setting out, or choose what the message lists".to_owned())
            }
            Error::Template { .. } => Some("report it to the plugin's author".to_owned()),
            Error::Document { .. } => Some("build plugin and host from one version".to_owned()),
            Error::UnknownCodec { .. } => Some("use a plugin that has it".to_owned()),
            Error::Codec { .. } => Some("fetch the checkpoint again".to_owned()),
            Error::Chunks { .. } => Some("choose smaller sizes, or `--chunks whole`".to_owned()),
            // Whoever reads a document is the older side: of a request the plugin, of a reply the host.
            Error::Requirement { document, .. } if document.ends_with("request") => {
                Some("use a plugin as new as the host, or do without what it asked for".to_owned())
            }
            Error::Requirement { .. } => Some("use a rialto as new as the plugin".to_owned()),
            Error::NoForwardPass { .. } => Some(
                "its checkpoints can be converted and verified; a newer plugin may run them"
                    .to_owned(),
            ),
            Error::Program(error) => error.help(),
            Error::Plugin { help, .. } => help.clone(),
            Error::Panic { .. } => {
                Some("this is a fault of the plugin; report it to its author".to_owned())
            }
        }
    }

    /// The findings behind an error that collects them.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        match self {
            Error::NotTotal { violations, .. } => {
                violations.iter().map(ToString::to_string).collect()
            }
            Error::Mesh { refusals, .. } => refusals.iter().map(ToString::to_string).collect(),
            Error::Pipeline { faults, .. } => faults.clone(),
            Error::Settings { faults } => faults.iter().map(ToString::to_string).collect(),
            Error::Program(error) => error.findings(),
            Error::Plugin { findings, .. } => findings.clone(),
            _ => Vec::new(),
        }
    }
}

fn not_total(violations: &[Violation]) -> String {
    let mut text = format!("the mapping is not total, {} finding", violations.len());
    text.push_str(if violations.len() == 1 { ": " } else { "s: " });
    let shown: Vec<String> = violations
        .iter()
        .take(SHOWN)
        .map(ToString::to_string)
        .collect();
    text.push_str(&shown.join("; "));
    if violations.len() > SHOWN {
        text.push_str(&format!("; and {} more", violations.len() - SHOWN));
    }
    text
}

/// What a panic said. A payload of another type than text is forgotten rather than dropped: its destructor may panic, too.
#[must_use]
pub fn panic_words(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => match payload.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(payload) => {
                std::mem::forget(payload);
                "a payload that is not text".to_owned()
            }
        },
    }
}
