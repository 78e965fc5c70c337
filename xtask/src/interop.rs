//! Our output in front of the code it is for: PyTorch, Megatron-Core and the safetensors package, in Python.
//!
//! | module | noun |
//! |---|---|
//! | [`matrix`] | which models are converted on which meshes, and what is held against them |
//! | [`python`] | the interpreter, and the checks that wait to be run in it |

mod matrix;
mod python;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use serde_json::json;

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
            self.check_export(model, &exports[exports.len() - 1]);
        }
        for import in model.imports {
            let run = self.import(model, import, &source, "run")?;
            let held = self.expected_of(model, import);
            let mut arguments = vec![run.clone().into_os_string(), held.into()];
            arguments.extend(["--mcore".into(), "--pages".into()]);
            arguments.extend(of_family(model));
            self.checks.add("check_torch_dist", arguments);
            self.check_import(model, import, &run);
            // The models behind these are not padded: of a longer vocabulary they ask for what they have.
            let expected = self.expected(model, import.layers);
            for golden in of_layers(model, import.layers) {
                let ranks = self.ranks(golden);
                let paths = [run.as_path(), &expected, &ranks].map(Into::into);
                let arguments = paths.into_iter().chain(of_family(model));
                self.checks.add("check_ranks", arguments);
            }
            let exported = self.named("exported", model, import);
            self.rialto(
                model,
                ["export".as_ref(), run.as_os_str(), exported.as_os_str()],
            )?;
            self.check_export(model, &exported);
            // What was announced at the export is all that the way back may change.
            let again = self.import(model, import, &exported, "again")?;
            let changed = model
                .changed_by_export
                .iter()
                .flat_map(|name| ["--but".into(), (*name).into()]);
            let directories = [run.into_os_string(), again.into_os_string()];
            self.checks
                .add("check_same", directories.into_iter().chain(changed));
            exports.push(exported);
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
            let mut wanted = vec![source.into(), expected.into_os_string()];
            if !model.keeps_mtp {
                wanted.push("--without-mtp".into());
            }
            if layers == Layers::Each {
                wanted.push("--per-layer".into());
            }
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

    /// Exports of the checkpoints of a training run.
    fn training(&mut self) -> Result<()> {
        let source = self.fixture(TRAINING.source);
        let mut exports = Vec::new();
        for golden in TRAINING.goldens {
            exports.push(self.export_of_another(&TRAINING, golden.name, &source)?);
            self.check_export(&TRAINING, &exports[exports.len() - 1]);
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
        let sizes = import.mesh.map(|size| size.to_string());
        let [tp, pp, ep, etp] = sizes.each_ref().map(String::as_str);
        let mtp = if model.keeps_mtp { "keep" } else { "drop" };
        let mut options = vec!["--dtype", model.family.dtype];
        options.extend(["--tp", tp, "--pp", pp, "--ep", ep, "--etp", etp]);
        options.extend(["--chunks", import.chunks.option()]);
        if model.family.has_mtp {
            options.extend(["--mtp", mtp]);
        }
        if import.layers == Layers::Each {
            options.extend(["--layer-axis", "per-layer"]);
        }
        if import.pads {
            options.push("--pad-vocab");
        }
        let arguments = ["import".as_ref(), source.as_os_str(), run.as_os_str()];
        let options = options.into_iter().map(AsRef::as_ref);
        self.rialto(model, arguments.into_iter().chain(options))?;
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

    fn check_export(&mut self, model: &Model, exported: &Path) {
        let mut arguments = vec![exported.into(), self.fixture(model.source).into_os_string()];
        arguments.extend(of_family(model));
        if !model.keeps_mtp {
            arguments.push("--without-mtp".into());
        }
        if let Some(dequantized) = model.dequantized {
            arguments.extend(["--dequantized".into(), self.fixture(dequantized).into()]);
        }
        self.checks.add("check_export", arguments);
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

    /// Where the results lie that faults are planted into, and what they are held against.
    fn places(&self) -> serde_json::Value {
        let [glm52, _, glm5, glm53, _, tied, untied] = &MODELS;
        let result =
            |kind, model: &Model, number: usize| self.named(kind, model, &model.imports[number]);
        let expected = |model| self.expected(model, Layers::Default);
        json!({
            "glm5": {
                "run": result("run", glm52, 0),
                "exported": result("exported", glm52, 0),
                "fixture": glm52.goldens[0].path(),
                "source": self.fixture(glm52.source),
                "expected": expected(glm52),
                "cut_run": result("run", glm52, 1),
                "cut_fixture": glm52.goldens[1].path(),
                "ranks": self.ranks(&glm52.goldens[1]),
                "whole_run": result("run", glm52, 3),
                "padded_run": result("run", glm52, 4),
                "padded_expected": self.expected_of(glm52, &glm52.imports[4]),
                "f32_run": result("run", glm5, 2),
                "f32_exported": result("exported", glm5, 2),
                "f32_fixture": glm5.goldens[0].path(),
                "f32_source": self.fixture(glm5.source),
                "fp8_run": result("run", glm53, 0),
                "fp8_exported": result("exported", glm53, 0),
                "fp8_fixture": glm53.goldens[0].path(),
                "fp8_ranks": self.ranks(&glm53.goldens[0]),
                "fp8_source": self.fixture(glm53.source),
                "fp8_expected": expected(glm53),
                "dequantized": self.fixture(glm53.dequantized.unwrap_or_default()),
            },
            "qwen3": {
                "run": result("run", tied, 0),
                "exported": result("exported", tied, 0),
                "fixture": tied.goldens[0].path(),
                "source": self.fixture(tied.source),
                "expected": expected(tied),
                "cut_run": result("run", tied, 1),
                "cut_fixture": tied.goldens[1].path(),
                "untied_run": result("run", untied, 2),
                "untied_exported": result("exported", untied, 2),
                "untied_fixture": untied.goldens[0].path(),
                "untied_source": self.fixture(untied.source),
                "untied_expected": expected(untied),
                "by_layer_run": result("run", untied, 3),
                "by_layer_exported": result("exported", untied, 3),
                "by_layer_fixture": untied.goldens[2].path(),
                "by_layer_expected": self.expected(untied, Layers::Each),
            },
        })
    }

    /// Runs rialto, whose summaries are many here and the same as in the demo, and names the plugin that it would not find.
    fn rialto<'a>(
        &mut self,
        model: &Model,
        arguments: impl IntoIterator<Item = &'a OsStr>,
    ) -> Result<()> {
        self.count += 1;
        let mut words: Vec<OsString> = arguments.into_iter().map(OsStr::to_owned).collect();
        if let Some(plugin) = &model.family.plugin {
            words.push("--plugin".into());
            words.push(self.workspace.plugin(plugin.library).into());
        }
        self.workspace.rialto_silently(words)
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

/// The real checkpoints of a model whose layers are named in this way.
fn of_layers(model: &Model, layers: Layers) -> impl Iterator<Item = &'static Golden> {
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
