//! A toy dense model, as a third party would map it: an embedding, per layer a fused gate|up and a down projection, and
//! a codec of its own for down projections that are stored as bytes. Its forward pass is what these matrices allow.
#![forbid(unsafe_code)]

use rialto_plugin::prelude::*;

const ARCHITECTURE: &str = "ToyForCausalLM";
/// Bytes around 128, times one scale a tensor.
const CODEC: &str = "toy_int8/1";
const EMBEDDING: &str = "embedding.word_embeddings.weight";
const FC1: &str = "decoder.layers.{i}.mlp.linear_fc1.weight";
const FC2: &str = "decoder.layers.{i}.mlp.linear_fc2.weight";

/// The family; it keeps no state.
pub struct Toy;

rialto_plugin::export_plugin!(Toy);

impl Bridge for Toy {
    fn describe(&self) -> Description {
        Description {
            name: "toy".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "A dense toy with a codec of its own.".to_owned(),
            architectures: vec![ARCHITECTURE.to_owned()],
            releases: vec!["toy-1".to_owned()],
        }
    }
}

impl ConfigMapping for Toy {
    fn claim(&self, config: &RawConfig) -> Result<Claim, Error> {
        rehearse(config.value("panic"), "claim");
        let (release, reason) = ("toy-1".to_owned(), format!("it names {ARCHITECTURE}"));
        if config.architectures()?.contains(&ARCHITECTURE) {
            return Ok(Claim::Yes { release, reason });
        }
        let reason = format!("it does not name {ARCHITECTURE}");
        Ok(Claim::No { reason })
    }

    fn map_config(&self, config: &RawConfig, _: &MapOptions) -> Result<ModelSpec, Error> {
        rehearse(config.value("panic"), "map_config");
        log(Level::Debug, "toy", "mapping a config");
        // Key by key: ours, Megatron's.
        const KEYS: [(&str, &str); 4] = [
            ("num_hidden_layers", "num_layers"),
            ("hidden_size", "hidden_size"),
            ("intermediate_size", "ffn_hidden_size"),
            ("rms_norm_eps", "layernorm_epsilon"),
        ];
        let is_read = |key: &str| {
            ["architectures", "vocab_size"].contains(&key)
                || KEYS.iter().any(|(ours, _)| key == *ours)
        };
        let provider = KEYS.iter().filter_map(|(ours, megatron)| {
            Some(((*megatron).to_owned(), config.value(ours)?.clone()))
        });
        let unread = config.values().keys().filter(|key| !is_read(key));
        Ok(ModelSpec {
            release: "toy-1".to_owned(),
            architecture: ARCHITECTURE.to_owned(),
            dims: Dims {
                layers: config.integer("num_hidden_layers")?,
                hidden: config.integer("hidden_size")?,
                vocab: config.integer("vocab_size")?,
                mtp_layers: 0,
                mtp_layers_dropped: 0,
            },
            provider_target: "toy.ToyProvider".to_owned(),
            provider: provider.collect(),
            extra: json!({"ffn": config.integer("intermediate_size")?, "panic": config.value("panic")}),
            unread_keys: unread.cloned().collect(),
            notices: Vec::new(),
        })
    }

    fn unmap_config(
        &self,
        spec: &ModelSpec,
        reference: &RawConfig,
    ) -> Result<Vec<ConfigEdit>, Error> {
        rehearse(spec.extra.get("panic"), "unmap_config");
        let (key, layers) = ("num_hidden_layers", spec.dims.layers);
        let is_so = reference.optional_integer(key)? == Some(layers);
        Ok(match is_so {
            true => Vec::new(),
            false => vec![ConfigEdit::set(key, layers)],
        })
    }
}

impl WeightMapping for Toy {
    fn weight_map(&self, spec: &ModelSpec) -> Result<WeightMap, Error> {
        rehearse(spec.extra.get("panic"), "weight_map");
        let ffn = spec.extra.get("ffn").and_then(Value::as_u64).unwrap_or(0);
        let (layers, hidden, vocab) = (spec.dims.layers, spec.dims.hidden, spec.dims.vocab);
        let rule = |name, shape| {
            let float = DtypeRule::any_of([Dtype::Bf16, Dtype::F32]);
            MapRule::new(name, "dense", name, shape).dtype(float)
        };
        let part = |name, shape| Part::new(&format!("model.layers.{{i}}.mlp.{name}"), shape);
        let every_layer = Scope::new().index("i", 0..layers);
        Ok(WeightMap::new([
            rule(EMBEDDING, [vocab, hidden])
                .part(Part::new("model.embed_tokens.weight", [vocab, hidden])),
            rule(FC1, [2 * ffn, hidden])
                .over(every_layer.clone())
                .part(part("gate_proj.weight", [ffn, hidden]))
                .part(part("up_proj.weight", [ffn, hidden]).at([&ffn.to_string(), "0"])),
            rule(FC2, [hidden, ffn])
                .over(every_layer)
                .part(part("down_proj.weight", [hidden, ffn])),
        ]))
    }

    fn placement(&self, spec: &ModelSpec) -> Result<Placement, Error> {
        rehearse(spec.extra.get("panic"), "placement");
        let rule = |param: &str, axis, blocks| PlacementRule {
            param: param.replace("{i}", "*"),
            cuts: vec![Cut::new(axis, MeshAxis::Tp, "channels").blocks(blocks)],
        };
        let rules = vec![rule(EMBEDDING, 0, 1), rule(FC1, 0, 2), rule(FC2, 1, 1)];
        Ok(Placement { rules })
    }
}

