//! The place where a target will appear.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rialto_tensor::Location;

use super::target::Overwrite;
use super::{RACES, is_there, not_a_directory, write_error};
use crate::Error;

/// Directories above the target that were not there before, innermost first. Removed on drop if they are empty.
#[derive(Debug, Default)]
pub(super) struct MadeParents(Vec<PathBuf>);

impl MadeParents {
    /// The directories in which entries were made.
    pub(super) fn above(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().filter_map(|made| made.parent())
    }

    /// Lets them stay.
    pub(super) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for MadeParents {
    fn drop(&mut self) {
        for directory in &self.0 {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// The final path without links, and the directories that had to be created above it.
pub(super) fn resolve(path: &Path, name: &str) -> Result<(PathBuf, MadeParents), Error> {
    let refuse = |source| refuse(path, source);
    for _ in 0..RACES {
        match fs::canonicalize(path) {
            Ok(place) if place.file_name().is_none() => return Err(unsafe_name(name)),
            Ok(place) => return Ok((place, MadeParents::default())),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refuse(error)),
            // A link that leads nowhere, unless another has put something there just now.
            Err(_) if is_there(path) => {}
            Err(_) => return resolve_new(path, name),
        }
    }
    Err(Error::NotFound {
        location: Location::file(name),
    })
}

/// [`resolve`] where nothing has the name.
fn resolve_new(path: &Path, name: &str) -> Result<(PathBuf, MadeParents), Error> {
    let refuse = |source| refuse(path, source);
    let absolute = std::path::absolute(path).map_err(|_| unsafe_name(name))?;
    let (Some(parent), Some(last)) = (absolute.parent(), absolute.file_name()) else {
        return Err(unsafe_name(name));
    };
    let missing = parent.ancestors().take_while(|above| !is_there(above));
    let parents = MadeParents(missing.map(Path::to_path_buf).collect());
    fs::create_dir_all(parent).map_err(refuse)?;
    let place = fs::canonicalize(parent).map_err(refuse)?.join(last);
    Ok((place, parents))
}

fn refuse(path: &Path, source: io::Error) -> Error {
    not_a_directory(path, &source).unwrap_or_else(|| write_error(path, source))
}

fn unsafe_name(name: &str) -> Error {
    Error::UnsafeName {
        name: name.to_owned(),
        location: Location::default(),
    }
}

/// What a new result may take the place of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Occupant {
    /// Nothing, or an empty directory: a rename is enough.
    Nothing,
    /// A directory with something in it, which may be replaced.
    Directory,
}

/// What is there now. Errors: [`Error::NotDirectory`], and [`Error::TargetExists`] if it must stay.
pub(super) fn occupant(place: &Path, name: &str, overwrite: Overwrite) -> Result<Occupant, Error> {
    let location = Location::file(name);
    let refuse = |source| write_error(place, source);
    let metadata = match fs::symlink_metadata(place) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Occupant::Nothing),
        Err(error) => return Err(refuse(error)),
    };
    match (metadata.is_dir(), overwrite) {
        (true, _) if fs::read_dir(place).map_err(refuse)?.next().is_none() => Ok(Occupant::Nothing),
        (true, Overwrite::Replace) => Ok(Occupant::Directory),
        (false, _) => Err(Error::NotDirectory { location }),
        (true, Overwrite::Refuse) => Err(Error::TargetExists { location }),
    }
}
