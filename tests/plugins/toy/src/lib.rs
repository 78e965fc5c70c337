//! A toy dense model, as a third party would map it: an embedding, per layer a fused gate|up and a down projection, and
//! a codec of its own for down projections that are stored as bytes.
#![forbid(unsafe_code)]

use rialto_plugin::prelude::*;

const ARCHITECTURE: &str = "ToyForCausalLM";
/// Bytes around 128, times one scale a tensor.
const CODEC: &str = "toy_int8/1";

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
        Ok(if config.architectures()?.contains(&ARCHITECTURE) {
            Claim::Yes {
                release: "toy-1".to_owned(),
                reason: format!("architectures names {ARCHITECTURE}"),
            }
        } else {
            Claim::No {
                reason: format!("architectures does not name {ARCHITECTURE}"),
            }
        })
    }

    fn map_config(&self, config: &RawConfig, _: &MapOptions) -> Result<ModelSpec, Error> {
        const READ: [&str; 6] = [
            "architectures",
            "num_hidden_layers",
            "hidden_size",
            "intermediate_size",
            "vocab_size",
            "rms_norm_eps",
        ];
        rehearse(config.value("panic"), "map_config");
        log(Level::Debug, "toy", "mapping a config");
        let layers = config.integer("num_hidden_layers")?;
        if layers == 0 {
            return Err(Error::Unsupported {
                what: "num_hidden_layers".to_owned(),
                found: layers.to_string(),
                supported: "1 or more".to_owned(),
            });
        }
        let hidden = config.integer("hidden_size")?;
        let ffn = config.integer("intermediate_size")?;
        let epsilon = config.value("rms_norm_eps").cloned();
        let unread = config
            .values()
            .keys()
            .filter(|key| !READ.contains(&key.as_str()));
        Ok(ModelSpec {
            release: "toy-1".to_owned(),
            architecture: ARCHITECTURE.to_owned(),
            dims: Dims {
                layers,
                hidden,
                vocab: config.integer("vocab_size")?,
                mtp_layers: 0,
                mtp_layers_dropped: 0,
            },
            provider_target: "toy.ToyProvider".to_owned(),
            provider: Map::from_iter([
                ("num_layers".to_owned(), json!(layers)),
                ("hidden_size".to_owned(), json!(hidden)),
                ("ffn_hidden_size".to_owned(), json!(ffn)),
                ("layernorm_epsilon".to_owned(), json!(epsilon)),
            ]),
            extra: json!({"ffn": ffn, "panic": config.value("panic")}),
            unread_keys: unread.cloned().collect(),
            notices: Vec::new(),
        })
    }

    fn unmap_config(&self, spec: &ModelSpec, _: &RawConfig) -> Result<Vec<ConfigEdit>, Error> {
        rehearse(spec.extra.get("panic"), "unmap_config");
        Ok(vec![ConfigEdit {
            key: "num_hidden_layers".to_owned(),
            value: json!(spec.dims.layers),
        }])
    }
}

impl WeightMapping for Toy {
    fn weight_map(&self, spec: &ModelSpec) -> Result<WeightMap, Error> {
        rehearse(spec.extra.get("panic"), "weight_map");
        let ffn = spec.extra.get("ffn").and_then(Value::as_u64).unwrap_or(0);
        let (hidden, vocab) = (spec.dims.hidden, spec.dims.vocab);
        let layers = || Scope::new().index("i", 0..spec.dims.layers);
        let float = || DtypeRule::any_of([Dtype::Bf16, Dtype::F32]);
        let rows = ffn.to_string();
        Ok(WeightMap::new([
            MapRule::new(
                "embedding",
                "embedding",
                "embedding.word_embeddings.weight",
                [vocab, hidden],
            )
            .dtype(float())
            .part(Part::new("model.embed_tokens.weight", [vocab, hidden])),
            MapRule::new(
                "mlp.linear_fc1.weight",
                "mlp",
                "decoder.layers.{i}.mlp.linear_fc1.weight",
                [2 * ffn, hidden],
            )
            .over(layers())
            .dtype(float())
            .part(Part::new(
                "model.layers.{i}.mlp.gate_proj.weight",
                [ffn, hidden],
            ))
            .part(Part::new("model.layers.{i}.mlp.up_proj.weight", [ffn, hidden]).at([&rows, "0"])),
            MapRule::new(
                "mlp.linear_fc2.weight",
                "mlp",
                "decoder.layers.{i}.mlp.linear_fc2.weight",
                [hidden, ffn],
            )
            .over(layers())
            .dtype(float())
            .part(Part::new(
                "model.layers.{i}.mlp.down_proj.weight",
                [hidden, ffn],
            )),
        ]))
    }

