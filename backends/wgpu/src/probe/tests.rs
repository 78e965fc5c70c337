use rialto_backend::Error;

use super::*;

fn adapter(name: &str, kind: wgpu::DeviceType) -> Seen {
    Seen {
        name: name.to_owned(),
        api: "vulkan".to_owned(),
        driver: "made up 1.0".to_owned(),
        kind,
        has_compute: true,
        limits: wgpu::Limits::default(),
        has_f16: false,
        subgroups: None,
    }
}

/// Names of the devices, and what was rejected.
fn sorted(seen: &[Seen]) -> (Vec<String>, Vec<String>, Option<String>) {
    let sorted = sort(seen, &Settings::default(), "Vulkan");
    let devices = sorted.probe.devices.iter();
    for (index, (device, place)) in devices.clone().zip(&sorted.places).enumerate() {
        assert_eq!((device.index, &device.name), (index, &seen[*place].name));
    }
    (
        devices.map(|device| device.name.clone()).collect(),
        sorted
            .probe
            .rejected
            .iter()
            .map(ToString::to_string)
            .collect(),
        sorted.probe.absent,
    )
}

#[test]
fn fc_63_hardware_comes_before_software_in_whatever_order_they_are_seen() {
    use wgpu::DeviceType::{Cpu, DiscreteGpu, IntegratedGpu, Other, VirtualGpu};
    let expected = ["discrete", "integrated", "virtual", "unknown", "software"];
    let kinds = [DiscreteGpu, IntegratedGpu, VirtualGpu, Other, Cpu];
    let all: Vec<Seen> = expected
        .iter()
        .zip(kinds)
        .map(|(name, kind)| adapter(name, kind))
        .collect();
    for first in 0..all.len() {
        let mut seen = all.clone();
        seen.rotate_left(first);
        assert_eq!(sorted(&seen).0, expected);
        seen.reverse();
        assert_eq!(sorted(&seen).0, expected);
    }
    // Of equals, the first that was seen.
    let twins = ["b", "a"].map(|name| adapter(name, DiscreteGpu));
    assert_eq!(sorted(&twins).0, ["b", "a"]);
}

#[test]
fn fc_63_software_is_marked_and_driver_and_features_are_told() {
    let mut seen = adapter("llvmpipe", wgpu::DeviceType::Cpu);
    (seen.has_f16, seen.subgroups) = (true, Some([8, 8]));
    let mut card = adapter("card", wgpu::DeviceType::DiscreteGpu);
    card.subgroups = Some([32, 64]);
    let probe = sort(&[seen, card], &Settings::default(), "Vulkan").probe;
    let [card, software] = probe.devices.as_slice() else {
        panic!("{probe:?}");
    };
    assert_eq!(card.kind, DeviceKind::Hardware);
    assert_eq!(software.kind, DeviceKind::Software);
    assert_eq!(software.details["driver"], "made up 1.0");
    let features: Vec<&str> = software.features.iter().map(String::as_str).collect();
    assert_eq!(features, ["f16", "subgroups of 8"]);
    assert!(card.features.contains("subgroups of 32 to 64"));
    assert_eq!(software.limits["workgroups"], 65_535);
    assert_eq!(software.limits["binding_bytes"], 128 << 20);
}

