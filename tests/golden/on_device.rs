//! Imports whose blocks a device decodes: the bytes of the processor, whatever the device, and one error if it fails or errs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rialto_backend::{Backend, DeviceKind, Registry};
use rialto_bridge::Bridge;
use rialto_checkpoint::records::REPORT_FILE;
use rialto_checkpoint::store::memory::MemoryPartial;
use rialto_checkpoint::store::{MemoryStore, MemoryTarget, Store};
use rialto_engine::{
    ChunkChoice, Error, ImportPlan, Options, Progress, RunOptions, RunReport, Silent,
};
use rialto_glm5::Glm5;
use rialto_tensor::Dtype;
use rialto_tests::device::device_or_skip;
use rialto_wgpu::WgpuDriver;

use crate::damage::Spoiled;
use crate::faulty_device::{FaultyDevice, Wrong, processor};
use crate::runs::StopAfter;
use crate::world::{GOLDENS, Values, both_ways, families, hugging_face, in_memory, on_disk};
use crate::written;

type Files = BTreeMap<String, Vec<u8>>;

/// One unit after the other, and durable at once.
fn eager() -> RunOptions {
    RunOptions {
        sync_every: Duration::ZERO,
        threads: 1,
        ..RunOptions::default()
    }
}

/// An attempt at a target, with a device or without, and what is there of it if it has succeeded.
fn attempt(
    device: Option<&Arc<dyn Backend>>,
    family: &dyn Bridge,
    source: &Arc<dyn Store>,
    asked: &Options,
    (options, partial, progress): (&RunOptions, &MemoryPartial, &dyn Progress),
) -> Result<(RunReport, Files), Error> {
    let plan = ImportPlan::new(family, Arc::clone(source), asked)?;
    let slot = Arc::new(Mutex::new(None));
    let target = Box::new(MemoryTarget::resume("out", Arc::clone(&slot), partial));
    let report = match device {
        Some(device) => plan.run_on(device, family, target, options, progress),
        None => plan.run(family, target, options, progress),
    };
    let has_target = slot.lock().unwrap().is_some();
    assert_eq!(
        has_target,
        report.is_ok(),
        "a target is there if it is whole"
    );
    let report = report?;
    let store: MemoryStore = slot.lock().unwrap().take().unwrap();
    let files = store.files().unwrap().into_iter();
    let files = files.filter(|file| file.name != REPORT_FILE);
    let files = files.map(|file| (file.name.clone(), store.bytes(&file.name).unwrap()));
    Ok((report, files.collect()))
}

/// Why an attempt failed.
fn failure(outcome: Result<(RunReport, Files), Error>) -> Error {
    match outcome {
        Ok((report, _)) => panic!("the attempt succeeds: {report:?}"),
        Err(error) => error,
    }
}

/// A whole import in one attempt.
fn import(
    device: Option<&Arc<dyn Backend>>,
    family: &dyn Bridge,
    source: &Arc<dyn Store>,
    asked: &Options,
    options: &RunOptions,
) -> Result<(RunReport, Files), Error> {
    let partial = MemoryPartial::default();
    attempt(device, family, source, asked, (options, &partial, &Silent))
}

fn same(found: &Files, expected: &Files, what: &str) {
    let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{what}");
    for (name, bytes) in expected {
        assert!(found[name] == *bytes, "{what}: {name} has other bytes");
    }
}

/// The devices that everything is tried on: the processor as one, and an adapter if this machine has any.
fn devices() -> Vec<Arc<dyn Backend>> {
    let adapter = device_or_skip(&Registry::new().with(WgpuDriver::new()), "wgpu");
    std::iter::once(processor()).chain(adapter).collect()
}

fn tiny() -> Arc<dyn Store> {
    on_disk("glm53-tiny")
}

/// Every code under scales that are zeros, subnormal, at the limits, infinite and NaN, and under any bits.
fn awkward() -> Arc<dyn Store> {
    let mut values = hugging_face(on_disk("glm53-tiny").as_ref());
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as u32
    };
    let special = [
        0x0000_0000, // zero
        0x8000_0000,
        0x0000_0001, // the least subnormal, and the largest
        0x807f_ffff,
        0x0040_0000,
        0x0080_0000, // the least normal number, and the largest
        0x7f7f_ffff,
        0x7f80_0000, // infinity
        0xff80_0000,
        0x7fc0_0000, // quiet and signaling NaN
        0x7f80_0001,
        0xffff_ffff,
        0x3f80_8000, // products halfway between numbers of BF16
        0x3f81_8000,
        0x3b12_4925, // one of the usual size
    ];
    let mut scales = 0;
    for (name, (dtype, _, bytes)) in &mut values {
        if *dtype == Dtype::F8E4m3 {
            let codes = bytes.iter_mut().enumerate();
            codes.for_each(|(at, code)| *code = (at * 37 % 256) as u8);
        } else if name.ends_with("_scale_inv") {
            for scale in bytes.chunks_mut(4) {
                let bits = match scales % 3 {
                    0 => next(),
                    _ => special[scales / 3 * 2 % special.len()],
                };
                scales += 1;
                scale.copy_from_slice(&bits.to_le_bytes());
            }
        }
    }
    assert!(scales > 6 * special.len(), "{scales} scales");
    Arc::new(written::hugging_face("glm53-tiny", &values))
}

