use std::process::Command;

use super::*;
use crate::quant::block;
use crate::{Dtype, Shape, TensorView, cast};

#[test]
fn without_a_name_the_best_tier_is_taken_and_with_one_that_tier() {
    let available = Tier::available();
    assert_eq!(
        choose(None, &available).as_ref(),
        Ok(available.last().unwrap())
    );
    for tier in &available {
        assert_eq!(
            choose(Some(OsStr::new(tier.name())), &available).as_ref(),
            Ok(tier)
        );
    }
}

#[test]
fn a_name_that_is_none_and_a_tier_that_the_processor_lacks_are_refused_with_those_that_are_valid() {
    for name in ["avx9", "AVX2", "", "scalar ", "avx512", "avx2"] {
        let error = choose(Some(OsStr::new(name)), &[Tier::Scalar]).unwrap_err();
        let text = format!(
            "RIALTO_SIMD={name} names no instructions of this processor; valid here: scalar"
        );
        assert_eq!(
            (error.slug(), error.code(), error.to_string()),
            ("tensor/no-tier", 1, text)
        );
    }
}

/// Also what the test below looks at in processes of their own.
#[test]
fn this_process_says_its_tier() {
    let shape = Shape::new([1, 2]);
    let q = TensorView::new(Dtype::F8E4m3, &shape, &[0x38, 0xc0]).unwrap();
    let (one, scale) = (Shape::new([1, 1]), 0.5f32.to_le_bytes());
    let scale = TensorView::new(Dtype::F32, &one, &scale).unwrap();
    let (mut out, mut target) = ([0; 4], [0; 4]);
    let results = [
        block::dequantize(&q, &scale, [128, 128], &mut out),
        cast::cast_into(Dtype::Bf16, Dtype::F32, &[0x80, 0x3f], &mut target),
        cast::rounded(Dtype::F32, Dtype::Bf16, &[0; 4]).map(|_| ()),
    ];
    match check() {
        Ok(tier) => {
            assert!(results.iter().all(Result::is_ok), "{results:?}");
            assert_eq!(
                (out, f32::from_le_bytes(target)),
                ([0x00, 0x3f, 0x80, 0xbf], 1.0)
            );
            println!("tier: {tier}");
        }
        Err(error) => {
            assert!(
                results.iter().all(|result| *result == Err(error.clone())),
                "{results:?}"
            );
            assert_eq!((out, target), ([0; 4], [0; 4]), "a refusal writes nothing");
            println!("refused: {error}");
        }
    }
}

/// What a process says whose variable has this value.
fn said(value: Option<&str>) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "simd::tests::this_process_says_its_tier"]);
    child.args(["--nocapture", "--test-threads=1"]);
    child.env_remove(VARIABLE);
    if let Some(value) = value {
        child.env(VARIABLE, value);
    }
    let output = child.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{value:?}: {text}");
    text
}

#[test]
fn the_variable_is_obeyed_or_refused_by_a_process_and_by_every_loop_in_it() {
    let available = Tier::available();
    for name in ["scalar", "avx2", "avx512", "sse", ""] {
        let is_there = available.iter().any(|tier| tier.name() == name);
        let expected = if is_there {
            format!("tier: {name}\n")
        } else {
            format!(
                "refused: RIALTO_SIMD={name} names no instructions of this processor; valid here: scalar"
            )
        };
        assert!(
            said(Some(name)).contains(&expected),
            "{name}: {}",
            said(Some(name))
        );
    }
    let best = format!("tier: {}\n", available.last().unwrap());
    assert!(said(None).contains(&best));
}
