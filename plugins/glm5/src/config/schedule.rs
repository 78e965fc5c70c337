//! Which layer has an indexer of its own, and which is dense: lists, patterns and numbers that say the same.

use rialto_plugin::prelude::*;

use super::contradiction;
use crate::spec::{Indexer, Layer, Mlp};

/// Most layers that a config may have; the real ones have two digits.
const MOST_LAYERS: u64 = 1_000;

/// The keys of a schedule in two numbers.
const NUMBERS: &str = "index_topk_freq and index_skip_topk_offset";

/// The indexer of every layer: `indexer_types` decides, then `index_topk_pattern`, then frequency and offset. A source that
/// contradicts the deciding one is a notice.
pub(super) fn indexers(
    config: &RawConfig,
    notices: &mut Vec<String>,
) -> Result<Vec<Indexer>, Error> {
    let layers = config.integer("num_hidden_layers")?;
    let count = usize::try_from(layers)
        .ok()
        .filter(|_| (1..=MOST_LAYERS).contains(&layers));
    let count =
        count.ok_or_else(|| config.wrong("num_hidden_layers", &format!("1 to {MOST_LAYERS}")))?;
    let mut sources: Vec<(&str, Vec<Indexer>)> = Vec::new();
    for (key, full, shared) in [
        ("indexer_types", "full", "shared"),
        ("index_topk_pattern", "F", "S"),
    ] {
        let Some(value) = config.value(key) else {
            continue;
        };
        let words = words(config, key, value)?;
        let read = words.iter().map(|word| match word {
            _ if word == full => Ok(Indexer::Full),
            _ if word == shared => Ok(Indexer::Shared),
            _ => Err(config.wrong(key, &format!("a list of {full} and {shared}"))),
        });
        let read: Vec<Indexer> = read.collect::<Result<_, _>>()?;
        check_length(key, read.len(), count)?;
        sources.push((key, read));
    }
    if let Some(sharing) = Sharing::read(config)? {
        let read = (0..layers).map(|layer| sharing.indexer(layer));
        sources.push((NUMBERS, read.collect()));
    }
    let mut sources = sources.into_iter();
    let Some((decider, decided)) = sources.next() else {
        return Ok(vec![Indexer::Full; count]);
    };
    for (other, read) in sources.filter(|(_, read)| *read != decided) {
        let layer = read
            .iter()
            .zip(&decided)
            .position(|(a, b)| a != b)
            .unwrap_or_default();
        let contradicts = if other == NUMBERS {
            "contradict"
        } else {
            "contradicts"
        };
        notices.push(format!(
            "config.json: {other} {contradicts} {decider} at layer {layer}; {decider} decides"
        ));
    }
    if decided[0] == Indexer::Shared {
        return Err(Error::ConfigValue {
            key: decider.to_owned(),
            expected: "layer 0 with an indexer of its own".to_owned(),
            found: "shared at layer 0".to_owned(),
        });
    }
    Ok(decided)
}

/// A schedule of indexers as two numbers: layer `i` has its own if `max(i + 1 - offset, 0)` is a multiple of `frequency`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sharing {
    pub(super) frequency: u64,
    pub(super) offset: u64,
}

impl Sharing {
    /// Every layer has its own.
    const NONE: Sharing = Sharing {
        frequency: 1,
        offset: 0,
    };

    /// What the config says, if it does. A frequency of 0 means 1, and an offset that is not given is 2, as transformers has it.
    fn read(config: &RawConfig) -> Result<Option<Sharing>, Error> {
        let offset = config.optional_integer("index_skip_topk_offset")?;
        let frequency = config.optional_integer("index_topk_freq")?;
        Ok(frequency.map(|frequency| Sharing {
            frequency: frequency.max(1),
            offset: offset.unwrap_or(if frequency > 1 { 2 } else { 0 }),
        }))
    }

    /// The two numbers for Megatron, which knows no list: the config's own if they are true of the layers, else those that
    /// are. If none are, the config's are kept all the same: the weights are mapped by the layers, not by these numbers.
    pub(super) fn of(
        config: &RawConfig,
        layers: &[Layer],
        notices: &mut Vec<String>,
    ) -> Result<Sharing, Error> {
        let given = Sharing::read(config)?;
        if let Some(given) = given.filter(|given| given.is_of(layers)) {
            return Ok(given);
        }
        let found = Sharing::express(layers);
        let written = found.or(given).unwrap_or(Sharing::NONE);
        let Sharing { frequency, offset } = written;
        if found.is_none() {
            let whose = if given.is_some() {
                "the config's"
            } else {
                "those of no sharing"
            };
            notices.push(format!(
                "run_config.yaml: no dsa_indexer_topk_freq and offset express these layers; {frequency} and {offset} are \
                 written, {whose}, and a model built from them has other indexers"
            ));
        } else if written != Sharing::NONE {
            notices.push(format!(
                "run_config.yaml: dsa_indexer_topk_freq {frequency} and offset {offset} follow from the layers, not from the \
                 config"
            ));
        }
        Ok(written)
    }

