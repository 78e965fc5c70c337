//! A plan and a conversion, printed.

use std::time::Duration;

use indicatif::{BinaryBytes, HumanDuration};
use rialto_bridge::{Mesh, Rank};
use rialto_engine::{
    ChunkChoice, DeviceReport, Direction, DtypeChoice, Rates, RunReport, Side, StageShare,
    Suggestions, Summary,
};
use serde::Serialize;

use crate::output::{Report, bytes, count, counted, table};

/// A plan, printed.
#[derive(Serialize)]
pub(crate) struct Planned<'a> {
    #[serde(flatten)]
    pub(crate) summary: &'a Summary,
    /// Every rank, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ranks: Option<Vec<RankShare>>,
    /// How long it would take, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) estimate: Option<Estimate>,
}

/// A rank and its bytes of weights.
#[derive(Serialize)]
pub(crate) struct RankShare {
    #[serde(flatten)]
    pub(crate) rank: Rank,
    pub(crate) bytes: u64,
}

impl RankShare {
    /// All ranks of a plan for import; none of one for export, which has no mesh.
    pub(crate) fn all(summary: &Summary) -> Vec<RankShare> {
        let ranks: Vec<Rank> = summary.mesh.iter().flat_map(Mesh::ranks).collect();
        let of_stages = ranks.chunk_by(|a, b| a.pp == b.pp).zip(&summary.stages);
        let share = |rank: &Rank, stage: &StageShare| RankShare {
            rank: *rank,
            bytes: stage.rank_bytes,
        };
        of_stages
            .flat_map(|(ranks, stage)| ranks.iter().map(move |rank| share(rank, stage)))
            .collect()
    }
}

/// A measurement, and what follows for the whole.
#[derive(Serialize)]
pub(crate) struct Estimate {
    #[serde(flatten)]
    pub(crate) rates: Rates,
    pub(crate) seconds: f64,
    /// Why there is no room for the result, if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) no_room: Option<String>,
}

impl Report for Planned<'_> {
    fn lines(&self) -> Vec<String> {
        let mut lines = lines(self.summary);
        if let Some(estimate) = &self.estimate {
            let rate = |rate: f64| format!("{}/s", bytes(rate as u64));
            let read = estimate.rates.read_bytes_per_second;
            let read = read.map_or_else(
                || "nothing to read yet".to_owned(),
                |read| format!("reads {}", rate(read)),
            );
            lines.push(format!(
                "about {} here: {read}, writes {}",
                HumanDuration(Duration::from_secs_f64(estimate.seconds)),
                rate(estimate.rates.write_bytes_per_second)
            ));
            lines.extend(
                estimate
                    .no_room
                    .iter()
                    .map(|reason| format!("note: {reason}")),
            );
        }
        if let Some(ranks) = &self.ranks {
            lines.push(String::new());
            let mut rows = vec![
                ["rank", "pp", "tp", "ep", "etp", "bytes"]
                    .map(str::to_owned)
                    .to_vec(),
            ];
            rows.extend(ranks.iter().map(|RankShare { rank, bytes: size }| {
                let places =
                    [rank.rank, rank.pp, rank.tp, rank.ep, rank.etp].map(|place| place.to_string());
                places.into_iter().chain([bytes(*size)]).collect()
            }));
            lines.extend(table(&rows));
        }
        lines
    }
}

/// The sizes that fit, printed.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Suggested<'a>(pub(crate) &'a Suggestions);

impl Report for Suggested<'_> {
    fn lines(&self) -> Vec<String> {
        let list = |sizes: &[u64]| {
            let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
            sizes.join(", ")
        };
        let Suggestions {
            mesh,
            tp,
            ep,
            etp,
            pipelines,
        } = self.0;
        let mut lines = vec![
            format!("--tp  {}", list(tp)),
            format!("--ep  {}", list(ep)),
            format!("--etp {}", list(etp)),
            String::new(),
        ];
        let weights = format!(
            "largest rank at tp {} ep {} etp {}",
            mesh.tp, mesh.ep, mesh.etp
        );
        let mut rows = vec![vec![
            "--pp".to_owned(),
            "ranks".to_owned(),
            weights,
            "layers".to_owned(),
        ]];
        rows.extend(pipelines.iter().map(|pipeline| {
            let largest = bytes(pipeline.largest_rank_bytes);
            vec![
                pipeline.pp.to_string(),
                count(pipeline.ranks),
                largest,
                runs(&pipeline.layers),
            ]
        }));
        lines.extend(table(&rows));
        lines
    }
}

/// Layers of each stage as `--pipeline` reads them: `10,12x5,4x2`.
fn runs(layers: &[u64]) -> String {
    let runs = layers.chunk_by(|a, b| a == b);
    let shown = runs.map(|run| match run.len() {
        1 => run[0].to_string(),
        times => format!("{}x{times}", run[0]),
    });
    shown.collect::<Vec<_>>().join(",")
}

