//! `rialto run`: continues token ids.

use std::time::Instant;

use rialto_backend::{DeviceInfo, Passed};
use rialto_runtime::{Event, GenerateOptions, Generated, Stop, generate};
use serde::Serialize;

use crate::arguments::{Common, Run};
use crate::experts::{self, Experts};
use crate::failure::{Failure, NO_TOKENIZER};
use crate::interrupt;
use crate::model::{self, Asked, Opened};
use crate::output::{Output, Report, bytes, count, counted};

pub(crate) fn run(run: &Run, common: &Common, output: &Output) -> Result<(), Failure> {
    if run.prompt.is_some() {
        let message = "text cannot be continued: this version has no tokenizer".to_owned();
        let mut failure = Failure::own(NO_TOKENIZER, message);
        failure.help = Some("give token ids with --tokens, such as --tokens 1,2,3".to_owned());
        return Err(failure);
    }
    let sampling = run.sampling();
    if let Some(what) = sampling.fault() {
        return Err(rialto_runtime::Error::Sampling { what }.into());
    }
    interrupt::listen()?;
    let Opened { device, passed } = model::open(&run.model.backend, &run.model, output)?;
    let activation = run.model.dtype.dtype();
    let prompts: Vec<Vec<u32>> = run.tokens.iter().map(|tokens| tokens.0.clone()).collect();
    let texts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let device_info = device.device().clone();
    let device_name = format!("{}:{}", device_info.backend, device_info.index);
    let asked = Asked {
        device,
        activation,
        texts: &texts,
    };
    let lengths = prompts
        .iter()
        .map(|prompt| (prompt.len() as u64).saturating_add(run.max_new_tokens));
    if run.plan {
        let positions = model::positions(lengths);
        let plan = |planned: model::Planned<'_>| {
            output.result(&Plan {
                positions,
                cache_bytes: planned.cache_bytes(positions),
                device_passed: passed,
                experts: Experts::planned(&planned.plan),
                line: experts::line(&planned.plan),
                param_bytes: planned.plan.param_bytes(),
                release: planned.release,
                device: device_name,
                device_info,
                dtype: activation.safetensors_name(),
            })
        };
        return model::plan(&run.path, &run.model, asked, common, output, plan);
    }
    let loaded = model::load(&run.path, &run.model, asked, common, output)?;
    let mut session = model::session(&loaded.model, lengths)?;
    let options = GenerateOptions {
        max_new_tokens: run.max_new_tokens,
        stop_tokens: match run.ignore_eos {
            true => Vec::new(),
            false => loaded.model.program().stop_tokens.clone(),
        },
        sampling,
        chunk_tokens: usize::try_from(run.model.chunk_tokens).unwrap_or(usize::MAX),
    };
    let (begun, mut first, mut tokens) = (Instant::now(), None, 0u64);
    let mut on_event = |event| {
        if let Event::Token { .. } = event {
            first.get_or_insert_with(Instant::now);
            tokens += 1;
        }
        !interrupt::is_asked()
    };
    let generated = generate(&mut session, &prompts, &options, &mut on_event)?;
    let seconds = begun.elapsed().as_secs_f64();
    let first_seconds = first.map(|first| first.duration_since(begun).as_secs_f64());
    if let Some(first_seconds) = first_seconds {
        output.note(&format!(
            "{} in {seconds:.2} s, the first after {first_seconds:.2} s",
            counted(tokens, "token")
        ));
    }
    let experts = Experts::of(&loaded.model);
    if let Some(line) = experts.counted() {
        output.note(&line);
    }
    let texts: Vec<Text> = prompts.iter().zip(generated).map(Text::new).collect();
    output.result(&Continued {
        tokens: texts
            .first()
            .map(|text| text.tokens.clone())
            .unwrap_or_default(),
        texts,
        release: loaded.release,
        device: device_name,
        device_info,
        device_passed: passed,
        dtype: activation.safetensors_name(),
        param_bytes: loaded.model.param_bytes(),
        experts,
        seconds,
        first_token_seconds: first_seconds,
    })
}

/// What follows a prompt.
#[derive(Serialize)]
struct Text {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    stop: Stop,
}

impl Text {
    fn new((prompt, generated): (&Vec<u32>, Generated)) -> Text {
        Text {
            prompt: prompt.clone(),
            tokens: generated.tokens,
            stop: generated.stop,
        }
    }
}

/// The texts, in the order of their prompts.
#[derive(Serialize)]
struct Continued {
    /// What follows the first prompt.
    tokens: Vec<u32>,
    texts: Vec<Text>,
    release: String,
    device: String,
    /// What it is: numbers that were measured are worth nothing without.
    device_info: DeviceInfo,
    /// Backends that were passed over, and why, where nobody said which.
    device_passed: Vec<Passed>,
    dtype: &'static str,
    param_bytes: u64,
    experts: Experts,
    seconds: f64,
    first_token_seconds: Option<f64>,
}

impl Report for Continued {
    /// A line for each prompt, as `--tokens` takes it.
    fn lines(&self) -> Vec<String> {
        let line = |text: &Text| {
            let tokens: Vec<String> = text.tokens.iter().map(u32::to_string).collect();
            tokens.join(",")
        };
        self.texts.iter().map(line).collect()
    }
}

/// What would lie where.
#[derive(Serialize)]
struct Plan {
    release: String,
    device: String,
    device_info: DeviceInfo,
    device_passed: Vec<Passed>,
    dtype: &'static str,
    /// Bytes of params on the device.
    param_bytes: u64,
    /// Positions of the caches, and their bytes.
    positions: u64,
    cache_bytes: u64,
    experts: Experts,
    #[serde(skip)]
    line: Option<String>,
}

impl Report for Plan {
    fn lines(&self) -> Vec<String> {
        let all = "a step is not cut: all params are on the device";
        vec![
            format!("{} of params on {}", bytes(self.param_bytes), self.device),
            format!(
                "{} of caches there, for {} positions",
                bytes(self.cache_bytes),
                count(self.positions)
            ),
            self.line.clone().unwrap_or_else(|| all.to_owned()),
        ]
    }
}
