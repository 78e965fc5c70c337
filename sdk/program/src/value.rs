//! What is known of a value before it exists: its element type and its shape.

use std::fmt;

use rialto_tensor::Dtype;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The type of an element.
///
/// A program does not fix the precision that a model runs in: its activations are [`Element::Activation`], F32 or BF16, which is
/// chosen when it is loaded. In JSON `"activation"`, or the name of a dtype such as `"F32"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// F32 or BF16, one for a whole run.
    Activation,
    /// This dtype, whatever the run.
    Of(Dtype),
}

impl Element {
    /// 32-bit floats.
    pub const F32: Element = Element::Of(Dtype::F32);
    /// Token ids, positions, indices.
    pub const I32: Element = Element::Of(Dtype::I32);

    /// Whether operations may compute with it as it is: F32, BF16, or either.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(
            self,
            Element::Activation | Element::Of(Dtype::F32 | Dtype::Bf16)
        )
    }

    /// Whether a value of the other may stand where this is expected: the same, or one that activations may be.
    #[must_use]
    pub fn admits(self, other: Element) -> bool {
        self == other || self == Element::Activation && other.is_float()
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Activation => f.write_str("activation"),
            Element::Of(dtype) => dtype.fmt(f),
        }
    }
}

impl Serialize for Element {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Element, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "activation" => Ok(Element::Activation),
            name => name.parse().map(Element::Of).map_err(de::Error::custom),
        }
    }
}

/// One extent of a shape: a number of the model, or one that is known at a step only. In JSON a number, or the name of the extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dim {
    /// Tokens of the step, over all its sequences.
    Tokens,
    /// Tokens of the step whose logits are wanted.
    Rows,
    /// Sequences of the step.
    Sequences,
    /// Columns of the page table: pages of the longest sequence.
    Pages,
    /// Positions that the columns of the page table cover.
    Context,
    /// Pages of a cache, of all sequences.
    Pool,
    /// Positions of a page.
    Page,
    /// Elements that the model fixes.
    #[serde(untagged)]
    Size(u64),
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dim::Tokens => "tokens",
            Dim::Rows => "rows",
            Dim::Sequences => "sequences",
            Dim::Pages => "pages",
            Dim::Context => "context",
            Dim::Pool => "pool",
            Dim::Page => "page",
            Dim::Size(size) => return size.fmt(f),
        })
    }
}

impl From<u64> for Dim {
    fn from(size: u64) -> Dim {
        Dim::Size(size)
    }
}

/// How many there are of each extent that only a step knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extents {
    /// [`Dim::Tokens`].
    pub tokens: u64,
    /// [`Dim::Rows`].
    pub rows: u64,
    /// [`Dim::Sequences`].
    pub sequences: u64,
    /// [`Dim::Pages`].
    pub pages: u64,
    /// [`Dim::Pool`].
    pub pool: u64,
    /// [`Dim::Page`]; the positions of [`Dim::Context`] are as many times [`Extents::pages`].
    pub page: u64,
}

impl Extents {
    /// The number that an extent is at this step. `None` if it is beyond `u64`.
    #[must_use]
    pub fn of(&self, dim: Dim) -> Option<u64> {
        Some(match dim {
            Dim::Tokens => self.tokens,
            Dim::Rows => self.rows,
            Dim::Sequences => self.sequences,
            Dim::Pages => self.pages,
            Dim::Context => return self.pages.checked_mul(self.page),
            Dim::Pool => self.pool,
            Dim::Page => self.page,
            Dim::Size(size) => size,
        })
    }
}

/// Element type and shape, row-major, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueType {
    /// The elements.
    pub element: Element,
    /// The extents.
    pub shape: Vec<Dim>,
    /// Rows and columns of a block, if these are the codes of a block-scaled matrix: `[.., n, k]` codes with
    /// `[.., ceil(n/rows), ceil(k/columns)]` F32 scales beside them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<[u64; 2]>,
}

impl ValueType {
    /// Elements of a shape, stored as they are.
    pub fn new<D: Into<Dim>>(element: Element, shape: impl IntoIterator<Item = D>) -> ValueType {
        ValueType {
            element,
            shape: shape.into_iter().map(Into::into).collect(),
            block: None,
        }
    }

    /// The same with another last extent.
    #[must_use]
    pub fn with_last(&self, last: Dim) -> ValueType {
        let mut shape = self.shape.clone();
        if let Some(dim) = shape.last_mut() {
            *dim = last;
        }
        ValueType {
            shape,
            ..self.clone()
        }
    }

    /// The same in another element type.
    #[must_use]
    pub fn with_element(&self, element: Element) -> ValueType {
        ValueType {
            element,
            ..self.clone()
        }
    }

    /// Whether a value of the other type may stand where this is expected.
    #[must_use]
    pub fn admits(&self, other: &ValueType) -> bool {
        self.element.admits(other.element) && self.shape == other.shape && self.block == other.block
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [", self.element)?;
        for (position, dim) in self.shape.iter().enumerate() {
            write!(f, "{}{dim}", if position > 0 { ", " } else { "" })?;
        }
        f.write_str("]")?;
        match self.block {
            Some([rows, columns]) => write!(f, " in blocks of {rows} by {columns}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_the_same_after_json_and_prints_as_people_write_it() {
        let scores = ValueType::new(Element::F32, [Dim::Tokens, Dim::Context]);
        let text = serde_json::to_string(&scores).unwrap();
        assert_eq!(text, r#"{"element":"F32","shape":["tokens","context"]}"#);
        assert_eq!(serde_json::from_str::<ValueType>(&text).unwrap(), scores);
        let x = ValueType::new(Element::Activation, [Dim::Tokens, Dim::Size(64)]);
        let text = serde_json::to_string(&x).unwrap();
        assert_eq!(text, r#"{"element":"activation","shape":["tokens",64]}"#);
        assert_eq!(serde_json::from_str::<ValueType>(&text).unwrap(), x);
        assert_eq!(x.to_string(), "activation [tokens, 64]");
        assert!(serde_json::from_str::<Dim>("\"weeks\"").is_err());
    }

    #[test]
    fn activations_admit_either_float_and_nothing_else() {
        for (element, admitted) in [
            (Element::F32, true),
            (Element::Of(Dtype::Bf16), true),
            (Element::Activation, true),
            (Element::I32, false),
            (Element::Of(Dtype::F8E4m3), false),
        ] {
            assert_eq!(Element::Activation.admits(element), admitted, "{element}");
        }
        assert!(!Element::F32.admits(Element::Activation));
    }
}
