//! What is refused before a model runs, and what its programs must not do to it.

use std::sync::Arc;

use rialto_backend::{Driver, OpenOptions};
use rialto_bridge::{ProgramOptions, RawConfig, WeightSource};
use rialto_checkpoint::hf;
use rialto_checkpoint::store::{LocalStore, MemoryStore, Store, read_whole};
use rialto_cpu::CpuDriver;
use rialto_engine::{Error, Silent, VerifySource, Weights};
use rialto_program::{Builder, Program};
use rialto_runtime::{
    GenerateOptions, LoadError, LoadOptions, Model, Sampling, Session, SessionOptions, generate,
};
use rialto_tensor::Dtype;
use rialto_tests::fixture;
use safetensors::SafeTensors;

use crate::offload::expert_bytes;
use crate::world::{Load, family, session};

/// A fixture in memory.
fn in_memory(name: &str) -> MemoryStore {
    let disk = LocalStore::open(fixture(name)).unwrap();
    let memory = MemoryStore::new(name);
    for file in disk.files().unwrap() {
        let bytes = read_whole(&disk, &file.name, 64 << 20).unwrap();
        memory.insert(&file.name, bytes).unwrap();
    }
    memory
}

/// The shard of a fixture with its tensors edited.
fn edited(
    name: &str,
    edit: impl Fn(&mut Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)>),
) -> MemoryStore {
    let memory = in_memory(name);
    let file = "model.safetensors";
    let bytes = read_whole(&memory, file, 64 << 20).unwrap();
    let shard = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<_> = shard
        .iter()
        .map(|(name, view)| {
            (
                name.to_owned(),
                view.dtype(),
                view.shape().to_vec(),
                view.data().to_vec(),
            )
        })
        .collect();
    edit(&mut tensors);
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).unwrap();
        (name.clone(), view)
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    memory.insert(file, bytes).unwrap();
    memory
}

fn config(store: &dyn Store) -> RawConfig {
    RawConfig::parse(&hf::read_config(store).unwrap()).unwrap()
}

/// A head that is stored though the config says that it is the embedding: the same bits are passed over, others are another model.
#[test]
fn a_copy_of_the_embedding_with_other_bits_is_refused_and_one_with_the_same_is_not() {
    for (flips, is_refused) in [(false, false), (true, true)] {
        let store = edited("qwen3/tiny-tied", |tensors| {
            let embedding = tensors
                .iter()
                .find(|(name, ..)| name == "model.embed_tokens.weight");
            let mut head = embedding.unwrap().clone();
            head.0 = "lm_head.weight".to_owned();
            if flips {
                head.3[10] ^= 1;
            }
            tensors.push(head);
        });
        let config = config(&store);
        let source = VerifySource::open(Arc::new(store)).unwrap();
        let family = family("qwen3");
        let weights = Weights::new(&source, &config, family.as_ref()).unwrap();
        match weights.check_copies(&Silent) {
            Ok(()) => assert!(!is_refused),
            Err(error) => {
                assert!(is_refused && matches!(error, Error::Copy { .. }), "{error}");
            }
        }
    }
}

#[test]
fn every_weight_that_is_missing_or_does_not_fit_is_told_before_one_is_read() {
    let source =
        VerifySource::open(Arc::new(LocalStore::open(fixture("glm52-tiny")).unwrap())).unwrap();
    let family = family("glm52-tiny");
    let weights = Weights::new(&source, source.config().unwrap(), family.as_ref()).unwrap();
    let mut program = family
        .program(weights.spec(), &ProgramOptions::default())
        .unwrap();
    for param in &mut program.params {
        if let rialto_program::Stored::Whole(name) = &mut param.stored
            && name.ends_with("o_proj.weight")
        {
            name.push_str(".gone");
        }
    }
    let embedding = program
        .params
        .iter_mut()
        .find(|param| param.name.contains("embed_tokens"));
    embedding.unwrap().shape[0] += 1;
    let backend = CpuDriver.open(0, &OpenOptions::default()).unwrap();
    let error = Model::load(
        program,
        &weights,
        backend,
        &LoadOptions::default(),
        &mut |_| panic!("a weight was read"),
    );
    let Err(LoadError::Runtime(error)) = error else {
        panic!("it was loaded")
    };
    // Eight layers, the prediction layer, and the embedding.
    assert_eq!(
        (error.slug(), error.findings().len()),
        ("runtime/weights", 10)
    );
    assert!(
        error
            .findings()
            .iter()
            .any(|finding| finding.contains("[256, 96]"))
    );
}

