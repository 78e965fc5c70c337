//! Conversions of a part of a model: exactly its tensors are there, and a model that asks for no others loads them strictly.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::matrix::{Import, Model, Part};
use super::{Conversions, import_words, of_family, of_layers, suffix};

impl Conversions<'_> {
    /// An import of the part, and an export of the part from `run`, which has all of the model.
    pub(crate) fn part(
        &mut self,
        model: &Model,
        import: &Import,
        part: &Part,
        source: &Path,
        run: &Path,
    ) -> Result<()> {
        let expected = self.expected_of_part(model, import, part);
        let options = part.options();
        let mut wanted = self.expected_words(model, import.layers, source, &expected);
        wanted.extend(options.iter().map(OsString::from));
        self.checks.add(model.family.expected, wanted);

        let imported = self.named(&format!("run-{}", part.name), model, import);
        let mut words = import_words(model, import, source, &imported);
        words.extend(options.iter().map(OsString::from));
        self.rialto(model, words.iter().map(OsString::as_os_str))?;
        self.check_load(model, &imported, &expected);
        for golden in of_layers(model, import.layers) {
            let ranks = self.ranks(golden);
            let paths = [&imported, &expected, &ranks].map(Into::into);
            let mut arguments = Vec::from(paths);
            arguments.extend(of_family(model));
            arguments.push("--part".into());
            self.checks.add("check_ranks", arguments);
        }

        let exported = self.named(&format!("exported-{}", part.name), model, import);
        let words = ["export".as_ref(), run.as_os_str(), exported.as_os_str()];
        let chosen = options.iter().map(OsStr::new);
        self.rialto(model, words.into_iter().chain(chosen))?;
        self.check_export(model, &exported, &options);
        Ok(())
    }

    /// The file with what an import of the part must hold.
    pub(crate) fn expected_of_part(&self, model: &Model, import: &Import, part: &Part) -> PathBuf {
        let (name, suffix) = (model.name(), suffix(import.layers));
        let file = format!("expected-{name}{suffix}-{}.safetensors", part.name);
        self.folder.join(file)
    }
}