/// How checkpoints are asked for: in chunks of several meshes, of rows and columns, and whole.
fn ways() -> Vec<Options> {
    let goldens = GOLDENS
        .iter()
        .filter(|golden| golden.source == "glm53-tiny");
    let goldens = goldens.map(|golden| golden.options());
    let mut ways: Vec<Options> = goldens.collect();
    assert!(!ways.is_empty());
    ways.push(Options::default());
    ways.push(Options {
        chunks: ChunkChoice::Whole,
        files: Some(3),
        ..Options::default()
    });
    ways
}

#[test]
fn every_file_is_that_of_the_processor_whatever_the_device_the_chunks_and_the_threads() {
    for device in &devices() {
        both_ways(|family| {
            for source in [tiny(), awkward()] {
                for asked in ways() {
                    let plain = import(None, family, &source, &asked, &eager()).unwrap();
                    assert!(plain.0.device.is_none());
                    for threads in [1, 6] {
                        let options = RunOptions {
                            threads,
                            memory_budget_bytes: 64 << 20,
                            ..RunOptions::default()
                        };
                        let on = import(Some(device), family, &source, &asked, &options).unwrap();
                        same(&on.1, &plain.1, "on a device");
                        let plan = |report: &RunReport| report.result.plan_blake3.clone();
                        assert_eq!(plan(&on.0), plan(&plain.0));
                        let report = on.0.device.unwrap();
                        assert_eq!(report.device, *device.device());
                        assert!(report.on_processor.is_empty(), "{report:?}");
                        assert!(report.decoded_bytes > 1_000_000, "{report:?}");
                        assert!(report.compared_bytes > 100_000, "{report:?}");
                        let most = options.memory_budget_bytes / 2;
                        assert!((1..=most).contains(&report.buffer_bytes), "{report:?}");
                        let rates = report.rates.unwrap();
                        assert!(rates.device_bytes_per_second > 0.0 && rates.sample_bytes > 0);
                    }
                }
            }
        });
    }
}

#[test]
fn a_shape_is_recorded_once_for_many_rectangles() {
    let device = FaultyDevice::new(Wrong::Nothing);
    let counts = Arc::clone(&device.counts);
    let device: Arc<dyn Backend> = Arc::new(device);
    import(Some(&device), &Glm5, &tiny(), &Options::default(), &eager()).unwrap();
    let [records, reads] =
        [&counts.records, &counts.reads].map(|count| count.load(Ordering::Relaxed));
    assert!(records * 8 < reads, "{records} of {reads}");
}

