//! Which models are converted on which meshes, and what is held against them.

use std::path::PathBuf;

/// What the models of a family have in common.
pub(crate) struct Family {
    /// As the checks know it.
    pub(crate) name: &'static str,
    /// The check that makes the expectation.
    pub(crate) expected: &'static str,
    /// The library that brings the family, where it is not built with rialto and beside it.
    pub(crate) plugin: Option<Plugin>,
    /// The dtype that an import asks for.
    pub(crate) dtype: &'static str,
    /// Whether an import says what becomes of prediction layers.
    pub(crate) has_mtp: bool,
}

/// A plugin in a workspace of its own, as a third party has it.
pub(crate) struct Plugin {
    pub(crate) manifest: &'static str,
    pub(crate) library: &'static str,
}

const GLM5: Family = Family {
    name: "glm5",
    expected: "expected",
    plugin: None,
    dtype: "bf16",
    has_mtp: true,
};

const QWEN3: Family = Family {
    name: "qwen3",
    expected: "expected_qwen3",
    plugin: Some(Plugin {
        manifest: "examples/plugin-qwen3/Cargo.toml",
        library: "librialto_qwen3.so",
    }),
    dtype: "keep",
    has_mtp: false,
};

pub(crate) const FAMILIES: [Family; 2] = [GLM5, QWEN3];

/// How a family that can stack its layers names their params. One that cannot has only [`Layers::Default`].
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Layers {
    /// As the family does by itself.
    Default,
    /// One by one, on request.
    Each,
}

/// A checkpoint that the real Megatron-Core wrote.
pub(crate) struct Golden {
    pub(crate) name: &'static str,
    /// Parallel sizes: tensor, pipeline, expert, expert-tensor.
    pub(crate) mesh: [u32; 4],
    pub(crate) layers: Layers,
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
    pub(crate) layers: Layers,
    /// Whether the vocabulary is padded.
    pub(crate) pads: bool,
    /// Whether it is also made by several processes, and by some that are killed.
    pub(crate) has_courses: bool,
    /// What is also converted alone.
    pub(crate) parts: &'static [Part],
}

/// A part of a model.
pub(crate) struct Part {
    /// For the names of files.
    pub(crate) name: &'static str,
    /// Layers of the source.
    pub(crate) layers: Option<&'static str>,
    /// Patterns of names that are left out.
    pub(crate) exclude: &'static [&'static str],
}

impl Part {
    /// As rialto takes them, and the checks.
    pub(crate) fn options(&self) -> Vec<&'static str> {
        let layers = self.layers.map(|layers| ["--layers", layers]);
        let exclude = self.exclude.iter().map(|pattern| ["--exclude", pattern]);
        layers.into_iter().chain(exclude).flatten().collect()
    }
}

/// The first layers alone, which leaves prediction layers out as well.
const FIRST: Part = Part {
    name: "first",
    layers: Some("0-1"),
    exclude: &[],
};

/// Everything but the head.
const HEADLESS: Part = Part {
    name: "headless",
    layers: None,
    exclude: &["lm_head*"],
};

/// Both at once.
const FIRST_HEADLESS: Part = Part {
    name: "first-headless",
    layers: Some("0-1"),
    exclude: &["lm_head*"],
};

/// A checkpoint in the tree and everything that is done with it.
pub(crate) struct Model {
    pub(crate) family: Family,
    /// The Hugging Face directory.
    pub(crate) source: &'static str,
    /// Whether its prediction layers are kept, if it has any.
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
        format!("{}{suffix}", self.source.replace('/', "-"))
    }
}

const fn golden(name: &'static str, mesh: [u32; 4]) -> Golden {
    let layers = Layers::Default;
    Golden { name, mesh, layers }
}

const fn on(mesh: [u32; 4]) -> Import {
    Import {
        mesh,
        chunks: Chunks::Megatron,
        layers: Layers::Default,
        pads: false,
        has_courses: false,
        parts: &[],
    }
}

/// The config that a run directory keeps for the way back.
const KEPT_CONFIG: &str = "iter_0000000/rialto/source/config.json";

/// The digests of all files, that one's too.
const MANIFEST: &str = "rialto-manifest.json";

/// Three releases of GLM-5: with shared indexers, with an indexer in every layer and routers in F32, and with weights in FP8. Two Qwen3
/// models: with the head in the embedding, and with one of its own.
pub(crate) const MODELS: [Model; 7] = [
    Model {
        family: GLM5,
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
            Import {
                has_courses: true,
                parts: &[FIRST, HEADLESS],
                ..on([2, 2, 2, 1])
            },
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
        family: GLM5,
        source: "glm52-tiny",
        keeps_mtp: false,
        dequantized: None,
        goldens: &[golden("glm52-tiny-tp1", [1, 1, 1, 1])],
        imports: &[
            Import {
                parts: &[FIRST_HEADLESS],
                ..on([1, 1, 1, 1])
            },
            on([2, 2, 2, 1]),
            on([2, 1, 2, 2]),
        ],
        changed_by_export: &[KEPT_CONFIG, MANIFEST],
    },
    Model {
        family: GLM5,
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
        family: GLM5,
        source: "glm53-tiny",
        keeps_mtp: true,
        dequantized: Some("glm53-tiny-dequantized.safetensors"),
        goldens: &[golden("glm53-tiny-mtp-ep5", [1, 1, 5, 1])],
        imports: &[
            Import {
                parts: &[FIRST],
                ..on([1, 1, 5, 1])
            },
            on([1, 1, 1, 1]),
            Import {
                has_courses: true,
                ..on([1, 2, 5, 2])
            },
        ],
        changed_by_export: &[KEPT_CONFIG, MANIFEST],
    },
    // The real Megatron-Core has not written this one: it is loaded by its format, and held against its source alone.
    Model {
        family: GLM5,
        source: "glm53-tiny",
        keeps_mtp: false,
        dequantized: Some("glm53-tiny-dequantized.safetensors"),
        goldens: &[],
        imports: &[on([1, 1, 1, 1]), on([1, 2, 5, 2])],
        changed_by_export: &[KEPT_CONFIG, MANIFEST],
    },
    Model {
        family: QWEN3,
        source: "qwen3/tiny-tied",
        keeps_mtp: true,
        dequantized: None,
        goldens: &[
            golden("qwen3-tied-tp1", [1, 1, 1, 1]),
            golden("qwen3-tied-tp2pp3", [2, 3, 1, 1]),
        ],
        imports: &[
            on([1, 1, 1, 1]),
            Import {
                has_courses: true,
                ..on([2, 3, 1, 1])
            },
        ],
        changed_by_export: &[],
    },
    Model {
        family: QWEN3,
        source: "qwen3/tiny-untied",
        keeps_mtp: true,
        dequantized: None,
        goldens: &[
            golden("qwen3-untied-tp1", [1, 1, 1, 1]),
            golden("qwen3-untied-tp2", [2, 1, 1, 1]),
            Golden {
                layers: Layers::Each,
                ..golden("qwen3-untied-perlayer-tp1", [1, 1, 1, 1])
            },
        ],
        imports: &[
            on([1, 1, 1, 1]),
            on([2, 1, 1, 1]),
            on([4, 1, 1, 1]),
            Import {
                layers: Layers::Each,
                parts: &[FIRST_HEADLESS],
                ..on([1, 1, 1, 1])
            },
        ],
        changed_by_export: &[],
    },
];

/// Checkpoints of a training run, with optimizer states beside the weights.
pub(crate) const TRAINING: Model = Model {
    family: GLM5,
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
