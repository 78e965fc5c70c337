//! `rialto export SOURCE TARGET`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rialto_checkpoint::store::{LocalStore, LocalTarget, Store, refuse_overlap};
use rialto_engine::{ExportPlan, MegatronSource};

use crate::arguments::{Common, Export};
use crate::bar::Bar;
use crate::command::import::overwrite;
use crate::command::plan::Done;
use crate::failure::Failure;
use crate::families;
use crate::output::Output;

pub(crate) fn run(export: &Export, common: &Common, output: &Output) -> Result<(), Failure> {
    let store = Arc::new(LocalStore::open(&export.source)?);
    refuse_overlap(&export.source, &export.target)?;
    if let Some(reference) = &export.options.reference {
        refuse_overlap(reference, &export.target)?;
    }
    let source = MegatronSource::open(store, open(export.options.reference.as_deref())?)?;
    let family = families::claim(common, source.config(), output)?;
    let plan = ExportPlan::new(family.as_ref(), source, &export.options.resolve())?;
    let target = LocalTarget::create(&export.target, overwrite(export.force))?;
    let begin = Instant::now();
    plan.run(Box::new(target), &Bar::new(output))?;
    output.result(&Done {
        summary: plan.summary(),
        place: export.target.display().to_string(),
        took: begin.elapsed(),
    })
}

/// The reference directory, if one is given.
pub(crate) fn open(reference: Option<&Path>) -> Result<Option<Arc<dyn Store>>, Failure> {
    let Some(reference) = reference else {
        return Ok(None);
    };
    Ok(Some(Arc::new(LocalStore::open(reference)?)))
}
