//! The question whether a target would be written into, over or around its source.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use rialto_tensor::Location;

use super::not_a_directory;
use super::partial::partial_path;
use crate::Error;

/// Refuses a target that is equal to, inside, or above the source, also where symbolic links lead there.
///
/// The target need not exist: its nearest existing ancestor decides. The sibling in which the target would be built
/// counts too. Errors: [`Error::Overlap`], [`Error::NotFound`] if the source does not exist or a link leads nowhere,
/// [`Error::Read`].
pub fn refuse_overlap(source: &Path, target: &Path) -> Result<(), Error> {
    let origin = resolve(source)?;
    let place = resolve(target)?;
    let relation = if place == origin {
        "the same as"
    } else if place.starts_with(&origin) {
        "inside"
    } else if origin.starts_with(&place) {
        "above"
    } else if origin.starts_with(partial_path(&place)) {
        "built inside"
    } else {
        return Ok(());
    };
    Err(Error::Overlap {
        origin: source.display().to_string(),
        target: target.display().to_string(),
        relation,
    })
}

/// The path without links, as far as it exists; the rest is appended as it stands.
fn resolve(path: &Path) -> Result<PathBuf, Error> {
    let refuse = |source: io::Error| {
        if let Some(error) = not_a_directory(path, &source) {
            return error;
        }
        let location = Location::file(path.display().to_string());
        match source.kind() {
            io::ErrorKind::NotFound => Error::NotFound { location },
            _ => Error::Read { location, source },
        }
    };
    let absolute = std::path::absolute(path).map_err(refuse)?;
    // Component by component, because `..` after a link means the parent of what the link leads to.
    let mut resolved = PathBuf::new();
    let mut exists = true;
    for component in absolute.components() {
        match component {
            Component::ParentDir => {
                resolved.pop();
                exists = exists || resolved.exists();
            }
            Component::CurDir => {}
            other => {
                resolved.push(other);
                if !exists {
                    continue;
                }
                match fs::canonicalize(&resolved) {
                    Ok(real) => resolved = real,
                    // A link that leads nowhere today may lead into the source tomorrow.
                    Err(error) if fs::symlink_metadata(&resolved).is_ok() => {
                        return Err(refuse(error));
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => exists = false,
                    Err(error) => return Err(refuse(error)),
                }
            }
        }
    }
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn relation(source: &Path, target: &Path) -> Option<&'static str> {
        match refuse_overlap(source, target) {
            Ok(()) => None,
            Err(Error::Overlap { relation, .. }) => Some(relation),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_target_equal_inside_or_above_is_refused_and_a_neighbor_is_not() {
        let scratch = tempfile::tempdir().unwrap();
        let source = scratch.path().join("a/ckpt");
        fs::create_dir_all(&source).unwrap();
        assert_eq!(relation(&source, &source), Some("the same as"));
        assert_eq!(relation(&source, &source.join("x/y")), Some("inside"));
        assert_eq!(relation(&source, &scratch.path().join("a")), Some("above"));
        assert_eq!(relation(&source, &scratch.path().join("a/ckpt2")), None);
        assert_eq!(relation(&source, &source.join("new/../../b")), None);
        assert_eq!(relation(&source, &source.join("new/../x")), Some("inside"));
    }

    #[test]
    fn links_are_followed_on_both_sides() {
        let scratch = tempfile::tempdir().unwrap();
        let source = scratch.path().join("ckpt");
        fs::create_dir(&source).unwrap();
        let link = scratch.path().join("link");
        symlink(&source, &link).unwrap();
        assert_eq!(relation(&source, &link), Some("the same as"));
        assert_eq!(relation(&link, &source.join("out")), Some("inside"));
        assert_eq!(relation(&source, &link.join("out")), Some("inside"));
        // `link/..` is the parent of what the link leads to.
        fs::create_dir(source.join("deep")).unwrap();
        symlink(source.join("deep"), scratch.path().join("deep")).unwrap();
        assert_eq!(
            relation(&source, &scratch.path().join("deep/../out")),
            Some("inside")
        );
    }

    #[test]
    fn a_link_that_leads_nowhere_and_a_missing_source_are_errors() {
        let scratch = tempfile::tempdir().unwrap();
        let source = scratch.path().join("ckpt");
        fs::create_dir(&source).unwrap();
        let link = scratch.path().join("link");
        symlink(source.join("later"), &link).unwrap();
        let error = refuse_overlap(&source, &link).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
    }

    #[test]
    fn a_source_where_the_target_would_be_built_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let source = scratch.path().join("out.partial");
        fs::create_dir(&source).unwrap();
        assert_eq!(
            relation(&source, &scratch.path().join("out")),
            Some("built inside")
        );
    }
}
