//! What of a conversion is done, so that a later attempt need not do it again.
//!
//! Every process of a run appends to a journal of its own in the target under construction. Its first line says what is being
//! made of what: the plan and the source. Each line after it is a unit that is **durable**: data, head and tail of its outputs
//! were synced before the line was written. A line is a CRC-32 and a JSON document; what a power loss left of one is passed
//! over. Lines of all journals of one plan count, whoever wrote them.

use std::collections::{BTreeMap, HashSet};

use rialto_checkpoint::store::{Journal, Stamp, Target};
use serde::{Deserialize, Serialize};

use super::conversion::DataFile;
use super::digest::PartDigest;
use super::unit::UnitId;
use crate::{Direction, Error};

/// The form of the lines; another is another plan's.
const FORM: u32 = 1;

/// What is being made of what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    journal: u32,
    /// The version that plans and transforms.
    rialto: String,
    direction: Direction,
    /// Digest of all that the plan will write, and of where each element comes from.
    pub(crate) plan: String,
    /// What every file of the source looked like.
    pub(crate) source: BTreeMap<String, Stamp>,
}

impl Header {
    pub(crate) fn new(
        direction: Direction,
        plan: String,
        source: BTreeMap<String, Stamp>,
    ) -> Header {
        Header {
            journal: FORM,
            rialto: env!("CARGO_PKG_VERSION").to_owned(),
            direction,
            plan,
            source,
        }
    }

    /// A short name of it: attempts with one name are at one plan and one source.
    pub(crate) fn id(&self) -> Result<String, Error> {
        let line = line(self)?;
        let digest = blake3::hash(line.as_bytes()).to_hex();
        Ok(digest[..16].to_owned())
    }

    /// Refuses to continue what was begun under another header. Errors: [`Error::SourceChanged`] with every file that is not
    /// what it was, [`Error::OtherPlan`].
    pub(crate) fn check(&self, begun: &Header, place: &str) -> Result<(), Error> {
        if self == begun {
            return Ok(());
        }
        let names: std::collections::BTreeSet<&String> =
            self.source.keys().chain(begun.source.keys()).collect();
        let changed = names.into_iter().filter_map(|name| {
            let change = match (begun.source.get(name), self.source.get(name)) {
                (Some(before), Some(now)) if before == now => return None,
                (Some(before), Some(now)) if before.len != now.len => {
                    format!("had {} bytes, has {}", before.len, now.len)
                }
                (Some(_), Some(_)) => "was written to since".to_owned(),
                (Some(_), None) => "is gone".to_owned(),
                _ => "is new".to_owned(),
            };
            Some(format!("{name} {change}"))
        });
        let changed: Vec<String> = changed.collect();
        if changed.is_empty() {
            let place = place.to_owned();
            return Err(Error::OtherPlan { place });
        }
        Err(Error::SourceChanged {
            place: place.to_owned(),
            changes: changed,
        })
    }
}

/// Something that is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Record {
    /// A unit, with what is known of its bytes in each output of the group.
    Unit {
        #[serde(rename = "g")]
        group: usize,
        #[serde(rename = "u")]
        number: u64,
        #[serde(rename = "p")]
        parts: Vec<PartDigest>,
    },
    /// What stands around the outputs of a group, all units of which are done.
    Framed {
        #[serde(rename = "w")]
        group: usize,
    },
    /// All of a file that is no tensor data: headers and objects.
    Fixed {
        #[serde(rename = "f")]
        file: usize,
    },
}

/// A record as a line.
pub(crate) fn line(document: &impl Serialize) -> Result<String, Error> {
    let text =
        serde_json::to_string(document).map_err(|error| Error::journal(&error.to_string()))?;
    Ok(format!("{:08x} {text}\n", crc32fast::hash(text.as_bytes())))
}

/// The document of a line, if the line is whole.
fn document(line: &[u8]) -> Option<&[u8]> {
    let (crc32, rest) = line.split_at_checked(8)?;
    let text = rest.strip_prefix(b" ")?;
    let crc32 = u32::from_str_radix(std::str::from_utf8(crc32).ok()?, 16).ok()?;
    (crc32 == crc32fast::hash(text)).then_some(text)
}

/// What journals say is done.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// The parts of each unit, one for each output of its group.
    pub(crate) units: BTreeMap<UnitId, Vec<PartDigest>>,
    /// Groups, by their first output, whose frames are written.
    pub(crate) framed: HashSet<usize>,
    pub(crate) fixed: HashSet<usize>,
}

impl Past {
    /// Counts in what a journal says, if it is one of the same header. Returns the header that it has, if any.
    pub(crate) fn read(&mut self, bytes: &[u8], header: &Header) -> Option<Header> {
        let mut lines = bytes.split(|&byte| byte == b'\n').filter_map(document);
        let found: Header = serde_json::from_slice(lines.next()?).ok()?;
        if found != *header {
            return Some(found);
        }
        for line in lines {
            match serde_json::from_slice(line) {
                Ok(Record::Unit {
                    group,
                    number,
                    parts,
                }) => {
                    self.units.insert(UnitId { group, number }, parts);
                }
                Ok(Record::Framed { group }) => {
                    self.framed.insert(group);
                }
                Ok(Record::Fixed { file }) => {
                    self.fixed.insert(file);
                }
                Err(_) => {}
            }
        }
        Some(found)
    }