/// A conversion that has been done, printed as its plan and what became of it.
pub(crate) struct Done<'a> {
    pub(crate) report: &'a RunReport,
    /// Where the result lies.
    pub(crate) place: String,
}

/// The plan, and what the run adds to it; the report in the result says more.
impl Serialize for Done<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Document<'a> {
            #[serde(flatten)]
            summary: &'a Summary,
            place: &'a str,
            seconds: f64,
            threads: usize,
            rank: u64,
            world_size: u64,
            bytes_found_done: u64,
            manifest_blake3: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            device: Option<&'a DeviceReport>,
        }
        let report = self.report;
        Document {
            summary: &report.summary,
            place: &self.place,
            seconds: report.seconds,
            threads: report.threads,
            rank: report.rank,
            world_size: report.world_size,
            bytes_found_done: report.bytes_found_done,
            manifest_blake3: report.result.manifest_blake3.as_deref(),
            device: report.device.as_ref(),
        }
        .serialize(serializer)
    }
}

impl Report for Done<'_> {
    fn lines(&self) -> Vec<String> {
        let report = self.report;
        if report.rank > 0 {
            let (rank, size) = (report.rank, report.world_size);
            return vec![format!(
                "rank {rank} of {size} is done in {:.1} s; rank 0 completes {}",
                report.seconds, self.place
            )];
        }
        let mut lines = lines(&report.summary);
        let found = match report.bytes_found_done {
            0 => String::new(),
            found => format!(", {} of it done before", bytes(found)),
        };
        let written = report.bytes - report.bytes_found_done.min(report.bytes);
        lines.push(format!(
            "wrote {}{found} in {:.1} s, {}/s: {}",
            bytes(report.bytes),
            report.seconds,
            bytes((written as f64 / report.seconds.max(1e-9)) as u64),
            self.place
        ));
        lines.extend(report.device.iter().flat_map(decoded));
        if let Some(digest) = &report.result.manifest_blake3 {
            lines.push(format!("manifest {digest}"));
        }
        lines
    }
}

/// What a device decoded, if it had anything to decode, and what it did not.
fn decoded(report: &DeviceReport) -> Vec<String> {
    let device = &report.device;
    let mut lines = Vec::new();
    if report.decoded_bytes > 0 {
        lines.push(format!(
            "decoded {} on {}:{}, {}{}",
            bytes(report.decoded_bytes),
            device.backend,
            device.index,
            device.name,
            match report.is_slower {
                true => ", slower than the processor",
                false => "",
            }
        ));
    }
    lines.extend(report.on_processor.iter().map(|other| {
        format!(
            "decoded on the processor: {} of {} in {} ({})",
            counted(other.tensors, "tensor"),
            other.dtype,
            other.codec,
            other.reason
        )
    }));
    lines
}

/// A process that came when the others had made the result, printed.
#[derive(Serialize)]
pub(crate) struct AlreadyMade {
    pub(crate) place: String,
    pub(crate) rank: u64,
    pub(crate) world_size: u64,
    pub(crate) is_made_by_others: bool,
}

impl Report for AlreadyMade {
    fn lines(&self) -> Vec<String> {
        let (rank, size) = (self.rank, self.world_size);
        vec![format!(
            "rank {rank} of {size}: the others have made {}",
            self.place
        )]
    }
}

