//! A loaded plugin: a [`Bridge`] whose answers come over the ABI.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rialto_abi::{TensorRef, code, dtype};
use rialto_bridge::request::{
    ClaimRequest, ErrorDetail, MapConfigRequest, PipelineLayoutRequest, ProgramRequest,
    SpecRequest, UnmapConfigRequest,
};
use rialto_bridge::{
    Bridge, Claim, Codec, ConfigEdit, ConfigMapping, Dequantizer, Description, EncodedTensor,
    Error, ForwardPass, MapOptions, ModelSpec, PipelineLayout, PipelineMapping, PipelineRequest,
    Placement, ProgramOptions, RawConfig, WeightMap, WeightMapping, document,
};
use rialto_program::Program;
use rialto_tensor::TensorView;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::library::{Answer, Entry, Instance};

/// A plugin that passed the handshake. Clones share the instance, which is released with the last of them; the library
/// stays loaded for the life of the process.
#[derive(Clone)]
pub struct LoadedPlugin {
    pub(crate) file: PathBuf,
    pub(crate) package: String,
    pub(crate) abi: String,
    pub(crate) extensions: Vec<String>,
    pub(crate) description: Description,
    pub(crate) bridge: Arc<dyn Bridge>,
}

impl LoadedPlugin {
    /// The file it was loaded from, as it was named.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Name and version of its package.
    #[must_use]
    pub fn package(&self) -> &str {
        &self.package
    }

    /// Version of the contract it was built for.
    #[must_use]
    pub fn abi(&self) -> &str {
        &self.abi
    }

    /// Ids of the extensions it has, of those this host knows.
    #[must_use]
    pub fn extensions(&self) -> &[String] {
        &self.extensions
    }

    /// Who it is and what it serves.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// What it does.
    #[must_use]
    pub fn bridge(&self) -> Arc<dyn Bridge> {
        Arc::clone(&self.bridge)
    }
}

impl std::fmt::Debug for LoadedPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "LoadedPlugin({} from {})",
            self.package,
            self.file.display()
        )
    }
}

/// The far side of an instance.
pub(crate) struct Remote {
    instance: Instance,
    description: Description,
}

impl Remote {
    /// Asks the instance who it is.
    pub(crate) fn new(instance: Instance) -> Result<Remote, Error> {
        let description: Description = ask(&instance, "its", Entry::Describe, &())?;
        if description.name.is_empty() {
            return Err(Error::Document {
                document: "its describe reply".to_owned(),
                reason: "the name is empty".to_owned(),
            });
        }
        Ok(Remote {
            instance,
            description,
        })
    }

    pub(crate) fn has_extension(&self, id: &str) -> bool {
        self.instance.has_extension(id)
    }

    fn ask<Q: Serialize, A: DeserializeOwned>(&self, entry: Entry, body: &Q) -> Result<A, Error> {
        let whose = format!("{}'s", self.description.name);
        ask(&self.instance, &whose, entry, body)
    }
}

/// Longest reply in bytes: thousands of times the largest there is.
const MOST_REPLY_BYTES: usize = 1 << 30;

/// `whose` stands before the name of the reply in an error: several plugins may be loaded.
fn ask<Q: Serialize, A: DeserializeOwned>(
    instance: &Instance,
    whose: &str,
    entry: Entry,
    body: &Q,
) -> Result<A, Error> {
    let name = entry.name();
    let request = document::encode(&format!("{name} request"), &[], body)?;
    let reply = instance
        .ask(entry, &request)
        .map_err(|answer| error_of(name, &answer))?;
    let document = format!("{whose} {name} reply");
    let bytes = reply.bytes();
    if bytes.len() > MOST_REPLY_BYTES {
        let reason = format!(
            "{} bytes found, up to {MOST_REPLY_BYTES} expected",
            bytes.len()
        );
        return Err(Error::Document { document, reason });
    }
    document::decode(&document, bytes)
}

/// The error that a status stands for. Plain text is a message; so is a JSON object without the parts of a detail.
pub(crate) fn error_of(entry: &str, answer: &Answer) -> Error {
    let code = match answer.code {
        known @ code::INVALID_ARGUMENT..=code::INTERNAL => known,
        _ => code::INTERNAL,
    };
    if let Ok(detail) = serde_json::from_slice::<ErrorDetail>(&answer.detail) {
        return detail.into_error(code);
    }
    let text = String::from_utf8_lossy(&answer.detail);
    let message = match text.trim() {
        "" => format!("{entry} failed with code {} and no message", answer.code),
        text => text.replace(char::is_control, " "),
    };
    if code == code::PANIC {
        return Error::Panic {
            entry: entry.to_owned(),
            message,
        };
    }
    Error::Plugin {
        code,
        slug: "plugin/error".to_owned(),
        message,
        help: None,
        findings: Vec::new(),
    }
}

impl Bridge for Remote {
    fn describe(&self) -> Description {
        self.description.clone()
    }
}

impl ConfigMapping for Remote {
    fn claim(&self, config: &RawConfig) -> Result<Claim, Error> {
        let config = config.text().to_owned();
        self.ask(Entry::Claim, &ClaimRequest { config })
    }