    /// Forgets what was said of a file.
    pub(crate) fn forget(&mut self, number: usize, file: &DataFile) {
        self.fixed.remove(&number);
        self.framed.retain(|group| !file.outputs.contains(group));
        self.units.retain(|id, _| !file.outputs.contains(&id.group));
    }

    /// What all journals of a target say.
    pub(crate) fn of(target: &dyn Target, header: &Header) -> Result<Past, Error> {
        let mut past = Past::default();
        for name in target.journals()? {
            past.read(&target.read_journal(&name)?, header);
        }
        Ok(past)
    }
}

/// Opens the journal called `name` for a run of this header, and counts what all journals say is done.
///
/// Errors: those of the target.
pub(crate) fn open(
    target: &dyn Target,
    name: &str,
    header: &Header,
) -> Result<(Box<dyn Journal>, Past), Error> {
    let journal = target.journal(name)?;
    let own = target.read_journal(name).unwrap_or_default();
    if Past::default().read(&own, header).as_ref() != Some(header) {
        // New, or cut off in its first line.
        journal.clear()?;
        journal.append(line(header)?.as_bytes())?;
        journal.sync()?;
    } else if !own.ends_with(b"\n") {
        // A line that was cut ends here.
        journal.append(b"\n")?;
    }
    Ok((journal, Past::of(target, header)?))
}

/// The header under which attempts at the plan that `target` has entered were begun, if one of their journals has it.
pub(crate) fn begun(target: &dyn Target) -> Result<Option<Header>, Error> {
    for name in target.journals()? {
        let bytes = target.read_journal(&name)?;
        let first = bytes.split(|&byte| byte == b'\n').next().and_then(document);
        if let Some(header) = first.and_then(|line| serde_json::from_slice(line).ok()) {
            return Ok(Some(header));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(plan: &str) -> Header {
        let stamp = |len, modified_ns| Stamp { len, modified_ns };
        let source = [
            ("a".to_owned(), stamp(10, Some(5))),
            ("b".to_owned(), stamp(20, Some(6))),
        ];
        Header::new(Direction::Import, plan.to_owned(), source.into())
    }

    fn unit(group: usize, number: u64) -> Record {
        let part = PartDigest {
            crc32: Some(7),
            nodes: vec![[group as u8; 32], [number as u8; 32]],
        };
        Record::Unit {
            group,
            number,
            parts: vec![part],
        }
    }

    fn journal(lines: &[String]) -> Vec<u8> {
        lines.concat().into_bytes()
    }

    #[test]
    fn what_was_written_is_read_and_a_line_cut_or_damaged_is_passed_over() {
        let lines: Vec<String> = [
            line(&header("p")).unwrap(),
            line(&unit(0, 0)).unwrap(),
            line(&Record::Fixed { file: 3 }).unwrap(),
            line(&unit(4, 1)).unwrap(),
        ]
        .into();
        let whole = journal(&lines);
        let read = |bytes: &[u8]| {
            let mut past = Past::default();
            let header = past.read(bytes, &header("p"));
            (header.is_some(), past.units.len(), past.fixed.len())
        };
        assert_eq!(read(&whole), (true, 2, 1));
        let ends: Vec<usize> = lines
            .iter()
            .scan(0, |end, line| {
                *end += line.len();
                Some(*end)
            })
            .collect();
        for cut in 0..whole.len() {
            // The newline itself may be missing.
            let complete = ends.iter().filter(|&&end| end <= cut + 1).count();
            let expected = [
                (false, 0, 0),
                (true, 0, 0),
                (true, 1, 0),
                (true, 1, 1),
                (true, 2, 1),
            ];
            assert_eq!(read(&whole[..cut]), expected[complete], "{cut}");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            let (has_header, units, fixed) = read(&damaged);
            let kept = usize::from(has_header) + units + fixed;
            // Without its header nothing of a journal counts; a newline joins two lines.
            let least = if at < ends[0] { 0 } else { 2 };
            assert!((least..4).contains(&kept), "{at}: {kept}");
        }
    }

    #[test]
    fn a_journal_of_another_plan_counts_for_nothing() {
        let bytes = journal(&[line(&header("p")).unwrap(), line(&unit(0, 0)).unwrap()]);
        let mut past = Past::default();
        assert_eq!(past.read(&bytes, &header("q")), Some(header("p")));
        assert!(past.units.is_empty());
    }

    #[test]
    fn a_changed_source_is_named_file_by_file_and_another_plan_is_not_blamed_on_it() {
        let begun = header("p");
        assert!(header("p").check(&begun, "out").is_ok());
        let error = header("q").check(&begun, "out").unwrap_err();
        assert_eq!(error.slug(), "engine/other-plan");
        let mut now = header("q");
        now.source.get_mut("a").unwrap().len = 11;
        now.source.get_mut("b").unwrap().modified_ns = Some(7);
        now.source.insert(
            "c".to_owned(),
            Stamp {
                len: 0,
                modified_ns: None,
            },
        );
        let error = now.check(&begun, "out").unwrap_err();
        assert_eq!(error.slug(), "engine/source-changed");
        let said = error.to_string();
        for part in [
            "a had 10 bytes, has 11",
            "b was written to since",
            "c is new",
        ] {
            assert!(said.contains(part), "{said}");
        }
        let gone = begun.check(&now, "out").unwrap_err().to_string();
        assert!(gone.contains("c is gone"), "{gone}");
    }
}
