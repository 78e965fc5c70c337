//! One file a command.

pub(crate) mod backend;
pub(crate) mod compare;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod inspect;
pub(crate) mod plan;
pub(crate) mod plugin;
pub(crate) mod run;
pub(crate) mod verify;

use std::path::Path;

use rialto_bridge::Bridge;
use rialto_checkpoint::store::{LocalTarget, Overwrite, Store};
use rialto_engine::{RunOptions, RunReport, World};
use serde_json::{Map, json};

use crate::arguments::RunFlags;
use crate::failure::Failure;
use crate::output::Output;
use crate::places;
use crate::report::AlreadyMade;

/// How a conversion is run, with what its report says of this program. Says which process it is if there are others.
fn run_options(
    flags: &RunFlags,
    (world, launcher): (World, Option<&'static str>),
    family: &dyn Bridge,
    output: &Output,
) -> RunOptions {
    if world.size > 1 {
        let by = launcher.map_or_else(String::new, |launcher| format!(" (as {launcher} says)"));
        output.note(&format!("rank {} of {}{by}", world.rank, world.size));
    }
    let plugin = family.describe();
    let command: Vec<String> = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut about = Map::new();
    about.insert("command".to_owned(), json!(command));
    about.insert(
        "plugin".to_owned(),
        json!({"name": plugin.name, "version": plugin.version}),
    );
    about.insert("abi".to_owned(), json!(rialto_abi::decl::ABI_CRATE_VERSION));
    RunOptions {
        world,
        about,
        ..flags.resolve()
    }
}

/// The code of an error that says what the user wanted.
const CANCELLED: u32 = 9;

/// Runs a conversion as one process of a world. One that comes when the others have made the result has nothing to do, and
/// says so.
fn as_one_of(
    world: World,
    path: &Path,
    flags: &RunFlags,
    output: &Output,
    has_made: impl Fn(&dyn Store) -> Result<bool, Failure>,
    run: impl FnOnce(Box<LocalTarget>) -> Result<RunReport, Failure>,
) -> Result<Option<RunReport>, Failure> {
    let is_made = || -> Result<bool, Failure> {
        match places::open(path) {
            Ok(store) => has_made(store.as_ref()),
            Err(_) => Ok(false),
        }
    };
    let late = || {
        output.result(&AlreadyMade {
            place: path.display().to_string(),
            rank: world.rank,
            world_size: world.size,
            is_made_by_others: true,
        })
    };
    let was_made = world.rank > 0 && is_made()?;
    // An older result may be the same, and is to be replaced by force.
    if was_made && !flags.force {
        return late().map(|()| None);
    }
    match places::create(path, flags, world).and_then(run) {
        // Made by the others since, and taken away from under this one.
        Err(failure) if failure.code != CANCELLED && world.rank > 0 && !was_made && is_made()? => {
            // What this process may have begun after the others had done with it.
            if let Ok(left) = LocalTarget::create(path, Overwrite::Replace) {
                drop(left);
            }
            late().map(|()| None)
        }
        done => done.map(Some),
    }
}
