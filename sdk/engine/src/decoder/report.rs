//! What a device did in a run, and how fast it was beside the processor.

use std::collections::BTreeMap;

use rialto_backend::{DeviceInfo, DeviceKind};
use serde::Serialize;

/// What a device decoded in an import, for the report. The checkpoint does not depend on it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceReport {
    /// The device: its backend, number and name, and details such as its driver.
    #[serde(flatten)]
    pub device: DeviceInfo,
    /// Tensors whose blocks it decodes, by codec.
    pub tensors: BTreeMap<String, u64>,
    /// Encoded tensors that the family decodes on the processor all the same, and why.
    pub on_processor: Vec<OnProcessor>,
    /// Bytes of BF16 that it made in this attempt of this process.
    pub decoded_bytes: u64,
    /// How many bytes the processor made, too, so that they could be compared; the sample is among them.
    pub compared_bytes: u64,
    /// Most bytes of buffers that lay on it at once.
    pub buffer_bytes: u64,
    /// What both make in a second; none if there was nothing to decode.
    pub rates: Option<DecodingRates>,
    /// Whether the processor alone decodes faster.
    pub is_slower: bool,
}

/// Encoded tensors that do not go to a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OnProcessor {
    /// Their codec.
    pub codec: String,
    /// Dtype of their codes.
    pub dtype: String,
    /// How many there are.
    pub tensors: u64,
    /// Why they do not.
    pub reason: String,
}

/// What a sample of a checkpoint took to decode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DecodingRates {
    /// Bytes of BF16 that the sample is.
    pub sample_bytes: u64,
    /// Bytes of BF16 in a second on the device, those of codes and results carried there and back.
    pub device_bytes_per_second: f64,
    /// The same of the family on the processor, on as many threads as the run has lanes.
    pub processor_bytes_per_second: f64,
}

/// Who decodes which tensors.
#[derive(Debug, Default)]
pub(crate) struct Share {
    pub(crate) on_device: BTreeMap<String, u64>,
    /// By codec, dtype and reason.
    pub(crate) on_processor: BTreeMap<(String, String, String), u64>,
}

impl DecodingRates {
    /// Whether the processor alone decodes faster.
    #[must_use]
    pub fn is_slower(&self) -> bool {
        self.device_bytes_per_second < self.processor_bytes_per_second
    }

    /// What a person should know of it.
    pub(crate) fn text(&self, device: &DeviceInfo) -> String {
        let rate = |rate: f64| format!("{:.2} GB/s", rate / 1e9);
        let advice = match self.is_slower() {
            true => ": leave --device out",
            false => "",
        };
        let kind = match device.kind {
            DeviceKind::Software => ", a software adapter",
            _ => "",
        };
        format!(
            "decoding on {}:{} ({}{kind}) makes {}, the processor {}{advice}",
            device.backend,
            device.index,
            device.name,
            rate(self.device_bytes_per_second),
            rate(self.processor_bytes_per_second),
        )
    }
}

impl DeviceReport {
    pub(super) fn new(
        device: &DeviceInfo,
        share: Share,
        rates: Option<DecodingRates>,
        [decoded_bytes, compared_bytes]: [u64; 2],
        buffer_bytes: u64,
    ) -> DeviceReport {
        let on_processor = share.on_processor.into_iter();
        let on_processor = on_processor.map(|((codec, dtype, reason), tensors)| OnProcessor {
            codec,
            dtype,
            tensors,
            reason,
        });
        DeviceReport {
            device: device.clone(),
            tensors: share.on_device,
            on_processor: on_processor.collect(),
            decoded_bytes,
            compared_bytes,
            buffer_bytes,
            is_slower: rates.as_ref().is_some_and(DecodingRates::is_slower),
            rates,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_device_that_is_slower_is_advised_against_and_a_software_adapter_is_called_one() {
        let mut device = DeviceInfo {
            backend: "wgpu".to_owned(),
            index: 1,
            name: "Adapter".to_owned(),
            kind: DeviceKind::Hardware,
            memory_bytes: None,
            details: BTreeMap::new(),
            limits: BTreeMap::new(),
            features: BTreeSet::new(),
        };
        let rates = |device, processor| DecodingRates {
            sample_bytes: 1,
            device_bytes_per_second: device,
            processor_bytes_per_second: processor,
        };
        let text = rates(2e10, 7.1e9).text(&device);
        assert_eq!(
            text,
            "decoding on wgpu:1 (Adapter) makes 20.00 GB/s, the processor 7.10 GB/s"
        );
        device.kind = DeviceKind::Software;
        let text = rates(9e8, 7.1e9).text(&device);
        assert_eq!(
            text,
            "decoding on wgpu:1 (Adapter, a software adapter) makes 0.90 GB/s, the processor 7.10 GB/s: leave --device out"
        );
    }
}