/// Keeps what it is told.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Progress for Notes {
    fn note(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

fn noted(device: &Arc<dyn Backend>, family: &dyn Bridge, source: &Arc<dyn Store>) -> Vec<String> {
    let (notes, partial) = (Notes::default(), MemoryPartial::default());
    let on = (&eager(), &partial, &notes as &dyn Progress);
    attempt(Some(device), family, source, &Options::default(), on).unwrap();
    notes.0.into_inner().unwrap()
}

#[test]
fn it_is_said_how_fast_both_are_before_the_run_and_that_a_software_adapter_is_one() {
    let device: Arc<dyn Backend> = Arc::new(FaultyDevice::new(Wrong::Nothing));
    let notes = noted(&device, &Glm5, &tiny());
    assert_eq!(notes.len(), 1, "{notes:?}");
    for part in [
        "decoding on faulty:0 (",
        ", a software adapter) makes ",
        " GB/s, the processor ",
    ] {
        assert!(notes[0].contains(part), "{notes:?}");
    }
    let plain = import(Some(&device), &Glm5, &tiny(), &Options::default(), &eager());
    let report = plain.unwrap().0.device.unwrap();
    let rates = report.rates.unwrap();
    assert_eq!(report.device.kind, DeviceKind::Software);
    assert_eq!(report.is_slower, rates.is_slower());
}

/// Buffers and what goes through them are counted, if there is something for a device to decode.
#[test]
fn memory_is_that_of_the_budget_and_of_the_device_on_top() {
    let asked = Options::default();
    let run = |device, source: &Arc<dyn Store>, budget: u64| {
        let options = RunOptions {
            memory_budget_bytes: budget,
            ..eager()
        };
        import(device, &Glm5, source, &asked, &options).unwrap().0
    };
    for device in &devices() {
        for budget in [64 << 20, 100 << 20] {
            let plain = run(None, &tiny(), budget).summary;
            assert_eq!(plain.device_bytes, 0);
            assert_eq!(plain.peak_host_bytes, plain.index_bytes + budget);
            let report = run(Some(device), &tiny(), budget);
            let (found, buffers) = (&report.summary, report.device.unwrap().buffer_bytes);
            assert_eq!(
                found.peak_host_bytes,
                plain.peak_host_bytes + found.device_bytes
            );
            assert!(0 < buffers && 2 * buffers <= found.device_bytes);
            // Half of the budget, what goes through it, and what is compared.
            let most = budget + (16 << 20);
            assert!((budget..most).contains(&found.device_bytes), "{found:?}");
            // A checkpoint without codes.
            let idle = run(Some(device), &on_disk("glm52-tiny"), budget).summary;
            assert_eq!(idle.device_bytes, 0);
        }
    }
}

/// The device is lost at its first call: it is not to have any.
#[test]
fn what_no_program_vouches_for_stays_with_the_processor_and_the_report_says_so() {
    let device: Arc<dyn Backend> = Arc::new(FaultyDevice::new(Wrong::LostAt(0)));
    let (asked, options) = (Options::default(), eager());
    let expected = import(None, &Glm5, &tiny(), &asked, &options).unwrap();
    let silent = Spoiled {
        family: &Glm5,
        spoil: Box::new(|_| {}),
    };
    let found = import(Some(&device), &silent, &tiny(), &asked, &options).unwrap();
    same(&found.1, &expected.1, "without a program");
    let report = found.0.device.unwrap();
    assert!(report.tensors.is_empty() && report.rates.is_none() && report.decoded_bytes == 0);
    let [other] = report.on_processor.as_slice() else {
        panic!("{report:?}");
    };
    assert_eq!(
        (other.codec.as_str(), other.dtype.as_str()),
        ("block_fp8/128x128", "F8_E4M3")
    );
    assert!(
        other.tensors > 100 && other.reason.contains("nothing says"),
        "{other:?}"
    );
    let notes = noted(&device, &silent, &tiny());
    assert!(
        notes[0].contains("has nothing to decode (F8_E4M3 in block_fp8/128x128"),
        "{notes:?}"
    );
    // A checkpoint without codes.
    let notes = noted(&device, &Glm5, &on_disk("glm52-tiny"));
    assert!(
        notes[0].contains("no tensor that is converted is encoded"),
        "{notes:?}"
    );
}

#[test]
fn codes_that_devices_do_not_know_are_decoded_beside_those_they_do() {
    let mut values: Values = hugging_face(tiny().as_ref());
    let name = "model.layers.2.self_attn.o_proj.weight";
    values.get_mut(name).unwrap().0 = Dtype::F8E5m2;
    let source: Arc<dyn Store> = Arc::new(written::hugging_face("glm53-tiny", &values));
    let (asked, options) = (Options::default(), eager());
    for device in &devices() {
        let expected = import(None, &Glm5, &source, &asked, &options).unwrap();
        let found = import(Some(device), &Glm5, &source, &asked, &options).unwrap();
        same(&found.1, &expected.1, "with E5M2");
        let report = found.0.device.unwrap();
        let [other] = report.on_processor.as_slice() else {
            panic!("{report:?}");
        };
        assert_eq!((other.dtype.as_str(), other.tensors), ("F8_E5M2", 1));
        assert!(report.tensors["block_fp8/128x128"] > 100);
    }
}

#[test]
fn a_device_that_does_not_run_the_operation_is_refused_before_anything_is_written() {
    let device: Arc<dyn Backend> = Arc::new(FaultyDevice::with_ops(&["rialto.linear/1"]));
    let asked = Options::default();
    let error = failure(import(Some(&device), &Glm5, &tiny(), &asked, &eager()));
    assert_eq!((error.slug(), error.code()), ("engine/device", 7));
    assert!(
        error.to_string().contains("rialto.dequantize_block/1"),
        "{error}"
    );
}

/// At every call in turn, but for a step that is no divisor of what a rectangle calls; the processor goes on with what is left.
#[test]
fn a_device_that_is_lost_at_any_call_is_one_error_and_the_processor_goes_on() {
    let asked = Options::default();
    for (way, family) in families() {
        let family = family.as_ref();
        let source: Arc<dyn Store> = Arc::new(in_memory("glm53-tiny"));
        let expected = import(None, family, &source, &asked, &eager()).unwrap();
        let counted = FaultyDevice::new(Wrong::Nothing);
        let counts = Arc::clone(&counted.counts);
        let counted: Arc<dyn Backend> = Arc::new(counted);
        import(Some(&counted), family, &source, &asked, &eager()).unwrap();
        let calls = counts.calls.load(Ordering::Relaxed);
        // Every call of the sample's first round and some of the others; then what the run does.
        let step = if way == "linked" { 13 } else { 101 };
        let mut continued = 0;
        for call in (0..9).chain((9..calls).step_by(step)) {
            let device: Arc<dyn Backend> = Arc::new(FaultyDevice::new(Wrong::LostAt(call)));
            let partial = MemoryPartial::default();
            let options = RunOptions {
                is_resumed: true,
                ..eager()
            };
            let on = (&options, &partial, &Silent as &dyn Progress);
            let error = failure(attempt(Some(&device), family, &source, &asked, on));
            assert_eq!(
                (error.slug(), error.code()),
                ("engine/device", 7),
                "{error}"
            );
            let said = error.to_string();
            assert!(
                said.contains("faulty:0") && said.contains("was lost"),
                "{said}"
            );
            let help = error.help().unwrap();
            assert!(help.contains("leave `--device` out"), "{help}");
            if matches!(error, Error::Suspended { .. }) {
                assert!(help.contains("run again with `--resume`"), "{help}");
            }
            let (report, files) = attempt(None, family, &source, &asked, on).unwrap();
            continued += u32::from(report.bytes_found_done > 0);
            same(&files, &expected.1, &format!("after call {call}"));
        }
        assert!(continued > 3, "{continued} of {calls} calls were continued");
    }
}

/// What is made of what does not depend on who decodes it.
#[test]
fn a_run_begun_on_one_goes_on_with_the_other_either_way() {
    both_ways(|family| {
        let (source, asked): (Arc<dyn Store>, _) =
            (Arc::new(in_memory("glm53-tiny")), Options::default());
        let expected = import(None, family, &source, &asked, &eager()).unwrap();
        let device = processor();
        for (first, second) in [(Some(&device), None), (None, Some(&device))] {
            let partial = MemoryPartial::default();
            let options = RunOptions {
                is_resumed: true,
                ..eager()
            };
            let stop = StopAfter(400_000, AtomicU64::new(0));
            let on = (&options, &partial, &stop as &dyn Progress);
            let error = failure(attempt(first, family, &source, &asked, on));
            assert_eq!(error.slug(), "engine/cancelled");
            let on = (&options, &partial, &Silent as &dyn Progress);
            let (report, files) = attempt(second, family, &source, &asked, on).unwrap();
            assert!(report.bytes_found_done >= 400_000);
            same(&files, &expected.1, "begun on the other");
        }
    });
}

#[test]
fn a_device_that_errs_by_one_bit_is_noticed_before_anything_is_written() {
    both_ways(|family| {
        let device: Arc<dyn Backend> = Arc::new(FaultyDevice::new(Wrong::BitFrom(0)));
        let (source, asked) = (tiny(), Options::default());
        let error = failure(import(Some(&device), family, &source, &asked, &eager()));
        assert_eq!((error.slug(), error.code()), ("engine/device-differs", 7));
        let Error::DeviceDiffers {
            expected, found, ..
        } = &error
        else {
            panic!("nothing is kept: {error}");
        };
        assert_eq!(expected ^ found, 1);
    });
}

/// It errs only once the sample is through: one rectangle of sixty-four is compared, and what it had a part in is not kept.
#[test]
fn a_device_that_begins_to_err_later_is_noticed_and_nothing_of_it_is_kept() {
    let (source, asked): (Arc<dyn Store>, _) =
        (Arc::new(in_memory("glm53-tiny")), Options::default());
    let sound = FaultyDevice::new(Wrong::LostAt(u64::MAX));
    let counts = Arc::clone(&sound.counts);
    let sound: Arc<dyn Backend> = Arc::new(sound);
    let stop = StopAfter(1, AtomicU64::new(0));
    let partial = MemoryPartial::default();
    let on = (&eager(), &partial, &stop as &dyn Progress);
    failure(attempt(Some(&sound), &Glm5, &source, &asked, on));
    let sampled = counts.reads.load(Ordering::Relaxed);
    let device: Arc<dyn Backend> = Arc::new(FaultyDevice::new(Wrong::BitFrom(sampled + 2)));
    let partial = MemoryPartial::default();
    let options = RunOptions {
        is_resumed: true,
        ..eager()
    };
    let on = (&options, &partial, &Silent as &dyn Progress);
    let error = failure(attempt(Some(&device), &Glm5, &source, &asked, on));
    assert_eq!(error.slug(), "engine/device-differs", "{error}");
    let expected = import(None, &Glm5, &source, &asked, &eager()).unwrap();
    let (report, files) = attempt(None, &Glm5, &source, &asked, on).unwrap();
    assert_eq!(report.bytes_found_done, 0);
    same(&files, &expected.1, "after a device that erred");
}
