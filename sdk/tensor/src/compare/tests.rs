use proptest::prelude::*;

use super::*;

fn compare(dtype: Dtype, bands: &[(&[u8], &[u8])]) -> Comparison {
    let mut comparison = Comparison::new(dtype);
    for (ours, theirs) in bands {
        comparison.add(ours, theirs).unwrap();
    }
    comparison
}

/// The difference between two elements, given by their bits.
fn pair(dtype: Dtype, ours: u64, theirs: u64) -> Difference {
    let width = dtype.size_bytes() as usize;
    let (ours, theirs) = (ours.to_le_bytes(), theirs.to_le_bytes());
    let comparison = compare(dtype, &[(&ours[..width], &theirs[..width])]);
    comparison.difference().expect("their bits differ")
}

#[test]
fn equal_bits_are_no_difference_nan_or_not() {
    let nan = f32::NAN.to_le_bytes();
    let comparison = compare(Dtype::F32, &[(&nan, &nan), (&[], &[]), (&[7; 8], &[7; 8])]);
    assert_eq!((comparison.elements(), comparison.difference()), (3, None));
}

#[test]
fn elements_are_counted_from_the_beginning_of_all_bands() {
    let same = vec![1; 3 * STRIDE];
    let mut other = same.clone();
    // In the second stride of the second band, and in its last element.
    other[STRIDE + 6] = 0;
    other[3 * STRIDE - 1] = 2;
    let comparison = compare(Dtype::I16, &[(&same, &same), (&other, &same)]);
    let difference = comparison.difference().unwrap();
    assert_eq!(comparison.elements(), 3 * STRIDE as u64);
    assert_eq!(difference.first, (3 * STRIDE / 2 + STRIDE / 2 + 3) as u64);
    assert_eq!(
        difference.first_values,
        (Value::Signed(0x100), Value::Signed(0x101))
    );
    assert_eq!(
        (difference.elements, difference.largest_ulps),
        (2, Some(0x100))
    );
}

#[test]
fn steps_are_counted_through_zero_and_over_powers_of_two() {
    let ulps = |dtype, a, b| pair(dtype, a, b).largest_ulps;
    assert_eq!(ulps(Dtype::Bf16, 0x0000, 0x8000), Some(0));
    assert_eq!(ulps(Dtype::Bf16, 0x0001, 0x8001), Some(2));
    assert_eq!(ulps(Dtype::Bf16, 0x3fff, 0x4000), Some(1));
    assert_eq!(ulps(Dtype::Bf16, 0x7f7f, 0x7f80), Some(1));
    assert_eq!(ulps(Dtype::F16, 0x3c00, 0x3c05), Some(5));
    assert_eq!(ulps(Dtype::F32, 0x8000_0001, 0x0000_0000), Some(1));
    assert_eq!(
        ulps(Dtype::F64, 0x7ff0 << 48, 0xfff0 << 48),
        Some(0xffe0 << 48)
    );
    assert_eq!(ulps(Dtype::F8E4m3, 0x7e, 0xfe), Some(0xfc));
    assert_eq!(ulps(Dtype::F8E5m2, 0x7b, 0x7c), Some(1));
    assert_eq!(ulps(Dtype::F8E8m0, 0x00, 0xfe), Some(0xfe));
    assert_eq!(
        ulps(Dtype::I64, i64::MIN as u64, i64::MAX as u64),
        Some(u64::MAX)
    );
    assert_eq!(ulps(Dtype::U64, 0, u64::MAX), Some(u64::MAX));
    assert_eq!(ulps(Dtype::Bool, 0, 1), Some(1));
}

#[test]
fn the_absolute_difference_is_that_of_the_values() {
    let absolute = |dtype, a, b| pair(dtype, a, b).largest_absolute;
    assert_eq!(absolute(Dtype::Bf16, 0x3f80, 0xbf80), Some(2.0));
    assert_eq!(absolute(Dtype::Bf16, 0x7f80, 0x3f80), Some(f64::INFINITY));
    assert_eq!(absolute(Dtype::F8E4m3, 0x7e, 0x7d), Some(32.0));
    assert_eq!(absolute(Dtype::F8E8m0, 127, 128), Some(1.0));
    assert_eq!(absolute(Dtype::I8, 0x80, 0x7f), Some(255.0));
    assert_eq!(absolute(Dtype::U32, 5, 3), Some(2.0));
}

