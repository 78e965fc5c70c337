//! Our output in front of the code it is for: PyTorch, Megatron-Core and the safetensors package, in Python.
//!
//! | module | noun |
//! |---|---|
//! | [`matrix`] | which models are converted on which meshes, and what is held against them |
//! | [`courses`] | conversions by several processes, and by some that are killed |
//! | [`parts`] | conversions of a part of a model |
//! | [`faults`] | the results that faults are planted into |
//! | [`python`] | the interpreter, and the checks that wait to be run in it |

mod courses;
mod faults;
mod matrix;
mod parts;
mod python;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;

use self::matrix::{Chunks, FAMILIES, Golden, Import, Layers, MODELS, Model, TRAINING};
use self::python::Checks;
pub(crate) use self::python::interpreter;
use crate::workspace::{Workspace, remove};

/// Converts every model of the matrix in both directions with the program as built, and has each result checked. Errors: a command or
/// a check that fails; a planted fault that no check sees.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let python = interpreter(workspace)?;
    let folder = workspace.scratch("interop").join("work");
    remove(&folder)?;
    fs::create_dir_all(&folder)?;
    workspace.build_rialto()?;
    for plugin in FAMILIES.iter().filter_map(|family| family.plugin.as_ref()) {
        workspace.build_plugin(plugin.manifest)?;
    }
    let begin = Instant::now();
    let mut conversions = Conversions {
        workspace,
        folder: &folder,
        checks: Checks::default(),
        count: 0,
    };
    println!("\nconversions by {}:", workspace.shown(&workspace.binary()));
    for model in &MODELS {
        conversions.model(model)?;
    }
    conversions.training()?;
    println!(
        "{} conversions in {:.0} s",
        conversions.count,
        begin.elapsed().as_secs_f64()
    );
    // A check that cannot fail proves nothing.
    let places = folder.join("places.json");
    fs::write(&places, conversions.places().to_string())?;
    conversions.checks.add("plant_faults", [&places]);
    conversions
        .checks
        .run(workspace, &python, &folder.join("checks.json"))?;
    println!(
        "\ninterop: all checks passed, every planted fault was seen, in {:.0} s after the build",
        begin.elapsed().as_secs_f64()
    );
    Ok(())
}

/// What has been converted, and the checks that it is to pass.
struct Conversions<'a> {
    workspace: &'a Workspace,
    folder: &'a Path,
    checks: Checks,
    count: usize,
}