    fn map_config(&self, config: &RawConfig, options: &MapOptions) -> Result<ModelSpec, Error> {
        let body = MapConfigRequest {
            config: config.text().to_owned(),
            options: options.clone(),
        };
        self.ask(Entry::MapConfig, &body)
    }

    fn unmap_config(
        &self,
        spec: &ModelSpec,
        reference: &RawConfig,
    ) -> Result<Vec<ConfigEdit>, Error> {
        let body = UnmapConfigRequest {
            spec: spec.clone(),
            reference: reference.text().to_owned(),
        };
        self.ask(Entry::UnmapConfig, &body)
    }
}

impl WeightMapping for Remote {
    fn weight_map(&self, spec: &ModelSpec) -> Result<WeightMap, Error> {
        let spec = spec.clone();
        self.ask(Entry::WeightMap, &SpecRequest { spec })
    }

    fn placement(&self, spec: &ModelSpec) -> Result<Placement, Error> {
        let spec = spec.clone();
        self.ask(Entry::Placement, &SpecRequest { spec })
    }
}

impl PipelineMapping for Remote {
    fn pipeline_layout(
        &self,
        spec: &ModelSpec,
        request: &PipelineRequest,
    ) -> Result<PipelineLayout, Error> {
        let body = PipelineLayoutRequest {
            spec: spec.clone(),
            request: request.clone(),
        };
        self.ask(Entry::PipelineLayout, &body)
    }
}

impl ForwardPass for Remote {
    /// A plugin without the extension has no forward pass. What a plugin sends is a stranger's: only a program that is sound
    /// leaves here.
    fn program(&self, spec: &ModelSpec, options: &ProgramOptions) -> Result<Program, Error> {
        let Some(entry) = self.instance.program() else {
            return Err(Error::NoForwardPass {
                release: spec.release.clone(),
            });
        };
        let body = ProgramRequest {
            spec: spec.clone(),
            options: options.clone(),
        };
        let program: Program = self.ask(entry, &body)?;
        program.check()?;
        Ok(program)
    }
}

impl Dequantizer for Remote {
    fn codecs(&self, spec: &ModelSpec) -> Result<Vec<Codec>, Error> {
        let spec = spec.clone();
        self.ask(Entry::Codecs, &SpecRequest { spec })
    }

    fn dequantize(&self, encoded: &EncodedTensor<'_>, out: &mut [u8]) -> Result<(), Error> {
        let tensor = lend(encoded.codec, &encoded.tensor)?;
        let companions: Vec<TensorRef> = encoded
            .companions
            .iter()
            .map(|companion| lend(encoded.codec, companion))
            .collect::<Result<_, _>>()?;
        let answer = self
            .instance
            .dequantize(encoded.codec, tensor, &companions, out);
        match answer {
            Some(outcome) => outcome.map_err(|answer| error_of("dequantize", &answer)),
            None => Err(Error::UnknownCodec {
                codec: encoded.codec.to_owned(),
            }),
        }
    }
}

/// A view as it crosses. Its bytes are as many as dtype and shape need, since it is a [`TensorView`].
fn lend(codec: &str, view: &TensorView<'_>) -> Result<TensorRef, Error> {
    let refused = |reason: String| Error::Codec {
        codec: codec.to_owned(),
        reason,
    };
    let dtype = dtype::code_of(view.dtype().safetensors_name())
        .ok_or_else(|| refused(format!("dtype {} has no code in this abi", view.dtype())))?;
    let extents = view.shape().extents();
    let rank = u32::try_from(extents.len())
        .map_err(|_| refused(format!("a tensor of {} axes cannot cross", extents.len())))?;
    Ok(TensorRef {
        dtype,
        rank,
        extents: extents.as_ptr(),
        data: view.bytes().as_ptr(),
        len: view.bytes().len() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u32, detail: &str) -> Error {
        let detail = detail.as_bytes().to_vec();
        error_of("claim", &Answer { code, detail })
    }

    #[test]
    fn a_detail_may_be_json_or_plain_text_or_nothing() {
        let json = error(3, r#"{"slug": "a/b", "message": "no", "help": "try c"}"#);
        assert_eq!(
            (json.code(), json.slug(), json.to_string()),
            (3, "a/b", "no".to_owned())
        );
        assert_eq!(json.help().as_deref(), Some("try c"));
        let plain = error(4, "two\nlines");
        assert_eq!(
            (plain.code(), plain.to_string()),
            (4, "two lines".to_owned())
        );
        let empty = error(5, "");
        assert_eq!(empty.to_string(), "claim failed with code 5 and no message");
    }

    #[test]
    fn a_code_of_a_later_version_is_internal_and_a_panic_names_its_entry() {
        assert_eq!(error(99, "later").code(), code::INTERNAL);
        let panic = error(
            12,
            r#"{"slug": "plugin/panic", "message": "odd", "entry": "open"}"#,
        );
        assert_eq!(panic.to_string(), "plugin panicked in open: odd");
        assert_eq!(
            error(12, "odd").to_string(),
            "plugin panicked in claim: odd"
        );
    }
}