#[test]
fn a_nan_has_no_distance_and_is_counted_where_it_stands_alone() {
    for (dtype, nan, other_nan, one) in [
        (Dtype::Bf16, 0x7fc0, 0xffff, 0x3f80),
        (Dtype::F16, 0x7e00, 0xfe01, 0x3c00),
        (Dtype::F32, 0x7fc0_0000, 0xff80_0001, 0x3f80_0000),
        (Dtype::F64, 0x7ff8 << 48, 0xfff0 << 48 | 1, 0x3ff0 << 48),
        (Dtype::F8E4m3, 0x7f, 0xff, 0x38),
        (Dtype::F8E5m2, 0x7e, 0xfd, 0x3c),
    ] {
        let alone = pair(dtype, one, nan);
        assert_eq!((alone.elements, alone.nans), (1, 1), "{dtype}");
        assert_eq!(
            (alone.largest_ulps, alone.largest_absolute),
            (None, None),
            "{dtype}"
        );
        assert_eq!(alone.first_values.0, Value::Float(1.0), "{dtype}");
        assert_eq!(alone.first_values.1.to_string(), "NaN", "{dtype}");
        let both = pair(dtype, other_nan, nan);
        assert_eq!(
            (both.elements, both.nans, both.largest_ulps),
            (1, 0, None),
            "{dtype}"
        );
    }
    assert_eq!(pair(Dtype::F8E8m0, 255, 254).nans, 1);
}

#[test]
fn the_largest_of_all_pairs_is_kept_wherever_it_stands() {
    let (ours, theirs) = ([1u8, 9, 5, 0], [2u8, 2, 5, 1]);
    for cut in 0..=4 {
        let bands = [
            (&ours[..cut], &theirs[..cut]),
            (&ours[cut..], &theirs[cut..]),
        ];
        let difference = compare(Dtype::U8, &bands).difference().unwrap();
        assert_eq!((difference.elements, difference.first), (3, 0));
        assert_eq!(
            (difference.largest_ulps, difference.largest_absolute),
            (Some(7), Some(7.0))
        );
    }
}

#[test]
fn values_print_with_the_digits_that_tell_them_apart() {
    for (value, text) in [
        (Value::Float(-0.0), "-0.0"),
        (Value::Float(1e-40), "1e-40"),
        (Value::Float(f64::NEG_INFINITY), "-inf"),
        (Value::Float(448.0), "448.0"),
        (Value::Signed(-5), "-5"),
        (Value::Unsigned(u64::MAX), "18446744073709551615"),
    ] {
        assert_eq!(value.to_string(), text);
    }
}

#[test]
fn bands_that_do_not_match_or_end_inside_an_element_are_refused_and_change_nothing() {
    let mut comparison = Comparison::new(Dtype::F32);
    let unequal = Err(Error::BandLength { ours: 8, theirs: 4 });
    assert_eq!(comparison.add(&[1; 8], &[2; 4]), unequal);
    assert!(comparison.add(&[1; 6], &[2; 6]).is_err());
    assert_eq!((comparison.elements(), comparison.difference()), (0, None));
}

proptest! {
    /// Against another way of counting: the numbers of a dtype in order, and the places of two of them.
    #[test]
    fn steps_are_places_in_the_ordered_list_of_numbers(ours in any::<u16>(), theirs in any::<u16>()) {
        let mut numbers: Vec<f32> = (0..=u16::MAX).map(bf16::decode).filter(|value| !value.is_nan()).collect();
        numbers.sort_by(f32::total_cmp);
        numbers.dedup();
        let place = |code: u16| numbers.iter().position(|&number| number == bf16::decode(code));
        if ours != theirs {
            let expected = place(ours).zip(place(theirs)).map(|(a, b)| a.abs_diff(b) as u64);
            prop_assert_eq!(pair(Dtype::Bf16, ours.into(), theirs.into()).largest_ulps, expected);
        }
    }

    #[test]
    fn cutting_into_bands_changes_nothing(
        pairs in proptest::collection::vec((any::<u16>(), any::<u16>(), any::<bool>()), 0..60), cut in 0usize..60,
    ) {
        let side = |pick: fn(&(u16, u16, bool)) -> u16| pairs.iter().flat_map(|pair| pick(pair).to_le_bytes()).collect::<Vec<u8>>();
        let (ours, theirs) = (side(|pair| pair.0), side(|pair| if pair.2 { pair.0 } else { pair.1 }));
        let cut = 2 * cut.min(pairs.len());
        let whole = compare(Dtype::F16, &[(&ours, &theirs)]);
        let parts = compare(Dtype::F16, &[(&ours[..cut], &theirs[..cut]), (&ours[cut..], &theirs[cut..])]);
        prop_assert_eq!(whole.elements(), parts.elements());
        // NaNs are unequal to themselves; what is printed is not.
        prop_assert_eq!(format!("{:?}", whole.difference()), format!("{:?}", parts.difference()));
    }
}
