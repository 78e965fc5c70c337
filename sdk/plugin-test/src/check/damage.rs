//! Whether a tensor that is not as it should be is refused by name.

use std::collections::BTreeSet;
use std::sync::Arc;

use rialto_checkpoint::hf::{CONFIG_FILE, SINGLE_FILE};
use rialto_checkpoint::store::{FileEntry, MemoryStore, Source, Store};
use rialto_engine::{ImportPlan, Options};
use rialto_tensor::{Dtype, Shape};
use serde_json::{Map, Value, json};

use crate::error;
use crate::finding::{Check, Finding, Findings};
use crate::fixture::Fixture;
use crate::guarded::{Guarded, caught};
use crate::reading::{Bound, reading};
use crate::subject::Subject;

pub(crate) fn check(test: &Subject) -> Vec<Finding> {
    let mut findings = Findings::new(Check::Damage);
    for fixture in &test.fixtures {
        let whole = headers(fixture);
        let Some(reading) = reading(&mut findings, &test.family, fixture) else {
            continue;
        };
        let Some(bound) = findings.answer("the fixture's tensors", reading.bind(fixture)) else {
            continue;
        };
        // What is refused whole says nothing about damage.
        let before = findings.answer("a plan of the fixture", plan(&test.family, fixture, &whole));
        if before.is_none() {
            continue;
        }
        let optional = optional(&bound);
        for (position, (name, ..)) in whole.iter().enumerate() {
            for damage in Damage::ALL {
                let is_optional = optional.contains(name.as_str());
                let names = damage.names(name, is_optional);
                if names.is_empty() {
                    continue;
                }
                let damaged = damage.of(&whole, position);
                let refusal = plan(&test.family, fixture, &damaged);
                judge(&mut findings, name, damage, &names, refusal);
            }
        }
    }
    findings.into_list()
}

/// Name, dtype and shape of every tensor: what a plan reads.
type Headers = Vec<(String, Dtype, Shape)>;

fn headers(fixture: &Fixture) -> Headers {
    let tensors = fixture.tensors.iter();
    let header = |(name, tensor): (&String, &crate::tensors::Tensor)| {
        (name.clone(), tensor.dtype, tensor.shape.clone())
    };
    tensors.map(header).collect()
}

/// Tensors that may be absent: copies of others, and what is kept beside Megatron's own files if it is there at all.
fn optional(bound: &Bound) -> BTreeSet<&str> {
    let mapping = &bound.mapping;
    let copies = mapping.copies().iter().map(|copy| copy.name.as_str());
    let beside = mapping.tensors().iter();
    let beside = beside.filter(|tensor| mapping.rule(tensor.rule).beside.is_some());
    let skipped = mapping.skipped().iter();
    let named = beside.chain(skipped).map(|tensor| tensor.name.as_str());
    copies.chain(named).collect()
}

#[derive(Clone, Copy)]
enum Damage {
    Removed,
    Renamed,
    Reshaped,
    Doubled,
}

impl Damage {
    const ALL: [Damage; 4] = [
        Damage::Removed,
        Damage::Renamed,
        Damage::Reshaped,
        Damage::Doubled,
    ];

    fn told(self) -> &'static str {
        match self {
            Damage::Removed => "removed",
            Damage::Renamed => "renamed",
            Damage::Reshaped => "given one more row",
            Damage::Doubled => "doubled under another name",
        }
    }

    /// The names that a refusal must have; none if there need be no refusal.
    fn names(self, name: &str, is_optional: bool) -> Vec<String> {
        match (self, is_optional) {
            (Damage::Removed, true) => Vec::new(),
            (Damage::Renamed, true) => vec![format!("{name}_old")],
            (Damage::Renamed, false) => vec![name.to_owned(), format!("{name}_old")],
            (Damage::Removed | Damage::Reshaped, _) => vec![name.to_owned()],
            (Damage::Doubled, _) => vec![format!("{name}.copy")],
        }
    }

    fn of(self, whole: &Headers, position: usize) -> Headers {
        let mut damaged = whole.clone();
        match self {
            Damage::Removed => drop(damaged.remove(position)),
            Damage::Renamed => damaged[position].0.push_str("_old"),
            Damage::Reshaped => {
                let mut extents = damaged[position].2.extents().to_vec();
                match extents.first_mut() {
                    Some(rows) => *rows += 1,
                    None => extents.push(2),
                }
                damaged[position].2 = Shape::new(extents);
            }
            Damage::Doubled => {
                let (name, dtype, shape) = damaged[position].clone();
                damaged.push((format!("{name}.copy"), dtype, shape));
            }
        }
        damaged
    }
}

