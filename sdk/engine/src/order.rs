//! Names in the order people count: `layers.2` before `layers.10`.

use std::cmp::Ordering;

/// Compares names with runs of digits taken as numbers; names that differ only in leading zeros fall back to bytes.
pub(crate) fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    while !left.is_empty() && !right.is_empty() {
        let ((left_part, left_rest), (right_part, right_rest)) = (split(left), split(right));
        let both_numbers = is_number(left_part) && is_number(right_part);
        let order = if both_numbers {
            by_value(left_part, right_part)
        } else {
            left_part.cmp(right_part)
        };
        if order != Ordering::Equal {
            return order;
        }
        (left, right) = (left_rest, right_rest);
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// The leading run of digits or of anything else, and what follows it.
fn split(text: &str) -> (&str, &str) {
    let digits = is_number(text);
    let end = text
        .find(|c: char| c.is_ascii_digit() != digits)
        .unwrap_or(text.len());
    text.split_at(end)
}

fn is_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

fn by_value(a: &str, b: &str) -> Ordering {
    let (a, b) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layers_come_in_the_order_of_their_numbers() {
        let mut names = [
            "layers.10.a",
            "layers.2.b",
            "layers.2.a",
            "layers.2",
            "lm_head",
            "layers.02.a",
            "layers",
        ];
        names.sort_by(|a, b| natural(a, b));
        let expected = [
            "layers",
            "layers.2",
            "layers.02.a",
            "layers.2.a",
            "layers.2.b",
            "layers.10.a",
            "lm_head",
        ];
        assert_eq!(names, expected);
    }

    proptest! {
        #[test]
        fn it_is_a_total_order(a in "[a0-9.]{0,6}", b in "[a0-9.]{0,6}", c in "[a0-9.]{0,6}") {
            prop_assert_eq!(natural(&a, &b), natural(&b, &a).reverse());
            prop_assert_eq!(natural(&a, &b) == Ordering::Equal, a == b);
            if natural(&a, &b) != Ordering::Greater && natural(&b, &c) != Ordering::Greater {
                prop_assert!(natural(&a, &c) != Ordering::Greater);
            }
        }
    }
}
