//! Beyond the limits of an adapter: more workgroups than an axis of a dispatch may have, and tensors that no binding and no buffer holds.

use rialto_backend::{OpCall, Registry, TensorType};
use rialto_program::op::{
    Argmax, Experts, Gqa, IndexerScores, Linear, LinearOut, MlaAbsorb, QuantizeBlock, Reduce,
    ReduceFunction, RmsNorm, Router, Sample, Scale, Scoring, Softmax, SparseMla,
};
use rialto_tensor::Dtype;
use rialto_tests::adapters::{adapters, core};
use rialto_tests::device::device_or_skip;
use rialto_wgpu::{Settings, WgpuDriver};

use crate::harness::Case;
use crate::input::Input;

/// One more than an axis of a dispatch may have, and one, so that the second line has two.
const GROUPS: u64 = 65_537;

/// Numbers that are not those of their neighbors, nor of the place 65,535 further on.
fn numbers(shape: &[u64]) -> Input {
    let count: u64 = shape.iter().product();
    let number = |at: u64| (at * 7919 % 1009) as f64 / 256.0 - 2.0;
    Input::floats(
        Dtype::F32,
        shape,
        &(0..count).map(number).collect::<Vec<_>>(),
    )
}

/// The same number for each row.
fn all(count: u64, value: f64) -> Input {
    Input::floats(Dtype::F32, &[count], &vec![value; count as usize])
}

fn zeros(shape: &[u64]) -> Input {
    let count: u64 = shape.iter().product();
    Input::ints(shape, &vec![0; count as usize])
}

/// A token for each workgroup, all of which have the one position of the one sequence that there is.
fn places() -> [Input; 3] {
    [zeros(&[GROUPS]), zeros(&[GROUPS]), zeros(&[1, 1])]
}

/// Calls with more workgroups than an axis may have: of each way to number them, and of shaders that a prompt of a long text makes as
/// large as that.
fn many_groups() -> Vec<(&'static str, Case)> {
    let f32s = |op: rialto_program::Op, inputs: Vec<Input>| Case::of(op, Dtype::F32, vec![inputs]);
    let with_places = |inputs: Vec<Input>| [inputs, places().to_vec()].concat();
    let rows = |columns: u64| numbers(&[GROUPS, columns]);
    let router = Router {
        scoring: Scoring::Sigmoid,
        top_k: 1,
        groups: 1,
        top_groups: 1,
        normalize: true,
        epsilon: 0.0,
        scale: 1.0,
    };
    // A tile has 32 rows at most.
    let many_rows = 32 * (GROUPS - 1) + 1;
    let linear = |t, n| {
        let out = LinearOut::Activation;
        f32s(
            Linear { out }.into(),
            vec![numbers(&[t, 1]), numbers(&[n, 1])],
        )
    };
    vec![
        // 64 elements a workgroup, and so all shaders that have a unit for each invocation.
        (
            "elementwise",
            f32s(Scale { factor: 2.0 }.into(), vec![numbers(&[64 * GROUPS])]),
        ),
        (
            "norm",
            f32s(RmsNorm { eps: 1e-5 }.into(), vec![rows(2), numbers(&[2])]),
        ),
        ("softmax", f32s(Softmax {}.into(), vec![rows(2)])),
        (
            "reduce",
            f32s(
                Reduce {
                    function: ReduceFunction::Sum,
                }
                .into(),
                vec![rows(2)],
            ),
        ),
        ("argmax", f32s(Argmax {}.into(), vec![rows(2)])),
        ("router", f32s(router.into(), vec![rows(2)])),
        // Four columns a workgroup.
        ("gemv", linear(1, 4 * GROUPS)),
        ("tile", linear(many_rows, 1)),
        (
            "columns",
            f32s(
                MlaAbsorb { value: 1 }.into(),
                vec![numbers(&[1, GROUPS, 1]), numbers(&[2 * GROUPS, 1])],
            ),
        ),
        (
            "gqa",
            f32s(
                Gqa {
                    groups: 1,
                    scale: 1.0,
                }
                .into(),
                with_places(vec![
                    numbers(&[GROUPS, 1, 2]),
                    numbers(&[1, 1, 2]),
                    numbers(&[1, 1, 2]),
                ]),
            ),
        ),
        (
            "sparse_mla",
            f32s(
                SparseMla { scale: 1.0 }.into(),
                with_places(vec![
                    numbers(&[GROUPS, 1, 1]),
                    numbers(&[GROUPS, 1, 2]),
                    zeros(&[GROUPS, 1]),
                    numbers(&[1, 1, 3]),
                ]),
            ),
        ),
        (
            "indexer_scores",
            f32s(
                IndexerScores {
                    scale: 1.0,
                    head_scale: 1.0,
                }
                .into(),
                with_places(vec![
                    numbers(&[GROUPS, 1, 2]),
                    numbers(&[GROUPS, 1]),
                    numbers(&[1, 1, 2]),
                ]),
            ),
        ),
        (
            "block_scales",
            f32s(
                QuantizeBlock {
                    block: [1, 1],
                    power_of_two: false,
                }
                .into(),
                vec![rows(1)],
            ),
        ),
    ]
}

