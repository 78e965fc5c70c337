//! The config of a smaller model cut from a published one: layers chosen and numbered anew, every width kept.
//!
//! What is left is a whole checkpoint of its own: each key that counts or lists layers says what was chosen. Where the
//! schedule of indexers has no two numbers any more, the list alone says it.

use serde_json::{Value, json};

use crate::published;

/// Rows by which a vocabulary is cut, to fit a size.
const ROWS: u64 = 128;

/// Keys that list something for each layer.
const LISTS: [&str; 3] = ["indexer_types", "mlp_layer_types", "layer_types"];

/// Keys that name tokens, which a cut vocabulary may not have.
const TOKENS: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

/// What is taken of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// Layers by their number in the whole model, ascending; those after the decoder's are prediction layers.
    pub layers: Vec<u64>,
    /// Routed experts of a layer; all of them, if not said.
    pub experts: Option<u64>,
    /// Rows of embedding and head; all of them, if not said.
    pub vocabulary: Option<u64>,
}

impl Excerpt {
    /// The config of what is taken.
    ///
    /// Errors: a line that says which layer, which number or which key is not as it should be.
    pub fn config(&self, whole: &Value) -> Result<Value, String> {
        let number = |key: &str| {
            let value = whole[key].as_u64();
            value.ok_or_else(|| format!("{key} is {}, expected a whole number", whole[key]))
        };
        let layers = number("num_hidden_layers")?;
        let depths = whole["num_nextn_predict_layers"].as_u64().unwrap_or(0);
        self.check_layers(layers, depths)?;
        let experts = within("experts", self.experts, number("n_routed_experts")?)?;
        let rows = within("rows of vocabulary", self.vocabulary, number("vocab_size")?)?;

        let decoder: Vec<u64> = self.decoder(layers).collect();
        let mut config = whole.clone();
        config["num_hidden_layers"] = json!(decoder.len());
        if !whole["num_nextn_predict_layers"].is_null() {
            config["num_nextn_predict_layers"] = json!(self.layers.len() - decoder.len());
        }
        for key in LISTS {
            if whole[key].is_null() {
                continue;
            }
            let entry = |layer: &u64| whole[key][usize::try_from(*layer).ok()?].as_str();
            let entries: Option<Vec<&str>> = decoder.iter().map(entry).collect();
            let entries =
                entries.ok_or_else(|| format!("{key} has no entry for each of {layers} layers"))?;
            config[key] = json!(entries);
        }
        self.cut_schedules(&mut config, whole, &decoder)?;
        config["n_routed_experts"] = json!(experts);
        config["num_experts_per_tok"] = json!(number("num_experts_per_tok")?.min(experts));
        config["vocab_size"] = json!(rows);
        drop_tokens_from(&mut config, rows);
        self.rename_modules(&mut config);
        Ok(config)
    }

    /// The excerpt that comes closest to this many bytes of tensors and is no larger: experts are left out first, down to those
    /// that a token goes to, then rows of the vocabulary.
    ///
    /// Errors: those of [`Excerpt::config`] and [`published::read`]; layers that are larger all the same.
    pub fn within(self, max_bytes: u64, whole: &Value) -> Result<Excerpt, String> {
        if self.size_bytes(whole)? <= max_bytes {
            return Ok(self);
        }
        let most = |own: Option<u64>, key: &str| own.or(whole[key].as_u64()).unwrap_or(1);
        let experts = most(self.experts, "n_routed_experts");
        let fewest = whole["num_experts_per_tok"].as_u64().unwrap_or(1);
        let with_experts = |experts: u64| Excerpt {
            experts: Some(experts),
            ..self.clone()
        };
        let fewest = fewest.min(experts);
        if let Some(fits) = largest(fewest..=experts, max_bytes, whole, &with_experts)? {
            return Ok(with_experts(fits));
        }
        let rows = most(self.vocabulary, "vocab_size");
        let with_rows = |blocks: u64| Excerpt {
            vocabulary: Some((blocks * ROWS).min(rows)),
            ..with_experts(fewest)
        };
        if let Some(fits) = largest(1..=rows.div_ceil(ROWS), max_bytes, whole, &with_rows)? {
            return Ok(with_rows(fits));
        }
        let least = with_rows(1).size_bytes(whole)?;
        Err(format!(
            "these layers are {least} bytes with {fewest} experts and a vocabulary of {}, expected at most {max_bytes}; choose \
             fewer layers",
            ROWS.min(rows)
        ))
    }

