//! A small family with some of everything: stacked layers, a fused matrix in other spellings, a padded embedding with a second
//! name, matrices in an encoding of its own, and a prediction layer with a param that Megatron has no place for.

use std::collections::HashMap;

use rialto_checkpoint::store::MemoryStore;
use rialto_plugin::prelude::*;

pub(crate) const ARCHITECTURE: &str = "SmallForCausalLM";
pub(crate) const RELEASE: &str = "small-1";
/// Bytes around 128, times one scale a tensor.
pub(crate) const CODEC: &str = "small_int8/1";
/// What predicts one more token.
const PREDICTION: &str = "num_nextn_predict_layers";

const LAYERS: u64 = 3;
const HIDDEN: u64 = 8;
const FFN: u64 = 12;
const VOCAB: u64 = 10;

pub(crate) struct Small;

impl Bridge for Small {
    fn describe(&self) -> Description {
        Description {
            name: "small".to_owned(),
            version: "1.0.0".to_owned(),
            summary: "Some of everything.".to_owned(),
            architectures: vec![ARCHITECTURE.to_owned()],
            releases: vec![RELEASE.to_owned()],
        }
    }
}

impl ConfigMapping for Small {
    fn claim(&self, config: &RawConfig) -> Result<Claim, Error> {
        Ok(match config.is_not_of(ARCHITECTURE, "small")? {
            Some(reason) => Claim::No { reason },
            None => Claim::Yes {
                release: RELEASE.to_owned(),
                reason: format!("it names {ARCHITECTURE}"),
            },
        })
    }

    fn map_config(&self, config: &RawConfig, options: &MapOptions) -> Result<ModelSpec, Error> {
        let (layers, hidden) = (
            config.size("num_hidden_layers")?,
            config.size("hidden_size")?,
        );
        let depths = config.optional_integer(PREDICTION)?.unwrap_or(0);
        let (kept, dropped) = match options.mtp {
            MtpPolicy::Keep => (depths, 0),
            MtpPolicy::Drop => (0, depths),
            MtpPolicy::Absent => (0, 0),
        };
        Ok(ModelSpec {
            release: RELEASE.to_owned(),
            architecture: ARCHITECTURE.to_owned(),
            dims: Dims {
                layers,
                hidden,
                vocab: config.size("vocab_size")?,
                mtp_layers: kept,
                mtp_layers_dropped: dropped,
            },
            provider_target: "small.SmallProvider".to_owned(),
            provider: fields(json!({
                "ffn_hidden_size": config.size("intermediate_size")?,
                "hidden_size": hidden,
                "num_layers": layers,
                "should_pad_vocab": options.pads_vocabulary,
            })),
            extra: json!({"ffn": config.size("intermediate_size")?}),
            unread_keys: Vec::new(),
            notices: Vec::new(),
        })
    }

    fn unmap_config(&self, spec: &ModelSpec, config: &RawConfig) -> Result<Vec<ConfigEdit>, Error> {
        let (kept, named) = (spec.dims.mtp_layers, config.optional_integer(PREDICTION)?);
        Ok(match named.unwrap_or(0) == kept {
            true => Vec::new(),
            false => vec![ConfigEdit::set(PREDICTION, kept)],
        })
    }
}

impl WeightMapping for Small {
    fn weight_map(&self, spec: &ModelSpec) -> Result<WeightMap, Error> {
        let ffn = spec.extra.get("ffn").and_then(Value::as_u64).unwrap_or(0);
        let Dims {
            layers,
            hidden,
            vocab,
            mtp_layers,
            mtp_layers_dropped,
        } = spec.dims;
        let float = || DtypeRule::any_of([Dtype::Bf16, Dtype::F32]);
        let layer = |name: &str, shape: &[u64]| {
            MapRule::new(
                name,
                "layer",
                &format!("decoder.layers.{{i}}.{name}.weight"),
                shape,
            )
            .over(Scope::new().index("i", 0..layers))
            .dtype(float())
            .stacked("i")
        };
        let tensor =
            |name: &str, shape: &[u64]| Part::new(&format!("model.layers.{{i}}.{name}"), shape);
        let half =
            |name: &str| Part::new(&format!("decoder.layers.{{i}}.fc1.{name}"), [ffn, hidden]);
        let below = ffn.to_string();
        let fused = tensor("gate_up.weight", &[2 * ffn, hidden]);
        let embedding = [vocab, hidden];
        let mut rules = vec![
            MapRule::new("embedding", "embedding", "embedding.weight", embedding)
                .dtype(float())
                .part(Part::new("model.embed_tokens.weight", embedding))
                .copied_as("lm_head.weight")
                .padded(0, 2),
            layer("norm", &[hidden]).part(tensor("norm.weight", &[hidden])),
            layer("fc1", &[2 * ffn, hidden])
                .part(tensor("gate.weight", &[ffn, hidden]))
                .part(tensor("up.weight", &[ffn, hidden]).at([&below, "0"]))
                .tensors_also(Form::new("fused", [fused]))
                .params_also(Form::new(
                    "halves",
                    [half("w"), half("v").at([&below, "0"])],
                )),
            layer("fc2", &[hidden, ffn])
                .part(tensor("down.weight", &[hidden, ffn]))
                .encoded(Some(CODEC)),
        ];
        let depths = mtp_layers + mtp_layers_dropped;
        let of_prediction = |name: &str, param: &str| {
            MapRule::new(name, "mtp", param, [hidden])
                .over(Scope::new().index("d", 0..depths))
                .dtype(float())
                .part(Part::new(
                    &format!("model.layers.{{d+{layers}}}.{name}.weight"),
                    [hidden],
                ))
        };
        if depths > 0 {
            let reason = (mtp_layers_dropped > 0).then_some("MTP dropped");
            let norm = of_prediction("norm", "mtp.layers.{d}.norm.weight");
            let own = of_prediction("own", "model.layers.{d}.own.weight");
            rules.push(norm.skipped(reason));
            rules.push(own.kept_beside("there is no place for it").skipped(reason));
        }
        Ok(WeightMap::new(rules))
    }

