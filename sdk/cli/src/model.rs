//! Devices, and a checkpoint's model on one: what `run` and `compare` do first.

use std::path::Path;
use std::sync::Arc;

#[cfg(not(feature = "wgpu"))]
use rialto_backend::NotBuilt;
use rialto_backend::{Backend, Choice, DeviceInfo, OpenOptions, Passed, Registry};
use rialto_bridge::{ProgramOptions, WeightSource};
use rialto_cpu::CpuDriver;
use rialto_engine::{Progress, VerifySource, Weights, source_config};
use rialto_program::Program;
use rialto_runtime::{
    LoadOptions, LoadPlan, Model, Session, SessionOptions, cache_row_bytes, check_tokens,
};
use rialto_tensor::Dtype;

use crate::arguments::{Common, ModelFlags, Wanted};
use crate::bar::Bar;
use crate::experts::FORWARD;
use crate::failure::Failure;
use crate::output::{Output, bytes};
use crate::{experts, families, interrupt, places};

/// Positions of a page of the caches.
const PAGE_POSITIONS: u64 = 64;

/// Every backend of this program.
pub(crate) fn backends() -> Registry {
    let registry = Registry::new().with(CpuDriver);
    #[cfg(feature = "wgpu")]
    let registry = registry.with(rialto_wgpu::WgpuDriver::new());
    #[cfg(not(feature = "wgpu"))]
    let registry = registry.with(NotBuilt {
        name: "wgpu",
        command: "cargo build --release --package rialto --features rialto/wgpu",
    });
    registry
}

/// Opens a device and says which, and where nobody said which, why it is no other.
pub(crate) fn open(
    wanted: &Wanted,
    flags: &ModelFlags,
    output: &Output,
) -> Result<Opened, Failure> {
    let options = OpenOptions {
        threads: flags.threads,
    };
    choose(wanted, &options, output)
}

/// A device, and the backends that were passed over where nobody said which, with the reasons.
pub(crate) struct Opened {
    pub(crate) device: Arc<dyn Backend>,
    pub(crate) passed: Vec<Passed>,
}

/// Opens the device that decodes the blocks of an import and says which; none for the processor, on which the family does it. No
/// library of a GPU is looked for then.
pub(crate) fn open_decoder(
    wanted: &Wanted,
    output: &Output,
) -> Result<Option<Arc<dyn Backend>>, Failure> {
    if matches!(wanted, Wanted::This(choice) if *choice == Choice::first("cpu")) {
        return Ok(None);
    }
    let Opened { device, .. } = choose(wanted, &OpenOptions::default(), output)?;
    Ok((device.device().backend != "cpu").then_some(device))
}

fn choose(wanted: &Wanted, options: &OpenOptions, output: &Output) -> Result<Opened, Failure> {
    let (device, passed) = match wanted {
        Wanted::Auto => backends().open_any(options)?,
        Wanted::This(choice) => (backends().open(choice, options)?, Vec::new()),
    };
    let reasons: Vec<String> = passed.iter().map(ToString::to_string).collect();
    let others = match reasons.as_slice() {
        [] => String::new(),
        reasons => format!(" ({})", reasons.join("; ")),
    };
    output.note(&format!("device: {}{others}", line(device.device())));
    Ok(Opened { device, passed })
}

/// A device in a line: what it is called, what computes, and its driver.
fn line(info: &DeviceInfo) -> String {
    let driver = info.details.get("driver");
    let driver = driver.map(|driver| format!(", driver {driver}"));
    format!("{info}, {}{}", info.kind, driver.unwrap_or_default())
}

/// A model with what is to be told of it.
pub(crate) struct Loaded {
    pub(crate) model: Arc<Model>,
    pub(crate) release: String,
}

/// A model of which no weight has been read.
pub(crate) struct Planned<'a> {
    pub(crate) plan: LoadPlan,
    pub(crate) release: String,
    program: Program,
    weights: &'a Weights<'a>,
    device: Arc<dyn Backend>,
    options: LoadOptions,
}

impl Planned<'_> {
    /// Bytes of caches with so many positions.
    pub(crate) fn cache_bytes(&self, positions: u64) -> u64 {
        let row = cache_row_bytes(&self.program, FORWARD, self.options.activation);
        row.saturating_mul(positions)
    }
}

/// What a model is run on, and what is run on it.
pub(crate) struct Asked<'a> {
    pub(crate) device: Arc<dyn Backend>,
    pub(crate) activation: Dtype,
    pub(crate) texts: &'a [&'a [u32]],
}

