//! Writing and reading, from many threads and much.

use std::process::{Command, Stdio};

use super::*;
use crate::opened::opened_or_skip;

/// Threads wait for one device, and any of them may be told what another waits for.
#[test]
fn many_threads_read_what_they_wrote() {
    let Some(device) = opened_or_skip(Settings::default()) else {
        return;
    };
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let device = &device;
            scope.spawn(move || {
                let tensor = TensorType::new(Dtype::F32, [33]);
                let buffer = device.allocate(&tensor).unwrap();
                for round in 0..50 {
                    let bytes = [thread ^ round; 33 * 4];
                    device.write(&buffer, 0, &bytes).unwrap();
                    let mut found = [0; 33 * 4];
                    device.read(&buffer, 0, &mut found).unwrap();
                    assert_eq!(found, bytes);
                }
            });
        }
    });
}

/// Devices write whole words: of one that two threads write at the same time, each a part, both parts are kept.
#[test]
fn threads_that_write_parts_of_a_word_keep_what_each_other_wrote() {
    let Some(device) = opened_or_skip(Settings::default()) else {
        return;
    };
    let tensor = TensorType::new(Dtype::Bf16, [4]);
    let buffer = device.allocate(&tensor).unwrap();
    device.write(&buffer, 0, &[0; 8]).unwrap();
    // What each writes, and what of it is nobody else's.
    let pairs = [
        [(0..2, 0..2), (2..4, 2..4)],
        [(0..3, 0..3), (3..8, 3..8)],
        [(0..4, 0..2), (2..4, 4..4)],
    ];
    for pair in pairs {
        std::thread::scope(|scope| {
            for (written, own) in pair {
                let (device, buffer) = (&device, &buffer);
                scope.spawn(move || {
                    for round in 1..=100 {
                        let bytes = vec![round; (written.end - written.start) as usize];
                        device.write(buffer, written.start, &bytes).unwrap();
                        let mut found = vec![0; (own.end - own.start) as usize];
                        device.read(buffer, own.start, &mut found).unwrap();
                        assert_eq!(found, bytes[..found.len()], "{written:?}");
                    }
                });
            }
        });
    }
}

/// Memory that cannot be read back when the device has said that it is done: nobody knows what else it has not done.
#[test]
fn a_device_that_does_not_give_back_what_it_made_is_not_used_again() {
    let failures = [Err(wgpu::BufferAsyncError), Ok(())];
    for mapped in failures {
        let Some(device) = opened_or_skip(Settings::default()) else {
            return;
        };
        let buffer = device.allocate(&TensorType::new(Dtype::F32, [4])).unwrap();
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        // One that nobody has mapped, whatever is said.
        let staging = device.shared.create(16, usage).unwrap();
        let (told, given) = mpsc::channel();
        told.send(mapped).unwrap();
        let error = device.take_mapped(&staging, &given, &mut [0; 16]);
        let error = error.unwrap_err();
        assert_eq!(error.slug(), "backend/lost", "{error}");
        assert_eq!(device.write(&buffer, 0, &[0; 16]), Err(error));
    }
}

/// What was written is in the host's memory once more until the device has it: of many writes in a row only some are.
#[cfg(target_os = "linux")]
#[test]
fn writes_in_a_row_do_not_pile_up_in_memory() {
    // In a process of its own: what is measured is the most that a process ever had, whatever other tests are at.
    if std::env::var(CHILD).is_ok() {
        return writes_in_a_row();
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "device::tests::writes_in_a_row_do_not_pile_up_in_memory",
            "--nocapture",
        ])
        .env(CHILD, "yes")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{printed}");
    assert!(printed.contains("1 passed"), "{printed}");
}

/// Says to a test that it is that process.
#[cfg(target_os = "linux")]
const CHILD: &str = "RIALTO_WRITES_IN_A_ROW";

#[cfg(target_os = "linux")]
fn writes_in_a_row() {
    let Some(device) = opened_or_skip(Settings::default()) else {
        return;
    };
    let most = || -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim()
            .strip_suffix(" kB")
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    let tensor = TensorType::new(Dtype::F32, [4 << 20]);
    let (buffer, bytes) = (device.allocate(&tensor).unwrap(), vec![1; 16 << 20]);
    let begin = most();
    for _ in 0..64 {
        device.write(&buffer, 0, &bytes).unwrap();
    }
    let more = most() - begin;
    assert!(more < 256 << 10, "{more} KiB more");
}