fn judge(
    findings: &mut Findings,
    name: &str,
    damage: Damage,
    names: &[String],
    refusal: Result<(), error::Error>,
) {
    let what = format!("{name} {}", damage.told());
    let expected = format!("a refusal that names {}", names.join(" and "));
    let error = match refusal {
        Ok(()) => {
            findings.add(what, expected, "a plan");
            return;
        }
        Err(error::Error::Engine(error)) => error,
        Err(error) => {
            findings.add(what, expected, error.to_string());
            return;
        }
    };
    // A message shows only some of many findings.
    let said = [vec![error.to_string()], error.findings()].concat();
    let is_named = |name: &String| said.iter().any(|line| holds(line, name));
    if !names.iter().all(is_named) {
        findings.add(what, expected, error.to_string());
    }
}

/// Whether a line has a name, and not merely a longer one that begins with it.
fn holds(line: &str, name: &str) -> bool {
    let is_inner = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    line.match_indices(name).any(|(at, _)| {
        let after = line[at + name.len()..].chars().next();
        let before = line[..at].chars().next_back();
        !after.is_some_and(is_inner) && !before.is_some_and(is_inner)
    })
}

/// Plans the import of these tensors on one rank.
fn plan(family: &Guarded, fixture: &Fixture, tensors: &Headers) -> Result<(), error::Error> {
    let store = Arc::new(HeaderStore::new(fixture, tensors)?);
    let plan = caught("a plan", || {
        ImportPlan::new(family, store, &Options::default())
    });
    Ok(plan.map(drop)?)
}

/// A directory of one shard whose weights are holes: a plan reads headers, and a thousand plans are made.
#[derive(Debug)]
struct HeaderStore {
    /// The config, and the shard as far as it is no hole.
    files: MemoryStore,
    /// The shard's length.
    len: u64,
}

impl HeaderStore {
    fn new(fixture: &Fixture, tensors: &Headers) -> Result<HeaderStore, error::Error> {
        let mut header = Map::new();
        let mut end = 0;
        for (name, dtype, shape) in tensors {
            let begin = end;
            end += shape.size_bytes(*dtype)?;
            let entry = json!({
                "dtype": dtype.safetensors_name(),
                "shape": shape.extents(),
                "data_offsets": [begin, end],
            });
            header.insert(name.clone(), entry);
        }
        let mut text = Value::Object(header).to_string();
        text.extend(std::iter::repeat_n(
            ' ',
            text.len().next_multiple_of(8) - text.len(),
        ));
        let mut shard = (text.len() as u64).to_le_bytes().to_vec();
        shard.extend_from_slice(text.as_bytes());
        let len = shard.len() as u64 + end;
        let files = MemoryStore::new(fixture.name.as_str());
        files.insert(CONFIG_FILE, fixture.config.text())?;
        files.insert(SINGLE_FILE, shard)?;
        Ok(HeaderStore { files, len })
    }
}

impl Store for HeaderStore {
    fn name(&self) -> &str {
        self.files.name()
    }

    fn files(&self) -> Result<Vec<FileEntry>, rialto_checkpoint::Error> {
        let mut files = self.files.files()?;
        for file in &mut files {
            if file.name == SINGLE_FILE {
                file.len = self.len;
            }
        }
        Ok(files)
    }

    fn open(&self, name: &str) -> Result<Box<dyn Source>, rialto_checkpoint::Error> {
        let source = self.files.open(name)?;
        let len = if name == SINGLE_FILE {
            self.len
        } else {
            source.len()
        };
        Ok(Box::new(HeaderSource { source, len }))
    }
}

#[derive(Debug)]
struct HeaderSource {
    source: Box<dyn Source>,
    len: u64,
}

impl Source for HeaderSource {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), rialto_checkpoint::Error> {
        self.source.read_at(offset, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_not_found_inside_a_longer_one() {
        assert!(holds("a.b (BF16 [2])", "a.b"));
        assert!(holds("rule needs a.b", "a.b"));
        for line in ["a.b_scale is missing", "x.a.b is missing", "a.b.c", "a"] {
            assert!(!holds(line, "a.b"), "{line}");
        }
    }
}