impl Conversions<'_> {
    /// Imports on every mesh, each export of these and of the real checkpoints, and the import of each export.
    fn model(&mut self, model: &Model) -> Result<()> {
        let source = self.fixture(model.source);
        self.make_expected(model, &source);
        let mut exports = Vec::new();
        for golden in model.goldens {
            exports.push(self.export_of_another(model, golden.name, &source)?);
            self.check_export(model, &exports[exports.len() - 1], &[]);
        }
        for import in model.imports {
            let run = self.import(model, import, &source, "run")?;
            self.check_run(model, import, &run);
            let exported = self.named("exported", model, import);
            self.rialto(
                model,
                ["export".as_ref(), run.as_os_str(), exported.as_os_str()],
            )?;
            self.check_export(model, &exported, &[]);
            // What was announced at the export is all that the way back may change.
            let again = self.import(model, import, &exported, "again")?;
            let changed = model
                .changed_by_export
                .iter()
                .flat_map(|name| ["--but".into(), (*name).into()]);
            let directories = [&run, &again].map(OsString::from);
            self.checks
                .add("check_same", directories.into_iter().chain(changed));
            exports.push(exported);
            if import.has_courses {
                self.courses(model, import, &source)?;
            }
            for part in import.parts {
                self.part(model, import, part, &source, &run)?;
            }
        }
        // One model, one export, whatever the mesh and whoever wrote the checkpoint.
        self.checks.add("check_same", exports);
        Ok(())
    }

    /// Has the expectations made, of which a family may have one for each way to name the layers, and held against the real checkpoints.
    fn make_expected(&mut self, model: &Model, source: &Path) {
        for layers in [Layers::Default, Layers::Each] {
            let imports = || {
                let imports = model.imports.iter();
                imports.filter(move |import| import.layers == layers)
            };
            if imports().next().is_none() {
                continue;
            }
            let expected = self.expected(model, layers);
            let mut wanted = self.expected_words(model, layers, source, &expected);
            for golden in of_layers(model, layers) {
                let manifest = golden.path().join("manifest.json");
                wanted.extend(["--manifest".into(), manifest.into_os_string()]);
            }
            self.checks.add(model.family.expected, wanted.clone());
            for import in imports().filter(|import| import.pads) {
                wanted[1] = self.expected_of(model, import).into();
                let ranks = import.mesh[0].to_string();
                let padded = ["--pad-vocab".into(), ranks.into()];
                let padded = wanted.iter().cloned().chain(padded);
                self.checks.add(model.family.expected, padded);
            }
        }
    }

    /// What the check that makes an expectation is given.
    fn expected_words(
        &self,
        model: &Model,
        layers: Layers,
        source: &Path,
        file: &Path,
    ) -> Vec<OsString> {
        let mut words = vec![source.into(), file.into()];
        if !model.keeps_mtp {
            words.push("--without-mtp".into());
        }
        if layers == Layers::Each {
            words.push("--per-layer".into());
        }
        words
    }

    /// Exports of the checkpoints of a training run.
    fn training(&mut self) -> Result<()> {
        let source = self.fixture(TRAINING.source);
        let mut exports = Vec::new();
        for golden in TRAINING.goldens {
            exports.push(self.export_of_another(&TRAINING, golden.name, &source)?);
            self.check_export(&TRAINING, &exports[exports.len() - 1], &[]);
        }
        self.checks.add("check_same", exports);
        Ok(())
    }

    fn import(
        &mut self,
        model: &Model,
        import: &Import,
        source: &Path,
        kind: &str,
    ) -> Result<PathBuf> {
        let run = self.named(kind, model, import);
        let words = import_words(model, import, source, &run);
        self.rialto(model, words.iter().map(OsString::as_os_str))?;
        Ok(run)
    }

    /// Exports a checkpoint that another program wrote. It keeps no config: the reference gives it.
    fn export_of_another(&mut self, model: &Model, name: &str, source: &Path) -> Result<PathBuf> {
        let run = rialto_tests::megatron(name).join("ckpt");
        let exported = self.folder.join(format!("exported-of-{name}"));
        let arguments = ["export".as_ref(), run.as_os_str(), exported.as_os_str()];
        let reference = ["--reference".as_ref(), source.as_os_str()];
        self.rialto(model, arguments.into_iter().chain(reference))?;
        Ok(exported)
    }

    /// Of the whole model, or of the part that options name.
    fn check_export(&mut self, model: &Model, exported: &Path, part: &[&str]) {
        let mut arguments = vec![exported.into(), self.fixture(model.source).into_os_string()];
        arguments.extend(of_family(model));
        if !model.keeps_mtp {
            arguments.push("--without-mtp".into());
        }
        if let Some(dequantized) = model.dequantized {
            arguments.extend(["--dequantized".into(), self.fixture(dequantized).into()]);
        }
        arguments.extend(part.iter().map(OsString::from));
        self.checks.add("check_export", arguments);
    }

    /// An import, of the whole model: by value and load, and against real checkpoints.
    fn check_run(&mut self, model: &Model, import: &Import, run: &Path) {
        let held = self.expected_of(model, import);
        self.check_load(model, run, &held);
        self.check_import(model, import, run);
        // The models behind these are not padded: of a longer vocabulary they ask for what they have.
        let expected = self.expected(model, import.layers);
        for golden in of_layers(model, import.layers) {
            let ranks = self.ranks(golden);
            let paths = [run, &expected, &ranks].map(Into::into);
            let arguments = paths.into_iter().chain(of_family(model));
            self.checks.add("check_ranks", arguments);
        }
    }

    /// An import by its values, loaded by the formats' own programs.
    fn check_load(&mut self, model: &Model, run: &Path, expected: &Path) {
        let mut arguments = vec![run.into(), expected.into(), "--mcore".into()];
        arguments.push("--pages".into());
        arguments.extend(of_family(model));
        self.checks.add("check_torch_dist", arguments);
    }

    /// Against the real checkpoint of this mesh; where there is none, against that of another, and the chunks against a rule.
    /// A model that has no real checkpoint has nothing to be held against here.
    fn check_import(&mut self, model: &Model, import: &Import, run: &Path) {
        let of_layers = || of_layers(model, import.layers);
        let golden = of_layers().find(|golden| golden.mesh == import.mesh);
        let Some(fixture) = golden.or(of_layers().next()).map(Golden::path) else {
            return;
        };
        let mut arguments = vec![run.into(), fixture.into_os_string()];
        arguments.extend(of_family(model));
        match import.chunks {
            Chunks::Whole => arguments.push("--whole".into()),
            Chunks::Megatron if golden.is_none() => {
                let [tp, pp, ep, etp] = import.mesh;
                arguments.extend(["--mesh".into(), format!("{tp},{pp},{ep},{etp}").into()]);
            }
            Chunks::Megatron => {}
        }
        if import.pads {
            arguments.push("--pad-vocab".into());
        }
        self.checks.add("check_import", arguments);
    }

    /// Runs rialto, whose summaries are many here and the same as in the demo, and names the plugin that it would not find.
    fn rialto<'a>(
        &mut self,
        model: &Model,
        arguments: impl IntoIterator<Item = &'a OsStr>,
    ) -> Result<()> {
        self.count += 1;
        let mut words: Vec<OsString> = arguments.into_iter().map(OsStr::to_owned).collect();
        words.extend(self.plugin(model));
        self.workspace.rialto_silently(words)
    }

    fn plugin(&self, model: &Model) -> Vec<OsString> {
        let plugin = model.family.plugin.as_ref();
        let named = plugin.map(|plugin| {
            [
                "--plugin".into(),
                self.workspace.plugin(plugin.library).into(),
            ]
        });
        named.into_iter().flatten().collect()
    }

    fn named(&self, kind: &str, model: &Model, import: &Import) -> PathBuf {
        let [tp, pp, ep, etp] = import.mesh;
        let whole = match import.chunks {
            Chunks::Whole => "-whole",
            Chunks::Megatron => "",
        };
        let padded = if import.pads { "-padded" } else { "" };
        self.folder.join(format!(
            "{kind}-{}-{tp}-{pp}-{ep}-{etp}{whole}{padded}{}",
            model.name(),
            suffix(import.layers)
        ))
    }

    fn expected(&self, model: &Model, layers: Layers) -> PathBuf {
        let (name, suffix) = (model.name(), suffix(layers));
        self.folder
            .join(format!("expected-{name}{suffix}.safetensors"))
    }

    /// The same as an import of it must hold.
    fn expected_of(&self, model: &Model, import: &Import) -> PathBuf {
        if !import.pads {
            return self.expected(model, import.layers);
        }
        let (name, ranks) = (model.name(), import.mesh[0]);
        let suffix = suffix(import.layers);
        let file = format!("expected-{name}{suffix}-padded-{ranks}.safetensors");
        self.folder.join(file)
    }

    /// In a file of their own, or in the manifest.
    fn ranks(&self, golden: &Golden) -> PathBuf {
        let file = self.fixture(&format!("megatron/ranks/{}.json.gz", golden.name));
        if file.is_file() {
            file
        } else {
            golden.path().join("manifest.json")
        }
    }

    fn fixture(&self, name: &str) -> PathBuf {
        self.workspace.path("tests/fixtures").join(name)
    }
}

