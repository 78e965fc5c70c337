//! Models of the fixtures on the CPU.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use rialto_backend::{Backend, Driver, OpenOptions};
use rialto_bridge::{Bridge, ProgramOptions};
use rialto_checkpoint::store::LocalStore;
use rialto_cpu::CpuDriver;
use rialto_engine::{VerifySource, Weights, source_config};
use rialto_glm5::Glm5;
use rialto_program::Program;
use rialto_runtime::{
    LoadError, LoadOptions, Model, Rows, SequenceId, Session, SessionOptions, Tensor, Work,
};
use rialto_tensor::Dtype;
use rialto_tests::{fixture, megatron};
use serde_json::{Map, Value};

/// The models that there are goldens of, with the folder of each.
pub(crate) const MODELS: [(&str, &str); 5] = [
    ("glm5-tiny", "glm5-tiny"),
    ("glm52-tiny", "glm52-tiny"),
    ("glm53-tiny", "glm53-tiny"),
    ("qwen3-tiny-tied", "qwen3/tiny-tied"),
    ("qwen3-tiny-untied", "qwen3/tiny-untied"),
];

/// The family of a model: GLM-5 linked, Qwen3 from its library, since one executable can link one plugin.
pub(crate) fn family(name: &str) -> Arc<dyn Bridge> {
    if !name.contains("qwen3") {
        return Arc::new(Glm5);
    }
    let library = rialto_tests::built_library("rialto_qwen3");
    rialto_host::load(&library).unwrap().bridge()
}

/// How a model is loaded; by default as the goldens were made.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) activation: Dtype,
    pub(crate) threads: usize,
    pub(crate) decodes_blocks: bool,
    /// Most bytes of experts on the device.
    pub(crate) expert_bytes: Option<u64>,
    /// The device; by default the processor, with so many threads.
    pub(crate) device: Option<Arc<dyn Backend>>,
    pub(crate) settings: Map<String, Value>,
    /// What becomes of the program before it is run.
    pub(crate) edit: Arc<dyn Fn(Program) -> Program>,
}

impl Default for Load {
    fn default() -> Load {
        Load {
            activation: Dtype::F32,
            threads: 2,
            decodes_blocks: false,
            expert_bytes: None,
            device: None,
            settings: Map::new(),
            edit: Arc::new(|program| program),
        }
    }
}

impl Load {
    pub(crate) fn bf16() -> Load {
        Load {
            activation: Dtype::Bf16,
            ..Load::default()
        }
    }

    fn device(&self) -> Arc<dyn Backend> {
        if let Some(device) = &self.device {
            return Arc::clone(device);
        }
        let threads = NonZeroUsize::new(self.threads);
        CpuDriver.open(0, &OpenOptions { threads }).unwrap()
    }

    fn of(&self, name: &str, checkpoint: &Path, config: Option<&Path>) -> Arc<Model> {
        self.try_of(name, checkpoint, config).unwrap()
    }

    fn try_of(
        &self,
        name: &str,
        checkpoint: &Path,
        config: Option<&Path>,
    ) -> Result<Arc<Model>, rialto_runtime::Error> {
        let open = |path: &Path| Arc::new(LocalStore::open(path).unwrap());
        let source = VerifySource::open(open(checkpoint)).unwrap();
        let given = config.map(|config| source_config(open(config).as_ref()).unwrap());
        let config = given.as_ref().or(source.config()).unwrap();
        let family = family(name);
        let weights = Weights::new(&source, config, family.as_ref()).unwrap();
        let options = ProgramOptions {
            settings: self.settings.clone(),
        };
        let program = (self.edit)(family.program(weights.spec(), &options).unwrap());
        let options = LoadOptions {
            activation: self.activation,
            decodes_blocks: self.decodes_blocks,
            expert_bytes: self.expert_bytes,
        };
        match Model::load(program, &weights, self.device(), &options, &mut |_| true) {
            Ok(model) => Ok(Arc::new(model)),
            Err(LoadError::Runtime(error)) => Err(error),
            Err(LoadError::Source(error)) => panic!("{error}"),
        }
    }

    /// A model from its Hugging Face directory, or why it cannot be.
    pub(crate) fn try_hugging_face(&self, name: &str) -> Result<Arc<Model>, rialto_runtime::Error> {
        let (_, folder) = MODELS.iter().find(|(known, _)| *known == name).unwrap();
        self.try_of(name, &fixture(folder), None)
    }

    /// A model from its Hugging Face directory.
    pub(crate) fn hugging_face(&self, name: &str) -> Arc<Model> {
        let (_, folder) = MODELS.iter().find(|(known, _)| *known == name).unwrap();
        self.of(name, &fixture(folder), None)
    }

    /// The same from a Megatron checkpoint of it.
    pub(crate) fn megatron(&self, name: &str, checkpoint: &str) -> Arc<Model> {
        let (_, folder) = MODELS.iter().find(|(known, _)| *known == name).unwrap();
        self.of(
            name,
            &megatron(checkpoint).join("ckpt"),
            Some(&fixture(folder)),
        )
    }
}

/// A session with room for some sequences of the fixtures' length.
pub(crate) fn session(model: &Arc<Model>, phase: &str) -> Session {
    let options = SessionOptions {
        positions: 1024,
        // Not a divisor of the lengths: sequences end inside of a page, and go over several.
        page_positions: 7,
    };
    Session::new(Arc::clone(model), phase, &options).unwrap()
}

/// The values of all tokens at once.
pub(crate) fn run(model: &Arc<Model>, tokens: &[u32], wanted: &[&str]) -> Vec<Tensor> {
    let mut session = session(model, "forward");
    let sequence = session.begin();
    step(&mut session, sequence, tokens, wanted)
}

/// The values of tokens that follow what a sequence has.
pub(crate) fn step(
    session: &mut Session,
    sequence: SequenceId,
    tokens: &[u32],
    wanted: &[&str],
) -> Vec<Tensor> {
    let work = Work {
        sequence,
        tokens,
        rows: Rows::All,
    };
    let mut outputs = session.step(&[work], &[], wanted).unwrap();
    wanted
        .iter()
        .map(|name| outputs.take(name).unwrap())
        .collect()
}
