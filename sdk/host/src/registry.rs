//! Where plugins are looked for, and which one takes a config.
//!
//! The order: paths given by hand, `RIALTO_PLUGIN_PATH`, the executable's own folder and its `plugins` subfolder, the
//! user's data directory. Never the working directory: a checkpoint that somebody unpacked must not bring code along.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rialto_bridge::{Claim, RawConfig};
use serde::Serialize;

use crate::check::path_text;
use crate::{Error, LoadedPlugin, load};

/// Where plugins are looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPath {
    explicit: Vec<PathBuf>,
    variable: Option<OsString>,
    executable_folder: Option<PathBuf>,
    data_home: Option<PathBuf>,
}

/// The rank of a place in the search path: why a file was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Named by hand.
    Explicit,
    /// Listed in `RIALTO_PLUGIN_PATH`.
    Variable,
    /// In the executable's folder, named `librialto_*.so`.
    ExecutableFolder,
    /// In the `plugins` folder beside the executable.
    PluginsFolder,
    /// In the user's data directory.
    DataFolder,
}

impl SearchPath {
    /// Nowhere.
    #[must_use]
    pub fn new() -> SearchPath {
        SearchPath::default()
    }

    /// What this process's environment says: `RIALTO_PLUGIN_PATH`, the executable, `XDG_DATA_HOME` or `HOME`.
    #[must_use]
    pub fn from_environment() -> SearchPath {
        let folder = |name: &str| {
            let path = std::env::var_os(name).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        };
        let executable = std::env::current_exe().ok();
        SearchPath {
            explicit: Vec::new(),
            variable: std::env::var_os("RIALTO_PLUGIN_PATH"),
            executable_folder: executable.and_then(|file| Some(file.parent()?.to_owned())),
            data_home: folder("XDG_DATA_HOME")
                .or_else(|| folder("HOME").map(|home| home.join(".local/share"))),
        }
    }

    /// Adds a file that was named by hand. It comes before everything else, and if it is no plugin the search fails.
    #[must_use]
    pub fn plugin(mut self, file: impl Into<PathBuf>) -> SearchPath {
        self.explicit.push(file.into());
        self
    }

    /// Sets the value of `RIALTO_PLUGIN_PATH`: absolute paths of files or folders, between colons.
    #[must_use]
    pub fn variable(mut self, value: impl Into<OsString>) -> SearchPath {
        self.variable = Some(value.into());
        self
    }

    /// Sets the executable's folder.
    #[must_use]
    pub fn executable_folder(mut self, folder: impl Into<PathBuf>) -> SearchPath {
        self.executable_folder = Some(folder.into());
        self
    }

    /// Sets the user's data directory, which holds `rialto/plugins`.
    #[must_use]
    pub fn data_home(mut self, folder: impl Into<PathBuf>) -> SearchPath {
        self.data_home = Some(folder.into());
        self
    }

    /// Every place, in order, with why it is one: files named by hand, entries of the variable, folders.
    #[must_use]
    pub fn places(&self) -> Vec<(Origin, PathBuf)> {
        let explicit = self.explicit.iter().cloned();
        let mut places: Vec<_> = explicit.map(|file| (Origin::Explicit, file)).collect();
        let entries = self.variable.iter().flat_map(|value| split(value));
        places.extend(entries.map(|entry| (Origin::Variable, entry)));
        if let Some(folder) = &self.executable_folder {
            places.push((Origin::ExecutableFolder, folder.clone()));
            places.push((Origin::PluginsFolder, folder.join("plugins")));
        }
        if let Some(home) = &self.data_home {
            places.push((Origin::DataFolder, home.join("rialto/plugins")));
        }
        places
    }

    /// Every file to try, in order, and every entry that is none.
    fn candidates(&self) -> Vec<(Origin, Result<PathBuf, Error>)> {
        let mut found = Vec::new();
        for (origin, place) in self.places() {
            match origin {
                Origin::Explicit => found.push((origin, Ok(place))),
                Origin::Variable if place.is_relative() => {
                    found.push((origin, Err(Error::Relative { file: place })));
                }
                Origin::Variable if !place.is_dir() => found.push((origin, Ok(place))),
                Origin::ExecutableFolder => add_folder(&mut found, origin, &place, "librialto_"),
                _ => add_folder(&mut found, origin, &place, ""),
            }
        }
        found
    }
}

