//! `append`.

use rialto_backend::Backend;
use rialto_program::op::Append;
use rialto_tensor::Dtype;
use rialto_tests::shapes;

use super::{ACTIVATIONS, f32s};
use crate::harness::{Case, Verdict};
use crate::input::{Input, Step};

checks![
    every_step_and_type_writes_its_rows_and_nothing_else,
    rows_of_a_long_sequence_are_where_their_pages_are,
    padding_writes_nothing,
    a_position_without_a_page_is_not_written,
];

/// The whole cache is compared byte for byte: what is no token's stays as it was, NaN for the most part.
fn every_step_and_type_writes_its_rows_and_nothing_else(backend: &dyn Backend) -> Verdict {
    for shape in shapes::STEPS {
        for of_row in [vec![1], vec![7], vec![2, 3, 4], vec![576]] {
            every_type(&shape, &of_row, backend)?;
        }
    }
    Ok(())
}

fn rows_of_a_long_sequence_are_where_their_pages_are(backend: &dyn Backend) -> Verdict {
    every_type(&shapes::LONG, &[7], backend)
}

fn every_type(shape: &shapes::StepShape, of_row: &[u64], backend: &dyn Backend) -> Verdict {
    for rows in ACTIVATIONS {
        for cache in ACTIVATIONS {
            let width = of_row.iter().product();
            let case = Case::new(Append {}, rows, |maker, set| {
                let step = Step::new(maker, shape, set == 1);
                let t = [shape.tokens()];
                let rows = maker.activations(&[&t[..], of_row].concat());
                let cache = step.cache(maker, cache, width);
                [vec![rows, cache], step.places().to_vec()].concat()
            });
            case.check(backend)?;
        }
    }
    Ok(())
}

/// Two pages of two positions; the cache is -1, -2, .. before.
fn by_hand(
    backend: &dyn Backend,
    [seqs, positions]: [&[i32]; 2],
    table: &[i32],
    expected: [f64; 4],
) -> Verdict {
    let t = [seqs.len() as u64];
    let rows: Vec<f64> = (1..=t[0]).map(|row| row as f64).collect();
    let inputs = vec![
        f32s(&[t[0], 1], &rows),
        f32s(&[2, 2, 1], &[-1.0, -2.0, -3.0, -4.0]),
        Input::ints(&t, seqs),
        Input::ints(&t, positions),
        Input::ints(&[1, table.len() as u64], table),
    ];
    let after = f32s(&[2, 2, 1], &expected);
    let case = Case::of(Append {}, Dtype::F32, vec![inputs]);
    case.expect_written(backend, (1, after.bytes))
}

fn padding_writes_nothing(backend: &dyn Backend) -> Verdict {
    by_hand(
        backend,
        [&[-1, 0, -1], &[0, 3, 1]],
        &[1, 0],
        [-1.0, 2.0, -3.0, -4.0],
    )
}

fn a_position_without_a_page_is_not_written(backend: &dyn Backend) -> Verdict {
    // The second page is none, and position 4 is beyond the table.
    by_hand(
        backend,
        [&[0, 0, 0], &[1, 2, 4]],
        &[1, -1],
        [-1.0, -2.0, -3.0, 1.0],
    )
}