    fn placement(&self, _: &ModelSpec) -> Result<Placement, Error> {
        let rule = |param: &str, cuts: &[Cut]| PlacementRule {
            param: param.to_owned(),
            cuts: cuts.to_vec(),
        };
        let tp = |axis| Cut::new(axis, MeshAxis::Tp, "channels");
        Ok(Placement {
            rules: vec![
                rule("embedding.weight", &[tp(0)]),
                rule("*.fc1.weight", &[tp(0).blocks(2)]),
                rule("*.fc2.weight", &[tp(1)]),
                rule("*.norm.weight", &[]),
            ],
        })
    }
}

impl PipelineMapping for Small {
    fn pipeline_layout(
        &self,
        spec: &ModelSpec,
        request: &PipelineRequest,
    ) -> Result<PipelineLayout, Error> {
        let (layers, pp) = (spec.dims.layers, request.mesh.pp);
        if pp == 0 || !layers.is_multiple_of(pp) {
            let fits = (1..=layers).filter(|&pp| layers.is_multiple_of(pp));
            let fits: Vec<String> = fits.map(|pp| pp.to_string()).collect();
            return Err(Error::Pipeline {
                faults: vec![format!("--pp {pp} does not divide {layers} layers")],
                valid: fits.join(", "),
            });
        }
        let each = layers / pp;
        let mut stages: Vec<Stage> = (0..pp)
            .map(|stage| Stage {
                first_layer: stage * each,
                layers: each,
                physical_layers: each,
                mtp_layers: 0,
                params: (stage * each..(stage + 1) * each)
                    .map(|i| format!("decoder.layers.{i}.*"))
                    .collect(),
            })
            .collect();
        stages[0].params.push("embedding.*".to_owned());
        if let Some(last) = stages.last_mut().filter(|_| spec.dims.mtp_layers > 0) {
            last.mtp_layers = spec.dims.mtp_layers;
            last.params.push("mtp.*".to_owned());
        }
        Ok(PipelineLayout {
            stages,
            provider: fields(json!({"pipeline_model_parallel_size": pp})),
        })
    }
}

impl ForwardPass for Small {
    /// Layers of a norm and a gated MLP, whose matrices are named as either side has them.
    fn program(&self, spec: &ModelSpec, options: &ProgramOptions) -> Result<Program, Error> {
        let faults = options.settings.iter().map(|(name, value)| {
            SettingFault::new(name, value, "there is one way to compute it", "no setting")
        });
        SettingFault::refuse(faults.collect())?;
        let ffn = spec.extra.get("ffn").and_then(Value::as_u64).unwrap_or(0);
        let (hidden, vocab) = (spec.dims.hidden, spec.dims.vocab);
        let mut program = program::Builder::new();
        let table = program.param("embedding.weight", [vocab, hidden]);
        let mut forward = program.phase("forward");
        let mut x = forward.embed("hidden.0", &table);
        for i in 0..spec.dims.layers {
            let params = forward.program();
            let gain = params.param(&format!("model.layers.{i}.norm.weight"), [hidden]);
            let fused = params.param(&format!("decoder.layers.{i}.fc1.weight"), [2 * ffn, hidden]);
            let down = params.param(&format!("model.layers.{i}.down.weight"), [hidden, ffn]);
            let normed = forward.rms_norm(&format!("{i}.normed"), &x, &gain, 1e-6);
            let both = forward.linear(&format!("{i}.fc1"), &normed, &fused);
            let gate = forward.slice(&format!("{i}.gate"), &both, 0, ffn);
            let up = forward.slice(&format!("{i}.up"), &both, ffn, ffn);
            let inner = forward.swiglu(&format!("{i}.inner"), &gate, &up);
            let out = forward.linear(&format!("{i}.out"), &inner, &down);
            x = forward.add(&format!("hidden.{}", i + 1), &x, &out);
        }
        let rows = forward.gather("head.rows", &x, program::step::ROWS);
        let logits = forward.linear_f32("logits", &rows, &table);
        forward.output(&logits);
        Ok(program.finish()?)
    }
}

