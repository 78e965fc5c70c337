//! Which layers have an indexer of their own, and which are dense.

use serde_json::{Value, json};

use super::{ABSENT, Row, accepted, refused};

/// `max(i + 1 - offset, 0)` is a multiple of the frequency where layer `i` has an indexer of its own.
#[test]
fn fc_05_the_schedule_of_indexers_has_three_spellings_and_the_more_explicit_decides() {
    let layers = |indexers: &str, dense: usize| {
        let layers = indexers.chars().enumerate().map(|(at, letter)| {
            let indexer = if letter == 'F' { "full" } else { "shared" };
            json!({"indexer": indexer, "mlp": if at < dense { "dense" } else { "sparse" }})
        });
        Value::from_iter(layers)
    };
    let numbers = |frequency: u64, offset: u64, schedule: &str| {
        json!({
            "dsa_indexer_topk_freq": frequency, "dsa_indexer_skip_topk_offset": offset,
            "model.layers": layers(schedule, 3),
        })
    };
    let list = |letters: &str| -> Value {
        letters
            .chars()
            .map(|letter| if letter == 'F' { "full" } else { "shared" })
            .collect()
    };
    accepted(&[
        // The list over the pattern, the pattern over the numbers.
        Row::same(json!({"indexer_types": list("FFFSSSFS"), "index_topk_pattern": "FFFSSSFF"})).notice(
            "config.json: index_topk_pattern contradicts indexer_types at layer 7; indexer_types decides",
        ),
        Row::same(json!({"indexer_types": ABSENT, "index_topk_pattern": "FFFSSSFS"})),
        Row::same(json!({"indexer_types": ABSENT, "index_topk_pattern": ["F", "F", "F", "S", "S", "S", "F", "S"]})),
        Row::same(json!({"indexer_types": ABSENT, "index_topk_pattern": "FFFSSSFS", "index_topk_freq": 3}))
            .notice("config.json: index_topk_freq and index_skip_topk_offset contradict index_topk_pattern at layer 5; index_topk_pattern decides")
            .notice("run_config.yaml: dsa_indexer_topk_freq 4 and offset 3 follow from the layers, not from the config"),
        Row::new(json!({"indexer_types": ABSENT, "index_topk_freq": 2}), json!({
            "dsa_indexer_topk_freq": 2, "model.layers": layers("FFFSFSFS", 3),
        })),
        // The list over the numbers, which are then those that the list makes true.
        Row::same(json!({"index_topk_freq": 2}))
            .notice("config.json: index_topk_freq and index_skip_topk_offset contradict indexer_types at layer 4; indexer_types decides")
            .notice("run_config.yaml: dsa_indexer_topk_freq 4 and offset 3 follow from the layers, not from the config"),
        Row::same(json!({"index_topk_freq": ABSENT, "index_skip_topk_offset": ABSENT}))
            .notice("run_config.yaml: dsa_indexer_topk_freq 4 and offset 3 follow from the layers, not from the config"),
        // Where no number is given, or only the offset, every layer has its own; without the offset it is 2.
        Row::new(
            json!({"indexer_types": ABSENT, "index_topk_freq": ABSENT, "index_skip_topk_offset": ABSENT}),
            json!({"release": "glm-5 or glm-5.1", "dsa_indexer_topk_freq": 1, "dsa_indexer_skip_topk_offset": 0, "model.layers": layers("FFFFFFFF", 3)}),
        ),
        Row::new(
            json!({"indexer_types": ABSENT, "index_topk_freq": 0, "index_skip_topk_offset": ABSENT}),
            json!({"release": "glm-5 or glm-5.1", "dsa_indexer_topk_freq": 1, "dsa_indexer_skip_topk_offset": 0, "model.layers": layers("FFFFFFFF", 3)}),
        ),
        Row::new(
            json!({"indexer_types": ABSENT, "index_topk_freq": 3, "index_skip_topk_offset": ABSENT}),
            numbers(3, 2, "FFSSFSSF"),
        ),
        // A schedule that no two numbers express is mapped all the same, and the numbers stay those of the config.
        Row::new(json!({"indexer_types": list("FSFFSSFS")}), json!({"model.layers": layers("FSFFSSFS", 3)}))
            .notice("config.json: index_topk_freq and index_skip_topk_offset contradict indexer_types at layer 1; indexer_types decides")
            .notice("run_config.yaml: no dsa_indexer_topk_freq and offset express these layers; 4 and 3 are written, the config's, and a model built from them has other indexers"),
        Row::new(
            json!({"indexer_types": list("FSFFSSFS"), "index_topk_freq": ABSENT, "index_skip_topk_offset": ABSENT}),
            numbers(1, 0, "FSFFSSFS"),
        )
        .notice("run_config.yaml: no dsa_indexer_topk_freq and offset express these layers; 1 and 0 are written, those of no sharing, and a model built from them has other indexers"),
    ]);
    refused(&[
        (
            json!({"indexer_types": list("FFFSSSF")}),
            "indexer_types is 7 entries, expected 8 entries, one for each of num_hidden_layers",
        ),
        (
            json!({"indexer_types": list("FFFSSSFSF")}),
            "indexer_types is 9 entries, expected 8 entries, one for each of num_hidden_layers",
        ),
        (
            json!({"index_topk_pattern": "FFFSSSFSF"}),
            "index_topk_pattern is 9 entries, expected 8 entries, one for each of num_hidden_layers",
        ),
        (
            json!({"indexer_types": []}),
            "indexer_types is 0 entries, expected 8 entries, one for each of num_hidden_layers",
        ),
        (
            json!({"indexer_types": list("SFFSSSFS")}),
            "indexer_types is shared at layer 0, expected layer 0 with an indexer of its own",
        ),
        (
            json!({"indexer_types": ABSENT, "index_skip_topk_offset": 0}),
            "index_topk_freq and index_skip_topk_offset is shared at layer 0, expected layer 0 with an indexer of its own",
        ),
        (
            json!({"indexer_types": 8}),
            "indexer_types is 8, expected a list of names",
        ),
        (
            json!({"indexer_types": [1, 2]}),
            "indexer_types is [1,2], expected a list of names",
        ),
        (
            json!({"index_topk_pattern": "FFFSSSFX"}),
            "index_topk_pattern is \"FFFSSSFX\", expected a list of F and S",
        ),
        (
            json!({"index_topk_freq": -4}),
            "index_topk_freq is -4, expected a whole number",
        ),
        (
            json!({"index_skip_topk_offset": "3"}),
            "index_skip_topk_offset is \"3\", expected a whole number",
        ),
    ]);
}

