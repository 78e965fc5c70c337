//! A family whose panics are errors: one that panics in an answer is found, and the other checks go on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rialto_bridge::error::panic_words;
use rialto_bridge::{
    Bridge, Claim, Codec, ConfigEdit, ConfigMapping, Dequantizer, Description, EncodedTensor,
    Error, ForwardPass, MapOptions, ModelSpec, PipelineLayout, PipelineMapping, PipelineRequest,
    Placement, ProgramOptions, RawConfig, WeightMap, WeightMapping,
};
use rialto_program::Program;

/// The code of a panic.
pub(crate) const PANIC: u32 = 12;

/// The family.
pub(crate) struct Guarded(pub(crate) Arc<dyn Bridge>);

impl Guarded {
    /// Who it is. Errors: [`Error::Panic`].
    pub(crate) fn described(&self) -> Result<Description, Error> {
        caught("describe", || Ok(self.0.describe()))
    }
}

/// Runs a call of the family, or one that calls it.
pub(crate) fn caught<T, E: From<Error>>(
    entry: &str,
    call: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        Err(E::from(Error::Panic {
            entry: entry.to_owned(),
            message: panic_words(payload),
        }))
    })
}

impl ConfigMapping for Guarded {
    fn claim(&self, config: &RawConfig) -> Result<Claim, Error> {
        caught("claim", || self.0.claim(config))
    }

    fn map_config(&self, config: &RawConfig, options: &MapOptions) -> Result<ModelSpec, Error> {
        caught("map_config", || self.0.map_config(config, options))
    }

    fn unmap_config(
        &self,
        spec: &ModelSpec,
        reference: &RawConfig,
    ) -> Result<Vec<ConfigEdit>, Error> {
        caught("unmap_config", || self.0.unmap_config(spec, reference))
    }
}

impl WeightMapping for Guarded {
    fn weight_map(&self, spec: &ModelSpec) -> Result<WeightMap, Error> {
        caught("weight_map", || self.0.weight_map(spec))
    }

    fn placement(&self, spec: &ModelSpec) -> Result<Placement, Error> {
        caught("placement", || self.0.placement(spec))
    }
}

impl PipelineMapping for Guarded {
    fn pipeline_layout(
        &self,
        spec: &ModelSpec,
        request: &PipelineRequest,
    ) -> Result<PipelineLayout, Error> {
        caught("pipeline_layout", || self.0.pipeline_layout(spec, request))
    }
}

impl Dequantizer for Guarded {
    fn codecs(&self, spec: &ModelSpec) -> Result<Vec<Codec>, Error> {
        caught("codecs", || self.0.codecs(spec))
    }

    fn dequantize(&self, encoded: &EncodedTensor<'_>, out: &mut [u8]) -> Result<(), Error> {
        caught("dequantize", || self.0.dequantize(encoded, out))
    }
}

impl ForwardPass for Guarded {
    fn program(&self, spec: &ModelSpec, options: &ProgramOptions) -> Result<Program, Error> {
        caught("program", || self.0.program(spec, options))
    }
}

impl Bridge for Guarded {
    /// One that panics is nobody; [`Guarded::described`] says so.
    fn describe(&self) -> Description {
        self.described().unwrap_or_else(|_| Description {
            name: String::new(),
            version: String::new(),
            summary: String::new(),
            architectures: Vec::new(),
            releases: Vec::new(),
        })
    }
}
