//! What the bits must not depend on: how a prompt is cut, whether positions are cached or computed again, what else is in the batch,
//! how many threads there are. In F32 and in BF16, bit for bit.

use std::sync::Arc;

use rialto_runtime::{
    Error, GenerateOptions, Model, Rows, Sampling, Session, SessionOptions, Tensor, Work, generate,
};

use crate::records::Golden;
use crate::world::{Load, MODELS, run, session, step};

/// Each model in both dtypes, with its tokens.
fn each(mut check: impl FnMut(&str, &Arc<Model>, &[u32])) {
    for (name, _) in MODELS {
        let tokens = Golden::open(name).tokens("input_ids");
        for load in [Load::default(), Load::bf16()] {
            check(name, &load.hugging_face(name), &tokens);
        }
    }
}

/// Logits of a sequence, with its tokens in pieces of these lengths, over and over.
fn in_pieces(model: &Arc<Model>, tokens: &[u32], lengths: &[usize]) -> Vec<u8> {
    let mut session = session(model, "forward");
    let sequence = session.begin();
    let (mut rest, mut logits) = (tokens, Vec::new());
    for &length in lengths.iter().cycle() {
        let (piece, after) = rest.split_at(length.min(rest.len()));
        if piece.is_empty() {
            return logits;
        }
        let found = step(&mut session, sequence, piece, &["logits"]).remove(0);
        logits.extend(found.bytes());
        rest = after;
    }
    unreachable!("a cycle does not end")
}

#[test]
fn a_prompt_in_pieces_of_any_size_is_the_prompt_at_once() {
    each(|name, model, tokens| {
        let whole = in_pieces(model, tokens, &[tokens.len()]);
        for length in 1..tokens.len() {
            let pieces = in_pieces(model, tokens, &[length]);
            assert!(pieces == whole, "{name} {model:?}: pieces of {length}");
        }
        assert!(
            in_pieces(model, tokens, &[1, 13, 2, 17]) == whole,
            "{name}: uneven pieces"
        );
    });
}

/// Lengths where something begins or ends: one token, one less than an indexer selects, as many, one more; and thousands.
#[test]
fn fc_65_prompts_of_critical_lengths_are_the_same_at_once_and_in_pieces() {
    for (name, lengths) in [
        ("glm52-tiny", &[1, 15, 16, 17, 63, 64, 65][..]),
        ("glm53-tiny", &[4097]),
        ("qwen3-tiny-tied", &[1, 63, 64, 65, 1025]),
    ] {
        for load in [Load::default(), Load::bf16()] {
            let model = load.hugging_face(name);
            let vocabulary = model.vocabulary().unwrap();
            for &length in lengths {
                // A walk through the vocabulary that does not repeat soon.
                let tokens = (0..length).map(|at: u64| (at * at + 7 * at) % vocabulary);
                let tokens: Vec<u32> = tokens.map(|token| token as u32).collect();
                let options = SessionOptions {
                    positions: 2 * (length + 64),
                    page_positions: 64,
                };
                let mut session = Session::new(Arc::clone(&model), "forward", &options).unwrap();
                let mut last = |piece: usize| {
                    let sequence = session.begin();
                    let mut logits = Vec::new();
                    for tokens in tokens.chunks(piece) {
                        let work = Work {
                            sequence,
                            tokens,
                            rows: Rows::Last,
                        };
                        let mut outputs = session.step(&[work], &[], &["logits"]).unwrap();
                        logits = outputs.take("logits").unwrap().bytes().to_vec();
                    }
                    session.end(sequence);
                    logits
                };
                let whole = last(tokens.len());
                let pieces = last(tokens.len().div_ceil(2).min(512));
                assert!(
                    whole == pieces,
                    "{name} in {}: {length} tokens",
                    load.activation
                );
                assert!(
                    whole
                        .as_chunks()
                        .0
                        .iter()
                        .all(|&value| f32::from_le_bytes(value).is_finite())
                );
            }
        }
    }
}

#[test]
fn cached_decoding_is_full_recomputation() {
    each(|name, model, tokens| {
        let mut cached = session(model, "forward");
        let sequence = cached.begin();
        step(&mut cached, sequence, &tokens[..20], &[]);
        for end in 21..=tokens.len() {
            let found = step(&mut cached, sequence, &tokens[end - 1..end], &["logits"]).remove(0);
            let recomputed = run(model, &tokens[..end], &["logits"]).remove(0);
            let last = &recomputed.bytes()[recomputed.bytes().len() - found.bytes().len()..];
            assert!(found.bytes() == last, "{name}: token {end}");
        }
    });
}