impl Dequantizer for Small {
    fn codecs(&self, _: &ModelSpec) -> Result<Vec<Codec>, Error> {
        Ok(vec![Codec {
            name: CODEC.to_owned(),
            stored: vec![Dtype::U8],
            decoded: Dtype::F32,
            block: vec![0, 0],
            companions: vec![Companion {
                suffixes: vec!["_scale".to_owned()],
                dtype: Dtype::F32,
                block: vec![0, 0],
            }],
        }])
    }

    fn dequantize(&self, encoded: &EncodedTensor<'_>, out: &mut [u8]) -> Result<(), Error> {
        let codec = encoded.codec.to_owned();
        if codec != CODEC {
            return Err(Error::UnknownCodec { codec });
        }
        let scale = encoded
            .companions
            .first()
            .map(|scale| scale.bytes().try_into());
        let Some(Ok(scale)) = scale else {
            let reason = "one F32 scale is needed".to_owned();
            return Err(Error::Codec { codec, reason });
        };
        let scale = f32::from_le_bytes(scale);
        for (value, &code) in out.chunks_exact_mut(4).zip(encoded.tensor.bytes()) {
            value.copy_from_slice(&((f32::from(code) - 128.0) * scale).to_le_bytes());
        }
        Ok(())
    }
}

/// A checkpoint of it: every value another one. Gate and up are one tensor if `is_fused`.
pub(crate) fn checkpoint(is_fused: bool) -> MemoryStore {
    let mut tensors = vec![(
        "model.embed_tokens.weight".to_owned(),
        "BF16",
        vec![VOCAB, HIDDEN],
    )];
    for layer in 0..LAYERS {
        let mut add = |name: &str, dtype, shape: &[u64]| {
            tensors.push((
                format!("model.layers.{layer}.{name}"),
                dtype,
                shape.to_vec(),
            ));
        };
        add("norm.weight", "BF16", &[HIDDEN]);
        if is_fused {
            add("gate_up.weight", "BF16", &[2 * FFN, HIDDEN]);
        } else {
            add("gate.weight", "BF16", &[FFN, HIDDEN]);
            add("up.weight", "BF16", &[FFN, HIDDEN]);
        }
        add("down.weight", "U8", &[HIDDEN, FFN]);
        add("down.weight_scale", "F32", &[1]);
    }
    for name in ["norm", "own"] {
        tensors.push((
            format!("model.layers.{LAYERS}.{name}.weight"),
            "BF16",
            vec![HIDDEN],
        ));
    }
    let config = json!({
        "architectures": [ARCHITECTURE],
        "model_type": "small",
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "vocab_size": VOCAB,
        PREDICTION: 1,
    });
    written(&config, &tensors)
}

/// A checkpoint of given tensors, by an independent writer.
pub(crate) fn written(config: &Value, tensors: &[(String, &str, Vec<u64>)]) -> MemoryStore {
    let mut next = 0u32;
    let mut values = HashMap::new();
    for (name, dtype, shape) in tensors {
        let elements: u64 = shape.iter().product();
        let (dtype, width) = match *dtype {
            "BF16" => (safetensors::Dtype::BF16, 2),
            "U8" => (safetensors::Dtype::U8, 1),
            _ => (safetensors::Dtype::F32, 4),
        };
        let mut bytes = Vec::new();
        for _ in 0..elements {
            next += 1;
            // Of floats the low bytes count, and the high ones make them none too odd.
            let value = match width {
                4 => (next as f32).to_le_bytes(),
                _ => next.to_le_bytes(),
            };
            bytes.extend_from_slice(&value[..width]);
        }
        let shape: Vec<usize> = shape.iter().map(|&extent| extent as usize).collect();
        values.insert(name.clone(), (dtype, shape, bytes));
    }
    // The second name of the embedding.
    if let Some(embedding) = values.get("model.embed_tokens.weight").cloned()
        && config["model_type"] == "small"
    {
        values.insert("lm_head.weight".to_owned(), embedding);
    }
    let views = values.iter().map(|(name, (dtype, shape, bytes))| {
        let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes);
        (name.as_str(), view.unwrap())
    });
    let store = MemoryStore::new("small");
    let shard = safetensors::serialize(views, None).unwrap();
    store.insert("config.json", config.to_string()).unwrap();
    store.insert("model.safetensors", shard).unwrap();
    store.insert("generation_config.json", "{}").unwrap();
    store
}