    fn placement(&self, spec: &ModelSpec) -> Result<Placement, Error> {
        rehearse(spec.extra.get("panic"), "placement");
        let rule = |param: &str, axis, blocks| PlacementRule {
            param: param.to_owned(),
            cuts: vec![Cut {
                axis,
                over: MeshAxis::Tp,
                blocks,
                is_stacked: false,
            }],
        };
        Ok(Placement {
            rules: vec![
                rule("embedding.*", 0, 1),
                rule("*.linear_fc1.weight", 0, 2),
                rule("*.linear_fc2.weight", 1, 1),
            ],
        })
    }
}

impl PipelineMapping for Toy {
    fn pipeline_layout(&self, spec: &ModelSpec, mesh: &Mesh) -> Result<PipelineLayout, Error> {
        rehearse(spec.extra.get("panic"), "pipeline_layout");
        let layers = spec.dims.layers;
        if mesh.pp == 0 || !layers.is_multiple_of(mesh.pp) {
            let fits = (1..=layers)
                .filter(|pp| layers.is_multiple_of(*pp))
                .map(|pp| pp.to_string());
            return Err(Error::Unsupported {
                what: format!("pp for {layers} layers"),
                found: mesh.pp.to_string(),
                supported: fits.collect::<Vec<_>>().join(", "),
            });
        }
        let each = layers / mesh.pp;
        let stage = |stage| Stage {
            first_layer: stage * each,
            layers: each,
            physical_layers: each,
            mtp_layers: 0,
        };
        Ok(PipelineLayout {
            stages: (0..mesh.pp).map(stage).collect(),
            provider: Map::new(),
        })
    }
}

impl Dequantizer for Toy {
    fn codecs(&self, spec: &ModelSpec) -> Result<Vec<Codec>, Error> {
        rehearse(spec.extra.get("panic"), "codecs");
        Ok(vec![Codec {
            name: CODEC.to_owned(),
            stored: Dtype::U8,
            decoded: Dtype::F32,
            companions: vec!["_scale".to_owned()],
        }])
    }

    /// `out = (code - 128) * scale`. Shapes: tensor `[n, k]` U8, scale `[1]` F32, out `[n, k]` F32.
    fn dequantize(&self, encoded: &EncodedTensor<'_>, out: &mut [u8]) -> Result<(), Error> {
        if encoded.codec != CODEC {
            return Err(Error::UnknownCodec {
                codec: encoded.codec.to_owned(),
            });
        }
        let codes = encoded.tensor.bytes();
        let refused = |reason: String| {
            Err(Error::Codec {
                codec: CODEC.to_owned(),
                reason,
            })
        };
        let Some(Ok(scale)) = encoded
            .companions
            .first()
            .map(|scale| <[u8; 4]>::try_from(scale.bytes()))
        else {
            return refused("one F32 scale is needed".to_owned());
        };
        if out.len() != 4 * codes.len() {
            return refused(format!(
                "{} codes need {} bytes, found {}",
                codes.len(),
                4 * codes.len(),
                out.len()
            ));
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
    assert!(
        named.and_then(Value::as_str) != Some(entry),
        "the config asked for a panic in {entry}"
    );
}
