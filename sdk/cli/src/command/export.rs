//! `rialto export SOURCE TARGET`.

use std::time::Instant;

use rialto_checkpoint::store::refuse_overlap;
use rialto_engine::{ExportPlan, MegatronSource};

use crate::arguments::{Common, Export};
use crate::bar::Bar;
use crate::failure::Failure;
use crate::output::Output;
use crate::report::Done;
use crate::{families, interrupt, places};

pub(crate) fn run(export: &Export, common: &Common, output: &Output) -> Result<(), Failure> {
    interrupt::listen()?;
    let store = places::open(&export.source)?;
    let reference = export.options.reference.as_deref();
    for read in [Some(export.source.as_path()), reference]
        .into_iter()
        .flatten()
    {
        refuse_overlap(read, &export.target)?;
    }
    let source = MegatronSource::open(store, places::open_reference(reference)?)?;
    interrupt::check()?;
    let family = families::claim(common, source.config(), output)?;
    let plan = ExportPlan::new(family.as_ref(), source, &export.options.resolve())?;
    interrupt::check()?;
    let target = places::create(&export.target, export.force)?;
    let begin = Instant::now();
    plan.run(target, &Bar::new(output))?;
    output.result(&Done {
        summary: plan.summary(),
        place: export.target.display().to_string(),
        took: begin.elapsed(),
    })
}
