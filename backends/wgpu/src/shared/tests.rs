//! What becomes of a device that fails, of its buffers and recordings, and of others.

use std::time::Instant;

use rialto_backend::{Backend, Buffer, OpCall, Recording, TensorType};
use rialto_program::op::{Linear, Scale};
use rialto_tensor::Dtype;

use super::*;
use crate::opened::opened_or_skip;
use crate::{WgpuBackend, WgpuDriver};

fn floats(device: &dyn Backend, dtype: Dtype, shape: &[u64]) -> Result<Buffer, Error> {
    device.allocate(&TensorType::new(dtype, shape))
}

/// Doubles the elements of one buffer into another.
fn doubling(device: &dyn Backend, from: &Buffer, to: &Buffer) -> Result<Box<dyn Recording>, Error> {
    let call = OpCall::new(
        Scale { factor: 2.0 }.into(),
        [from.clone().into()],
        [to.clone()],
    )?;
    device.record(vec![call])
}

/// Whether a device computes.
fn works(device: &dyn Backend) -> Result<(), Error> {
    let [from, to] = [(); 2].map(|()| floats(device, Dtype::F32, &[3]).unwrap());
    let mut recording = doubling(device, &from, &to)?;
    device.write(&from, 0, bytemuck::cast_slice(&[1f32, 2.0, -3.0]))?;
    recording.replay()?;
    let mut bytes = [0; 12];
    device.read(&to, 0, &mut bytes)?;
    assert_eq!(
        bytemuck::pod_read_unaligned::<[f32; 3]>(&bytes),
        [2.0, 4.0, -6.0]
    );
    Ok(())
}

/// Every call on a device that has failed says how, at once.
fn all_fail(
    device: &WgpuBackend,
    (from, to): (&Buffer, &Buffer),
    recording: &mut dyn Recording,
    slug: &str,
) {
    let begun = Instant::now();
    let errors = [
        ("allocate", floats(device, Dtype::F32, &[3]).err()),
        ("write", device.write(from, 0, &[0; 12]).err()),
        (
            "write of a part of a word",
            device.write(from, 1, &[0; 2]).err(),
        ),
        ("read", device.read(to, 0, &mut [0; 12]).err()),
        ("record", doubling(device, from, to).err()),
        ("replay", recording.replay().err()),
    ];
    for (call, error) in errors {
        let error = error.unwrap_or_else(|| panic!("{call} on a device that has failed"));
        assert_eq!(error.slug(), slug, "{call}: {error}");
        assert!(
            error.to_string().contains(&device.device().name),
            "{call}: {error}"
        );
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "nothing waits");
}

#[test]
fn fc_67_a_device_that_is_lost_says_so_in_every_call_and_a_new_one_works() {
    let Some(device) = opened_or_skip(Settings::default()) else {
        return;
    };
    let [from, to] = [(); 2].map(|()| floats(&device, Dtype::F32, &[3]).unwrap());
    let mut recording = doubling(&device, &from, &to).unwrap();
    works(&device).unwrap();
    device.lose();
    all_fail(&device, (&from, &to), recording.as_mut(), "backend/lost");
    device.lose();
    all_fail(&device, (&from, &to), recording.as_mut(), "backend/lost");
    // Also what is still there when its device is not.
    drop(device);
    assert_eq!(recording.replay().unwrap_err().slug(), "backend/lost");
    drop((from, to, recording));
    works(&opened_or_skip(Settings::default()).unwrap()).unwrap();
}

/// A product that takes longer than some microseconds on any device, with its buffers.
fn slow(device: &dyn Backend) -> ([Buffer; 3], Box<dyn Recording>) {
    let shapes: [&[u64]; 3] = [&[256, 512], &[1024, 512], &[256, 1024]];
    let [x, weight, out] = shapes.map(|shape| floats(device, Dtype::F32, shape).unwrap());
    let inputs = [x.clone(), weight.clone()].map(Into::into);
    let call = OpCall::new(Linear::default().into(), inputs, [out.clone()]).unwrap();
    let recording = device.record(vec![call]).unwrap();
    ([x, weight, out], recording)
}

#[test]
fn fc_67_a_dispatch_beyond_the_deadline_is_an_error_and_the_device_is_not_used_again() {
    let deadline = Duration::from_micros(1);
    let settings = Settings {
        deadline,
        ..Settings::default()
    };
    let Some(device) = opened_or_skip(settings) else {
        return;
    };
    let ([x, weight, out], mut recording) = slow(&device);
    let other = floats(&device, Dtype::F32, &[256, 512]).unwrap();
    device.write(&x, 0, &[0; 4 * 256 * 512]).unwrap();
    recording.replay().unwrap();
    let begun = Instant::now();
    let error = device.read(&out, 0, &mut [0; 16]).unwrap_err();
    let name = device.device().name.clone();
    assert_eq!(
        error,
        Error::Deadline {
            device: name,
            deadline
        }
    );
    assert!(error.to_string().ends_with("was not done after 0.000001 s"));
    all_fail(
        &device,
        (&x, &other),
        recording.as_mut(),
        "backend/deadline",
    );
    // The end of the device does not wait for the dispatch, either.
    drop((device, x, weight, out, other, recording));
    assert!(begun.elapsed() < Duration::from_secs(10), "{begun:?}");
    works(&opened_or_skip(Settings::default()).unwrap()).unwrap();
    // What was left alone ends with the dispatch; an end of the process in its midst would be the test's fault.
    std::thread::sleep(Duration::from_millis(500));
}

