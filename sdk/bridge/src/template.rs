//! Names and offsets with indices in them: `model.layers.{i}.mlp.experts.{e}.up_proj.weight`, `2*i+1`.
//!
//! An index expression is a sum of terms: a number, an index, or a number times an index. That is enough for every layer
//! numbering and stacking known, and little enough that a person reads it and a C author writes it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Error;

/// The values of the indices in scope, innermost last.
pub type Bindings<'a> = [(&'a str, u64)];

/// A sum of numbers and multiples of indices, such as `2*i+1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Expression {
    constant: u64,
    terms: Vec<(u64, String)>,
}

impl Expression {
    /// Parses `8`, `i`, `2*i+1`, `78+d`. Errors: [`Error::Template`].
    pub fn parse(text: &str) -> Result<Expression, Error> {
        let wrong = |why: &str| Error::Template {
            template: text.to_owned(),
            reason: why.to_owned(),
        };
        let mut expression = Expression {
            constant: 0,
            terms: Vec::new(),
        };
        for term in text.split('+').map(str::trim) {
            if term.is_empty() {
                return Err(wrong("a term is empty"));
            }
            let (factor, index) = match term.split_once('*') {
                Some((factor, index)) => (factor.trim(), Some(index.trim())),
                None if term.starts_with(|c: char| c.is_ascii_digit()) => (term, None),
                None => ("1", Some(term)),
            };
            let factor = factor
                .parse::<u64>()
                .map_err(|_| wrong("a factor is not a whole number"))?;
            match index {
                None => {
                    let sum = expression.constant.checked_add(factor);
                    expression.constant = sum.ok_or_else(|| wrong("the constant overflows"))?;
                }
                Some(index) if is_index_name(index) => {
                    expression.terms.push((factor, index.to_owned()))
                }
                Some(_) => return Err(wrong("an index name must be letters")),
            }
        }
        Ok(expression)
    }

    /// Whether an index has a say in it.
    fn mentions(&self, index: &str) -> bool {
        self.terms.iter().any(|(_, name)| name == index)
    }

    /// The value under `bindings`. Errors: [`Error::Template`] for an index that is not bound or an overflow.
    pub fn evaluate(&self, bindings: &Bindings<'_>) -> Result<u64, Error> {
        let wrong = |reason: String| Error::Template {
            template: self.to_string(),
            reason,
        };
        self.terms
            .iter()
            .try_fold(self.constant, |sum, (factor, index)| {
                let bound = bindings.iter().rev().find(|(name, _)| name == index);
                let (_, value) =
                    bound.ok_or_else(|| wrong(format!("index {index} is not in scope")))?;
                let product = factor
                    .checked_mul(*value)
                    .and_then(|product| sum.checked_add(product));
                product.ok_or_else(|| wrong("the value overflows".to_owned()))
            })
    }
}

fn is_index_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphabetic())
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (factor, index) in &self.terms {
            match factor {
                1 => write!(f, "{separator}{index}")?,
                _ => write!(f, "{separator}{factor}*{index}")?,
            }
            separator = "+";
        }
        if self.constant != 0 || self.terms.is_empty() {
            write!(f, "{separator}{}", self.constant)?;
        }
        Ok(())
    }
}

impl TryFrom<String> for Expression {
    type Error = Error;

    fn try_from(text: String) -> Result<Expression, Error> {
        Expression::parse(&text)
    }
}

impl From<Expression> for String {
    fn from(expression: Expression) -> String {
        expression.to_string()
    }
}

/// A name with expressions in braces: `decoder.layers.{2*i}.input_layernorm.weight`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Template {
    /// Literal text, the expression after it; the last entry may have none.
    segments: Vec<(String, Option<Expression>)>,
}

impl Template {
    /// Parses a name. Errors: [`Error::Template`] for a brace without its partner or an unreadable expression.
    pub fn parse(text: &str) -> Result<Template, Error> {
        let wrong = |why: &str| Error::Template {
            template: text.to_owned(),
            reason: why.to_owned(),
        };
        let mut segments = Vec::new();
        let mut rest = text;
        while let Some((literal, after)) = rest.split_once('{') {
            let (expression, after) = after.split_once('}').ok_or_else(|| wrong("a { has no }"))?;
            segments.push((literal.to_owned(), Some(Expression::parse(expression)?)));
            rest = after;
        }
        if !rest.is_empty() || segments.is_empty() {
            segments.push((rest.to_owned(), None));
        }
        match segments.iter().any(|(literal, _)| literal.contains('}')) {
            true => Err(wrong("a } has no {")),
            false => Ok(Template { segments }),
        }
    }

