//! A plan and a conversion, printed.

use std::time::Duration;

use rialto_engine::{ChunkChoice, Direction, DtypeChoice, Side, Summary};
use serde::Serialize;

use crate::output::{Report, bytes, count, table};

/// A plan, printed.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Planned<'a>(pub(crate) &'a Summary);

impl Report for Planned<'_> {
    fn lines(&self) -> Vec<String> {
        lines(self.0)
    }
}

/// A conversion that has been done, printed as its plan and what became of it.
#[derive(Serialize)]
pub(crate) struct Done<'a> {
    #[serde(flatten)]
    pub(crate) summary: &'a Summary,
    /// Where the result lies.
    pub(crate) place: String,
    #[serde(rename = "seconds", serialize_with = "as_seconds")]
    pub(crate) took: Duration,
}

fn as_seconds<S: serde::Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(took.as_secs_f64())
}

impl Report for Done<'_> {
    fn lines(&self) -> Vec<String> {
        let mut lines = lines(self.summary);
        let seconds = self.took.as_secs_f64();
        lines.push(format!(
            "wrote {} in {seconds:.1} s: {}",
            bytes(self.summary.target.bytes),
            self.place
        ));
        lines
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
    for (number, stage) in summary.stages.iter().enumerate() {
        let last = stage.first_layer + stage.layers - 1;
        let (first, physical, mtp) = (stage.first_layer, stage.physical_layers, stage.mtp_layers);
        lines.push(format!(
            "stage {number}: layers {first} to {last}, {physical} physical, {mtp} mtp"
        ));
    }
    for skipped in &summary.skipped {
        let (tensors, elements) = (count(skipped.tensors), count(skipped.elements));
        lines.push(format!(
            "left out: {tensors} tensors, {elements} elements ({})",
            skipped.reason
        ));
    }
    lines.push(format!(
        "multi-token prediction: {} layers",
        summary.mtp_layers
    ));
    lines.push(format!("side files: {}", summary.side_files));
    lines.push(format!(
        "peak memory of buffers and metadata: {}",
        bytes(summary.peak_host_bytes)
    ));
    lines.extend(
        summary
            .notices
            .iter()
            .map(|notice| format!("note: {notice}")),
    );
    lines
}

fn side(name: &str, side: &Side) -> Vec<String> {
    let counts = [side.tensors, side.elements, side.bytes].map(count);
    let mut row = vec![name.to_owned()];
    row.extend(counts);
    row.extend([
        format!("({})", bytes(side.bytes)),
        count(side.objects),
        count(side.files),
    ]);
    row
}
