//! The rotary embedding: two ages of spelling, and the width that it turns.

use serde_json::{Value, json};

use super::{ABSENT, Row, accepted, refused};

#[test]
fn the_base_of_the_rotary_embedding_is_read_in_the_spellings_of_both_ages() {
    let theta = |value: Value| json!({"rotary_base": value.clone(), "model.rope_theta": value});
    let contradicts = "config.json: rope_theta contradicts rope_parameters.rope_theta; rope_parameters.rope_theta decides";
    accepted(&[
        Row::new(json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}), theta(json!(5e5))),
        Row::new(json!({"rope_parameters": {"rope_theta": 7}}), theta(json!(7))),
        Row::new(json!({"rope_parameters": {"rope_theta": 7, "rope_type": null}}), theta(json!(7))),
        Row::new(json!({"rope_parameters": {"rope_theta": 7, "type": "default"}}), theta(json!(7))),
        Row::new(json!({"rope_parameters": ABSENT, "rope_theta": 1e6}), theta(json!(1e6))),
        Row::new(json!({"rope_parameters": null, "rope_theta": 1e6, "rope_scaling": null}), theta(json!(1e6))),
        Row::new(json!({"rope_parameters": ABSENT, "rope_theta": 1e6, "rope_scaling": {"type": "default"}}), theta(json!(1e6))),
        Row::new(json!({"rope_parameters": ABSENT, "rope_theta": 1e6, "rope_scaling": {"rope_type": "default"}}), theta(json!(1e6))),
        Row::new(json!({"rope_parameters": ABSENT, "rope_scaling": {"rope_type": "default", "rope_theta": 1e6}}), theta(json!(1e6))),
        Row::new(json!({"rope_parameters": {"rope_type": "default"}, "rope_theta": 1e6}), theta(json!(1e6))),
        // The same number twice is no contradiction, however it is spelled.
        Row::same(json!({"rope_theta": 8e6, "rope_scaling": {"type": "default", "rope_theta": 8_000_000}})),
        Row::same(json!({"rope_theta": 1e4})).notice(contradicts),
        Row::same(json!({"rope_theta": "large"})).notice(contradicts),
        Row::same(json!({"rope_scaling": {"type": "default", "rope_theta": 2}})).notice(
            "config.json: rope_scaling.rope_theta contradicts rope_parameters.rope_theta; rope_parameters.rope_theta decides",
        ),
        Row::same(json!({"partial_rotary_factor": 1.0})),
        Row::same(json!({"rope_parameters": {"rope_theta": 8e6, "partial_rotary_factor": 1}})),
        // With this type nothing is scaled, so these mean nothing.
        Row::same(json!({
            "rope_parameters": {
                "rope_theta": 8e6, "rope_type": "default", "factor": 40, "mscale": 0.7, "beta_fast": 32,
                "original_max_position_embeddings": 4096, "attention_factor": 2,
            },
            "rope_scaling": {"type": "default", "factor": 4},
        }))
        .unread(&[
            "rope_parameters.factor",
            "rope_parameters.mscale",
            "rope_parameters.beta_fast",
            "rope_parameters.original_max_position_embeddings",
            "rope_parameters.attention_factor",
            "rope_scaling.factor",
        ]),
    ]);
    let theta =
        "rope_parameters.rope_theta is absent, expected a positive number here or in rope_theta";
    let default = "expected \"default\"";
    let mut rows = vec![
        (json!({"rope_parameters": ABSENT}), theta.to_owned()),
        (json!({"rope_parameters": {}}), theta.to_owned()),
        (
            json!({"rope_parameters": {"rope_theta": null}, "rope_theta": null}),
            theta.to_owned(),
        ),
        (
            json!({"rope_parameters": {"full_attention": {"rope_theta": 8e6}}}),
            theta.to_owned(),
        ),
        (
            json!({"rope_parameters": [8e6]}),
            "rope_parameters is [8000000.0], expected an object".to_owned(),
        ),
        (
            json!({"rope_scaling": 4}),
            "rope_scaling is 4, expected an object".to_owned(),
        ),
        (
            json!({"rope_scaling": {"factor": 4}}),
            format!("rope_scaling.rope_type is absent, {default}"),
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            "partial_rotary_factor is 0.5, expected 1".to_owned(),
        ),
        (
            json!({"partial_rotary_factor": "all"}),
            "partial_rotary_factor is \"all\", expected 1".to_owned(),
        ),
    ];
    for value in [json!(0), json!(-1e6), json!("8e6"), json!([1])] {
        let expected = |key: &str| format!("{key} is {value}, expected a positive number");
        rows.push((
            json!({"rope_parameters": {"rope_theta": value}}),
            expected("rope_parameters.rope_theta"),
        ));
        rows.push((
            json!({"rope_parameters": ABSENT, "rope_theta": value}),
            expected("rope_theta"),
        ));
    }
    for object in ["rope_parameters", "rope_scaling"] {
        for key in ["type", "rope_type"] {
            for value in ["yarn", "linear", "dynamic", "llama3", "longrope", "Default"] {
                let edits = json!({object: {key: value, "rope_theta": 8e6, "factor": 1.0}});
                rows.push((edits, format!("{object}.{key} is \"{value}\", {default}")));
            }
        }
        let edits =
            json!({object: {"type": "default", "rope_theta": 8e6, "partial_rotary_factor": 0.25}});
        rows.push((
            edits,
            format!("{object}.partial_rotary_factor is 0.25, expected 1"),
        ));
    }
    let rows: Vec<(Value, &str)> = rows
        .iter()
        .map(|(edits, text)| (edits.clone(), text.as_str()))
        .collect();
    refused(&rows);
}

