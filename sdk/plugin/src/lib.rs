//! What the author of a plugin depends on, and all of it: the bridge traits, a prelude, and [`export_plugin!`].
//!
//! Floor 4 of the house: stands on `rialto-abi`, `rialto-tensor`, `rialto-program` and `rialto-bridge`. An author implements six traits in
//! safe Rust and exports the result; nothing of the ABI shows. A whole plugin, for a model of one matrix per layer:
//!
//! ```
//! #![forbid(unsafe_code)]
//! use rialto_plugin::prelude::*;
//!
//! struct Tiny;
//!
//! impl Bridge for Tiny {
//!     fn describe(&self) -> Description {
//!         Description {
//!             name: "tiny".to_owned(),
//!             version: env!("CARGO_PKG_VERSION").to_owned(),
//!             summary: "One matrix per layer.".to_owned(),
//!             architectures: vec!["TinyForCausalLM".to_owned()],
//!             releases: vec!["tiny-1".to_owned()],
//!         }
//!     }
//! }
//!
//! impl ConfigMapping for Tiny {
//!     fn claim(&self, config: &RawConfig) -> Result<Claim, Error> {
//!         Ok(if config.architectures()?.contains(&"TinyForCausalLM") {
//!             Claim::Yes { release: "tiny-1".to_owned(), reason: "its architecture".to_owned() }
//!         } else {
//!             Claim::No { reason: "not TinyForCausalLM".to_owned() }
//!         })
//!     }
//!
//!     fn map_config(&self, config: &RawConfig, _: &MapOptions) -> Result<ModelSpec, Error> {
//!         let (layers, hidden) = (config.integer("num_hidden_layers")?, config.integer("hidden_size")?);
//!         Ok(ModelSpec {
//!             release: "tiny-1".to_owned(),
//!             architecture: "TinyForCausalLM".to_owned(),
//!             dims: Dims { layers, hidden, vocab: 0, mtp_layers: 0, mtp_layers_dropped: 0 },
//!             provider_target: "tiny.Provider".to_owned(),
//!             provider: Map::from_iter([("num_layers".to_owned(), json!(layers)), ("hidden_size".to_owned(), json!(hidden))]),
//!             extra: Value::Null,
//!             unread_keys: Vec::new(),
//!             notices: Vec::new(),
//!         })
//!     }
//!
//!     fn unmap_config(&self, _: &ModelSpec, _: &RawConfig) -> Result<Vec<ConfigEdit>, Error> {
//!         Ok(Vec::new())
//!     }
//! }
//!
//! impl WeightMapping for Tiny {
//!     fn weight_map(&self, spec: &ModelSpec) -> Result<WeightMap, Error> {
//!         let shape = [spec.dims.hidden, spec.dims.hidden];
//!         let matrix = MapRule::new("layers.weight", "mlp", "decoder.layers.{i}.weight", shape)
//!             .over(Scope::new().index("i", 0..spec.dims.layers))
//!             .dtype(DtypeRule::any_of([Dtype::Bf16]))
//!             .part(Part::new("model.layers.{i}.weight", shape));
//!         Ok(WeightMap::new([matrix]))
//!     }
//!
//!     fn placement(&self, _: &ModelSpec) -> Result<Placement, Error> {
//!         Ok(Placement { rules: vec![PlacementRule { param: "*".to_owned(), cuts: Vec::new() }] })
//!     }
//! }
//!
//! impl PipelineMapping for Tiny {
//!     fn pipeline_layout(&self, spec: &ModelSpec, _: &PipelineRequest) -> Result<PipelineLayout, Error> {
//!         let layers = spec.dims.layers;
//!         let params = vec!["*".to_owned()];
//!         let stage = Stage { first_layer: 0, layers, physical_layers: layers, mtp_layers: 0, params };
//!         Ok(PipelineLayout { stages: vec![stage], provider: Map::new() })
//!     }
//! }
//!
//! impl Dequantizer for Tiny {}
//!
//! impl ForwardPass for Tiny {}
//!
//! rialto_plugin::export_plugin!(Tiny);
//! # fn main() -> Result<(), Error> {
//! # let config = RawConfig::parse(br#"{"architectures": ["TinyForCausalLM"], "num_hidden_layers": 2, "hidden_size": 4}"#)?;
//! # let spec = Tiny.map_config(&config, &MapOptions::default())?;
//! # assert_eq!(Tiny.weight_map(&spec)?.resolve()?.pieces().len(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! with this in its `Cargo.toml`:
//!
//! ```toml
//! [lib]
//! crate-type = ["cdylib", "rlib"]
//!
//! [dependencies]
//! rialto-plugin = "0.1"
//!
//! [dev-dependencies]
//! rialto-plugin-test = "0.1"
//! ```
//!
//! The second tests it: `PluginTest::new(Tiny).fixture("tests/tiny").check_all()`, on a tiny checkpoint of the family.
//!
//! | module | noun |
//! |---|---|
//! | [`prelude`] | every name a plugin needs |
//! | [`host`] | what the host lends: its log, its capabilities |
//! | `shim` | bridge to tables; the only unsafe code of this crate |
#![deny(unsafe_code)]

/// For the types that a family keeps in its specs: `#[serde(crate = "rialto_plugin::serde")]`.
pub use serde;

pub mod host;
pub mod prelude;
#[allow(unsafe_code, reason = "this module is the wall between Rust and C")]
#[doc(hidden)]
pub mod shim;

/// Exports a [`Bridge`](rialto_bridge::Bridge) as this library's plugin.
///
/// The argument is an expression that makes the bridge; it is evaluated once for every instance that a host opens. Name
/// and version of the declaration are those of the cargo package. The expansion contains no unsafe code that
/// `#![forbid(unsafe_code)]` would see, and does not compile where a panic aborts: such a library could only end its host.
///
/// A library exports one plugin. Since the symbol's name is fixed, a binary can link at most one crate that calls this;
/// to link several, keep the family in a crate without the macro and export it from a second one.
#[macro_export]
macro_rules! export_plugin {
    ($bridge:expr) => {
        #[cfg(panic = "abort")]
        ::core::compile_error!(
            "a rialto plugin needs panic = \"unwind\" in its cargo profile: an abort would end the host"
        );

        const _: () = {
            struct Export;

            impl $crate::shim::Export for Export {
                fn construct() -> ::std::boxed::Box<dyn $crate::prelude::Bridge> {
                    ::std::boxed::Box::new($bridge)
                }
            }

            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals, reason = "the symbol's name is the contract's")]
            static rialto_plugin_v1: $crate::shim::PluginDecl = $crate::shim::declare::<Export>(
                ::core::env!("CARGO_PKG_NAME"),
                ::core::env!("CARGO_PKG_VERSION"),
            );
        };
    };
}
