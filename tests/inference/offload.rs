//! Experts in host memory: whatever part of them the device has, the bits are those of the model that is there whole.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rialto_backend::{
    Backend, Buffer, Capabilities, DeviceInfo, Driver, Error, OpCall, OpenOptions, Recording,
    TensorType,
};
use rialto_cpu::CpuDriver;
use rialto_runtime::{
    ExpertMemory, GenerateOptions, Model, Rows, Sampling, Tensor, Work, generate,
};

use crate::records::Golden;
use crate::world::{Load, MODELS, run, session, step};

/// Models with experts, and how many of them a token has.
pub(crate) const SPARSE: [(&str, u64); 3] =
    [("glm5-tiny", 2), ("glm52-tiny", 3), ("glm53-tiny", 2)];

pub(crate) fn within(load: &Load, bytes: u64) -> Load {
    Load {
        expert_bytes: Some(bytes),
        ..load.clone()
    }
}

/// Bytes of one expert of a model whose experts are all on the device, and how many experts it has in all.
pub(crate) fn expert_bytes(name: &str, model: &Model) -> (u64, u64) {
    let params = model.program().params.iter();
    let experts: u64 = params
        .filter(|param| param.shape.len() == 3 && param.name.contains("gate"))
        .map(|param| param.shape[0])
        .sum();
    let memory = model.plan().experts();
    assert!(experts > 0 && memory.host_layers == 0, "{name}");
    (memory.device_bytes / experts, experts)
}

/// Everything that a step of all tokens leaves, and the logits of each token after the twentieth when it is decoded.
fn all_of(model: &Arc<Model>, tokens: &[u32]) -> Vec<Tensor> {
    let phase = model.program().phase("forward").unwrap();
    let mut names: Vec<&str> = phase.stream.iter().map(String::as_str).collect();
    names.push("logits");
    let mut values = run(model, tokens, &names);
    let mut session = session(model, "forward");
    let sequence = session.begin();
    step(&mut session, sequence, &tokens[..20], &[]);
    for token in &tokens[20..] {
        values.extend(step(&mut session, sequence, &[*token], &["logits"]));
    }
    values
}

#[test]
fn any_memory_for_experts_gives_the_bits_of_the_model_that_has_all() {
    for (name, per_token) in SPARSE {
        let tokens = Golden::open(name).tokens("input_ids");
        for load in [Load::default(), Load::bf16()] {
            let whole = load.hugging_face(name);
            let (each, count) = expert_bytes(name, &whole);
            let expected = all_of(&whole, &tokens);
            let steps = (per_token..count).step_by(3).chain([count - 1, count]);
            for experts in steps {
                // A byte less than one more expert takes is room for none more.
                let model = within(&load, (experts + 1) * each - 1).hugging_face(name);
                let memory = model.plan().experts();
                assert!(memory.device_bytes <= experts * each, "{memory:?}");
                assert_eq!(memory.host_layers == 0, experts == count, "{memory:?}");
                let [ours, all] = [&model, &whole].map(|model| model.param_bytes());
                assert_eq!(all - ours, count * each - memory.device_bytes);
                let what = format!("{name} in {}: {experts} of {count}", load.activation);
                assert!(all_of(&model, &tokens) == expected, "{what}");
            }
        }
    }
}

/// Also where the tokens of a step chose more experts than there are slots: in a batch, in a prompt, by chance.
#[test]
fn prompts_and_batches_are_continued_alike_within_the_least_memory() {
    for (name, per_token) in SPARSE {
        let load = Load::bf16();
        let whole = load.hugging_face(name);
        let (each, _) = expert_bytes(name, &whole);
        let model = within(&load, per_token * each).hugging_face(name);
        let tokens = Golden::open(name).tokens("input_ids");
        let layer = Golden::open(name).numbers("fp32.router_ids.")[0];
        let chosen = run(&model, &tokens, &[&format!("layers.{layer}.router.ids")]).remove(0);
        let distinct: BTreeSet<i32> = chosen.to_i32().into_iter().collect();
        assert!(distinct.len() as u64 > model.plan().experts().slots);
        let prompts = [3, 40, 1, 18].map(|length| tokens[..length].to_vec());
        let options = GenerateOptions {
            max_new_tokens: 10,
            sampling: Sampling {
                temperature: 0.8,
                ..Sampling::GREEDY
            },
            ..GenerateOptions::default()
        };
        let [ours, theirs] = [&model, &whole].map(|model| {
            let mut session = session(model, "forward");
            generate(&mut session, &prompts, &options, &mut |_| true).unwrap()
        });
        assert_eq!(ours, theirs, "{name}");
    }
}