/// What imports `source` into `run`.
fn import_words(model: &Model, import: &Import, source: &Path, run: &Path) -> Vec<OsString> {
    let [tp, pp, ep, etp] = import.mesh.map(|size| OsString::from(size.to_string()));
    let mtp = if model.keeps_mtp { "keep" } else { "drop" };
    let mut words: Vec<OsString> = vec!["import".into(), source.into(), run.into()];
    words.extend(["--dtype".into(), model.family.dtype.into()]);
    words.extend(["--tp".into(), tp, "--pp".into(), pp]);
    words.extend(["--ep".into(), ep, "--etp".into(), etp]);
    words.extend(["--chunks".into(), import.chunks.option().into()]);
    if model.family.has_mtp {
        words.extend(["--mtp".into(), mtp.into()]);
    }
    if import.layers == Layers::Each {
        words.extend(["--layer-axis".into(), "per-layer".into()]);
    }
    if import.pads {
        words.push("--pad-vocab".into());
    }
    words
}

/// The real checkpoints of a model whose layers are named in this way.
fn of_layers(model: &Model, layers: Layers) -> impl Iterator<Item = &'static Golden> + Clone {
    let goldens = model.goldens.iter();
    goldens.filter(move |golden| golden.layers == layers)
}

/// What tells a check whose model it is.
fn of_family(model: &Model) -> [OsString; 2] {
    ["--family".into(), model.family.name.into()]
}

/// For the names of files.
fn suffix(layers: Layers) -> &'static str {
    match layers {
        Layers::Default => "",
        Layers::Each => "-per-layer",
    }
}
