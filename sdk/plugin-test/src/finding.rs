//! One thing that is wrong with a family.

use std::fmt;

use crate::error::Told;

/// Which check found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Check {
    /// [`PluginTest::check_description`](crate::PluginTest::check_description).
    Description,
    /// [`PluginTest::check_claim`](crate::PluginTest::check_claim).
    Claim,
    /// [`PluginTest::check_documents`](crate::PluginTest::check_documents).
    Documents,
    /// [`PluginTest::check_totality`](crate::PluginTest::check_totality).
    Totality,
    /// [`PluginTest::check_program`](crate::PluginTest::check_program).
    Program,
    /// [`PluginTest::check_meshes`](crate::PluginTest::check_meshes).
    Meshes,
    /// [`PluginTest::check_damage`](crate::PluginTest::check_damage).
    Damage,
    /// [`PluginTest::check_library`](crate::PluginTest::check_library).
    Library,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Check::Description => "description",
            Check::Claim => "claim",
            Check::Documents => "documents",
            Check::Totality => "totality",
            Check::Program => "program",
            Check::Meshes => "meshes",
            Check::Damage => "damage",
            Check::Library => "library",
        })
    }
}

/// One thing that is wrong with a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The check.
    pub check: Check,
    /// What is wrong: an answer, a tensor, a param.
    pub what: String,
    /// Where: a fixture, and how it was read.
    pub place: String,
    /// What would be right.
    pub expected: String,
    /// What is there instead.
    pub found: String,
}

impl fmt::Display for Finding {
    /// Prints `totality: placement of decoder.norm.weight (tiny): expected a rule, found none`, always one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding {
            check,
            what,
            place,
            expected,
            found,
        } = self;
        let line = format!("{check}: {what} ({place}): expected {expected}, found {found}");
        f.write_str(&line.replace(['\n', '\r'], " "))
    }
}

/// The findings of one check at one place.
pub(crate) struct Findings {
    check: Check,
    place: String,
    list: Vec<Finding>,
}

impl Findings {
    pub(crate) fn new(check: Check) -> Findings {
        Findings {
            check,
            place: "the family".to_owned(),
            list: Vec::new(),
        }
    }

    /// What is found from now on is found here.
    pub(crate) fn at(&mut self, place: impl Into<String>) {
        self.place = place.into();
    }

    pub(crate) fn add(
        &mut self,
        what: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) {
        self.list.push(Finding {
            check: self.check,
            what: what.into(),
            place: self.place.clone(),
            expected: expected.into(),
            found: found.into(),
        });
    }

    /// An answer, or none and a finding for each thing that the error says.
    pub(crate) fn answer<T, E: Told>(&mut self, what: &str, answer: Result<T, E>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(error) => {
                for line in error.lines() {
                    self.add(what, "no error", line);
                }
                None
            }
        }
    }

    /// All of them, each once.
    pub(crate) fn into_list(self) -> Vec<Finding> {
        let mut list: Vec<Finding> = Vec::with_capacity(self.list.len());
        for finding in self.list {
            if !list.contains(&finding) {
                list.push(finding);
            }
        }
        list
    }
}