/// On loading, some versions of transformers write `head_dim` over the rope width.
#[test]
fn the_rope_width_is_what_the_sum_leaves() {
    accepted(&[
        Row::same(json!({"qk_rope_head_dim": ABSENT})),
        Row::same(json!({"qk_head_dim": ABSENT})),
        Row::same(json!({"qk_rope_head_dim": 192, "head_dim": 192})).notice(
            "config.json: qk_rope_head_dim 192 is head_dim and contradicts qk_head_dim 40 - qk_nope_head_dim 24; the difference \
             16 decides",
        ),
        Row::same(json!({"qk_rope_head_dim": 24})).notice(
            "config.json: qk_rope_head_dim 24 is head_dim and contradicts qk_head_dim 40 - qk_nope_head_dim 24; the difference \
             16 decides",
        ),
        // Without the sum there is nothing to hold it against, and the tensors decide.
        Row::new(
            json!({"qk_head_dim": ABSENT, "qk_rope_head_dim": 24, "index_head_dim": 32}),
            json!({"qk_pos_emb_head_dim": 24, "kv_channels": 24, "model.qk_rope_head_dim": 24}),
        ),
    ]);
    refused(&[
        (
            json!({"qk_rope_head_dim": 18}),
            "qk_head_dim is 40, expected qk_nope_head_dim + qk_rope_head_dim = 24 + 18",
        ),
        (
            json!({"qk_rope_head_dim": 192, "head_dim": 64}),
            "qk_head_dim is 40, expected qk_nope_head_dim + qk_rope_head_dim = 24 + 192",
        ),
        (
            json!({"qk_rope_head_dim": 192, "head_dim": ABSENT}),
            "qk_head_dim is 40, expected qk_nope_head_dim + qk_rope_head_dim = 24 + 192",
        ),
        (
            json!({"qk_head_dim": 41}),
            "qk_head_dim is 41, expected qk_nope_head_dim + qk_rope_head_dim = 24 + 16",
        ),
        (
            json!({"qk_head_dim": 24}),
            "qk_head_dim is 24, expected qk_nope_head_dim + qk_rope_head_dim = 24 + 16",
        ),
        (
            json!({"qk_head_dim": 24, "qk_rope_head_dim": ABSENT}),
            "qk_head_dim is 24, expected more than qk_nope_head_dim 24",
        ),
        (
            json!({"qk_head_dim": 24, "qk_rope_head_dim": 192, "head_dim": 192}),
            "qk_head_dim is 24, expected qk_nope_head_dim + qk_rope_head_dim = 24 + 192",
        ),
        (
            json!({"qk_head_dim": 41, "qk_rope_head_dim": 17}),
            "qk_rope_head_dim is 17, expected an even rotary width up to 2147483648, not 17",
        ),
        (
            json!({"qk_head_dim": ABSENT, "qk_rope_head_dim": ABSENT}),
            "qk_rope_head_dim is absent, expected a whole number",
        ),
        (
            json!({"index_head_dim": 15}),
            "index_head_dim is 15, expected at least the rotary width 16",
        ),
        (
            json!({"qk_rope_head_dim": "wide"}),
            "qk_rope_head_dim is \"wide\", expected a whole number",
        ),
    ]);
}
