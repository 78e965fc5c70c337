//! Multi-token prediction: from what the model leaves of a token and from the next token, the one after that.

use rialto_plugin::prelude::program::builder::Builder;
use rialto_plugin::prelude::program::{Dim, Element, ValueType, step};

use super::{Block, embedding, head};
use crate::spec::{Indexer, Layer, Mlp, Model};

/// A prediction layer has an indexer of its own, and experts.
const LAYER: Layer = Layer {
    indexer: Indexer::Full,
    mlp: Mlp::Sparse,
};

/// A prediction layer: phase `mtp`, and `mtp.1` and so on for those of greater depth.
///
/// It is given `{phase}.hidden` `[t, h]`, the model's `hidden.final` of each position, or what the prediction layer before it leaves; the
/// step's tokens are those of the position after. Embedding and head are the main model's. It keeps caches of its own.
pub(super) fn forward(model: &Model, latent_eps: f64, depth: u64, program: &mut Builder) {
    let (h, first) = (model.hidden_size, model.layers.len() as u64);
    let name = |depth| match depth {
        0 => "mtp".to_owned(),
        _ => format!("mtp.{depth}"),
    };
    let values = name(depth);
    // Normed in either case: before the norm it would be another model, which predicts half as well.
    let (from, left) = match depth {
        0 => ("forward".to_owned(), "hidden.final".to_owned()),
        _ => (name(depth - 1), format!("{}.normed", name(depth - 1))),
    };
    let (embedding, head) = (embedding(model, program), head(model, program));
    let mut phase = program.phase(&values);
    let hidden = ValueType::new(Element::Activation, [Dim::Tokens, Dim::Size(h)]);
    let hidden = phase.carried(&format!("{values}.hidden"), hidden, (&from, &left));
    let next = phase.embed(&format!("{values}.embedding"), &embedding);
    let mut layer = Block {
        model,
        latent_eps,
        phase: &mut phase,
        tensors: format!("model.layers.{}", first + depth),
        values,
    };

    // The embedding is the first half.
    let next = layer.rms_norm("embedding_normed", &next, "enorm", h);
    let hidden = layer.rms_norm("hidden_normed", &hidden, "hnorm", h);
    let both = layer.phase.concat(&layer.name("both"), &next, &hidden);
    let x = layer.linear("proj", &both, "eh_proj", [h, 2 * h]);
    layer.phase.stream(&x);

    let mut selection = None;
    let x = layer.decoder(LAYER, &x, &mut selection, &layer.name("layer_out"));
    layer.phase.stream(&x);
    let x = layer.rms_norm("normed", &x, "shared_head.norm", h);
    layer.phase.stream(&x);

    let rows = layer.phase.gather(&layer.name("rows"), &x, step::ROWS);
    let logits = layer.phase.linear_f32(&layer.name("logits"), &rows, &head);
    layer.phase.output(&logits);
    layer.phase.output(&x);
    if let Some(selection) = selection {
        layer.phase.output(&selection);
    }
}