    /// The name without its part between dots that is one index alone, and the expression that the part was: of
    /// `decoder.layers.{i}.weight` that is `decoder.layers.weight` and `i`. Errors: [`Error::Template`] unless there is one such
    /// part, no other mention of the index, and something left.
    pub fn without(&self, index: &str) -> Result<(Template, Expression), Error> {
        let text = self.to_string();
        let of_index = |part: &str| {
            let inside = part.strip_prefix('{')?.strip_suffix('}')?;
            let expression = Expression::parse(inside).ok()?;
            let is_alone = expression.terms.len() == 1 && expression.mentions(index);
            is_alone.then_some(expression)
        };
        let parts = text.split('.').map(|part| (part, of_index(part)));
        let (own, left): (Vec<_>, Vec<_>) = parts.partition(|(_, own)| own.is_some());
        let left: Vec<&str> = left.into_iter().map(|(part, _)| part).collect();
        let mut own = own.into_iter().filter_map(|(_, expression)| expression);
        let left = Template::parse(&left.join("."))?;
        let mut kept = left.segments.iter().filter_map(|(_, kept)| kept.as_ref());
        match (own.next(), own.next()) {
            (Some(own), None) if text.contains('.') && !kept.any(|kept| kept.mentions(index)) => {
                Ok((left, own))
            }
            _ => Err(Error::Template {
                template: text,
                reason: format!("index {index} is stacked and is not one part between dots"),
            }),
        }
    }

    /// The name under `bindings`. Errors: [`Error::Template`].
    pub fn expand(&self, bindings: &Bindings<'_>) -> Result<String, Error> {
        let mut name = String::new();
        for (literal, expression) in &self.segments {
            name.push_str(literal);
            if let Some(expression) = expression {
                name.push_str(&expression.evaluate(bindings)?.to_string());
            }
        }
        Ok(name)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.segments
            .iter()
            .try_for_each(|(literal, expression)| match expression {
                Some(expression) => write!(f, "{literal}{{{expression}}}"),
                None => f.write_str(literal),
            })
    }
}

impl TryFrom<String> for Template {
    type Error = Error;

    fn try_from(text: String) -> Result<Template, Error> {
        Template::parse(&text)
    }
}

impl From<Template> for String {
    fn from(template: Template) -> String {
        template.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_expands_with_every_index_in_scope() {
        let template =
            Template::parse("model.layers.{78+d}.mlp.experts.{e}.up_proj.weight").unwrap();
        let name = template.expand(&[("d", 0), ("e", 255)]).unwrap();
        assert_eq!(name, "model.layers.78.mlp.experts.255.up_proj.weight");
    }

    #[test]
    fn an_index_that_is_not_in_scope_is_named() {
        let error = Template::parse("a.{j}")
            .unwrap()
            .expand(&[("i", 1)])
            .unwrap_err();
        assert!(
            error.to_string().contains("index j is not in scope"),
            "{error}"
        );
    }

    #[test]
    fn the_part_that_is_an_index_alone_is_taken_out() {
        for (text, index, left, part) in [
            (
                "decoder.layers.{i}.mlp.weight",
                "i",
                "decoder.layers.mlp.weight",
                "i",
            ),
            ("a.{2*i+1}.{j}.b", "i", "a.{j}.b", "2*i+1"),
            ("{i}.b", "i", "b", "i"),
            ("a.{i}", "i", "a", "i"),
        ] {
            let (found, expression) = Template::parse(text).unwrap().without(index).unwrap();
            assert_eq!(
                (found.to_string(), expression.to_string()),
                (left.to_owned(), part.to_owned()),
                "{text}"
            );
        }
        for text in [
            "a.b",
            "a.x{i}.b",
            "a.{i}x.b",
            "a.{i}.b.{i}",
            "a.{i}.b.x{i}",
            "a.{i+j}.b",
            "a.{j}.b",
            "{i}",
            "a.{i}{j}",
        ] {
            assert!(
                Template::parse(text).unwrap().without("i").is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn broken_templates_are_refused() {
        for text in [
            "a.{i",
            "a.i}",
            "a.{}",
            "a.{i-1}",
            "a.{2*}",
            "a.{*i}",
            "a.{i1}",
            "a.{99999999999999999999}",
        ] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_overflow_is_an_error() {
        let expression = Expression::parse("2*i").unwrap();
        assert!(expression.evaluate(&[("i", u64::MAX)]).is_err());
    }

    proptest! {
        #[test]
        fn printing_and_parsing_are_inverse(a in 0u64..9, b in 1u64..9, c in 0u64..9, i in 0u64..99, j in 0u64..99) {
            let text = format!("x.{{{a}*i+{b}*j+{c}}}.y");
            let template = Template::parse(&text).unwrap();
            let again = Template::parse(&template.to_string()).unwrap();
            let bindings = [("i", i), ("j", j)];
            prop_assert_eq!(again.expand(&bindings).unwrap(), format!("x.{}.y", a * i + b * j + c));
            prop_assert_eq!(&again, &template);
        }
    }
}
