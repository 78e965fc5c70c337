//! `rialto plan PATH`: the dry run of an import or an export.

use std::sync::Arc;

use rialto_bridge::Mesh;
use rialto_checkpoint::store::{Store, Target, refuse_overlap};
use rialto_engine::{
    ExportOptions, ExportPlan, ImportPlan, MegatronSource, Options, Summary, is_hugging_face,
    probe, run_directory, source_config,
};

use crate::arguments::{Common, Plan};
use crate::bar::Bar;
use crate::failure::{Failure, WRONG_USAGE};
use crate::output::Output;
use crate::report::{Estimate, Planned, RankShare, Suggested};
use crate::{families, interrupt, places};

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
        let options = plan.options.resolve();
        if plan.suggest {
            // The sizes asked for need not fit: those that do are the answer.
            let single = Options {
                mesh: Mesh::SINGLE,
                ..options.clone()
            };
            let single = ImportPlan::new(family.as_ref(), store, &single)?;
            return output.result(&Suggested(&single.suggest(family.as_ref(), &options)?));
        }
        let import = ImportPlan::new(family.as_ref(), Arc::clone(&store), &options)?;
        let summary = import.summary();
        let weights = (summary.source.files > 0).then_some(store.as_ref());
        return output.result(&Planned {
            summary,
            ranks: plan.ranks.then(|| RankShare::all(summary)),
            estimate: estimate(plan, weights, summary, output)?,
        });
    }
    // Whether it is one comes first: of a path that is mistyped nothing else can be said.
    run_directory(Arc::clone(&store))?;
    let mut of_import = plan.options.only_of_import();
    let also = [("--ranks", plan.ranks), ("--suggest", plan.suggest)];
    of_import.extend(
        also.iter()
            .filter(|(_, is_given)| *is_given)
            .map(|(name, _)| name),
    );
    if !of_import.is_empty() {
        return Err(misplaced(
            &of_import,
            "a megatron checkpoint, which is planned for export",
        ));
    }
    let source = MegatronSource::open(
        Arc::clone(&store),
        places::open_reference(plan.reference.as_deref())?,
    )?;
    let family = families::claim(common, source.config(), output)?;
    let asked = plan.options.resolve();
    let options = ExportOptions {
        dtype: asked.dtype,
        allow_unmapped: asked.allow_unmapped,
        filter: asked.filter,
        mtp: asked.mtp,
        files: asked.files,
        ..ExportOptions::default()
    };
    let export = ExportPlan::new(family.as_ref(), source, &options)?;
    let summary = export.summary();
    output.result(&Planned {
        summary,
        ranks: None,
        estimate: estimate(plan, Some(store.as_ref()), summary, output)?,
    })
}

/// How long the conversion would take, if that is asked: what is there of the source is read, the target is made and let go.
fn estimate(
    plan: &Plan,
    source: Option<&dyn Store>,
    summary: &Summary,
    output: &Output,
) -> Result<Option<Estimate>, Failure> {
    let Some(place) = &plan.probe else {
        return Ok(None);
    };
    interrupt::listen()?;
    refuse_overlap(&plan.path, place)?;
    let target = places::create_beside(place)?;
    let room = target.require_bytes(summary.target.bytes);
    let rates = probe(source, target, &Bar::new(output))?;
    let took = rates.estimate(summary.source.bytes, summary.target.bytes);
    Ok(Some(Estimate {
        rates,
        seconds: took.as_secs_f64(),
        no_room: room.err().map(|error| error.to_string()),
    }))
}

/// Options that the other direction has.
fn misplaced(options: &[&str], path: &str) -> Failure {
    let options = options.join(", ");
    let message = format!("options that do not belong together: {options} and {path}");
    let mut failure = Failure::own(WRONG_USAGE, message);
    failure.help = Some(format!("leave out {options}"));
    failure
}
