use crate::op::{IndexerScores, SparseMla};
use crate::{Builder, Call, Element, Error, Program, ValueDecl, ValueType};

/// Two layers of sparse attention over one matrix, the second of which uses the selection of the first.
fn shared() -> Program {
    let mut program = Builder::new();
    let table = program.param("embed", [11, 8]);
    let keys = program.cache("keys", 8);
    let mut forward = program.phase("forward");
    let mut x = forward.embed("hidden.0", &table);
    let weights = forward.linear_f32("weights", &x, &table);
    let weights = forward.slice("weights.one", &weights, 0, 1);
    let q = forward.reshape("q", &x, [1, 8]);
    forward.append(&x, &keys);
    let op = IndexerScores {
        scale: 1.0,
        head_scale: 1.0,
    };
    let scores = forward.indexer_scores("scores", (&q, &weights), &keys, op);
    let picked = forward.topk("layers.0.selection", &scores, 4);
    for layer in 0..2 {
        let latents = forward.program().cache(&format!("latents.{layer}"), 8);
        forward.append(&x, &latents);
        let parts = [(0, 6), (6, 2)].map(|(start, length)| {
            let part = forward.slice(&format!("part.{layer}.{start}"), &x, start, length);
            forward.reshape(&format!("q.{layer}.{start}"), &part, [1, length])
        });
        let name = format!("layers.{layer}.attended");
        let out = forward.sparse_mla(&name, (&parts[0], &parts[1]), &picked, &latents, 0.5);
        let out = forward.reshape(&format!("out.{layer}"), &out, [6]);
        let rope = forward.slice(&format!("rope.{layer}"), &x, 6, 2);
        let out = forward.concat(&format!("joined.{layer}"), &out, &rope);
        x = forward.add(&format!("hidden.{}", layer + 1), &x, &out);
        forward.stream(&x);
    }
    let last = forward.gather("last", &x, "rows");
    let logits = forward.linear_f32("logits", &last, &table);
    forward.output(&logits);
    program.finish_unchecked()
}