/// Weights of a program that has no checkpoint.
struct Counting;

impl WeightSource for Counting {
    type Error = std::convert::Infallible;

    fn info(&self, _: &str) -> Option<rialto_bridge::WeightInfo> {
        Some(rialto_bridge::WeightInfo {
            dtype: Dtype::F32,
            shape: rialto_tensor::Shape::new([16, 8]),
            encoded: None,
        })
    }

    fn read(&self, _: &str) -> Result<Vec<u8>, Self::Error> {
        let mut random = rialto_tests::random::Random(3);
        Ok((0..128)
            .flat_map(|_| random.normal().to_le_bytes())
            .collect())
    }

    fn read_codes(&self, _: &str) -> Result<rialto_bridge::Codes, Self::Error> {
        unreachable!("nothing is encoded")
    }
}

/// A checkpoint's weights, of which one is longer or shorter than it should be.
struct Ragged<'a> {
    weights: &'a Weights<'a>,
    name: &'a str,
    /// Of its elements, or of its codes.
    more: isize,
    more_scales: isize,
}

impl Ragged<'_> {
    fn resize(&self, name: &str, bytes: &mut Vec<u8>, more: isize) {
        if name == self.name {
            bytes.resize(bytes.len().checked_add_signed(more).unwrap(), 0);
        }
    }
}

impl WeightSource for Ragged<'_> {
    type Error = Error;

    fn info(&self, name: &str) -> Option<rialto_bridge::WeightInfo> {
        self.weights.info(name)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        let mut bytes = self.weights.read(name)?;
        self.resize(name, &mut bytes, self.more);
        Ok(bytes)
    }

    fn read_codes(&self, name: &str) -> Result<rialto_bridge::Codes, Error> {
        let mut read = self.weights.read_codes(name)?;
        self.resize(name, &mut read.codes, self.more);
        self.resize(name, &mut read.scales, self.more_scales);
        Ok(read)
    }
}

/// Wherever it goes: nothing is left of what was there before, and no expert is cut out at the wrong place.
#[test]
fn a_weight_of_other_bytes_than_its_source_said_is_refused_by_name() {
    for (name, fewest) in [("glm52-tiny", 3), ("glm53-tiny", 2)] {
        let store = LocalStore::open(fixture(name)).unwrap();
        let source = VerifySource::open(Arc::new(store)).unwrap();
        let family = family(name);
        let weights = Weights::new(&source, source.config().unwrap(), family.as_ref()).unwrap();
        let program = family
            .program(weights.spec(), &ProgramOptions::default())
            .unwrap();
        let whole = Load::default().hugging_face(name);
        let (each, _) = expert_bytes(name, &whole);
        let names: Vec<String> = program.params.iter().flat_map(|p| p.sources()).collect();
        let expert = names.iter().find(|name| name.contains("experts.1.up"));
        let expert = expert.unwrap().as_str();
        let is_encoded = weights.info(expert).unwrap().encoded.is_some();
        assert_eq!(is_encoded, name == "glm53-tiny");
        let mut plants = vec![(1, 0), (-1, 0)];
        if is_encoded {
            plants.extend([(0, 4), (0, -4)]);
        }
        for (more, more_scales) in plants {
            for expert_bytes in [None, Some(fewest * each)] {
                let ragged = Ragged {
                    weights: &weights,
                    name: expert,
                    more,
                    more_scales,
                };
                let options = LoadOptions {
                    expert_bytes,
                    ..LoadOptions::default()
                };
                let backend = CpuDriver.open(0, &OpenOptions::default()).unwrap();
                let program = program.clone();
                let loaded = Model::load(program, &ragged, backend, &options, &mut |_| true);
                let Err(LoadError::Runtime(error)) = loaded else {
                    panic!("{name}, {more} and {more_scales} more");
                };
                assert_eq!((error.slug(), error.code()), ("runtime/weight-length", 1));
                assert!(error.to_string().contains(expert), "{error}");
                assert!(error.help().unwrap().contains("report it"));
            }
        }
    }
}