impl PipelineMapping for Toy {
    fn pipeline_layout(
        &self,
        spec: &ModelSpec,
        request: &PipelineRequest,
    ) -> Result<PipelineLayout, Error> {
        rehearse(spec.extra.get("panic"), "pipeline_layout");
        let (layers, mesh) = (spec.dims.layers, request.mesh);
        if request.stages != StageChoice::Family {
            return Err(Error::Pipeline {
                faults: vec!["--pipeline is not read by this family".to_owned()],
                valid: "equal stages".to_owned(),
            });
        }
        if mesh.pp == 0 || !layers.is_multiple_of(mesh.pp) {
            let fits = (1..=layers).filter(|&pp| layers.is_multiple_of(pp));
            return Err(Error::Unsupported {
                what: format!("pp for {layers} layers"),
                found: mesh.pp.to_string(),
                supported: fits.map(|pp| pp.to_string()).collect::<Vec<_>>().join(", "),
            });
        }
        let each = layers / mesh.pp;
        // The embedding stands before the first layer.
        let params = |stage: u64| {
            let layers = stage * each..(stage + 1) * each;
            let of_layers =
                layers.flat_map(|i| [FC1, FC2].map(|key| key.replace("{i}", &i.to_string())));
            let embedding = (stage == 0).then(|| EMBEDDING.to_owned());
            embedding.into_iter().chain(of_layers).collect()
        };
        let stage = |stage| Stage {
            first_layer: stage * each,
            layers: each,
            physical_layers: each,
            mtp_layers: 0,
            params: params(stage),
        };
        let (stages, provider) = ((0..mesh.pp).map(stage).collect(), Map::new());
        Ok(PipelineLayout { stages, provider })
    }
}

impl ForwardPass for Toy {
    /// Layers without attention: `x = x + down(silu(gate x) * up x)`; the head is the embedding. Down is named as Megatron has it.
    fn program(&self, spec: &ModelSpec, options: &ProgramOptions) -> Result<Program, Error> {
        rehearse(spec.extra.get("panic"), "program");
        let faults = options.settings.iter().map(|(name, value)| {
            SettingFault::new(name, value, "the toy computes in one way", "no setting")
        });
        SettingFault::refuse(faults.collect())?;
        let ffn = spec.extra.get("ffn").and_then(Value::as_u64).unwrap_or(0);
        let (hidden, vocab) = (spec.dims.hidden, spec.dims.vocab);
        let mut program = program::Builder::new();
        let table = program.param("model.embed_tokens.weight", [vocab, hidden]);
        let mut forward = program.phase("forward");
        let mut x = forward.embed("hidden.0", &table);
        forward.stream(&x);
        for i in 0..spec.dims.layers {
            let of = |name: &str| format!("model.layers.{i}.mlp.{name}_proj.weight");
            let params = forward.program();
            let gate = params.param(&of("gate"), [ffn, hidden]);
            let up = params.param(&of("up"), [ffn, hidden]);
            let down = params.param(&FC2.replace("{i}", &i.to_string()), [hidden, ffn]);
            let gate = forward.linear(&format!("{i}.gate"), &x, &gate);
            let up = forward.linear(&format!("{i}.up"), &x, &up);
            let inner = forward.swiglu(&format!("{i}.inner"), &gate, &up);
            let out = forward.linear(&format!("{i}.out"), &inner, &down);
            x = forward.add(&format!("hidden.{}", i + 1), &x, &out);
            forward.stream(&x);
        }
        let rows = forward.gather("head.rows", &x, program::step::ROWS);
        let logits = forward.linear_f32("logits", &rows, &table);
        forward.output(&logits);
        Ok(program.finish()?)
    }
}

impl Dequantizer for Toy {
    fn codecs(&self, spec: &ModelSpec) -> Result<Vec<Codec>, Error> {
        rehearse(spec.extra.get("panic"), "codecs");
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

    /// `out = (code - 128) * scale`. Shapes: tensor `[n, k]` U8, scale `[1]` F32, out `[n, k]` F32.
    fn dequantize(&self, encoded: &EncodedTensor<'_>, out: &mut [u8]) -> Result<(), Error> {
        let codec = encoded.codec.to_owned();
        if codec != CODEC {
            return Err(Error::UnknownCodec { codec });
        }
        let codes = encoded.tensor.bytes();
        let scale = encoded
            .companions
            .first()
            .map(|scale| <[u8; 4]>::try_from(scale.bytes()));
        let Some(Ok(scale)) = scale else {
            let reason = "one F32 scale is needed".to_owned();
            return Err(Error::Codec { codec, reason });
        };
        if out.len() != 4 * codes.len() {
            let reason = format!("{} codes do not fill {} bytes", codes.len(), out.len());
            return Err(Error::Codec { codec, reason });
        }
        let scale = f32::from_le_bytes(scale);
        for (value, &code) in out.chunks_exact_mut(4).zip(codes) {
            value.copy_from_slice(&((f32::from(code) - 128.0) * scale).to_le_bytes());
        }
        Ok(())
    }
}

/// Panics if the config's `panic` names this entry. Only a toy has it: with it a host shows that it survives.
fn rehearse(named: Option<&Value>, entry: &str) {
    let is_named = named.and_then(Value::as_str) == Some(entry);
    assert!(!is_named, "the config asked for a panic in {entry}");
}