/// The entries of a path variable; an empty one would mean the working directory elsewhere, and means nothing here.
fn split(value: &OsStr) -> Vec<PathBuf> {
    let entries = value.as_bytes().split(|&byte| byte == b':');
    entries
        .filter(|entry| !entry.is_empty())
        .map(|entry| PathBuf::from(OsString::from_vec(entry.to_vec())))
        .collect()
}

/// Adds a folder's libraries, by name. A folder that is not there has none.
fn add_folder(
    found: &mut Vec<(Origin, Result<PathBuf, Error>)>,
    origin: Origin,
    folder: &Path,
    prefix: &str,
) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    let is_library = |name: &OsStr| {
        let name = name.as_bytes();
        name.starts_with(prefix.as_bytes()) && name.ends_with(b".so")
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .filter(|entry| is_library(&entry.file_name()))
        .map(|entry| entry.path())
        .collect();
    files.sort();
    found.extend(files.into_iter().map(|file| (origin, Ok(file))));
}

/// A plugin that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Why its file was looked at.
    pub origin: Origin,
    /// The plugin.
    pub plugin: LoadedPlugin,
    /// The file of an earlier plugin of the same name; this one is never asked.
    pub shadowed_by: Option<PathBuf>,
}

/// A file that is not a usable plugin.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Why it was looked at.
    pub origin: Origin,
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub error: Error,
}

/// One line of [`Registry::list`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listing {
    /// The file.
    #[serde(serialize_with = "path_text")]
    pub file: PathBuf,
    /// Why it was looked at.
    pub origin: Origin,
    /// Name of the plugin; absent if the file was refused, as are version and architectures.
    pub name: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// Architectures it serves.
    pub architectures: Vec<String>,
    /// The file that shadows it.
    pub shadowed_by: Option<String>,
    /// Kind of the error for which it was refused.
    pub slug: Option<String>,
    /// Why it was refused.
    pub reason: Option<String>,
}

/// A plugin that takes a config.
#[derive(Clone, Debug)]
pub struct Claimed<'a> {
    /// The first that takes it, in the order of the search.
    pub plugin: &'a LoadedPlugin,
    /// The release it takes it for.
    pub release: String,
    /// What in the config says so.
    pub reason: String,
    /// Others that would have taken it.
    pub others: Vec<&'a LoadedPlugin>,
    /// Plugins that failed when asked, and how.
    pub failed: Vec<(&'a LoadedPlugin, rialto_bridge::Error)>,
}

/// The plugins of a search, in its order.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    found: Vec<Found>,
    refused: Vec<Refused>,
    /// Both of them in the order of the search.
    order: Vec<Place>,
}

/// Where in [`Registry`] a file of the search is kept.
#[derive(Clone, Copy, Debug)]
enum Place {
    Found(usize),
    Refused(usize),
}

impl Registry {
    /// Loads every plugin of a search path. A file that comes up twice counts where it came up first.
    ///
    /// # Errors
    ///
    /// That of a file that was named by hand. Any other bad file is kept in [`refused`](Registry::refused).
    pub fn search(path: &SearchPath) -> Result<Registry, Error> {
        let mut registry = Registry::default();
        let mut seen = HashSet::new();
        for (origin, candidate) in path.candidates() {
            let outcome = candidate.clone().and_then(|file| {
                let id = std::fs::metadata(&file).map(|data| (data.dev(), data.ino()));
                match id {
                    Ok(id) if !seen.insert(id) => Ok(None),
                    _ => load(&file).map(Some),
                }
            });
            match (outcome, candidate) {
                (Ok(None), _) => {}
                (Ok(Some(plugin)), _) => registry.add(origin, plugin),
                (Err(error), _) if origin == Origin::Explicit => return Err(error),
                (Err(error), Ok(file) | Err(Error::Relative { file })) => {
                    registry.order.push(Place::Refused(registry.refused.len()));
                    registry.refused.push(Refused {
                        origin,
                        file,
                        error,
                    });
                }
                (Err(error), Err(_)) => return Err(error),
            }
        }
        Ok(registry)
    }