    /// The two numbers of a schedule, if there are any: the leading full layers give the offset, the next one the frequency.
    fn express(layers: &[Layer]) -> Option<Sharing> {
        let full = |layer: &Layer| layer.indexer == Indexer::Full;
        let Some(first_shared) = layers.iter().position(|layer| !full(layer)) else {
            return Some(Sharing::NONE);
        };
        let next = layers[first_shared..].iter().position(full);
        let sharing = Sharing {
            offset: first_shared as u64,
            // Without another full layer any number does that the layers do not reach.
            frequency: next.unwrap_or(layers.len() - first_shared) as u64 + 1,
        };
        sharing.is_of(layers).then_some(sharing)
    }

    fn indexer(self, layer: u64) -> Indexer {
        let is_full = (layer + 1)
            .saturating_sub(self.offset)
            .is_multiple_of(self.frequency);
        if is_full {
            Indexer::Full
        } else {
            Indexer::Shared
        }
    }

    fn is_of(self, layers: &[Layer]) -> bool {
        (0..)
            .zip(layers)
            .all(|(at, layer)| self.indexer(at) == layer.indexer)
    }
}

/// The feed-forward part of every layer: `mlp_layer_types` decides, and then a dense one may stand anywhere; else the first
/// `first_k_dense_replace` layers are dense.
pub(super) fn mlps(
    config: &RawConfig,
    count: usize,
    notices: &mut Vec<String>,
) -> Result<Vec<Mlp>, Error> {
    let key = "first_k_dense_replace";
    let first_dense = config.optional_integer(key)?;
    let by_first = |first: u64| {
        (0..count as u64).map(move |layer| {
            if layer < first {
                Mlp::Dense
            } else {
                Mlp::Sparse
            }
        })
    };
    let Some(value) = config.value("mlp_layer_types") else {
        if first_dense.is_some_and(|first| first > count as u64) {
            return Err(config.wrong(key, &format!("0 to num_hidden_layers {count}")));
        }
        return Ok(by_first(first_dense.unwrap_or(3)).collect());
    };
    let words = words(config, "mlp_layer_types", value)?;
    let read = words.iter().map(|word| match word.as_str() {
        "dense" => Ok(Mlp::Dense),
        "sparse" => Ok(Mlp::Sparse),
        _ => Err(config.wrong("mlp_layer_types", "a list of dense and sparse")),
    });
    let read: Vec<Mlp> = read.collect::<Result<_, _>>()?;
    check_length("mlp_layer_types", read.len(), count)?;
    if first_dense.is_some_and(|first| !by_first(first).eq(read.iter().copied())) {
        notices.push(contradiction(key, "mlp_layer_types"));
    }
    Ok(read)
}

/// Names of sparse attention in `layer_types`: every layer has it, with an indexer of its own or another's.
const ATTENTION: [&str; 2] = ["indexed_attention", "deepseek_sparse_attention"];

/// Refuses `layer_types`, where it is there, that give a layer another attention.
pub(super) fn check_attention(config: &RawConfig, count: usize) -> Result<(), Error> {
    let key = "layer_types";
    let Some(value) = config.value(key) else {
        return Ok(());
    };
    let entries = value
        .as_array()
        .ok_or_else(|| config.wrong(key, "a list of names"))?;
    check_length(key, entries.len(), count)?;
    let is_other = |entry: &&Value| !ATTENTION.iter().any(|name| *entry == name);
    match entries.iter().find(is_other) {
        None => Ok(()),
        Some(other) => Err(Error::ConfigValue {
            key: key.to_owned(),
            expected: ATTENTION.join(" or "),
            found: other.to_string(),
        }),
    }
}

/// The entries of a list of strings, or the letters of one string.
fn words(config: &RawConfig, key: &str, value: &Value) -> Result<Vec<String>, Error> {
    match value {
        Value::String(letters) => Ok(letters.chars().map(String::from).collect()),
        Value::Array(entries) => {
            let wrong = || config.wrong(key, "a list of names");
            entries
                .iter()
                .map(|entry| entry.as_str().map(str::to_owned).ok_or_else(wrong))
                .collect()
        }
        _ => Err(config.wrong(key, "a list of names")),
    }
}

fn check_length(key: &str, found: usize, layers: usize) -> Result<(), Error> {
    if found == layers {
        return Ok(());
    }
    let expected = format!("{layers} entries, one for each of num_hidden_layers");
    Err(Error::ConfigValue {
        key: key.to_owned(),
        expected,
        found: format!("{found} entries"),
    })
}
