//! A family, its fixtures, and the checks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rialto_bridge::Bridge;
use rialto_checkpoint::store::{LocalStore, Store};

use crate::check;
use crate::finding::Finding;
use crate::fixture::Fixture;
use crate::guarded::Guarded;
use crate::subject::Subject;

/// A family under test.
///
/// A panic of the family is a finding like any other, and the checks go on after it.
pub struct PluginTest(Subject);

impl PluginTest {
    /// Tests a family that is linked.
    pub fn new(family: impl Bridge + 'static) -> PluginTest {
        PluginTest::shared(Arc::new(family))
    }

    /// Tests a family that is held elsewhere, too, such as one that was loaded.
    #[must_use]
    pub fn shared(family: Arc<dyn Bridge>) -> PluginTest {
        PluginTest(Subject {
            family: Guarded(family),
            fixtures: Vec::new(),
            library: None,
        })
    }

    /// Adds a Hugging Face directory of a tiny model of the family. The path begins, as in every test, at the package's root.
    ///
    /// # Panics
    ///
    /// If it is not a `config.json` with safetensors files.
    #[must_use]
    pub fn fixture(self, directory: impl AsRef<Path>) -> PluginTest {
        let directory = directory.as_ref();
        let name = match directory.file_name() {
            Some(name) => name.to_string_lossy().into_owned(),
            None => directory.display().to_string(),
        };
        match LocalStore::open(directory) {
            Ok(store) => self.fixture_in(&name, &store),
            Err(error) => panic!("fixture {}: {error}", directory.display()),
        }
    }

    /// Adds the same from another place than a disk; `name` is what findings call it.
    ///
    /// # Panics
    ///
    /// As above.
    #[must_use]
    pub fn fixture_in(mut self, name: &str, directory: &dyn Store) -> PluginTest {
        match Fixture::read(name, directory) {
            Ok(fixture) => self.0.fixtures.push(fixture),
            Err(error) => panic!("fixture {name}: {error}"),
        }
        self
    }

    /// Compares the family with a library built of it; [`built_library`](crate::built_library) finds one.
    #[must_use]
    pub fn library(mut self, file: impl Into<PathBuf>) -> PluginTest {
        self.0.library = Some(file.into());
        self
    }

    /// Makes every check.
    ///
    /// # Panics
    ///
    /// With every finding, one line each.
    pub fn check_all(&self) {
        let findings = self.findings();
        if !findings.is_empty() {
            let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
            let plural = if lines.len() == 1 { "" } else { "s" };
            panic!("{} finding{plural}:\n{}", lines.len(), lines.join("\n"));
        }
    }

    /// What all checks find, in their order.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let checks = [
            PluginTest::check_description,
            PluginTest::check_claim,
            PluginTest::check_documents,
            PluginTest::check_totality,
            PluginTest::check_program,
            PluginTest::check_meshes,
            PluginTest::check_damage,
            PluginTest::check_library,
        ];
        checks.iter().flat_map(|check| check(self)).collect()
    }

    /// The plugin has a name, a version, a summary and architectures, none of them blank; no architecture and no release
    /// stands twice; there is a fixture.
    #[must_use]
    pub fn check_description(&self) -> Vec<Finding> {
        check::description::check(&self.0)
    }

    /// The fixture's config is taken, for a release and an architecture that the description has, and the spec says the same.
    /// Not taken, and no error, are `{}`, a config without architectures, and one of another architecture.
    #[must_use]
    pub fn check_claim(&self) -> Vec<Finding> {
        check::claim::check(&self.0)
    }

    /// Every answer goes through the document in which it crosses the ABI and comes out equal: description, claim, spec, weight
    /// map, placement, codecs, program, stages of every number, edits. Errors keep a code that means one. Asked twice, the family
    /// says the same.
    #[must_use]
    pub fn check_documents(&self) -> Vec<Finding> {
        check::documents::check(&self.0)
    }

    /// The map is total in every spelling, and the fixture's tensors are exactly what it maps. Every codec that a rule names
    /// is there. Every param has a placement. For every number of stages from 1 to the number of layers that the family
    /// accepts, the stages hold every layer once and every param at least once, and no stage names params that do not exist.
    /// Every number that it does not accept, 0 and one more than there are layers among them, is refused as unsupported
    /// (code 3), and the error names those that it accepts and no others: after `valid for this model:` or `supported:`, as in
    /// `1, 2, 4` or `1 to 4`.
    ///
    /// All of it again with a padded vocabulary and, for a family with multi-token prediction, without it.
    #[must_use]
    pub fn check_totality(&self) -> Vec<Finding> {
        check::totality::check(&self.0)
    }

    /// The program, of a family that has one, is sound, and of operations that this version knows. Whatever its params come from
    /// is a tensor or a param of the weight map in its own spelling, and of the right shape: the param's, or for each index of the leading axis
    /// the rest of it. The codecs whose blocks it takes as they are are the family's. A setting that nobody has is refused by name.
    ///
    /// All of it again with a padded vocabulary and, for a family with multi-token prediction, without it.
    #[must_use]
    pub fn check_program(&self) -> Vec<Finding> {
        check::program::check(&self.0)
    }

    /// On every mesh an import and an export of it give back the fixture: its tensors bit for bit by the `safetensors` crate,
    /// those stored encoded as the family decodes each at once; its config but for the edits that the plan announces.
    /// A tensor that a rule leaves out is missing then, so a fixture has none; a second name of a tensor is never
    /// written. The config that was exported is the family's, and describes the weights beside it.
    ///
    /// The sizes are those that the engine suggests. Every one of them is used, in as few meshes as the longest dimension
    /// has sizes, and then each alone and the largest together; but no more than 12 meshes, and of a dimension of more than
    /// 12 sizes 12 that are spread evenly. Of a mesh of several sizes that the family refuses (code 3) each is tried alone: a family may
    /// say that they do not fit together, and one that says so of all of them is not found here. With layers stacked and with a key for each, where the map stacks.
    ///
    /// Then on one rank: an export in each tensor form imports to the same params, so does one in the map's own, a run in each
    /// param form exports to the same tensors, and so do padded and prediction-less runs.
    #[must_use]
    pub fn check_meshes(&self) -> Vec<Finding> {
        check::meshes::check(&self.0)
    }

    /// Each tensor of the fixture removed (unless it may be absent), renamed, given one more row, or doubled under another name:
    /// no plan is made, and the error names the tensor. Only headers are read for it.
    #[must_use]
    pub fn check_damage(&self) -> Vec<Finding> {
        check::damage::check(&self.0)
    }

    /// The library of [`PluginTest::library`], if one was given, loads, loads a second time and from a copy beside itself, and
    /// answers every call as the linked family does: to the fixture's config, to one that lacks a key or has another value,
    /// to settings, to every number of stages. Errors have the same code, slug, message, help and findings.
    #[must_use]
    pub fn check_library(&self) -> Vec<Finding> {
        check::library::check(&self.0)
    }
}