fn faults(program: &Program) -> Vec<String> {
    match program.check() {
        Ok(_) => Vec::new(),
        Err(error @ Error::Unsound { .. }) => error.findings(),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_sound_program_has_a_type_for_every_value() {
    let program = shared();
    let types = program.check().unwrap();
    assert_eq!(
        types[0]["layers.0.selection"].to_string(),
        "I32 [tokens, 4]"
    );
    assert_eq!(types[0]["logits"].to_string(), "F32 [rows, 11]");
    assert_eq!(program.requirements().len(), 11);
    let text = serde_json::to_string(&program).unwrap();
    assert_eq!(serde_json::from_str::<Program>(&text).unwrap(), program);
}

/// Each kind of fault, planted into the program above: exactly that one is told.
#[test]
fn every_kind_of_fault_is_found_and_no_other_is_told() {
    type Plant = (&'static str, fn(&mut Program), &'static str);
    fn call<'a>(program: &'a mut Program, op: &str) -> &'a mut Call {
        program.phases[0]
            .calls
            .iter_mut()
            .find(|call| call.op == op)
            .unwrap()
    }
    let plants: &[Plant] = &[
        (
            "no inputs",
            |p| call(p, "rialto.binary/1").inputs.clear(),
            "2 inputs expected",
        ),
        (
            "a value that nobody reads",
            |p| {
                let mut more = call(p, "rialto.linear/1").clone();
                more.outputs[0] = "more".to_owned();
                p.phases[0].calls.push(more);
            },
            "nothing reads more",
        ),
        (
            "a cache that nobody writes",
            |p| {
                let calls = &mut p.phases[0].calls;
                let append = calls.iter().position(|call| call.op == "rialto.append/1");
                calls.remove(append.unwrap());
            },
            "no call writes cache \"keys\"",
        ),
        (
            "misspelled value",
            |p| call(p, "rialto.topk/1").inputs[0] = "score".to_owned(),
            "\"score\" is no param",
        ),
        (
            "a later value",
            |p| call(p, "rialto.reshape/1").inputs[0] = "logits".to_owned(),
            "no value made before",
        ),
        (
            "made twice",
            |p| call(p, "rialto.linear/1").outputs[0] = "hidden.0".to_owned(),
            "\"hidden.0\" is taken",
        ),
        (
            "a step's name",
            |p| call(p, "rialto.topk/1").outputs[0] = "rows".to_owned(),
            "\"rows\" is taken",
        ),
        ("wrong width", |p| p.caches[0].width = 9, "keys of 9"),
        (
            "no cache",
            |p| call(p, "rialto.append/1").inputs[1] = "hidden.0".to_owned(),
            "is no cache",
        ),
        (
            "cache as value",
            |p| call(p, "rialto.linear/1").inputs[0] = "keys".to_owned(),
            "is a cache",
        ),
        (
            "bad attribute",
            |p| {
                call(p, "rialto.topk/1")
                    .with
                    .insert("k".to_owned(), 0.into());
            },
            "k is 0",
        ),
        (
            "unknown attribute",
            |p| {
                call(p, "rialto.topk/1")
                    .with
                    .insert("x".to_owned(), 0.into());
            },
            "unknown field",
        ),
        (
            "unused param",
            |p| {
                let mut more = p.params[0].clone();
                more.name = "more".to_owned();
                p.params.push(more);
            },
            "no call names param \"more\"",
        ),
        (
            "unused cache",
            |p| {
                let mut more = p.caches[0].clone();
                more.name = "more".to_owned();
                p.caches.push(more);
            },
            "no call names cache \"more\"",
        ),
        (
            "two params of a name",
            |p| {
                let mut more = p.params[0].clone();
                more.shape[0] = 12;
                p.params.insert(0, more);
            },
            "\"embed\" is taken",
        ),
        (
            "a stack without end",
            |p| {
                p.params[0].stored = crate::Stored::Each("e.{}".to_owned());
                p.params[0].shape[0] = u64::MAX;
            },
            "at most 1048576 are read",
        ),
        (
            "integers for params",
            |p| p.params[0].element = Element::I32,
            "expected F32 or activation",
        ),
        (
            "an output nobody makes",
            |p| p.phases[0].outputs.push("fame".to_owned()),
            "output \"fame\"",
        ),
        (
            "a stream nobody makes",
            |p| p.phases[0].stream.push("fame".to_owned()),
            "stream \"fame\"",
        ),
        (
            "no output",
            |p| p.phases[0].outputs.clear(),
            "it leaves nothing",
        ),
        (
            "no phase",
            |p| {
                p.phases.clear();
                p.params.clear();
                p.caches.clear();
            },
            "it has no phase",
        ),
    ];
    for (name, plant, expected) in plants {
        let mut program = shared();
        plant(&mut program);
        let found = faults(&program);
        assert!(
            found.iter().any(|fault| fault.contains(expected)),
            "{name}: {found:?}"
        );
        let more: Vec<&String> = found
            .iter()
            .filter(|fault| !fault.contains(expected))
            .collect();
        // Beside it only what follows from it: a value that is not made, a width or a type that another call reads, too.
        let follows = |fault: &&String| {
            [
                "no value made before",
                "of 9",
                "the cache 9",
                "table is I32",
            ]
            .iter()
            .any(|part| fault.contains(part))
        };
        assert!(
            more.len() <= 2 && more.iter().all(follows),
            "{name}: {found:?}"
        );
    }
}

#[test]
fn a_layer_that_shares_indices_names_a_selection_made_before_it() {
    let mut program = shared();
    let phase = &mut program.phases[0];
    phase.inputs.push(ValueDecl {
        name: "given".to_owned(),
        value: ValueType::new(Element::I32, [crate::Dim::Tokens, 4.into()]),
        carried: None,
    });
    let at = phase
        .calls
        .iter()
        .rposition(|call| call.op == "rialto.sparse_mla/1")
        .unwrap();
    phase.calls[at].inputs[2] = "given".to_owned();
    assert_eq!(faults(&program), [] as [String; 0]);
    // The type alone is no proof: experts are chosen by lists of the same type.
    let router = serde_json::json!({"op": "rialto.router/1", "in": ["weights"], "out": ["ids", "shares"],
        "with": {"scoring": "sigmoid", "top_k": 4, "normalize": true, "scale": 1.0}});
    let phase = &mut program.phases[0];
    let after = phase
        .calls
        .iter()
        .position(|call| call.outputs == ["weights"])
        .unwrap()
        + 1;
    phase
        .calls
        .insert(after, serde_json::from_value(router).unwrap());
    phase.calls[at + 1].inputs[2] = "ids".to_owned();
    let found = faults(&program);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("\"ids\" are no selection"), "{found:?}");
    // Not yet made where it is used.
    let mut program = shared();
    let topk = program.phases[0]
        .calls
        .iter()
        .position(|call| call.op == "rialto.topk/1")
        .unwrap();
    let call = program.phases[0].calls.remove(topk);
    program.phases[0].calls.push(call);
    let found = faults(&program);
    assert!(found[0].contains("layers.0.selection"), "{found:?}");
}

