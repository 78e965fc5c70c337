//! `rialto import SOURCE TARGET`.

use std::time::Instant;

use rialto_checkpoint::store::refuse_overlap;
use rialto_engine::{ImportPlan, source_config};

use crate::arguments::{Common, Import};
use crate::bar::Bar;
use crate::failure::Failure;
use crate::output::Output;
use crate::report::Done;
use crate::{families, interrupt, places};

pub(crate) fn run(import: &Import, common: &Common, output: &Output) -> Result<(), Failure> {
    interrupt::listen()?;
    let store = places::open(&import.source)?;
    refuse_overlap(&import.source, &import.target)?;
    interrupt::check()?;
    let family = families::claim(common, &source_config(store.as_ref())?, output)?;
    let plan = ImportPlan::new(family.as_ref(), store, &import.options.resolve())?;
    interrupt::check()?;
    let target = places::create(&import.target, import.force)?;
    let begin = Instant::now();
    plan.run(family.as_ref(), target, &Bar::new(output))?;
    output.result(&Done {
        summary: plan.summary(),
        place: import.target.display().to_string(),
        took: begin.elapsed(),
    })
}