#[test]
fn a_sequence_in_a_ragged_batch_is_the_sequence_alone() {
    each(|name, model, tokens| {
        // Lengths around what an indexer selects, one token, and all: first together, then the rest of each in another order.
        let lengths = [1, 15, 16, 17, 33, 40];
        let mut batched = session(model, "forward");
        let sequences: Vec<_> = lengths.iter().map(|_| batched.begin()).collect();
        let texts: Vec<Vec<u32>> = lengths
            .iter()
            .map(|&length| tokens[tokens.len() - length..].to_vec())
            .collect();
        let mut found: Vec<Vec<u8>> = vec![Vec::new(); lengths.len()];
        for (half, order) in [(0, vec![0, 1, 2, 3, 4, 5]), (1, vec![4, 2, 5, 1, 3])] {
            let part = |number: usize| {
                let middle = texts[number].len().div_ceil(2);
                if half == 0 {
                    &texts[number][..middle]
                } else {
                    &texts[number][middle..]
                }
            };
            let work = order.iter().map(|&number| Work {
                sequence: sequences[number],
                tokens: part(number),
                rows: Rows::All,
            });
            let work: Vec<Work<'_>> = work.collect();
            let logits = batched
                .step(&work, &[], &["logits"])
                .unwrap()
                .take("logits")
                .unwrap();
            let row = logits.bytes().len() / logits.shape().extents()[0] as usize;
            let mut rest = logits.bytes();
            for &number in &order {
                let (own, after) = rest.split_at(row * part(number).len());
                found[number].extend(own);
                rest = after;
            }
            assert!(rest.is_empty());
        }
        for (text, found) in texts.iter().zip(&found) {
            let alone = run(model, text, &["logits"]).remove(0);
            assert!(
                alone.bytes() == found.as_slice(),
                "{name}: {} tokens",
                text.len()
            );
        }
    });
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for (name, _) in MODELS {
        let tokens = Golden::open(name).tokens("input_ids");
        for load in [Load::default(), Load::bf16()] {
            let logits = |threads| {
                let load = Load {
                    threads,
                    ..load.clone()
                };
                run(&load.hugging_face(name), &tokens, &["logits"]).remove(0)
            };
            let alone: Tensor = logits(1);
            assert!(
                logits(2) == alone && logits(8) == alone,
                "{name} in {}",
                load.activation
            );
        }
    }
}

#[test]
fn tokens_that_are_taken_back_leave_no_trace() {
    each(|name, model, tokens| {
        let mut session = session(model, "forward");
        let sequence = session.begin();
        let first = step(&mut session, sequence, &tokens[..30], &["logits"]).remove(0);
        for kept in [29, 17, 7, 0] {
            session.truncate(sequence, kept).unwrap();
            let other: Vec<u32> = tokens[..30].iter().map(|token| (token + 1) % 160).collect();
            step(&mut session, sequence, &other[kept as usize..], &[]);
            session.truncate(sequence, kept).unwrap();
            let again = step(
                &mut session,
                sequence,
                &tokens[kept as usize..30],
                &["logits"],
            )
            .remove(0);
            let row = first.bytes().len() / 30;
            assert!(
                again.bytes() == &first.bytes()[row * kept as usize..],
                "{name}: {kept}"
            );
        }
    });
}

#[test]
fn a_text_does_not_depend_on_the_other_texts_nor_on_the_size_of_a_step() {
    let model = Load::bf16().hugging_face("glm52-tiny");
    let tokens = Golden::open("glm52-tiny").tokens("input_ids");
    let prompts: Vec<Vec<u32>> = [3, 40, 1, 18]
        .map(|length| tokens[..length].to_vec())
        .to_vec();
    let sampling = Sampling {
        temperature: 0.8,
        top_k: 50,
        top_p: 0.95,
        min_p: 0.01,
        seed: 11,
    };
    let texts = |prompts: &[Vec<u32>], chunk_tokens| {
        let options = GenerateOptions {
            max_new_tokens: 12,
            sampling,
            chunk_tokens,
            ..GenerateOptions::default()
        };
        generate(
            &mut session(&model, "forward"),
            prompts,
            &options,
            &mut |_| true,
        )
        .unwrap()
    };
    let all = texts(&prompts, 512);
    for chunk_tokens in [1, 3, 7, 64] {
        assert_eq!(texts(&prompts, chunk_tokens), all, "{chunk_tokens}");
    }
    // Alone it is the first text, whose chance is another's: so only the first is compared.
    assert_eq!(texts(&prompts[..1], 512)[0], all[0]);
    assert_ne!(all[0].tokens, all[2].tokens);
}

#[test]
fn what_cannot_be_done_is_refused_and_leaves_sequences_as_they_were() {
    let model = Load::default().hugging_face("glm52-tiny");
    let tokens = Golden::open("glm52-tiny").tokens("input_ids");
    let options = SessionOptions {
        positions: 40,
        page_positions: 8,
    };
    let mut session = Session::new(Arc::clone(&model), "forward", &options).unwrap();
    let sequence = session.begin();
    let work = |tokens| Work {
        sequence,
        tokens,
        rows: Rows::All,
    };
    let first = step(&mut session, sequence, &tokens[..30], &["logits"]).remove(0);
    let full = session
        .step(&[work(&tokens[30..48])], &[], &[])
        .unwrap_err();
    assert_eq!(full.slug(), "backend/pages");
    let wrong = session.step(&[work(&[256])], &[], &[]).unwrap_err();
    assert!(matches!(
        wrong,
        Error::Token {
            token: 256,
            vocabulary: 256,
            ..
        }
    ));
    for work in [vec![], vec![work(&[])], vec![work(&[1]), work(&[2])]] {
        assert_eq!(
            session.step(&work, &[], &[]).unwrap_err().slug(),
            "runtime/step"
        );
    }
    let absent = session
        .step(&[work(&[1])], &[], &["layers.99.attn_out"])
        .unwrap_err();
    assert_eq!(absent.slug(), "program/absent");
    assert_eq!(session.positions(sequence).unwrap(), 30);
    session.end(sequence);
    assert_eq!(
        session.positions(sequence).unwrap_err().slug(),
        "runtime/step"
    );
    let sequence = session.begin();
    let again = step(&mut session, sequence, &tokens[..30], &["logits"]).remove(0);
    assert!(again == first);
    let missing = Session::new(model, "backward", &options).unwrap_err();
    assert_eq!(missing.slug(), "program/absent");
}