/// The layer that predicts further tokens has experts, too.
#[test]
fn every_phase_is_cut_where_its_own_experts_are_called() {
    let load = Load::default();
    let whole = load.hugging_face("glm52-tiny");
    let (each, _) = expert_bytes("glm52-tiny", &whole);
    let model = within(&load, 3 * each).hugging_face("glm52-tiny");
    let plan = model.plan();
    let phases: Vec<_> = model
        .program()
        .phases
        .iter()
        .map(|phase| {
            let calls = phase.calls.iter();
            let experts = calls.filter(|call| call.op == "rialto.experts/1").count();
            assert_eq!(plan.cuts(&phase.name), Some(experts as u64));
            experts
        })
        .collect();
    assert!(phases.len() > 1 && phases.iter().all(|&cuts| cuts > 0));
    assert_eq!(plan.cuts("backward"), None);
}

/// What is in each bank by what routers say: layers and experts, the latest used last.
struct Counted {
    banks: Vec<Vec<(usize, i32)>>,
    slots: usize,
    hits: u64,
    misses: u64,
}

impl Counted {
    fn choose(&mut self, layer: usize, ids: &[i32]) {
        let count = self.banks.len();
        let bank = &mut self.banks[layer % count];
        let keys: Vec<(usize, i32)> = ids.iter().map(|&id| (layer, id)).collect();
        let hits = keys.iter().filter(|key| bank.contains(key)).count() as u64;
        self.hits += hits;
        self.misses += keys.len() as u64 - hits;
        bank.retain(|key| !keys.contains(key));
        let spare = (bank.len() + keys.len()).saturating_sub(self.slots);
        bank.drain(..spare);
        bank.extend(keys);
    }
}

