//! Devices that fail while a model is loaded or runs, and that are not there: an error with a name, and the processor goes on in the
//! same process, with the tokens that transformers chose.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rialto_backend::{Choice, OpenOptions, Registry};
use rialto_cpu::CpuDriver;
use rialto_runtime::{Error, Event, GenerateOptions, Model, generate};
use rialto_tests::device::{HIDE_DRIVERS, skip};
use rialto_wgpu::{Settings, WgpuBackend, WgpuDriver};

use crate::records::Golden;
use crate::world::{Load, session};

const MODEL: &str = "glm52-tiny";

/// The first adapter under some settings, if this machine has one.
fn opened(settings: Settings) -> Option<Arc<WgpuBackend>> {
    match WgpuDriver::with_settings(settings).open_adapter(0) {
        Ok(device) => Some(Arc::new(device)),
        Err(error) => {
            skip("wgpu", &error.to_string());
            None
        }
    }
}

fn name(device: &WgpuBackend) -> String {
    rialto_backend::Backend::device(device).name.clone()
}

/// Continues the prompt of the goldens; `on_token` is told how many tokens there are.
fn decode(model: &Arc<Model>, mut on_token: impl FnMut(usize)) -> Result<Vec<u32>, Error> {
    let golden = Golden::open(MODEL);
    let prompt = golden.tokens("input_ids")[..20].to_vec();
    let options = GenerateOptions {
        max_new_tokens: golden.tokens("fp32.decode.tokens").len() as u64,
        ..GenerateOptions::default()
    };
    let mut count = 0;
    let mut on_event = |event| {
        if let Event::Token { .. } = event {
            count += 1;
            on_token(count);
        }
        true
    };
    let mut session = session(model, "forward");
    let generated = generate(&mut session, &[prompt], &options, &mut on_event);
    Ok(generated?.remove(0).tokens)
}

fn the_processor_goes_on() {
    let model = Load::default().hugging_face(MODEL);
    let expected = Golden::open(MODEL).tokens("fp32.decode.tokens");
    assert_eq!(decode(&model, |_| ()).unwrap(), expected);
}

fn on(device: &Arc<WgpuBackend>) -> Load {
    Load {
        device: Some(Arc::clone(device) as _),
        ..Load::default()
    }
}

#[test]
fn fc_67_a_device_that_is_lost_between_two_tokens_is_an_error_and_the_processor_goes_on() {
    let Some(device) = opened(Settings::default()) else {
        return;
    };
    let model = on(&device).hugging_face(MODEL);
    let lost = decode(&model, |count| {
        if count == 3 {
            device.lose();
        }
    });
    let error = lost.unwrap_err();
    assert_eq!((error.slug(), error.code()), ("backend/lost", 7));
    assert!(error.to_string().contains(&name(&device)), "{error}");
    assert!(error.help().unwrap().contains("--backend cpu"), "{error}");
    the_processor_goes_on();
    // And so does the adapter, opened again.
    drop((model, device));
    let model = on(&opened(Settings::default()).unwrap()).hugging_face(MODEL);
    let expected = Golden::open(MODEL).tokens("fp32.decode.tokens");
    assert_eq!(decode(&model, |_| ()).unwrap(), expected);
}

#[test]
fn fc_67_a_device_that_is_not_done_in_time_is_an_error_and_the_processor_goes_on() {
    let deadline = Duration::from_nanos(1);
    let Some(device) = opened(Settings {
        deadline,
        ..Settings::default()
    }) else {
        return;
    };
    // Loading may wait already, for a tensor that is read back or for what was written.
    let loaded = on(&device).try_hugging_face(MODEL);
    let error = loaded.and_then(|model| decode(&model, |_| ())).unwrap_err();
    assert_eq!((error.slug(), error.code()), ("backend/deadline", 7));
    let expected = format!(
        "the device {} was not done after 0.000000001 s",
        name(&device)
    );
    assert_eq!(error.to_string(), expected);
    the_processor_goes_on();
}

