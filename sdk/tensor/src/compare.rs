//! Where two tensors of one dtype differ, and by how much, band by band.

use std::cmp::Ordering;
use std::fmt;

use crate::cast::whole_elements;
use crate::format::{bf16, e4m3, e5m2, f16, ue8m0};
use crate::{Dtype, Error};

/// Bytes that are compared at once before their elements are looked at; a multiple of every element size.
const STRIDE: usize = 4096;

/// An element as a number, to be shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Of a float of any dtype. Exact: all of them are numbers of an `f64`.
    Float(f64),
    /// Of a signed integer.
    Signed(i64),
    /// Of an unsigned integer, or a BOOL.
    Unsigned(u64),
}

impl fmt::Display for Value {
    /// Prints an integer as digits, a float with as many as tell it from its neighbors (`-0.0`, `1e-40`, `NaN`, `inf`).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Float(value) => write!(f, "{value:?}"),
            Value::Signed(value) => write!(f, "{value}"),
            Value::Unsigned(value) => write!(f, "{value}"),
        }
    }
}

/// Where two runs of elements differ: equal means equal bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// How many elements differ.
    pub elements: u64,
    /// The first that does, counted from the beginning of all bands.
    pub first: u64,
    /// The two values there, ours and theirs. Zeros of two signs, and NaNs of other bits, print alike and differ.
    pub first_values: (Value, Value),
    /// The largest distance in steps of the dtype: how often one goes to the next number of it to come from one value to the
    /// other, so 0 between zeros of two signs, and 1 from the largest number to infinity. Of integers, the difference.
    ///
    /// `None` if a NaN is in every pair that differs: it has no place among the numbers.
    pub largest_ulps: Option<u64>,
    /// The largest absolute difference of two values, rounded to an `f64`; `None` as for `largest_ulps`.
    pub largest_absolute: Option<f64>,
    /// Elements that are a NaN on exactly one side.
    pub nans: u64,
}

/// Compares two tensors of one dtype that come in bands.
///
/// ```
/// use rialto_tensor::{Comparison, Dtype};
///
/// let (ours, theirs) = ([0x3f80u16, 0x4000, 0x4040], [0x3f80u16, 0x4000, 0x4042]);
/// let mut comparison = Comparison::new(Dtype::Bf16);
/// comparison.add(ours.map(u16::to_le_bytes).as_flattened(), theirs.map(u16::to_le_bytes).as_flattened())?;
/// let difference = comparison.difference().expect("the last element differs");
/// assert_eq!((difference.elements, difference.first), (1, 2));
/// assert_eq!((difference.largest_ulps, difference.largest_absolute), (Some(2), Some(0.03125)));
/// assert_eq!(difference.first_values.1.to_string(), "3.03125");
/// # Ok::<(), rialto_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Comparison {
    dtype: Dtype,
    elements: u64,
    difference: Option<Difference>,
}

impl Comparison {
    /// A comparison that has seen nothing.
    #[must_use]
    pub fn new(dtype: Dtype) -> Comparison {
        Comparison {
            dtype,
            elements: 0,
            difference: None,
        }
    }

    /// Compares the next band of both sides: dense, little-endian, whole elements.
    ///
    /// Errors: [`Error::BandLength`] if one is longer than the other, [`Error::ViewLength`] if they end inside an element. The
    /// comparison is then as it was.
    pub fn add(&mut self, ours: &[u8], theirs: &[u8]) -> Result<(), Error> {
        if ours.len() != theirs.len() {
            return Err(Error::BandLength {
                ours: ours.len() as u64,
                theirs: theirs.len() as u64,
            });
        }
        whole_elements(self.dtype, ours)?;
        if ours != theirs {
            match self.dtype {
                Dtype::Bf16 => {
                    self.look(ours, theirs, |bits| Element::bf16(u16::from_le_bytes(bits)))
                }
                Dtype::F16 => {
                    self.look(ours, theirs, |bits| Element::f16(u16::from_le_bytes(bits)))
                }
                Dtype::F32 => {
                    self.look(ours, theirs, |bits| Element::f32(u32::from_le_bytes(bits)))
                }
                Dtype::F64 => {
                    self.look(ours, theirs, |bits| Element::f64(u64::from_le_bytes(bits)))
                }
                Dtype::F8E4m3 => self.look(ours, theirs, |[code]| {
                    Element::byte(code, e4m3::decode(code))
                }),
                Dtype::F8E5m2 => self.look(ours, theirs, |[code]| {
                    Element::byte(code, e5m2::decode(code))
                }),
                Dtype::F8E8m0 => self.look(ours, theirs, |[code]| Element::ue8m0(code)),
                Dtype::I8 => self.look(ours, theirs, |bits| {
                    Element::signed(i8::from_le_bytes(bits))
                }),
                Dtype::I16 => self.look(ours, theirs, |bits| {
                    Element::signed(i16::from_le_bytes(bits))
                }),
                Dtype::I32 => self.look(ours, theirs, |bits| {
                    Element::signed(i32::from_le_bytes(bits))
                }),
                Dtype::I64 => self.look(ours, theirs, |bits| {
                    Element::signed(i64::from_le_bytes(bits))
                }),
                Dtype::U8 | Dtype::Bool => {
                    self.look(ours, theirs, |[byte]| Element::unsigned(byte))
                }
                Dtype::U16 => self.look(ours, theirs, |bits| {
                    Element::unsigned(u16::from_le_bytes(bits))
                }),
                Dtype::U32 => self.look(ours, theirs, |bits| {
                    Element::unsigned(u32::from_le_bytes(bits))
                }),
                Dtype::U64 => self.look(ours, theirs, |bits| {
                    Element::unsigned(u64::from_le_bytes(bits))
                }),
            }
        }
        self.elements += ours.len() as u64 / self.dtype.size_bytes();
        Ok(())
    }

