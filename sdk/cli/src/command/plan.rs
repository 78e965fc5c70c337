//! `rialto plan PATH`: the dry run of an import or an export.

use rialto_engine::{
    ExportOptions, ExportPlan, ImportPlan, MegatronSource, is_hugging_face, source_config,
};

use crate::arguments::{Common, Plan};
use crate::failure::Failure;
use crate::output::Output;
use crate::report::Planned;
use crate::{families, places};

pub(crate) fn run(plan: &Plan, common: &Common, output: &Output) -> Result<(), Failure> {
    let store = places::open(&plan.path)?;
    if is_hugging_face(store.as_ref())? {
        let family = families::claim(common, &source_config(store.as_ref())?, output)?;
        let plan = ImportPlan::new(family.as_ref(), store, &plan.options.resolve())?;
        return output.result(&Planned(plan.summary()));
    }
    let source = MegatronSource::open(store, places::open_reference(plan.reference.as_deref())?)?;
    let family = families::claim(common, source.config(), output)?;
    let dtype = plan.options.resolve().dtype;
    let options = ExportOptions {
        dtype,
        ..ExportOptions::default()
    };
    let plan = ExportPlan::new(family.as_ref(), source, &options)?;
    output.result(&Planned(plan.summary()))
}
