//! A family one answer of which is spoiled.

use rialto_plugin::prelude::*;

type Answer<T> = Result<T, Error>;
/// What becomes of an answer.
type Change<T> = Box<dyn Fn(Answer<T>) -> Answer<T> + Send + Sync>;
type WithConfig<T> = Box<dyn Fn(&RawConfig, Answer<T>) -> Answer<T> + Send + Sync>;
type WithRequest<T> = Box<dyn Fn(&PipelineRequest, Answer<T>) -> Answer<T> + Send + Sync>;

/// Every answer as the family has it, but for those that are changed.
pub(crate) struct Spoiled<F> {
    family: F,
    pub(crate) describe: Change<Description>,
    pub(crate) claim: WithConfig<Claim>,
    pub(crate) spec: Change<ModelSpec>,
    pub(crate) edits: WithConfig<Vec<ConfigEdit>>,
    pub(crate) map: Change<WeightMap>,
    pub(crate) placement: Change<Placement>,
    pub(crate) layout: WithRequest<PipelineLayout>,
    pub(crate) codecs: Change<Vec<Codec>>,
    pub(crate) decoded: Change<()>,
    pub(crate) program: Change<Program>,
}

impl<F> Spoiled<F> {
    pub(crate) fn of(family: F) -> Spoiled<F> {
        Spoiled {
            family,
            describe: Box::new(|answer| answer),
            claim: Box::new(|_, answer| answer),
            spec: Box::new(|answer| answer),
            edits: Box::new(|_, answer| answer),
            map: Box::new(|answer| answer),
            placement: Box::new(|answer| answer),
            layout: Box::new(|_, answer| answer),
            codecs: Box::new(|answer| answer),
            decoded: Box::new(|answer| answer),
            program: Box::new(|answer| answer),
        }
    }
}

/// A change of what is right.
pub(crate) fn then<T: 'static>(change: impl Fn(&mut T) + Send + Sync + 'static) -> Change<T> {
    Box::new(move |answer| {
        answer.map(|mut answer| {
            change(&mut answer);
            answer
        })
    })
}

/// A change of stages that are right.
pub(crate) fn stages(
    change: impl Fn(&mut Vec<Stage>) + Send + Sync + 'static,
) -> WithRequest<PipelineLayout> {
    Box::new(move |_, answer| {
        answer.map(|mut layout| {
            change(&mut layout.stages);
            layout
        })
    })
}

impl<F: Bridge> ConfigMapping for Spoiled<F> {
    fn claim(&self, config: &RawConfig) -> Result<Claim, Error> {
        (self.claim)(config, self.family.claim(config))
    }

    fn map_config(&self, config: &RawConfig, options: &MapOptions) -> Result<ModelSpec, Error> {
        (self.spec)(self.family.map_config(config, options))
    }

    fn unmap_config(&self, spec: &ModelSpec, config: &RawConfig) -> Result<Vec<ConfigEdit>, Error> {
        (self.edits)(config, self.family.unmap_config(spec, config))
    }
}

impl<F: Bridge> WeightMapping for Spoiled<F> {
    fn weight_map(&self, spec: &ModelSpec) -> Result<WeightMap, Error> {
        (self.map)(self.family.weight_map(spec))
    }

    fn placement(&self, spec: &ModelSpec) -> Result<Placement, Error> {
        (self.placement)(self.family.placement(spec))
    }
}

impl<F: Bridge> PipelineMapping for Spoiled<F> {
    fn pipeline_layout(
        &self,
        spec: &ModelSpec,
        request: &PipelineRequest,
    ) -> Result<PipelineLayout, Error> {
        (self.layout)(request, self.family.pipeline_layout(spec, request))
    }
}

impl<F: Bridge> Dequantizer for Spoiled<F> {
    fn codecs(&self, spec: &ModelSpec) -> Result<Vec<Codec>, Error> {
        (self.codecs)(self.family.codecs(spec))
    }

    fn dequantize(&self, encoded: &EncodedTensor<'_>, out: &mut [u8]) -> Result<(), Error> {
        (self.decoded)(self.family.dequantize(encoded, out))
    }
}

impl<F: Bridge> ForwardPass for Spoiled<F> {
    fn program(&self, spec: &ModelSpec, options: &ProgramOptions) -> Result<Program, Error> {
        (self.program)(self.family.program(spec, options))
    }
}

impl<F: Bridge> Bridge for Spoiled<F> {
    fn describe(&self) -> Description {
        (self.describe)(Ok(self.family.describe())).expect("a description that is changed")
    }
}