#[test]
fn hits_and_misses_are_those_counted_by_hand() {
    for (name, per_token) in SPARSE {
        let tokens = Golden::open(name).tokens("input_ids");
        let whole = Load::default().hugging_face(name);
        let (each, _) = expert_bytes(name, &whole);
        let all_layers = whole.plan().experts().layers;
        let layers = Golden::open(name).numbers("fp32.router_ids.");
        let names: Vec<String> = layers
            .iter()
            .map(|layer| format!("layers.{layer}.router.ids"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        // One bank for all layers; one for each with as many slots as a token has experts, and with one more.
        let shared = (1, per_token, per_token);
        let own = [per_token, per_token + 1].map(|slots| (layers.len(), slots, all_layers * slots));
        for (banks, slots, experts) in std::iter::once(shared).chain(own) {
            let model = within(&Load::default(), experts * each).hugging_face(name);
            let mut counted = Counted {
                banks: vec![Vec::new(); banks],
                slots: slots as usize,
                hits: 0,
                misses: 0,
            };
            let mut session = session(&model, "forward");
            let sequence = session.begin();
            for token in &tokens {
                let ids = step(&mut session, sequence, &[*token], &names);
                for (layer, ids) in ids.iter().enumerate() {
                    counted.choose(layer, &ids.to_i32());
                }
            }
            let found = model.expert_counts();
            let expected = (counted.hits, counted.misses);
            assert_eq!((found.hits, found.misses), expected, "{name}: {slots}");
            assert_eq!(counted.hits == 0, banks == 1, "{name}: {expected:?}");
        }
    }
}

/// What a device is made to do wrong.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// The so-manieth matrix that is brought does not arrive.
    Forgotten(u64),
    /// It is an error.
    Lost(u64),
}

#[derive(Default)]
struct Seen {
    reads: AtomicU64,
    replays: AtomicU64,
    /// Writes to params and banks: to what has three axes and is no cache.
    matrices: AtomicU64,
    longest: AtomicU64,
    fault: std::sync::Mutex<Option<Fault>>,
}

impl Seen {
    /// Forgets what was seen, and plants a fault.
    fn begin(&self, fault: Option<Fault>) {
        for count in [&self.reads, &self.replays, &self.matrices, &self.longest] {
            count.store(0, Ordering::SeqCst);
        }
        *self.fault.lock().unwrap() = fault;
    }

    fn counts(&self) -> [u64; 4] {
        [&self.reads, &self.replays, &self.matrices, &self.longest]
            .map(|count| count.load(Ordering::SeqCst))
    }
}

/// The processor, watched.
struct Watched {
    inner: Arc<dyn Backend>,
    seen: Arc<Seen>,
}

struct WatchedRecording(Box<dyn Recording>, Arc<Seen>);

impl Recording for WatchedRecording {
    fn replay(&mut self) -> Result<(), Error> {
        self.1.replays.fetch_add(1, Ordering::SeqCst);
        self.0.replay()
    }
}

impl Backend for Watched {
    fn device(&self) -> &DeviceInfo {
        self.inner.device()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn allocate(&self, tensor: &TensorType) -> Result<Buffer, Error> {
        self.inner.allocate(tensor)
    }

    fn write(&self, buffer: &Buffer, offset_bytes: u64, bytes: &[u8]) -> Result<(), Error> {
        let seen = &self.seen;
        seen.longest.fetch_max(bytes.len() as u64, Ordering::SeqCst);
        if buffer.tensor().shape.extents().len() == 3 {
            let number = seen.matrices.fetch_add(1, Ordering::SeqCst);
            match *seen.fault.lock().unwrap() {
                Some(Fault::Forgotten(at)) if at == number => return Ok(()),
                Some(Fault::Lost(at)) if at == number => {
                    return Err(Error::Lost {
                        device: "cpu:0".to_owned(),
                        reason: "planted".to_owned(),
                    });
                }
                _ => {}
            }
        }
        self.inner.write(buffer, offset_bytes, bytes)
    }

    fn read(&self, buffer: &Buffer, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.seen.reads.fetch_add(1, Ordering::SeqCst);
        self.inner.read(buffer, offset_bytes, bytes)
    }

    fn record(&self, calls: Vec<OpCall>) -> Result<Box<dyn Recording>, Error> {
        let inner = self.inner.record(calls)?;
        Ok(Box::new(WatchedRecording(inner, Arc::clone(&self.seen))))
    }
}

/// A model on a watched device, within so many experts' bytes.
fn watched(name: &str, experts: Option<u64>) -> (Arc<Model>, Arc<Seen>) {
    let (each, _) = expert_bytes(name, &Load::default().hugging_face(name));
    let seen = Arc::new(Seen::default());
    let device: Arc<dyn Backend> = Arc::new(Watched {
        inner: CpuDriver.open(0, &OpenOptions::default()).unwrap(),
        seen: Arc::clone(&seen),
    });
    let load = Load {
        device: Some(device),
        expert_bytes: experts.map(|experts| experts * each),
        ..Load::default()
    };
    (load.hugging_face(name), seen)
}

/// Without a cut a step is one recording, and one read: of the token. A cut is a read more, and what is brought is brought a matrix at
/// a time.
#[test]
fn a_step_reads_back_its_token_and_what_is_chosen_at_cuts() {
    for (name, per_token) in SPARSE {
        let tokens = Golden::open(name).tokens("input_ids");
        for experts in [None, Some(per_token)] {
            let (model, seen) = watched(name, experts);
            let cuts = model.plan().cuts("forward").unwrap();
            let mut session = session(&model, "forward");
            let sequence = session.begin();
            for &token in &tokens[..20] {
                let work = Work {
                    sequence,
                    tokens: &[token],
                    rows: Rows::Last,
                };
                let before = model.expert_counts();
                seen.begin(None);
                session
                    .step_and_sample(&[work], &[(Sampling::GREEDY, 0)])
                    .unwrap();
                let [reads, replays, matrices, longest] = seen.counts();
                assert_eq!((reads, replays), (1 + cuts, 1 + 2 * cuts), "{name}");
                let brought = model.expert_counts().misses - before.misses;
                let parts = if name == "glm53-tiny" { 6 } else { 3 };
                assert_eq!(matrices, brought * parts, "{name}");
                let params = model.program().params.iter();
                let matrix = params
                    .filter(|param| param.shape.len() == 3)
                    .map(|param| param.shape[1] * param.shape[2] * 4);
                assert!(longest <= matrix.max().unwrap(), "{name}: {longest}");
            }
            assert_eq!(experts.is_none(), cuts == 0);
        }
    }
}

/// The comparison of bits sees a slot that keeps what it held, whichever it is.
#[test]
fn a_matrix_that_does_not_arrive_is_seen() {
    let name = "glm52-tiny";
    let tokens = Golden::open(name).tokens("input_ids");
    let (model, seen) = watched(name, Some(3));
    let expected = run(&Load::default().hugging_face(name), &tokens, &["logits"]);
    seen.begin(None);
    assert!(run(&model, &tokens, &["logits"]) == expected);
    let [_, _, brought, _] = seen.counts();
    for forgotten in (0..brought).step_by(brought as usize / 12) {
        let (model, seen) = watched(name, Some(3));
        seen.begin(Some(Fault::Forgotten(forgotten)));
        let found = run(&model, &tokens, &["logits"]);
        assert!(found != expected, "matrix {forgotten} of {brought}");
    }
}

#[test]
fn a_step_that_failed_while_experts_were_brought_can_be_taken_again() {
    let name = "glm52-tiny";
    let tokens = Golden::open(name).tokens("input_ids");
    let (model, seen) = watched(name, Some(3));
    let expected = run(&Load::default().hugging_face(name), &tokens, &["logits"]).remove(0);
    let mut session = session(&model, "forward");
    let sequence = session.begin();
    step(&mut session, sequence, &tokens[..20], &[]);
    for lost in [0, 1, 2, 3, 7, 20, 40] {
        seen.begin(Some(Fault::Lost(lost)));
        let work = Work {
            sequence,
            tokens: &tokens[20..],
            rows: Rows::All,
        };
        let error = session.step(&[work], &[], &["logits"]).unwrap_err();
        assert_eq!(error.slug(), "backend/lost");
        assert_eq!(session.positions(sequence).unwrap(), 20);
    }
    seen.begin(None);
    let again = step(&mut session, sequence, &tokens[20..], &["logits"]).remove(0);
    assert!(expected.bytes().ends_with(again.bytes()));
}

/// Sessions of one model use the same slots, one after the other.
#[test]
fn sessions_on_several_threads_do_not_take_each_others_experts() {
    let name = "glm52-tiny";
    let tokens = Golden::open(name).tokens("input_ids");
    let whole = Load::default().hugging_face(name);
    let (each, _) = expert_bytes(name, &whole);
    let model = within(&Load::default(), 5 * each).hugging_face(name);
    let expected = run(&whole, &tokens, &["logits"]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    assert!(run(&model, &tokens, &["logits"]) == expected);
                }
            });
        }
    });
}

#[test]
fn less_memory_than_a_token_needs_is_refused_with_what_it_needs() {
    for (name, per_token) in SPARSE {
        let (each, count) = expert_bytes(name, &Load::default().hugging_face(name));
        let least = per_token * each;
        for bytes in [0, 1, least - 1] {
            let refused = within(&Load::default(), bytes).try_hugging_face(name);
            let error = refused.unwrap_err();
            assert_eq!((error.slug(), error.code()), ("runtime/expert-memory", 6));
            let message = error.to_string();
            let told = [bytes, least, count * each].map(|bytes| bytes.to_string());
            assert!(
                told.iter().all(|bytes| message.contains(bytes)),
                "{message}"
            );
            assert!(error.help().unwrap().contains(&told[1]));
        }
    }
}

#[test]
fn a_model_without_experts_needs_no_memory_for_them() {
    for (name, _) in MODELS.iter().filter(|(name, _)| name.contains("qwen3")) {
        let whole = Load::default().hugging_face(name);
        let model = within(&Load::default(), 0).hugging_face(name);
        assert_eq!(model.plan().experts(), ExpertMemory::default());
        assert_eq!(model.plan().cuts("forward"), Some(0));
        assert_eq!(model.param_bytes(), whole.param_bytes());
    }
}
