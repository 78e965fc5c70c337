//! `rialto plan PATH`: the dry run of an import or an export.

use rialto_engine::{
    ExportOptions, ExportPlan, ImportPlan, MegatronSource, is_hugging_face, source_config,
};

use crate::arguments::{Common, Plan};
use crate::failure::{Failure, WRONG_USAGE};
use crate::output::Output;
use crate::report::Planned;
use crate::{families, places};

pub(crate) fn run(plan: &Plan, common: &Common, output: &Output) -> Result<(), Failure> {
    let store = places::open(&plan.path)?;
    if is_hugging_face(store.as_ref())? {
        if plan.reference.is_some() {
            return Err(misplaced(
                &["--reference"],
                "a hugging face directory, which is planned for import",
            ));
        }
        let family = families::claim(common, &source_config(store.as_ref())?, output)?;
        let plan = ImportPlan::new(family.as_ref(), store, &plan.options.resolve())?;
        return output.result(&Planned(plan.summary()));
    }
    let of_import = plan.options.only_of_import();
    if !of_import.is_empty() {
        return Err(misplaced(
            &of_import,
            "a megatron checkpoint, which is planned for export",
        ));
    }
    let source = MegatronSource::open(store, places::open_reference(plan.reference.as_deref())?)?;
    let family = families::claim(common, source.config(), output)?;
    let asked = plan.options.resolve();
    let options = ExportOptions {
        dtype: asked.dtype,
        ignore: asked.ignore,
        ..ExportOptions::default()
    };
    let plan = ExportPlan::new(family.as_ref(), source, &options)?;
    output.result(&Planned(plan.summary()))
}

/// Options that the other direction has.
fn misplaced(options: &[&str], path: &str) -> Failure {
    let options = options.join(", ");
    let message = format!("options that do not belong together: {options} and {path}");
    let mut failure = Failure::own(WRONG_USAGE, message);
    failure.help = Some(format!("leave out {options}"));
    failure
}