/// A model of one matrix. `more` adds what leaves values of one number a row, whose memory is free before the end.
fn one_matrix(more: bool) -> Program {
    let mut program = Builder::new();
    let table = program.param("table", [16, 8]);
    let mut forward = program.phase("forward");
    let x = forward.embed("x", &table);
    let last = forward.gather("last", &x, "rows");
    let logits = forward.linear_f32("logits", &last, &table);
    forward.output(&logits);
    if more {
        let likeliest = forward.argmax("likeliest", &logits);
        let again = forward.gather("again", &logits, likeliest.name());
        let op = rialto_program::op::Reduce {
            function: rialto_program::op::ReduceFunction::Max,
        };
        let most = forward.call(op, &[again.name()], &["most"]).remove(0);
        let scaled = forward.scale("scaled", &most, 100.0);
        let both = forward.add("both", &scaled, &most);
        forward.output(&both);
    }
    program.finish().unwrap()
}

/// What chance is made of lies in memory of its own: no value of the program comes to lie over it.
#[test]
fn how_tokens_are_chosen_is_not_overwritten_by_values_of_the_program() {
    let texts = |more: bool, temperature: f32| {
        let backend = CpuDriver.open(0, &OpenOptions::default()).unwrap();
        let options = LoadOptions {
            activation: Dtype::F32,
            ..LoadOptions::default()
        };
        let program = one_matrix(more);
        let model = Model::load(program, &Counting, backend, &options, &mut |_| true).unwrap();
        let mut session =
            Session::new(Arc::new(model), "forward", &SessionOptions::default()).unwrap();
        let options = GenerateOptions {
            max_new_tokens: 40,
            sampling: Sampling {
                temperature,
                top_k: 9,
                top_p: 0.95,
                min_p: 0.001,
                seed: 1,
            },
            ..GenerateOptions::default()
        };
        generate(&mut session, &[vec![1, 2], vec![3]], &options, &mut |_| {
            true
        })
        .unwrap()
    };
    for temperature in [0.0, 6.0] {
        assert_eq!(
            texts(true, temperature),
            texts(false, temperature),
            "{temperature}"
        );
    }
    assert_ne!(texts(true, 6.0), texts(true, 0.0));
}

#[test]
fn logits_of_nan_are_an_error_that_names_the_text() {
    let store = edited("glm5-tiny", |tensors| {
        let norm = tensors
            .iter_mut()
            .find(|(name, ..)| name == "model.norm.weight");
        norm.unwrap().3.fill(0xff);
    });
    let config = config(&store);
    let source = VerifySource::open(Arc::new(store)).unwrap();
    let family = family("glm5-tiny");
    let weights = Weights::new(&source, &config, family.as_ref()).unwrap();
    let program = family
        .program(weights.spec(), &ProgramOptions::default())
        .unwrap();
    let backend = CpuDriver.open(0, &OpenOptions::default()).unwrap();
    let model = Model::load(
        program,
        &weights,
        backend,
        &LoadOptions::default(),
        &mut |_| true,
    )
    .unwrap();
    let mut session = session(&Arc::new(model), "forward");
    let prompts = [vec![1, 2, 3], vec![4]];
    let error = generate(
        &mut session,
        &prompts,
        &GenerateOptions::default(),
        &mut |_| true,
    )
    .unwrap_err();
    assert_eq!((error.slug(), error.code()), ("runtime/not-a-number", 4));
    assert!(
        error.to_string().contains("text 0 after 3 tokens"),
        "{error}"
    );
}

#[test]
fn a_caller_can_stop_between_two_steps() {
    let model = Load::default().hugging_face("qwen3-tiny-tied");
    let mut session = session(&model, "forward");
    let options = GenerateOptions {
        chunk_tokens: 4,
        ..GenerateOptions::default()
    };
    let mut steps = 0;
    // Within the prompt, before a token is chosen.
    let stopped = generate(&mut session, &[vec![1; 100]], &options, &mut |_| {
        steps += 1;
        steps < 3
    });
    assert_eq!(
        (stopped.unwrap_err().slug(), steps),
        ("runtime/cancelled", 3)
    );
    let mut others = [crate::world::session(&model, "forward"), session];
    let [a, b] = &mut others;
    let stopped = rialto_runtime::compare([a, b], &[1; 100], 4, &mut || false);
    assert_eq!(stopped.unwrap_err().slug(), "runtime/cancelled");
    // All positions are free again.
    let all = vec![1; 1000];
    let options = GenerateOptions {
        max_new_tokens: 1,
        ..GenerateOptions::default()
    };
    for session in &mut others {
        assert!(generate(session, std::slice::from_ref(&all), &options, &mut |_| true).is_ok());
    }
}
