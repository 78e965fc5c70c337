//! How many experts there are, and the choice among them.

use serde_json::json;

use super::{ABSENT, Row, accepted, refused};

/// Some versions of transformers add `num_experts` with a number that is the model's by accident only.
#[test]
fn the_experts_are_counted_by_their_own_key_and_by_another_only_without_it() {
    accepted(&[
        Row::same(json!({"num_experts": 8, "num_local_experts": 8})),
        Row::same(json!({"num_experts": 256})).notice(
            "config.json: num_experts 256 contradicts n_routed_experts 8; n_routed_experts 8 decides",
        ),
        Row::same(json!({"num_local_experts": "many", "num_experts": 9}))
            .notice("config.json: num_experts 9 contradicts n_routed_experts 8; n_routed_experts 8 decides")
            .notice("config.json: num_local_experts \"many\" contradicts n_routed_experts 8; n_routed_experts 8 decides"),
        Row::same(json!({"n_routed_experts": ABSENT, "num_experts": 8})),
        Row::same(json!({"n_routed_experts": null, "num_local_experts": 8})),
        Row::same(json!({"n_routed_experts": ABSENT, "num_local_experts": 8, "num_experts": 8})),
        Row::new(
            json!({"n_routed_experts": ABSENT, "num_local_experts": 256}),
            json!({"num_moe_experts": 256, "model.n_routed_experts": 256}),
        ),
    ]);
    let absent = "n_routed_experts is absent, expected a whole number here or in num_experts or num_local_experts";
    let disagree =
        "num_local_experts is 8, expected num_experts 256, as there is no n_routed_experts";
    refused(&[
        (json!({"n_routed_experts": ABSENT}), absent),
        (
            json!({"n_routed_experts": ABSENT, "num_experts": null}),
            absent,
        ),
        (
            json!({"n_routed_experts": ABSENT, "num_experts": 256, "num_local_experts": 8}),
            disagree,
        ),
        (
            json!({"n_routed_experts": ABSENT, "num_experts": 0}),
            "num_experts is 0, expected 1 to 65536",
        ),
        (
            json!({"n_routed_experts": 0, "num_experts": 8}),
            "n_routed_experts is 0, expected 1 to 65536",
        ),
        (
            json!({"n_routed_experts": 65_537}),
            "n_routed_experts is 65537, expected 1 to 65536",
        ),
        (
            json!({"n_routed_experts": "8"}),
            "n_routed_experts is \"8\", expected a whole number",
        ),
    ]);
}

#[test]
fn a_choice_of_groups_and_experts_must_be_one_that_can_be_made() {
    let groups = |groups: u64, chosen: u64| {
        json!({
            "moe_router_num_groups": groups, "moe_router_group_topk": chosen,
            "model.n_group": groups, "model.topk_group": chosen,
        })
    };
    accepted(&[
        Row::new(json!({"n_group": 4, "topk_group": 2}), groups(4, 2)),
        Row::new(
            json!({"n_group": 2, "topk_group": 2, "num_experts_per_tok": 8}),
            json!({
                "moe_router_num_groups": 2, "moe_router_group_topk": 2, "moe_router_topk": 8,
                "model.n_group": 2, "model.topk_group": 2, "model.num_experts_per_tok": 8,
            }),
        ),
        Row::new(
            json!({"n_group": 2, "topk_group": ABSENT}),
            json!({"moe_router_num_groups": 2, "model.n_group": 2}),
        ),
    ]);
    let divisor = |found: &str| {
        format!(
            "n_group is {found}, expected 1 or a divisor of 8 experts with at least 2 in each group"
        )
    };
    for found in [0, 3, 5, 8, 16] {
        refused(&[(
            json!({"n_group": found, "topk_group": 1}),
            &divisor(&found.to_string()),
        )]);
    }
    refused(&[
        (
            json!({"n_group": "1"}),
            "n_group is \"1\", expected a whole number",
        ),
        (
            json!({"topk_group": 0}),
            "topk_group is 0, expected 1 to n_group 1",
        ),
        (
            json!({"topk_group": 2}),
            "topk_group is 2, expected 1 to n_group 1",
        ),
        (
            json!({"n_group": 4, "topk_group": 5}),
            "topk_group is 5, expected 1 to n_group 4",
        ),
        (
            json!({"num_experts_per_tok": 9}),
            "num_experts_per_tok is 9, expected 1 to 8",
        ),
        (
            json!({"n_group": 4, "topk_group": 1}),
            "num_experts_per_tok is 3, expected 1 to 2",
        ),
        (
            json!({"n_group": 4, "topk_group": 2, "num_experts_per_tok": 5}),
            "num_experts_per_tok is 5, expected 1 to 4",
        ),
    ]);
}