    fn add(&mut self, origin: Origin, plugin: LoadedPlugin) {
        let name = &plugin.description().name;
        let first = self
            .usable()
            .find(|earlier| earlier.description().name == *name);
        let shadowed_by = first.map(|earlier| earlier.file().to_owned());
        self.order.push(Place::Found(self.found.len()));
        self.found.push(Found {
            origin,
            plugin,
            shadowed_by,
        });
    }

    /// Every plugin found, shadowed ones included.
    #[must_use]
    pub fn found(&self) -> &[Found] {
        &self.found
    }

    /// Every file that is not a usable plugin.
    #[must_use]
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// The plugins that are asked: those that are not shadowed.
    pub fn usable(&self) -> impl Iterator<Item = &LoadedPlugin> {
        let usable = self
            .found
            .iter()
            .filter(|found| found.shadowed_by.is_none());
        usable.map(|found| &found.plugin)
    }

    /// What was found, what is shadowed, and what was refused and why, in the order of the search.
    #[must_use]
    pub fn list(&self) -> Vec<Listing> {
        let found = |found: &Found| {
            let description = found.plugin.description();
            let shadowed_by = found.shadowed_by.as_ref();
            Listing {
                file: found.plugin.file().to_owned(),
                origin: found.origin,
                name: Some(description.name.clone()),
                version: Some(description.version.clone()),
                architectures: description.architectures.clone(),
                shadowed_by: shadowed_by.map(|file| file.display().to_string()),
                slug: None,
                reason: None,
            }
        };
        let refused = |refused: &Refused| Listing {
            file: refused.file.clone(),
            origin: refused.origin,
            name: None,
            version: None,
            architectures: Vec::new(),
            shadowed_by: None,
            slug: Some(refused.error.slug().to_owned()),
            reason: Some(refused.error.to_string()),
        };
        let order = self.order.iter().map(|place| match *place {
            Place::Found(at) => found(&self.found[at]),
            Place::Refused(at) => refused(&self.refused[at]),
        });
        order.collect()
    }

    /// Asks each plugin whether it takes a config; the first that does, in the order of the search, has it.
    ///
    /// # Errors
    ///
    /// [`Error::Unclaimed`] with the architectures found and available, what each plugin said and which files were refused;
    /// [`Error::Config`] or [`Error::Claim`] if none takes it and one failed when asked.
    pub fn claim(&self, config: &RawConfig) -> Result<Claimed<'_>, Error> {
        let mut takers = Vec::new();
        let (mut reasons, mut failed) = (Vec::new(), Vec::new());
        for plugin in self.usable() {
            match plugin.bridge.claim(config) {
                Ok(Claim::Yes { release, reason }) => takers.push((plugin, release, reason)),
                Ok(Claim::No { reason }) => {
                    reasons.push(format!("{}: {reason}", plugin.description().name));
                }
                Err(error) => failed.push((plugin, error)),
            }
        }
        let mut takers = takers.into_iter();
        if let Some((plugin, release, reason)) = takers.next() {
            return Ok(Claimed {
                plugin,
                release,
                reason,
                others: takers.map(|(plugin, ..)| plugin).collect(),
                failed,
            });
        }
        if let Some((plugin, reason)) = failed.into_iter().next() {
            return Err(Error::of_claim(plugin.file().to_owned(), reason));
        }
        let mut available: Vec<String> = self
            .usable()
            .flat_map(|plugin| plugin.description().architectures.clone())
            .collect();
        available.sort();
        available.dedup();
        let found = config.architectures().unwrap_or_default();
        Err(Error::Unclaimed {
            found: found.into_iter().map(str::to_owned).collect(),
            available,
            reasons,
            refused: self
                .refused
                .iter()
                .map(|refused| refused.error.to_string())
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_entries_of_the_variable_mean_nothing() {
        let entries = split(OsStr::new(":/a::b/c:"));
        assert_eq!(entries, [PathBuf::from("/a"), PathBuf::from("b/c")]);
    }

    #[test]
    fn a_search_nowhere_finds_nothing_and_says_so() {
        let registry = Registry::search(&SearchPath::new()).unwrap();
        let config = RawConfig::parse(br#"{"architectures": ["X"]}"#).unwrap();
        let error = registry.claim(&config).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no plugin takes architecture X, available: none"
        );
        assert_eq!((error.code(), error.slug()), (3, "plugin/unclaimed"));
    }
}