#[test]
fn fc_64_every_adapter_that_is_seen_has_a_place_or_a_reason() {
    let mut relic = adapter("relic", wgpu::DeviceType::IntegratedGpu);
    relic.has_compute = false;
    let mut phone = adapter("phone", wgpu::DeviceType::IntegratedGpu);
    phone.limits.max_storage_buffers_per_shader_stage = 4;
    phone.limits.max_compute_invocations_per_workgroup = 64;
    let card = adapter("card", wgpu::DeviceType::DiscreteGpu);
    let (devices, rejected, absent) = sorted(&[relic.clone(), card, phone.clone()]);
    assert_eq!((devices, absent), (vec!["card".to_owned()], None));
    let reasons = [
        "relic (vulkan, driver made up 1.0: no compute shaders)",
        "phone (vulkan, driver made up 1.0: 4 storage buffers of a stage, 8 needed; 64 invocations of a workgroup, 128 needed)",
    ];
    assert_eq!(rejected, reasons);
    // Without the card, the error has all of it.
    let probe = sort(&[relic, phone], &Settings::default(), "Vulkan").probe;
    let error = Error::NoDevice {
        backend: NAME.to_owned(),
        asked: "0".to_owned(),
        reason: String::new(),
        probe: Box::new(probe),
    };
    let text = error.to_string();
    for part in ["no adapter can be used", reasons[0], reasons[1]] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn fc_59_no_adapter_at_all_is_data_with_a_reason() {
    let (devices, rejected, absent) = sorted(&[]);
    assert_eq!((devices.len(), rejected.len()), (0, 0));
    assert_eq!(
        absent.as_deref(),
        Some("no adapter was found: no loader or driver of Vulkan, or no hardware that one serves")
    );
}

#[test]
fn fc_60_each_number_that_shaders_need_is_compared_with_the_one_found() {
    type Lower = fn(&mut wgpu::Limits);
    let lowered: [(Lower, &str); 6] = [
        (
            |limits| limits.max_storage_buffer_binding_size = 1023,
            "1023 bytes of a binding, 1024 needed",
        ),
        (
            |limits| limits.max_storage_buffers_per_shader_stage = 7,
            "7 storage buffers of a stage, 8 needed",
        ),
        (
            |limits| limits.max_compute_workgroup_storage_size = 16_383,
            "16383 bytes of workgroup memory, 16384 needed",
        ),
        (
            |limits| limits.max_compute_invocations_per_workgroup = 127,
            "127 invocations of a workgroup, 128 needed",
        ),
        (
            |limits| limits.max_compute_workgroup_size_x = 127,
            "127 invocations along one dimension, 128 needed",
        ),
        (
            |limits| limits.max_compute_workgroups_per_dimension = 65_534,
            "65534 workgroups of a dimension, 65535 needed",
        ),
    ];
    for (lower, reason) in lowered {
        let mut seen = adapter("phone", wgpu::DeviceType::IntegratedGpu);
        lower(&mut seen.limits);
        let (devices, rejected, _) = sorted(&[seen]);
        assert_eq!(devices, [] as [String; 0], "{reason}");
        assert_eq!(
            rejected,
            [format!("phone (vulkan, driver made up 1.0: {reason})")]
        );
    }
    // Just enough of everything, and less than WebGPU promises of some.
    let mut seen = adapter("phone", wgpu::DeviceType::IntegratedGpu);
    seen.limits.max_compute_invocations_per_workgroup = 128;
    seen.limits.max_compute_workgroup_size_x = 128;
    seen.limits.max_storage_buffer_binding_size = 1024;
    assert_eq!(sorted(&[seen]).0, ["phone"]);
}

#[test]
fn settings_lower_what_an_adapter_gives_and_never_raise_it() {
    let seen = [adapter("card", wgpu::DeviceType::DiscreteGpu)];
    let limits = |settings: &Settings| {
        sort(&seen, settings, "Vulkan").probe.devices[0]
            .limits
            .clone()
    };
    let all = limits(&Settings::default());
    let more = Settings {
        binding_bytes: Some(u64::MAX),
        buffer_bytes: Some(u64::MAX),
        invocations: Some(u32::MAX),
        ..Settings::default()
    };
    assert_eq!(limits(&more), all);
    let less = limits(&Settings {
        buffer_bytes: Some(1 << 20),
        invocations: Some(128),
        ..Settings::default()
    });
    // A binding is no larger than the buffer that it is of.
    assert_eq!(
        (
            less["binding_bytes"],
            less["buffer_bytes"],
            less["workgroup_invocations"]
        ),
        (1 << 20, 1 << 20, 128)
    );
}
