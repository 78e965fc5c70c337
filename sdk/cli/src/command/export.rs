//! `rialto export SOURCE TARGET`.

use rialto_checkpoint::store::{Store, refuse_overlap};
use rialto_engine::{ExportPlan, MegatronSource};

use crate::arguments::{Common, Export};
use crate::bar::Bar;
use crate::command::{as_one_of, run_options};
use crate::failure::Failure;
use crate::output::Output;
use crate::report::Done;
use crate::{families, interrupt, places};

pub(crate) fn run(export: &Export, common: &Common, output: &Output) -> Result<(), Failure> {
    interrupt::listen()?;
    let (world, launcher) = crate::world::of(&export.run, |name| std::env::var(name).ok())?;
    let store = places::open_with(&export.source, export.run.access())?;
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
    let options = run_options(&export.run, (world, launcher), family.as_ref(), output);
    let has_made = |store: &dyn Store| Ok(plan.has_made(&options, store)?);
    let report = as_one_of(
        world,
        &export.target,
        &export.run,
        output,
        has_made,
        |target| Ok(plan.run(target, &options, &Bar::new(output))?),
    )?;
    let Some(report) = report else {
        return Ok(());
    };
    output.result(&Done {
        report: &report,
        place: export.target.display().to_string(),
    })
}