/// Reads the program of a checkpoint, and plans what will lie where. Texts that the program has no tokens for, and too little
/// memory for experts, are refused before a weight is read. `then` goes on from there.
pub(crate) fn plan<T>(
    path: &Path,
    flags: &ModelFlags,
    asked: Asked<'_>,
    common: &Common,
    output: &Output,
    then: impl FnOnce(Planned<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let source = VerifySource::open(places::open(path)?)?;
    let reference = places::open_reference(flags.reference.as_deref())?;
    let reference = reference
        .map(|store| source_config(store.as_ref()))
        .transpose()?;
    let Some(config) = source.config().or(reference.as_ref()) else {
        return Err(rialto_engine::Error::NoConfig {
            place: source.name().to_owned(),
            searched: vec![source.name().to_owned(), "--reference".to_owned()],
        }
        .into());
    };
    let family = families::claim(common, config, output)?;
    let weights = Weights::new(&source, config, family.as_ref())?;
    for notice in weights.notices() {
        output.note(&format!("note: {notice}"));
    }
    let options = ProgramOptions {
        settings: flags.set.iter().cloned().collect(),
    };
    let program = family.program(weights.spec(), &options)?;
    say_unread(&program, &weights, output);
    // What predicts further tokens would only take memory.
    let program = program
        .only(&[FORWARD])
        .map_err(rialto_runtime::Error::from)?;
    for (number, text) in asked.texts.iter().enumerate() {
        check_tokens(&program, number, text)?;
    }
    let options = LoadOptions {
        activation: asked.activation,
        decodes_blocks: flags.decode_blocks,
        expert_bytes: flags.expert_memory.map(|memory| memory.as_u64()),
    };
    let plan = LoadPlan::new(&program, &weights, asked.device.as_ref(), &options)?;
    then(Planned {
        plan,
        release: weights.spec().release.clone(),
        program,
        weights: &weights,
        device: asked.device,
        options,
    })
}

/// The same, says so, and takes the weights there.
pub(crate) fn load(
    path: &Path,
    flags: &ModelFlags,
    asked: Asked<'_>,
    common: &Common,
    output: &Output,
) -> Result<Loaded, Failure> {
    plan(path, flags, asked, common, output, |planned| {
        if let Some(line) = experts::line(&planned.plan) {
            output.note(&line);
        }
        let Planned {
            program, weights, ..
        } = planned;
        let bar = Bar::new(output);
        weights.check_copies(&bar)?;
        let names = program.params.iter().flat_map(|param| param.sources());
        let sizes = names.filter_map(|name| {
            let info = weights.info(&name)?;
            info.shape.size_bytes(info.dtype).ok()
        });
        bar.begin("loading", sizes.sum());
        let mut on_bytes = |more: u64| {
            bar.advance(more);
            !interrupt::is_asked()
        };
        let (device, options) = (planned.device, planned.options);
        let model = Model::load(program, weights, device, &options, &mut on_bytes);
        bar.end();
        let model = model?;
        weights.finish(&bar)?;
        output.note(&format!("{} of params loaded", bytes(model.param_bytes())));
        Ok(Loaded {
            model: Arc::new(model),
            release: planned.release,
        })
    })
}

/// Says which tensors of the checkpoint no phase of the program reads: a head of its own that a prediction layer brings, say.
fn say_unread(program: &Program, weights: &Weights<'_>, output: &Output) {
    let params = program.params.iter();
    let names: Vec<String> = params.flat_map(|param| param.sources()).collect();
    let unread = weights.unnamed(&names);
    if let [first, ..] = unread.as_slice() {
        let count = unread.len();
        output.note(&format!(
            "note: {count} tensors are no part of the forward pass, the first of them {first}"
        ));
    }
}

/// Positions of caches for sequences of these lengths, in whole pages.
pub(crate) fn positions(lengths: impl Iterator<Item = u64>) -> u64 {
    let pages = lengths
        .map(|length| length.div_ceil(PAGE_POSITIONS))
        .fold(0, u64::saturating_add);
    pages.saturating_mul(PAGE_POSITIONS)
}

/// A session with room for sequences of these lengths.
pub(crate) fn session(
    model: &Arc<Model>,
    lengths: impl Iterator<Item = u64>,
) -> Result<Session, Failure> {
    let options = SessionOptions {
        positions: positions(lengths),
        page_positions: PAGE_POSITIONS,
    };
    Ok(Session::new(Arc::clone(model), FORWARD, &options)?)
}