#[test]
fn a_dense_layer_may_stand_anywhere_if_the_list_says_so() {
    let config = |letters: &str| -> Value {
        letters
            .chars()
            .map(|letter| if letter == '-' { "dense" } else { "sparse" })
            .collect()
    };
    let changes = |letters: &str| {
        let indexers = "FFFSSSFS".chars();
        let layers = indexers.zip(letters.chars()).map(|(indexer, mlp)| {
            json!({
                "indexer": if indexer == 'F' { "full" } else { "shared" },
                "mlp": if mlp == '-' { "dense" } else { "sparse" },
            })
        });
        let physical = letters
            .chars()
            .flat_map(|letter| [0, u8::from(letter == 'E')]);
        json!({"model.layers": Value::from_iter(layers), "moe_layer_freq": Value::from_iter(physical)})
    };
    let contradicts =
        "config.json: first_k_dense_replace contradicts mlp_layer_types; mlp_layer_types decides";
    let mut rows = Vec::new();
    for letters in ["E-E--EEE", "EEEEEEEE", "--------", "---EEEE-", "--EEEEEE"] {
        rows.push(
            Row::new(
                json!({"mlp_layer_types": config(letters)}),
                changes(letters),
            )
            .notice(contradicts),
        );
        let alone = json!({"mlp_layer_types": config(letters), "first_k_dense_replace": ABSENT});
        rows.push(Row::new(alone, changes(letters)));
    }
    for (first, letters) in [(0, "EEEEEEEE"), (1, "-EEEEEEE"), (8, "--------")] {
        let alone = json!({"mlp_layer_types": ABSENT, "first_k_dense_replace": first});
        rows.push(Row::new(alone, changes(letters)));
    }
    rows.push(Row::same(json!({"first_k_dense_replace": 9})).notice(contradicts));
    accepted(&rows);
    refused(&[
        (
            json!({"mlp_layer_types": ABSENT, "first_k_dense_replace": 9}),
            "first_k_dense_replace is 9, expected 0 to num_hidden_layers 8",
        ),
        (
            json!({"mlp_layer_types": config("---")}),
            "mlp_layer_types is 3 entries, expected 8 entries, one for each of num_hidden_layers",
        ),
        (
            json!({"mlp_layer_types": "dense"}),
            "mlp_layer_types is \"dense\", expected a list of dense and sparse",
        ),
        (
            json!({"first_k_dense_replace": "3"}),
            "first_k_dense_replace is \"3\", expected a whole number",
        ),
    ]);
}
