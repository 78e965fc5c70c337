//! `rialto import SOURCE TARGET`.

use rialto_checkpoint::store::{Store, refuse_overlap};
use rialto_engine::{ImportPlan, source_config};

use crate::arguments::{Common, Import};
use crate::bar::Bar;
use crate::command::{as_one_of, run_options};
use crate::failure::Failure;
use crate::output::Output;
use crate::report::Done;
use crate::{families, interrupt, model, places};

pub(crate) fn run(import: &Import, common: &Common, output: &Output) -> Result<(), Failure> {
    interrupt::listen()?;
    let (world, launcher) = crate::world::of(&import.run, |name| std::env::var(name).ok())?;
    let store = places::open_with(&import.source, import.run.access())?;
    refuse_overlap(&import.source, &import.target)?;
    let device = model::open_decoder(&import.device, output)?;
    interrupt::check()?;
    let family = families::claim(common, &source_config(store.as_ref())?, output)?;
    let plan = ImportPlan::new(family.as_ref(), store, &import.options.resolve())?;
    interrupt::check()?;
    let options = run_options(&import.run, (world, launcher), family.as_ref(), output);
    let has_made = |store: &dyn Store| Ok(plan.has_made(family.as_ref(), &options, store)?);
    let report = as_one_of(
        world,
        &import.target,
        &import.run,
        output,
        has_made,
        |target| {
            let (family, bar) = (family.as_ref(), Bar::new(output));
            Ok(match &device {
                Some(device) => plan.run_on(device, family, target, &options, &bar)?,
                None => plan.run(family, target, &options, &bar)?,
            })
        },
    )?;
    let Some(report) = report else {
        return Ok(());
    };
    output.result(&Done {
        report: &report,
        place: import.target.display().to_string(),
    })
}