const FOLD: &str = "const FOLD: u32 = 65535u;";

/// And each is found where a shader counts lines of another length.
#[test]
fn fc_61_more_workgroups_than_an_axis_may_have_are_folded() {
    let open = |driver: WgpuDriver| device_or_skip(&Registry::new().with(driver), "wgpu");
    let Some(device) = open(core()) else {
        return;
    };
    for (shader, case) in many_groups() {
        let verdict = case.check(&*device);
        verdict.unwrap_or_else(|reason| panic!("{shader}: {reason}"));
        let settings = Settings {
            edits: vec![(shader, FOLD, "const FOLD: u32 = 65536u;")],
            ..core().settings().clone()
        };
        let planted = open(WgpuDriver::with_settings(settings)).unwrap();
        assert!(
            case.check(&*planted).is_err(),
            "{shader}: not more than an axis may have"
        );
    }
}

/// How many workgroups an expert's tiles take is found on the device, by one shader for another: with lines of seven they agree, and where
/// only one of them has those the result is another.
#[test]
fn fc_61_workgroups_that_the_device_counts_are_folded() {
    let rows = 200;
    let weights = [[3, 24, 16], [3, 24, 16], [3, 16, 24]].map(|shape| numbers(&shape));
    let ids: Vec<i32> = (0..rows).map(|row| row % 3).collect();
    let rows = rows as u64;
    let given = vec![
        numbers(&[rows, 16]),
        Input::ints(&[rows, 1], &ids),
        Input::floats(Dtype::F32, &[rows, 1], &vec![1.0; rows as usize]),
    ];
    let case = Case::of(
        Experts {},
        Dtype::F32,
        vec![[given, weights.to_vec()].concat()],
    );
    let of_seven = |shader| (shader, FOLD, "const FOLD: u32 = 7u;");
    for (edits, agree) in [
        (vec![of_seven("permute"), of_seven("tile")], true),
        (vec![of_seven("permute")], false),
    ] {
        let settings = Settings {
            edits,
            ..core().settings().clone()
        };
        let registry = Registry::new().with(WgpuDriver::with_settings(settings));
        let Some(device) = device_or_skip(&registry, "wgpu") else {
            return;
        };
        let verdict = case.check(&*device);
        assert_eq!(verdict.is_ok(), agree, "{verdict:?}");
    }
}

/// The suite holds every operation on these adapters against the oracle; this shows that its tensors are in parts there.
#[test]
fn fc_62_tensors_beyond_a_binding_or_a_buffer_are_in_parts_and_give_the_same() {
    // Of the weight a row is 2 KiB; all of it 200 KiB, which is more than a buffer of the last adapter has.
    let shapes: [&[u64]; 3] = [&[9, 512], &[100, 512], &[9, 100]];
    let out = LinearOut::Activation;
    let inputs: Vec<Input> = shapes[..2].iter().map(|shape| numbers(shape)).collect();
    let case = Case::of(Linear { out }, Dtype::F32, vec![inputs]);
    let mut dispatches = Vec::new();
    for (name, driver) in adapters() {
        let registry = Registry::new().with(driver);
        let Some(device) = device_or_skip(&registry, "wgpu") else {
            return;
        };
        let verdict = case.check(&*device);
        verdict.unwrap_or_else(|reason| panic!("{name}: {reason}"));
        let [x, weight, y] = shapes.map(|shape| {
            device
                .allocate(&TensorType::new(Dtype::F32, shape))
                .unwrap()
        });
        let call = OpCall::new(
            Linear { out }.into(),
            vec![x.into(), weight.into()],
            vec![y],
        );
        let recording = device.record(vec![call.unwrap()]).unwrap();
        dispatches.push(recording.counts().dispatches);
    }
    // Three rows of the weight in 8 KiB from wherever a binding may begin: 34 parts, and as many again for the rows of x.
    assert_eq!(dispatches[..2], [1, 1]);
    assert!(dispatches[2] >= 34, "{dispatches:?}");
}

