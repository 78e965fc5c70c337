//! Which models are converted on which meshes, and what is held against them.

use std::path::PathBuf;

/// A checkpoint that the real Megatron-Core wrote.
pub(crate) struct Golden {
    pub(crate) name: &'static str,
    /// Parallel sizes: tensor, pipeline, expert, expert-tensor.
    pub(crate) mesh: [u32; 4],
}

impl Golden {
    /// Its folder: `ckpt` and mostly `manifest.json`.
    pub(crate) fn path(&self) -> PathBuf {
        rialto_tests::megatron(self.name)
    }
}

/// In which chunks params are written.
#[derive(Clone, Copy)]
pub(crate) enum Chunks {
    /// As Megatron-Core writes them on the mesh.
    Megatron,
    /// One a param.
    Whole,
}

impl Chunks {
    /// As rialto takes it.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Chunks::Megatron => "megatron",
            Chunks::Whole => "whole",
        }
    }
}

/// One import.
pub(crate) struct Import {
    /// Parallel sizes: tensor, pipeline, expert, expert-tensor.
    pub(crate) mesh: [u32; 4],
    pub(crate) chunks: Chunks,
    /// Whether the vocabulary is padded.
    pub(crate) pads: bool,
}

/// A checkpoint in the tree and everything that is done with it.
pub(crate) struct Model {
    /// The Hugging Face directory.
    pub(crate) source: &'static str,
    pub(crate) keeps_mtp: bool,
    /// What its FP8 weights stand for, by another program.
    pub(crate) dequantized: Option<&'static str>,
    pub(crate) goldens: &'static [Golden],
    pub(crate) imports: &'static [Import],
    /// Files of a run directory that differ after an export and an import: where the config did, and the export said so.
    pub(crate) changed_by_export: &'static [&'static str],
}

impl Model {
    /// Name for files.
    pub(crate) fn name(&self) -> String {
        let suffix = if self.keeps_mtp { "" } else { "-without-mtp" };
        format!("{}{suffix}", self.source)
    }
}

const fn golden(name: &'static str, mesh: [u32; 4]) -> Golden {
    Golden { name, mesh }
}

const fn on(mesh: [u32; 4]) -> Import {
    let (chunks, pads) = (Chunks::Megatron, false);
    Import { mesh, chunks, pads }
}

/// The config that a run directory keeps for the way back.
const KEPT_CONFIG: &str = "iter_0000000/rialto/source/config.json";

/// Three releases: with shared indexers, with an indexer in every layer and routers in F32, and with weights in FP8.
pub(crate) const MODELS: [Model; 5] = [
    Model {
        source: "glm52-tiny",
        keeps_mtp: true,
        dequantized: None,
        goldens: &[
            golden("glm52-tiny-mtp-tp1", [1, 1, 1, 1]),
            golden("glm52-tiny-mtp-tp2pp2ep2", [2, 2, 2, 1]),
            golden("glm52-tiny-mtp-tp2ep2etp2", [2, 1, 2, 2]),
        ],
        imports: &[
            on([1, 1, 1, 1]),
            on([2, 2, 2, 1]),
            on([2, 1, 2, 2]),
            Import {
                chunks: Chunks::Whole,
                ..on([2, 2, 2, 1])
            },
            Import {
                pads: true,
                ..on([2, 1, 1, 1])
            },
        ],
        changed_by_export: &[],
    },
    Model {
        source: "glm52-tiny",
        keeps_mtp: false,
        dequantized: None,
        goldens: &[golden("glm52-tiny-tp1", [1, 1, 1, 1])],
        imports: &[on([1, 1, 1, 1]), on([2, 2, 2, 1]), on([2, 1, 2, 2])],
        changed_by_export: &[KEPT_CONFIG],
    },
    Model {
        source: "glm5-tiny",
        keeps_mtp: true,
        dequantized: None,
        goldens: &[golden("glm5-tiny-pp3ep2", [1, 3, 2, 1])],
        imports: &[
            on([1, 3, 2, 1]),
            on([1, 1, 1, 1]),
            on([2, 1, 2, 2]),
            on([2, 2, 2, 1]),
        ],
        changed_by_export: &[],
    },
    Model {
        source: "glm53-tiny",
        keeps_mtp: true,
        dequantized: Some("glm53-tiny-dequantized.safetensors"),
        goldens: &[golden("glm53-tiny-mtp-ep5", [1, 1, 5, 1])],
        imports: &[on([1, 1, 5, 1]), on([1, 1, 1, 1]), on([1, 2, 5, 2])],
        changed_by_export: &[KEPT_CONFIG],
    },
    // The real Megatron-Core has not written this one: it is loaded by its format, and held against its source alone.
    Model {
        source: "glm53-tiny",
        keeps_mtp: false,
        dequantized: Some("glm53-tiny-dequantized.safetensors"),
        goldens: &[],
        imports: &[on([1, 1, 1, 1]), on([1, 2, 5, 2])],
        changed_by_export: &[KEPT_CONFIG],
    },
];

/// Checkpoints of a training run, with optimizer states beside the weights.
pub(crate) const TRAINING: Model = Model {
    source: "mini-hf",
    keeps_mtp: false,
    dequantized: None,
    goldens: &[
        golden("mini-train-adam", [1, 1, 1, 1]),
        golden("mini-train-distadam", [1, 1, 1, 1]),
    ],
    imports: &[],
    changed_by_export: &[],
};
