//! The directory of a Megatron run: iterations side by side, and a tracker file that names the latest.

use std::collections::BTreeSet;
use std::sync::Arc;

use rialto_tensor::Location;

use super::ranks::rank_files;
use super::{DESCRIPTION_FILE, METADATA_FILE};
use crate::Error;
use crate::store::{Store, Subdirectory, read_whole};

/// The file in a run directory that names the iteration to load.
pub const TRACKER_FILE: &str = "latest_checkpointed_iteration.txt";
/// The iteration directory of a model that was published rather than trained.
const RELEASE: &str = "release";
/// Longer than any number.
const MAX_TRACKER_BYTES: u64 = 4096;

/// The name of an iteration's directory: `iter_0000042`.
#[must_use]
pub fn iteration_directory(iteration: u64) -> String {
    format!("iter_{iteration:07}")
}

/// The contents of the tracker file.
#[must_use]
pub fn tracker_bytes(iteration: u64) -> Vec<u8> {
    iteration.to_string().into_bytes()
}

/// The contents of `metadata.json`, in the form that every Megatron-Core version accepts: older ones want the two common
/// fields, newer ones pass over them.
#[must_use]
pub fn description_bytes() -> Vec<u8> {
    concat!(
        r#"{"sharded_backend": "torch_dist", "sharded_backend_version": 1, "#,
        r#""common_backend": "torch", "common_backend_version": 1}"#
    )
    .as_bytes()
    .to_vec()
}

/// A run directory, or an iteration directory given in its place, resolved to one iteration.
#[derive(Clone, Debug)]
pub struct RunDirectory {
    /// The iteration's directory.
    pub store: Arc<dyn Store>,
    /// The iteration's name: `iter_0000042`, `release`, or what the directory given is called.
    pub iteration: String,
    /// How it was chosen, as a sentence for the user.
    pub note: String,
}

impl RunDirectory {
    /// Chooses the iteration: the directory itself if it is one, otherwise the one that the tracker file names.
    ///
    /// Errors: [`Error::NoTracker`] if it is neither; [`Error::TrackerMalformed`]; [`Error::TrackerDangling`] with the
    /// iterations that exist.
    pub fn resolve(store: Arc<dyn Store>) -> Result<RunDirectory, Error> {
        let mut has_tracker = false;
        let mut is_iteration = false;
        let mut found = BTreeSet::new();
        for file in store.files()? {
            match file.name.split_once('/') {
                Some((directory, _)) if is_iteration_name(directory) => {
                    found.insert(directory.to_owned());
                }
                Some(_) => {}
                None => {
                    has_tracker |= file.name == TRACKER_FILE;
                    // A save that was cut short has data files and nothing else; opening it tells.
                    is_iteration |= file.name == METADATA_FILE
                        || file.name == DESCRIPTION_FILE
                        || file.name.ends_with(".distcp")
                        || !rank_files([&file.name]).is_empty();
                }
            }
        }
        let found: Vec<String> = found.into_iter().collect();
        if is_iteration {
            let name = store.name().trim_end_matches('/');
            let iteration = name.rsplit('/').next().unwrap_or(name).to_owned();
            return Ok(RunDirectory {
                note: format!("{} is an iteration directory", store.name()),
                iteration,
                store,
            });
        }
        if !has_tracker {
            return Err(Error::NoTracker {
                tracker: TRACKER_FILE,
                found,
                location: Location::file(store.name()),
            });
        }
        let iteration = read_tracker(store.as_ref())?;
        if !found.contains(&iteration) {
            return Err(Error::TrackerDangling {
                named: iteration,
                found,
                location: Location::file(format!("{}/{TRACKER_FILE}", store.name())),
            });
        }
        Ok(RunDirectory {
            note: format!("{iteration} chosen by {TRACKER_FILE}"),
            store: Arc::new(Subdirectory::new(store, &iteration)?),
            iteration,
        })
    }
}

fn is_iteration_name(directory: &str) -> bool {
    directory == RELEASE || directory.starts_with("iter_")
}

/// The directory that the tracker names.
fn read_tracker(store: &dyn Store) -> Result<String, Error> {
    let bytes = read_whole(store, TRACKER_FILE, MAX_TRACKER_BYTES)?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim();
    if text == RELEASE {
        return Ok(RELEASE.to_owned());
    }
    // `parse` alone would take `+5`.
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(iteration) if is_decimal => Ok(iteration_directory(iteration)),
        _ => Err(Error::TrackerMalformed {
            text: text.chars().take(80).collect(),
            location: Location::file(format!("{}/{TRACKER_FILE}", store.name())),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    fn store(files: &[(&str, &str)]) -> Arc<dyn Store> {
        let store = MemoryStore::new("run");
        for (name, text) in files {
            store.insert(name, text.as_bytes()).unwrap();
        }
        Arc::new(store)
    }

    #[test]
    fn the_tracker_decides_also_for_step_zero_and_release() {
        for (text, expected) in [
            ("0", "iter_0000000"),
            ("42\n", "iter_0000042"),
            ("release", "release"),
        ] {
            let run = RunDirectory::resolve(store(&[
                (TRACKER_FILE, text),
                ("iter_0000000/.metadata", ""),
                ("iter_0000042/.metadata", ""),
                ("release/.metadata", ""),
            ]))
            .unwrap();
            assert_eq!(run.iteration, expected);
            assert_eq!(run.store.name(), format!("run/{expected}"));
            assert!(run.note.contains(expected), "{}", run.note);
        }
    }

    #[test]
    fn an_iteration_directory_is_taken_as_it_is() {
        for file in [".metadata", "metadata.json", "__0_0.distcp", "__3.metadata"] {
            let run = RunDirectory::resolve(store(&[(file, "")])).unwrap();
            assert_eq!(run.iteration, "run", "{file}");
        }
    }

    #[test]
    fn a_dangling_tracker_names_what_exists() {
        let error = RunDirectory::resolve(store(&[
            (TRACKER_FILE, "7"),
            ("iter_0000005/.metadata", ""),
        ]))
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "tracker names iter_0000007, which is not here; iterations found: iter_0000005 \
             (run/latest_checkpointed_iteration.txt)"
        );
    }

    #[test]
    fn a_tracker_of_anything_else_is_malformed() {
        for text in ["", "-1", "+5", "1.5", "../x", "99999999999999999999999"] {
            let error = RunDirectory::resolve(store(&[(TRACKER_FILE, text)])).unwrap_err();
            assert!(matches!(error, Error::TrackerMalformed { .. }), "{error}");
        }
    }

    #[test]
    fn a_directory_without_either_lists_its_iterations() {
        let error = RunDirectory::resolve(store(&[("iter_0000005/.metadata", "")])).unwrap_err();
        assert!(matches!(&error, Error::NoTracker { found, .. } if found == &["iter_0000005"]));
        let error = RunDirectory::resolve(store(&[("readme", "")])).unwrap_err();
        assert!(
            error.to_string().contains("iterations found: none"),
            "{error}"
        );
    }
}
