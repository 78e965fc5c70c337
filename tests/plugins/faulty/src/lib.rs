//! A plugin that panics where a test tells it to: the test copies the library and writes an entry's name into `FAULT`.
#![forbid(unsafe_code)]

use rialto_plugin::prelude::*;

/// The entry that panics, after a mark by which it is found in the file.
static FAULT: [u8; 32] = *b"FAULT-AT:nothing................";

struct Faulty;

rialto_plugin::export_plugin!(Faulty::new());

/// Panics if `FAULT` names this entry. Read through a black box: the compiler must not know what the file says.
fn pass(entry: &str) {
    let fault = std::hint::black_box(&FAULT);
    let named = String::from_utf8_lossy(&fault[9..]);
    assert!(
        named.trim_end_matches('.') != entry,
        "told to panic in {entry}"
    );
}

impl Faulty {
    fn new() -> Faulty {
        pass("open");
        Faulty
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        pass("release");
    }
}

impl Bridge for Faulty {
    fn describe(&self) -> Description {
        pass("describe");
        Description {
            name: "faulty".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "Panics where it is told to.".to_owned(),
            architectures: vec!["FaultyForCausalLM".to_owned()],
            releases: Vec::new(),
        }
    }
}

impl ConfigMapping for Faulty {
    fn claim(&self, _: &RawConfig) -> Result<Claim, Error> {
        pass("claim");
        Ok(Claim::No {
            reason: "it serves nobody".to_owned(),
        })
    }

    fn map_config(&self, _: &RawConfig, _: &MapOptions) -> Result<ModelSpec, Error> {
        pass("map_config");
        Ok(ModelSpec {
            release: "faulty-1".to_owned(),
            architecture: "FaultyForCausalLM".to_owned(),
            dims: Dims {
                layers: 1,
                hidden: 1,
                vocab: 1,
                mtp_layers: 0,
                mtp_layers_dropped: 0,
            },
            provider_target: "faulty.Provider".to_owned(),
            provider: Map::new(),
            extra: Value::Null,
            unread_keys: Vec::new(),
            notices: Vec::new(),
        })
    }

    fn unmap_config(&self, _: &ModelSpec, _: &RawConfig) -> Result<Vec<ConfigEdit>, Error> {
        pass("unmap_config");
        Ok(Vec::new())
    }
}

impl WeightMapping for Faulty {
    fn weight_map(&self, _: &ModelSpec) -> Result<WeightMap, Error> {
        pass("weight_map");
        Ok(WeightMap { rules: Vec::new() })
    }

    fn placement(&self, _: &ModelSpec) -> Result<Placement, Error> {
        pass("placement");
        Ok(Placement { rules: Vec::new() })
    }
}

impl PipelineMapping for Faulty {
    fn pipeline_layout(&self, _: &ModelSpec, _: &PipelineRequest) -> Result<PipelineLayout, Error> {
        pass("pipeline_layout");
        Ok(PipelineLayout {
            stages: Vec::new(),
            provider: Map::new(),
        })
    }
}

impl ForwardPass for Faulty {
    fn program(&self, _: &ModelSpec, _: &ProgramOptions) -> Result<Program, Error> {
        pass("program");
        let mut program = program::Builder::new();
        let table = program.param("embed.weight", [1, 1]);
        let mut forward = program.phase("forward");
        let x = forward.embed("hidden.0", &table);
        forward.output(&x);
        Ok(program.finish()?)
    }
}

impl Dequantizer for Faulty {
    fn codecs(&self, _: &ModelSpec) -> Result<Vec<Codec>, Error> {
        pass("codecs");
        Ok(Vec::new())
    }

    fn dequantize(&self, _: &EncodedTensor<'_>, _: &mut [u8]) -> Result<(), Error> {
        pass("dequantize");
        Ok(())
    }
}