/// Mesa's software adapters end loops of an invocation after 65,535 rounds, all of them together, and go on. Sums and searches that need
/// more are in parts.
#[test]
fn what_takes_more_rounds_than_an_adapter_runs_is_whole() {
    let Some(device) = device_or_skip(&Registry::new().with(core()), "wgpu") else {
        return;
    };
    let f32s = |op: rialto_program::Op, inputs: Vec<Input>| Case::of(op, Dtype::F32, vec![inputs]);
    // Of positions that are all alike those at the end have the largest values.
    let (positions, width) = (40_000, 32);
    let ramp: Vec<f64> = (0..positions * width)
        .map(|at| (at / width) as f64)
        .collect();
    let rows = Input::floats(Dtype::F32, &[1, positions, width], &ramp);
    let attention = vec![
        numbers(&[1, 1, width]),
        Input::floats(Dtype::F32, &[1, positions, width], &vec![0.5; ramp.len()]),
        rows,
        zeros(&[1]),
        Input::ints(&[1], &[positions as i32 - 1]),
        zeros(&[1, 1]),
    ];
    let gqa = Gqa {
        groups: 1,
        scale: 1.0,
    };
    let out = LinearOut::Activation;
    let linear = |t| vec![numbers(&[t, 1_000_000]), numbers(&[2, 1_000_000])];
    // The last of a vocabulary that is larger than that of any model, with a sixth of the likelihood of those that are kept.
    let tokens = 400_000;
    let mut logits = vec![0.0; tokens as usize];
    logits[tokens as usize - 1] = 11.0;
    let sampled = vec![
        Input::floats(Dtype::F32, &[1, tokens], &logits),
        all(1, 1.0),
        Input::ints(&[1], &[300_000]),
        all(1, 1.0),
        all(1, 1e-6),
        all(1, 0.1),
    ];
    for case in [
        f32s(gqa.into(), attention),
        f32s(Linear { out }.into(), linear(1)),
        f32s(Linear { out }.into(), linear(33)),
        f32s(Sample {}.into(), sampled),
    ] {
        let verdict = case.check(&*device);
        verdict.unwrap_or_else(|reason| panic!("{reason}"));
    }
    // And what cannot be in parts is refused, not cut off.
    let [x, y] = [&[1, 4_000_000], &[1, 4_000_000]].map(|shape: &[u64; 2]| {
        let tensor = TensorType::new(Dtype::F32, *shape);
        device.allocate(&tensor).unwrap()
    });
    let call = OpCall::new(Softmax {}.into(), vec![x.into()], vec![y]).unwrap();
    let error = device.record(vec![call]).err().unwrap();
    assert_eq!(error.slug(), "backend/unsupported-element");
}

/// Where a part ends is a matter of what shares it: heads, scales, and how far a workgroup may go.
#[test]
fn parts_end_where_everything_that_they_need_fits() {
    let f32s = |op: rialto_program::Op, inputs: Vec<Input>| Case::of(op, Dtype::F32, vec![inputs]);
    // A head so wide that the rounds of a workgroup come out even.
    let (positions, width) = (8_000, 112);
    let gqa = Gqa {
        groups: 1,
        scale: 0.1,
    };
    let attention = vec![
        numbers(&[1, 1, width]),
        numbers(&[1, positions, width]),
        numbers(&[1, positions, width]),
        zeros(&[1]),
        Input::ints(&[1], &[positions as i32 - 1]),
        zeros(&[1, 1]),
    ];
    // As many scales as elements, which are half as large.
    let quantized = QuantizeBlock {
        block: [1, 1],
        power_of_two: false,
    };
    let halves = numbers(&[40, 100]).values();
    let halves = Input::floats(Dtype::Bf16, &[40, 100], &halves);
    for (name, driver) in adapters() {
        let registry = Registry::new().with(driver);
        let Some(device) = device_or_skip(&registry, "wgpu") else {
            return;
        };
        let mut cases = vec![f32s(quantized.into(), vec![halves.clone()])];
        // The rounds are those of all positions where these are bound at once.
        if device.capabilities().max_piece_bytes > Some(512 << 10) {
            cases.push(f32s(gqa.into(), attention.clone()));
        }
        for case in cases {
            let verdict = case.check(&*device);
            verdict.unwrap_or_else(|reason| panic!("{name}: {reason}"));
        }
        // One head, whose matrix is as high as it is wide: it is summed down, and its rows are no columns of the result. Where it cannot be
        // bound it is refused, which the check allows.
        let op = MlaAbsorb { value: 32 };
        let square = f32s(op.into(), vec![numbers(&[2, 1, 32]), numbers(&[64, 64])]);
        let verdict = square.check(&*device);
        verdict.unwrap_or_else(|reason| panic!("{name}: {reason}"));
    }
}