fn lines(summary: &Summary) -> Vec<String> {
    let (direction, source, target) = match summary.direction {
        Direction::Import => ("import", "hugging face", "megatron"),
        Direction::Export => ("export", "megatron", "hugging face"),
    };
    let mut lines = vec![format!(
        "{direction} of {} ({})",
        summary.release, summary.reason
    )];
    let dtype = match summary.dtype {
        DtypeChoice::Keep => "as stored",
        DtypeChoice::Bf16 => "bf16",
    };
    let chunks = match summary.chunks {
        Some(ChunkChoice::Whole) => ", one chunk a param",
        _ => "",
    };
    match &summary.mesh {
        Some(mesh) => lines.push(format!("mesh {mesh}, dtype {dtype}{chunks}")),
        None => lines.push(format!("dtype {dtype}")),
    }
    lines.push(String::new());
    let heads = ["", "tensors", "elements", "bytes", "", "objects", "files"]
        .map(str::to_owned)
        .to_vec();
    lines.extend(table(&[
        heads,
        side(source, &summary.source),
        side(target, &summary.target),
    ]));
    for encoded in &summary.encoded {
        lines.push(format!(
            "{} encoded as {}, with {}",
            counted(encoded.tensors, "tensor"),
            encoded.codec,
            counted(encoded.companions, "scale")
        ));
    }
    lines.push(String::new());
    let mut groups = vec![
        ["part", "tensors", "params", "elements"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for group in &summary.groups {
        groups.push(vec![
            group.name.clone(),
            count(group.tensors),
            count(group.params),
            count(group.elements),
        ]);
    }
    lines.extend(table(&groups));
    lines.push(String::new());
    if !summary.stages.is_empty() {
        lines.extend(stage_table(&summary.stages));
        lines.push(String::new());
    }
    for skipped in &summary.skipped {
        lines.push(format!(
            "left out: {}, {} ({})",
            counted(skipped.tensors, "tensor"),
            counted(skipped.elements, "element"),
            skipped.reason
        ));
    }
    lines.push(format!(
        "multi-token prediction: {}",
        counted(summary.mtp_layers, "layer")
    ));
    lines.push(format!("side files: {}", summary.side_files));
    lines.push(memory([
        summary.peak_host_bytes,
        summary.index_bytes,
        summary.device_bytes,
    ]));
    lines.extend(
        summary
            .notices
            .iter()
            .map(|notice| format!("note: {notice}")),
    );
    lines
}

/// The most memory that a conversion takes, and what of it users decide.
fn memory([peak_bytes, index_bytes, device_bytes]: [u64; 3]) -> String {
    let budget_bytes = peak_bytes
        .saturating_sub(index_bytes)
        .saturating_sub(device_bytes);
    let device = match device_bytes {
        0 => String::new(),
        device => format!(" and {} for decoding on a device (--device)", bytes(device)),
    };
    format!(
        "peak memory: at most {}, of which {} data (--memory-budget){device}",
        bytes(peak_bytes),
        bytes(budget_bytes)
    )
}

/// Stages, and what each of their ranks holds.
fn stage_table(stages: &[StageShare]) -> Vec<String> {
    let heads = [
        "stage",
        "layers",
        "",
        "physical",
        "mtp",
        "ranks",
        "params a rank",
        "dense",
        "experts",
        "a rank",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for (number, stage) in stages.iter().enumerate() {
        let range = |first: u64, count: u64| match count {
            0 | 1 => first.to_string(),
            _ => format!("{first}-{}", first + count - 1),
        };
        rows.push(vec![
            number.to_string(),
            count(stage.layers),
            range(stage.first_layer, stage.layers),
            count(stage.physical_layers),
            count(stage.mtp_layers),
            range(stage.first_rank, stage.ranks),
            count(stage.params),
            bytes(stage.dense_bytes),
            bytes(stage.expert_bytes),
            bytes(stage.rank_bytes),
        ]);
    }
    table(&rows)
}

fn side(name: &str, side: &Side) -> Vec<String> {
    let counts = [side.tensors, side.elements, side.bytes].map(count);
    let mut row = vec![name.to_owned()];
    row.extend(counts);
    row.extend([
        format!("({} = {})", bytes(side.bytes), BinaryBytes(side.bytes)),
        count(side.objects),
        count(side.files),
    ]);
    row
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use rialto_backend::{DeviceInfo, DeviceKind};
    use rialto_engine::OnProcessor;

    use super::*;

    #[test]
    fn a_device_that_decoded_nothing_is_not_said_to_have() {
        let mut report = DeviceReport {
            device: DeviceInfo {
                backend: "wgpu".to_owned(),
                index: 0,
                name: "Adapter".to_owned(),
                kind: DeviceKind::Hardware,
                memory_bytes: None,
                details: BTreeMap::new(),
                limits: BTreeMap::new(),
                features: BTreeSet::new(),
            },
            tensors: BTreeMap::new(),
            on_processor: vec![OnProcessor {
                codec: "block_fp8/128x128".to_owned(),
                dtype: "F8_E5M2".to_owned(),
                tensors: 1,
                reason: "unknown".to_owned(),
            }],
            decoded_bytes: 0,
            compared_bytes: 0,
            buffer_bytes: 0,
            rates: None,
            is_slower: false,
        };
        let other = "decoded on the processor: 1 tensor of F8_E5M2 in block_fp8/128x128 (unknown)";
        assert_eq!(decoded(&report), [other]);
        report.decoded_bytes = 2_000_000;
        report.on_processor[0].tensors = 1200;
        assert_eq!(
            decoded(&report),
            [
                "decoded 2.00 MB on wgpu:0, Adapter".to_owned(),
                other.replace("1 tensor ", "1,200 tensors "),
            ]
        );
    }

    #[test]
    fn memory_of_a_device_is_named_beside_that_of_the_budget() {
        let line = memory([500_000_000, 100_000_000, 0]);
        assert_eq!(
            line,
            "peak memory: at most 500.00 MB, of which 400.00 MB data (--memory-budget)"
        );
        let line = memory([500_000_000, 100_000_000, 150_000_000]);
        assert_eq!(
            line,
            "peak memory: at most 500.00 MB, of which 250.00 MB data (--memory-budget) and 150.00 MB for decoding on a device (--device)"
        );
    }
}
