//! `rialto import SOURCE TARGET`.

use std::sync::Arc;
use std::time::Instant;

use rialto_checkpoint::store::{LocalStore, LocalTarget, Overwrite, refuse_overlap};
use rialto_engine::{ImportPlan, source_config};

use crate::arguments::{Common, Import};
use crate::bar::Bar;
use crate::command::plan::Done;
use crate::failure::Failure;
use crate::families;
use crate::output::Output;

pub(crate) fn run(import: &Import, common: &Common, output: &Output) -> Result<(), Failure> {
    let store = Arc::new(LocalStore::open(&import.source)?);
    refuse_overlap(&import.source, &import.target)?;
    let family = families::claim(common, &source_config(store.as_ref())?, output)?;
    let plan = ImportPlan::new(family.as_ref(), store, &import.options.resolve())?;
    let target = LocalTarget::create(&import.target, overwrite(import.force))?;
    let begin = Instant::now();
    plan.run(family.as_ref(), Box::new(target), &Bar::new(output))?;
    output.result(&Done {
        summary: plan.summary(),
        place: import.target.display().to_string(),
        took: begin.elapsed(),
    })
}

pub(crate) fn overwrite(force: bool) -> Overwrite {
    if force {
        Overwrite::Replace
    } else {
        Overwrite::Refuse
    }
}