/// A second phase that is given what the first leaves.
#[test]
fn what_is_carried_is_an_output_of_the_phase_it_names_and_of_its_type() {
    let with = |of: (&str, &str), width: u64| {
        let mut program = Builder::new();
        let table = program.param("embed", [11, 8]);
        let mut forward = program.phase("forward");
        let x = forward.embed("hidden", &table);
        let wide = forward.linear("wide", &x, &table);
        forward.output(&x);
        forward.output(&wide);
        let mut draft = program.phase("draft");
        let value = ValueType::new(Element::Activation, [crate::Dim::Tokens, width.into()]);
        let given = draft.carried("given", value, of);
        let next = draft.embed("next", &table);
        let both = draft.add("both", &next, &given);
        draft.output(&both);
        faults(&program.finish_unchecked())
    };
    assert_eq!(with(("forward", "hidden"), 8), [] as [String; 0]);
    // From itself, a step before.
    assert_eq!(with(("draft", "both"), 8), [] as [String; 0]);
    for of in [
        ("forward", "fame"),
        ("backward", "hidden"),
        ("draft", "next"),
    ] {
        let found = with(of, 8);
        assert!(
            found.len() == 1 && found[0].contains("does not leave"),
            "{found:?}"
        );
    }
    let found = with(("forward", "wide"), 8);
    assert!(
        found.len() == 1 && found[0].contains("[tokens, 11]"),
        "{found:?}"
    );
}

#[test]
fn an_operation_of_a_later_version_is_named_and_is_no_fault() {
    let mut program = shared();
    program.phases[0].calls.last_mut().unwrap().op = "rialto.linear/2".to_owned();
    let error = program.check().unwrap_err();
    assert_eq!(
        error,
        Error::UnknownOp {
            op: "rialto.linear/2".to_owned()
        }
    );
    assert!(error.help().is_some());
}

#[test]
fn names_of_attributes_are_those_of_the_struct() {
    let op = crate::Op::from(SparseMla { scale: 0.0625 });
    assert_eq!(
        serde_json::to_string(&op.attributes()).unwrap(),
        r#"{"scale":0.0625}"#
    );
}

mod excerpts {
    use super::*;

    #[test]
    fn an_excerpt_has_what_lies_between_given_and_wanted() {
        let program = shared();
        let layer = program
            .excerpt(
                "forward",
                &["hidden.1", "layers.0.selection"],
                &["hidden.2"],
            )
            .unwrap();
        let calls: Vec<&str> = layer.phases[0]
            .calls
            .iter()
            .map(|call| call.op.as_str())
            .collect();
        assert_eq!(
            calls.iter().filter(|op| **op == "rialto.append/1").count(),
            1
        );
        assert_eq!(
            calls
                .iter()
                .filter(|op| **op == "rialto.sparse_mla/1")
                .count(),
            1
        );
        assert!(!calls.contains(&"rialto.topk/1"));
        assert_eq!(layer.caches.len(), 1);
        assert!(layer.params.is_empty());
        let names: Vec<&str> = layer.phases[0]
            .inputs
            .iter()
            .map(|input| input.name.as_str())
            .collect();
        assert_eq!(names, ["hidden.1", "layers.0.selection"]);
        // With nothing given it is all that the wanted value needs.
        let all = program.excerpt("forward", &[], &["logits"]).unwrap();
        assert_eq!(all.phases[0].calls.len(), program.phases[0].calls.len());
        let absent = program
            .excerpt("forward", &["hidden.9"], &["logits"])
            .unwrap_err();
        assert_eq!(absent.slug(), "program/absent");
        assert_eq!(
            program.excerpt("mtp", &[], &[]).unwrap_err().slug(),
            "program/absent"
        );
    }
}