    /// How many elements have been seen.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Where the two sides differ; `None` if they have been equal so far.
    #[must_use]
    pub fn difference(&self) -> Option<Difference> {
        self.difference
    }

    /// Looks at every pair of a band that is known to differ somewhere.
    fn look<const N: usize>(
        &mut self,
        ours: &[u8],
        theirs: &[u8],
        element: impl Fn([u8; N]) -> Element,
    ) {
        let mut first = self.elements;
        for (ours, theirs) in ours.chunks(STRIDE).zip(theirs.chunks(STRIDE)) {
            if ours != theirs {
                let pairs = ours
                    .as_chunks::<N>()
                    .0
                    .iter()
                    .zip(theirs.as_chunks::<N>().0);
                for (index, (&ours, &theirs)) in (first..).zip(pairs) {
                    if ours != theirs {
                        self.note(index, element(ours), element(theirs));
                    }
                }
            }
            first += (STRIDE / N) as u64;
        }
    }

    fn note(&mut self, index: u64, ours: Element, theirs: Element) {
        let difference = self.difference.get_or_insert(Difference {
            elements: 0,
            first: index,
            first_values: (ours.value, theirs.value),
            largest_ulps: None,
            largest_absolute: None,
            nans: 0,
        });
        difference.elements += 1;
        let (Some(place), Some(other)) = (ours.place, theirs.place) else {
            difference.nans += u64::from(ours.place.is_some() || theirs.place.is_some());
            return;
        };
        let ulps = place.distance(other);
        let absolute = match (ours.value, theirs.value) {
            (Value::Float(a), Value::Float(b)) => (a - b).abs(),
            _ => ulps as f64,
        };
        let largest_ulps = difference.largest_ulps.get_or_insert(ulps);
        *largest_ulps = ulps.max(*largest_ulps);
        let largest_absolute = difference.largest_absolute.get_or_insert(absolute);
        *largest_absolute = absolute.max(*largest_absolute);
    }
}

/// The number of a value when those of its dtype are counted from zero.
#[derive(Clone, Copy)]
struct Place {
    is_negative: bool,
    magnitude: u64,
}

impl Place {
    /// Never overflows: a float's magnitudes have 63 bits, and an unsigned integer has no negative to be far from.
    fn distance(self, other: Place) -> u64 {
        match self.is_negative.cmp(&other.is_negative) {
            Ordering::Equal => self.magnitude.abs_diff(other.magnitude),
            _ => self.magnitude + other.magnitude,
        }
    }
}

/// What there is to say of one element.
#[derive(Clone, Copy)]
struct Element {
    value: Value,
    /// `None` for a NaN.
    place: Option<Place>,
}

impl Element {
    /// A float of `width` bits, the first of them its sign.
    fn float(bits: u64, width: u32, value: f64) -> Element {
        let sign = 1 << (width - 1);
        let place = Place {
            is_negative: bits & sign != 0,
            magnitude: bits & (sign - 1),
        };
        Element {
            value: Value::Float(value),
            place: (!value.is_nan()).then_some(place),
        }
    }

    fn byte(code: u8, value: f32) -> Element {
        Element::float(code.into(), 8, value.into())
    }

    fn bf16(code: u16) -> Element {
        Element::float(code.into(), 16, bf16::decode(code).into())
    }

    fn f16(code: u16) -> Element {
        Element::float(code.into(), 16, f16::decode(code).into())
    }

    fn f32(bits: u32) -> Element {
        Element::float(bits.into(), 32, f32::from_bits(bits).into())
    }

    fn f64(bits: u64) -> Element {
        Element::float(bits, 64, f64::from_bits(bits))
    }

    /// A power of two without a sign, so all 8 bits count.
    fn ue8m0(code: u8) -> Element {
        Element::float(code.into(), 9, ue8m0::decode(code).into())
    }

    fn signed(value: impl Into<i64>) -> Element {
        let value = value.into();
        let place = Place {
            is_negative: value < 0,
            magnitude: value.unsigned_abs(),
        };
        Element {
            value: Value::Signed(value),
            place: Some(place),
        }
    }

    fn unsigned(value: impl Into<u64>) -> Element {
        let value = value.into();
        let place = Place {
            is_negative: false,
            magnitude: value,
        };
        Element {
            value: Value::Unsigned(value),
            place: Some(place),
        }
    }
}

#[cfg(test)]
mod tests;