/// Mesa's software adapter waits in the middle of a submission for the one before, and without an end: that wait is ours.
#[test]
fn fc_67_a_submission_behind_one_that_is_not_done_in_time_is_an_error() {
    let settings = Settings {
        deadline: Duration::from_micros(1),
        ..Settings::default()
    };
    let Some(device) = opened_or_skip(settings) else {
        return;
    };
    let (buffers, mut recording) = slow(&device);
    recording.replay().unwrap();
    if device.device().kind == DeviceKind::Software {
        assert_eq!(recording.replay().unwrap_err().slug(), "backend/deadline");
    }
    drop((device, buffers, recording));
    std::thread::sleep(Duration::from_millis(500));
}

#[test]
fn memory_is_counted_given_back_and_refused_beyond_its_bound() {
    let settings = Settings {
        memory_bytes: Some(1 << 20),
        ..Settings::default()
    };
    let Some(device) = opened_or_skip(settings) else {
        return;
    };
    assert_eq!(device.device().memory_bytes, Some(1 << 20));
    let half = floats(&device, Dtype::F32, &[(1 << 19) / 4]).unwrap();
    let other = floats(&device, Dtype::F32, &[(1 << 19) / 4]).unwrap();
    let error = floats(&device, Dtype::F32, &[1]).unwrap_err();
    assert_eq!((error.slug(), error.code()), ("backend/memory", 6));
    assert_eq!(
        error.to_string(),
        format!(
            "16 bytes of {} memory could not be had, 1048576 of 1048576 bytes are in use",
            device.device().name
        )
    );
    // What is read goes through the host's memory.
    device.read(&half, 0, &mut [0; 64]).unwrap();
    // A clone is the same memory.
    let clone = half.clone();
    drop(half);
    assert!(floats(&device, Dtype::F32, &[1]).is_err());
    drop(clone);
    let again = floats(&device, Dtype::F32, &[(1 << 19) / 4]).unwrap();
    drop((again, other));
    works(&device).unwrap();
}

#[test]
fn the_workspaces_of_a_recording_count_as_long_as_it_lives() {
    let settings = Settings {
        memory_bytes: Some(1 << 20),
        ..Settings::default()
    };
    let Some(device) = opened_or_skip(settings) else {
        return;
    };
    // Results in BF16 are made in F32 first: 800 kB beside two of 400 kB.
    let [from, to] = [(); 2].map(|()| floats(&device, Dtype::Bf16, &[200_000]).unwrap());
    let error = doubling(&device, &from, &to).err().unwrap();
    assert_eq!(error.slug(), "backend/memory", "{error}");
    drop((from, to));
    let [from, to] = [(); 2].map(|()| floats(&device, Dtype::Bf16, &[120_000]).unwrap());
    let recording = doubling(&device, &from, &to).unwrap();
    let error = floats(&device, Dtype::Bf16, &[120_000]).unwrap_err();
    assert_eq!(error.slug(), "backend/memory", "{error}");
    drop(recording);
    floats(&device, Dtype::Bf16, &[120_000]).unwrap();
}

#[test]
fn what_the_device_itself_refuses_is_no_loss() {
    let settings = Settings {
        edits: vec![("elementwise", "fn main(", "fn nothing(")],
        ..Settings::default()
    };
    let Some(device) = opened_or_skip(settings) else {
        return;
    };
    let [from, to] = [(); 2].map(|()| floats(&device, Dtype::F32, &[4, 3]).unwrap());
    let error = doubling(&device, &from, &to).err().unwrap();
    assert_eq!((error.slug(), error.code()), ("backend/refused", 13));
    assert!(error.to_string().contains(&device.device().name), "{error}");
    // Other calls go on.
    device.write(&from, 0, &[7; 48]).unwrap();
    let mut bytes = [0; 48];
    device.read(&from, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 48]);
}

/// The numbers that are needed are compared with those of a real adapter when it is opened.
#[test]
fn fc_60_an_adapter_that_is_held_to_too_little_is_refused_with_both_numbers() {
    let Some(device) = opened_or_skip(Settings::default()) else {
        return;
    };
    let settings = Settings {
        invocations: Some(64),
        ..Settings::default()
    };
    let driver = WgpuDriver::with_settings(settings);
    let error = driver.open_adapter(0).err().unwrap();
    assert_eq!(error.slug(), "backend/no-device");
    let text = error.to_string();
    assert!(
        text.contains("64 invocations of a workgroup, 128 needed")
            && text.contains(&device.device().name)
            && text.contains(&device.device().details["driver"]),
        "{text}"
    );
}

/// A driver that has no more is not to be had here: what wgpu says of one.
#[test]
fn what_a_driver_cannot_give_is_a_lack_of_memory_with_what_is_in_use() {
    let Some(device) = opened_or_skip(Settings::default()) else {
        return;
    };
    let held = floats(&device, Dtype::F32, &[256]).unwrap();
    let error = wgpu::Error::OutOfMemory {
        source: "the driver has no more".into(),
    };
    let name = device.device().name.clone();
    assert_eq!(
        device.shared().refusal(&error, 77),
        Error::Memory {
            device: name,
            bytes: 77,
            used_bytes: Some(1024),
            most_bytes: None
        }
    );
    drop(held);
}