#[test]
fn fc_67_a_device_without_enough_memory_is_an_error_and_the_processor_goes_on() {
    let Some(device) = opened(Settings {
        memory_bytes: Some(1 << 20),
        ..Settings::default()
    }) else {
        return;
    };
    let error = on(&device).try_hugging_face(MODEL).unwrap_err();
    assert_eq!((error.slug(), error.code()), ("backend/memory", 6));
    let text = error.to_string();
    assert!(text.contains(&name(&device)), "{text}");
    assert!(text.contains(" of 1048576 bytes are in use"), "{text}");
    the_processor_goes_on();
    // The model that did not fit is gone, so that something small does.
    let tensor = rialto_backend::TensorType::new(rialto_tensor::Dtype::F32, [(1 << 20) / 4]);
    rialto_backend::Backend::allocate(&*device, &tensor).unwrap();
}

#[test]
fn fc_64_an_adapter_without_compute_is_named_with_the_reason_and_the_processor_goes_on() {
    let Some(device) = opened(Settings::default()) else {
        return;
    };
    let (name, settings) = (
        name(&device),
        Settings {
            lacks_compute: true,
            ..Settings::default()
        },
    );
    drop(device);
    let registry = Registry::new()
        .with(WgpuDriver::with_settings(settings))
        .with(CpuDriver);
    let choices = ["wgpu", "wgpu:1", "wgpu:radeon"];
    for choice in choices.map(|choice| choice.parse::<Choice>().unwrap()) {
        let error = registry.open(&choice, &OpenOptions::default());
        let error = error.err().unwrap();
        assert_eq!((error.slug(), error.code()), ("backend/no-device", 7));
        let text = error.to_string();
        for part in ["no adapter can be used", &name, "no compute shaders"] {
            assert!(text.contains(part), "{text}");
        }
        let found = error.findings();
        assert!(found[0].starts_with("rejected: "), "{found:?}");
    }
    let (device, passed) = registry.open_any(&OpenOptions::default()).unwrap();
    assert_eq!(device.device().backend, "cpu");
    assert!(passed[0].reason.contains(&name), "{passed:?}");
    the_processor_goes_on();
}

/// In a process of its own: what a process has in its environment is for all of its threads.
#[cfg(target_os = "linux")]
#[test]
fn fc_64_a_machine_without_adapters_says_what_was_asked_and_the_processor_goes_on() {
    if std::env::var(CHILD).is_ok() {
        return without_adapters();
    }
    let name = "fc_64_a_machine_without_adapters_says_what_was_asked_and_the_processor_goes_on";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("failures::{name}"), "--nocapture"])
        .env(CHILD, "yes")
        .envs(HIDE_DRIVERS)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{child:?}");
    assert!(printed.contains("1 passed"), "{printed}");
}

/// Says to a test that it is the process where drivers are hidden.
#[cfg(target_os = "linux")]
const CHILD: &str = "RIALTO_WITHOUT_ADAPTERS";

#[cfg(target_os = "linux")]
fn without_adapters() {
    let registry = Registry::new().with(WgpuDriver::new()).with(CpuDriver);
    for choice in ["wgpu", "wgpu:1", "wgpu:radeon"] {
        let choice = choice.parse().unwrap();
        let error = registry.open(&choice, &OpenOptions::default());
        let error = error.err().unwrap();
        assert_eq!((error.slug(), error.code()), ("backend/no-device", 7));
        let text = error.to_string();
        for part in ["no adapter was found", "VK_DRIVER_FILES", "/nonexistent"] {
            assert!(text.contains(part), "{text}");
        }
    }
    let (device, passed) = registry.open_any(&OpenOptions::default()).unwrap();
    assert_eq!(device.device().backend, "cpu");
    assert_eq!(passed.len(), 1);
    assert!(
        passed[0]
            .to_string()
            .starts_with("wgpu: no adapter was found")
    );
    the_processor_goes_on();
}