    fn size_bytes(&self, whole: &Value) -> Result<u64, String> {
        let tensors = published::read(&self.config(whole)?)?;
        Ok(tensors.iter().map(published::Tensor::size_bytes).sum())
    }

    fn decoder(&self, layers: u64) -> impl Iterator<Item = u64> {
        self.layers
            .iter()
            .copied()
            .filter(move |&layer| layer < layers)
    }

    fn check_layers(&self, layers: u64, depths: u64) -> Result<(), String> {
        let all = layers + depths;
        if let Some(layer) = self.layers.iter().find(|&&layer| layer >= all) {
            return Err(format!("layer {layer} is none of 0 to {}", all - 1));
        }
        if !self.layers.is_sorted_by(|a, b| a < b) {
            return Err(format!("layers {:?}, expected ascending ones", self.layers));
        }
        if self.decoder(layers).next().is_none() {
            return Err(format!(
                "no layer of the decoder, which has 0 to {}",
                layers - 1
            ));
        }
        Ok(())
    }

    /// Numbers that say which layers are dense and which have an indexer of their own.
    fn cut_schedules(
        &self,
        config: &mut Value,
        whole: &Value,
        decoder: &[u64],
    ) -> Result<(), String> {
        if let Some(first) = whole["first_k_dense_replace"].as_u64() {
            let dense = decoder.iter().filter(|&&layer| layer < first).count();
            config["first_k_dense_replace"] = json!(dense);
        }
        let Some(types) = config["indexer_types"].as_array() else {
            return Ok(());
        };
        let is_full: Vec<bool> = types.iter().map(|kind| kind == "full").collect();
        if is_full.first() == Some(&false) {
            let is_own = |layer: &usize| whole["indexer_types"][layer] == "full";
            let own: Vec<usize> = (0..whole["indexer_types"].as_array().map_or(0, Vec::len))
                .filter(is_own)
                .collect();
            return Err(format!(
                "layer {} uses the indexer of a layer before it; the first one has its own in {own:?}",
                decoder[0]
            ));
        }
        let keys = config.as_object_mut().ok_or("the config is no object")?;
        // What says the same in letters is left to the list.
        keys.shift_remove("index_topk_pattern");
        let schedule = schedule(&is_full);
        for (at, key) in ["index_skip_topk_offset", "index_topk_freq"]
            .into_iter()
            .enumerate()
        {
            match (keys.get_mut(key), schedule) {
                (Some(value), Some(numbers)) => *value = json!(numbers[at]),
                (Some(_), None) => drop(keys.shift_remove(key)),
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Of the modules that are not quantized, those of the chosen layers, by their new numbers.
    fn rename_modules(&self, config: &mut Value) {
        let Some(modules) = config
            .get_mut("quantization_config")
            .and_then(|quantization| quantization.get_mut("modules_to_not_convert"))
            .and_then(Value::as_array_mut)
        else {
            return;
        };
        let renamed = modules.iter().filter_map(|module| {
            let name = module.as_str()?;
            let Some((layer, field)) = name
                .strip_prefix("model.layers.")
                .and_then(|rest| rest.split_once('.'))
            else {
                return Some(module.clone());
            };
            let layer: u64 = layer.parse().ok()?;
            let number = self.layers.iter().position(|&chosen| chosen == layer)?;
            Some(json!(format!("model.layers.{number}.{field}")))
        });
        *modules = renamed.collect();
    }
}

fn within(what: &str, asked: Option<u64>, most: u64) -> Result<u64, String> {
    let asked = asked.unwrap_or(most);
    if (1..=most).contains(&asked) {
        Ok(asked)
    } else {
        Err(format!("{asked} {what}, expected 1 to {most}"))
    }
}

fn drop_tokens_from(config: &mut Value, rows: u64) {
    let is_beyond = |token: &Value| token.as_u64().is_some_and(|token| token >= rows);
    let Some(keys) = config.as_object_mut() else {
        return;
    };
    for key in TOKENS {
        let beyond = match keys.get(key) {
            Some(Value::Array(tokens)) => tokens.iter().any(is_beyond),
            token => token.is_some_and(is_beyond),
        };
        if beyond {
            keys.shift_remove(key);
        }
    }
}

/// The offset and the frequency that give these indexers, if two numbers do: layer `i` has its own if `max(i + 1 - offset, 0)`
/// is a multiple of the frequency.
fn schedule(is_full: &[bool]) -> Option<[usize; 2]> {
    let Some(offset) = is_full.iter().position(|full| !full) else {
        return Some([0, 1]);
    };
    let rest = &is_full[offset..];
    // Without another one any number does that the layers do not reach.
    let next = rest.iter().position(|&full| full).unwrap_or(rest.len());
    let is_own = |layer: usize| (layer + 1).saturating_sub(offset).is_multiple_of(next + 1);
    let holds = is_full
        .iter()
        .enumerate()
        .all(|(layer, &full)| is_own(layer) == full);
    holds.then_some([offset, next + 1])
}

/// The largest of some numbers whose excerpt is no larger than so many bytes; excerpts grow with the number.
fn largest(
    numbers: std::ops::RangeInclusive<u64>,
    max_bytes: u64,
    whole: &Value,
    excerpt: &dyn Fn(u64) -> Excerpt,
) -> Result<Option<u64>, String> {
    let (mut low, mut high) = (*numbers.start(), *numbers.end());
    if excerpt(low).size_bytes(whole)? > max_bytes {
        return Ok(None);
    }
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if excerpt(middle).size_bytes(whole)? <= max_bytes {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Ok(Some(low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn published_config(name: &str) -> Value {
        let path = fixture(&format!("configs/{name}")).join("config.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    fn of(layers: &[u64]) -> Excerpt {
        Excerpt {
            layers: layers.to_vec(),
            experts: None,
            vocabulary: None,
        }
    }

    /// The keys in which two configs differ, with what the second has.
    fn changes(whole: &Value, config: &Value) -> Value {
        let keys = whole.as_object().unwrap().keys();
        assert!(
            config
                .as_object()
                .unwrap()
                .keys()
                .all(|key| !whole[key].is_null())
        );
        let changed = keys.filter(|key| whole[*key] != config[*key]);
        changed
            .map(|key| (key.clone(), config[key].clone()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    #[test]
    fn every_key_that_counts_layers_says_what_was_chosen_and_no_other_changes() {
        let whole = published_config("glm-5.2");
        let config = of(&[0, 3, 6, 78]).config(&whole).unwrap();
        let expected = json!({
            "first_k_dense_replace": 1,
            "index_skip_topk_offset": 1,
            "index_topk_freq": 2,
            "indexer_types": ["full", "shared", "full"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "num_hidden_layers": 3,
        });
        assert_eq!(changes(&whole, &config), expected);
        assert_eq!(config["num_nextn_predict_layers"], 1);

        let whole = published_config("glm-5");
        let config = of(&[2, 3]).config(&whole).unwrap();
        let expected = json!({
            "first_k_dense_replace": 1, "num_hidden_layers": 2, "num_nextn_predict_layers": 0,
        });
        assert_eq!(changes(&whole, &config), expected);
    }

    #[test]
    fn a_schedule_that_two_numbers_cannot_say_is_left_to_the_list() {
        let whole = published_config("glm-5.2");
        let config = of(&[0, 3, 6, 7, 8, 10]).config(&whole).unwrap();
        let types = json!(["full", "shared", "full", "shared", "shared", "full"]);
        assert_eq!(config["indexer_types"], types);
        for key in [
            "index_topk_freq",
            "index_skip_topk_offset",
            "index_topk_pattern",
        ] {
            assert!(config.get(key).is_none(), "{key}");
        }
        // All layers of the whole are as the published numbers have them.
        let all = of(&(0..79).collect::<Vec<_>>()).config(&whole).unwrap();
        assert_eq!(changes(&whole, &all), json!({}));
    }

    #[test]
    fn modules_left_in_bf16_are_those_of_the_chosen_layers_by_their_new_numbers() {
        let mut whole = published_config("glm-5.3");
        let key = "modules_to_not_convert";
        whole["quantization_config"][key] = json!([
            "lm_head",
            "model.layers.0.a",
            "model.layers.3.b",
            "model.layers.30.c",
            "model.layers.78.eh_proj",
        ]);
        let config = of(&[0, 30, 78]).config(&whole).unwrap();
        let expected = [
            "lm_head",
            "model.layers.0.a",
            "model.layers.1.c",
            "model.layers.2.eh_proj",
        ];
        assert_eq!(config["quantization_config"][key], json!(expected));
    }

    #[test]
    fn experts_and_vocabulary_take_with_them_what_would_be_beyond_them() {
        let whole = published_config("glm-5.2");
        let excerpt = Excerpt {
            experts: Some(4),
            vocabulary: Some(1024),
            ..of(&[0, 6])
        };
        let config = excerpt.config(&whole).unwrap();
        assert_eq!(config["n_routed_experts"], 4);
        assert_eq!(config["num_experts_per_tok"], 4);
        assert_eq!(config["vocab_size"], 1024);
        assert!(config.get("eos_token_id").is_none() && config.get("pad_token_id").is_none());
    }

    #[test]
    fn the_tensors_are_those_of_the_published_list_by_their_new_numbers() {
        for (name, numbers) in [("glm-5", [0, 3, 6, 78]), ("glm-5.3", [0, 3, 6, 78])] {
            let whole = published_config(name);
            let chosen = published::tensors(&of(&numbers).config(&whole).unwrap());
            let prefixes: Vec<_> = (0..).zip(numbers).collect();
            let expected = published::tensors(&whole)
                .into_iter()
                .filter_map(|mut tensor| {
                    let Some(rest) = tensor.name.strip_prefix("model.layers.") else {
                        return Some(tensor);
                    };
                    let (layer, field) = rest.split_once('.').unwrap();
                    let chosen = prefixes.iter().find(|(_, old)| old.to_string() == layer)?;
                    tensor.name = format!("model.layers.{}.{field}", chosen.0);
                    Some(tensor)
                });
            assert!(expected.eq(chosen), "{name}");
        }
    }

    #[test]
    fn a_size_leaves_out_experts_first_and_then_rows() {
        let whole = published_config("glm-5.2");
        // One layer of each kind and the vocabulary: 3,806,330,880 bytes of embedding and head, 75,497,472 an expert.
        let excerpt = of(&[0, 6]);
        let bytes = excerpt.size_bytes(&whole).unwrap();
        assert_eq!(excerpt.clone().within(bytes, &whole).unwrap(), excerpt);
        let fewer = excerpt.clone().within(bytes - 1, &whole).unwrap();
        assert_eq!((fewer.experts, fewer.vocabulary), (Some(255), None));
        // With the router's rows, an expert is 75,509,764 bytes.
        assert_eq!(
            bytes - fewer.size_bytes(&whole).unwrap(),
            75_497_472 + 12_288 + 4
        );

        let small = excerpt.clone().within(2_000_000_000, &whole).unwrap();
        assert_eq!(small.experts, Some(8));
        assert!(small.vocabulary.unwrap().is_multiple_of(ROWS));
        let size = small.size_bytes(&whole).unwrap();
        assert!((1_996_000_000..=2_000_000_000).contains(&size), "{size}");

        let error = excerpt.within(1_000_000_000, &whole).unwrap_err();
        assert!(
            error.contains("with 8 experts and a vocabulary of 128"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_excerpt_is_refused_with_what_would_be_one() {
        let whole = published_config("glm-5.2");
        let refused = |excerpt: Excerpt| excerpt.config(&whole).unwrap_err();
        assert_eq!(refused(of(&[0, 79])), "layer 79 is none of 0 to 78");
        assert_eq!(
            refused(of(&[3, 0])),
            "layers [3, 0], expected ascending ones"
        );
        assert_eq!(
            refused(of(&[0, 0])),
            "layers [0, 0], expected ascending ones"
        );
        assert_eq!(
            refused(of(&[78])),
            "no layer of the decoder, which has 0 to 77"
        );
        let error = refused(of(&[3, 6]));
        assert!(
            error.starts_with("layer 3 uses the indexer of a layer before it"),
            "{error}"
        );
        assert!(error.contains("[0, 1, 2, 6, 10,"), "{error}");
        let many = Excerpt {
            experts: Some(257),
            ..of(&[0])
        };
        assert_eq!(refused(many), "257 experts, expected 1 to 256");
    }
}
