//! The handshake, step by step: from a path to a plugin that answers.
//!
//! Each step believes only what the steps before it established, and each has an error of its own. [`check`] tells how
//! every step went, for the author of a plugin; [`load`] stops at the first that fails.

use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rialto_abi::decl::{self, ABI_MAJOR, ABI_MINOR, MAGIC, TARGET, panic_strategy};
use rialto_abi::{EXTENSIONS, PluginDecl};
use serde::Serialize;

use crate::Error;
use crate::elf::{self, Fault};
use crate::library::{DeclFault, Library, OpenFault};
use crate::plugin::{LoadedPlugin, Remote, error_of};

/// A step of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The file is there, regular and readable.
    File,
    /// It is a library of this machine and has every byte its headers name.
    Headers,
    /// The system's loader opens it.
    Load,
    /// It exports the declaration's symbol.
    Symbol,
    /// The symbol is a declaration.
    Magic,
    /// The declaration has the size of this contract's.
    Size,
    /// It was built for this major version.
    Major,
    /// It was built for this target.
    Target,
    /// Its panics do not end the process.
    PanicStrategy,
    /// Its tables have this host's layout, if it says.
    Layout,
    /// It makes an instance whose table is whole.
    Open,
    /// It says what it serves.
    Describe,
    /// Which extensions it has.
    Extensions,
    /// It can be used.
    Ready,
}

impl Step {
    /// All steps, in order.
    pub const ALL: &'static [Step] = &[
        Step::File,
        Step::Headers,
        Step::Load,
        Step::Symbol,
        Step::Magic,
        Step::Size,
        Step::Major,
        Step::Target,
        Step::PanicStrategy,
        Step::Layout,
        Step::Open,
        Step::Describe,
        Step::Extensions,
        Step::Ready,
    ];
}

/// How one step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As it should.
    Passed,
    /// It is why the file is refused.
    Failed,
    /// An earlier step failed.
    NotReached,
}

/// One step and how it went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepReport {
    /// The step.
    pub step: Step,
    /// How it went.
    pub outcome: Outcome,
    /// What was found, or what is wrong; empty if it was not reached.
    pub detail: String,
}

/// Every step of a handshake.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// The file.
    #[serde(serialize_with = "path_text")]
    pub file: PathBuf,
    /// All steps, in order.
    pub steps: Vec<StepReport>,
    /// The plugin, if every step passed.
    #[serde(skip)]
    pub plugin: Option<LoadedPlugin>,
    /// Why not, otherwise.
    #[serde(skip)]
    pub error: Option<Error>,
}

/// A path as JSON has it.
pub(crate) fn path_text<S: serde::Serializer>(
    path: &Path,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// Runs the handshake and tells how every step went. The library stays loaded if it was opened.
#[must_use]
pub fn check(file: &Path) -> CheckReport {
    let mut steps = Vec::new();
    let outcome = handshake(file, &mut steps);
    let (plugin, error) = match outcome {
        Ok(plugin) => (Some(plugin), None),
        Err(error) => (None, Some(error)),
    };
    let mut failure = error.as_ref().map(ToString::to_string);
    for &step in &Step::ALL[steps.len()..] {
        let (outcome, detail) = match failure.take() {
            Some(message) => (Outcome::Failed, message),
            None => (Outcome::NotReached, String::new()),
        };
        steps.push(StepReport {
            step,
            outcome,
            detail,
        });
    }
    CheckReport {
        file: file.to_owned(),
        steps,
        plugin,
        error,
    }
}

/// Loads a plugin.
///
/// A file that is loaded twice gives two instances of one library, also under two names. Libraries stay loaded for the
/// life of the process.
///
/// # Errors
///
/// One for each [`Step`]; the process goes on.
pub fn load(file: &Path) -> Result<LoadedPlugin, Error> {
    handshake(file, &mut Vec::new())
}

/// Libraries by device and inode. A mapped file keeps its inode, so a number cannot come to mean another file.
type Libraries = HashMap<(u64, u64), Arc<Library>>;

/// Those of this process; written by every load.
static LIBRARIES: Mutex<Option<Libraries>> = Mutex::new(None);

fn handshake(path: &Path, steps: &mut Vec<StepReport>) -> Result<LoadedPlugin, Error> {
    let mut passed = |detail: String| {
        steps.push(StepReport {
            step: Step::ALL[steps.len()],
            outcome: Outcome::Passed,
            detail,
        });
    };
    let file = || path.to_owned();

    let (mut opened, real, id) = open_file(path)?;
    passed(real.display().to_string());

    elf::check(&mut opened).map_err(|fault| header_error(path, fault))?;
    passed(std::env::consts::ARCH.to_owned());

    let known = with_libraries(|libraries| libraries.get(&id).cloned());
    let library = match known {
        Some(library) => {
            passed("loaded before".to_owned());
            library
        }
        None => {
            let loaded = Library::open(&real).map_err(|reason| Error::Open {
                file: file(),
                reason: reason.replace(char::is_control, " "),
            })?;
            passed("loaded".to_owned());
            let library = Library::symbol(loaded).ok_or_else(|| Error::Symbol { file: file() })?;
            // If another thread was faster, both hold the same mapping; the first stays.
            with_libraries(|libraries| {
                Arc::clone(libraries.entry(id).or_insert_with(|| Arc::new(library)))
            })
        }
    };
    passed(rialto_abi::SYMBOL.to_owned());

    let declaration = read_declaration(path, &library, &mut passed)?;
    let package = package_of(&declaration);
    let abi = accept_declaration(path, &package, &declaration, &mut passed)?;

    let instance = Library::instance(&declaration).map_err(|fault| match fault {
        OpenFault::Refused(answer) => Error::Refused {
            file: file(),
            plugin: package.clone(),
            reason: Box::new(error_of("open", &answer)),
        },
        OpenFault::Null(entry) => Error::Table {
            file: file(),
            plugin: package.clone(),
            entry,
        },
    })?;
    passed("an instance".to_owned());

    let remote = Remote::new(instance).map_err(|reason| Error::Describe {
        file: file(),
        plugin: package.clone(),
        reason: Box::new(reason),
    })?;
    let description = rialto_bridge::Bridge::describe(&remote);
    passed(format!(
        "{} {} serves {}",
        description.name,
        description.version,
        description.architectures.join(", ")
    ));

    let extensions: Vec<String> = EXTENSIONS
        .iter()
        .filter(|id| remote.has_extension(id))
        .map(|&id| id.to_owned())
        .collect();
    passed(extensions.join(", "));
    passed(package.clone());
    Ok(LoadedPlugin {
        file: file(),
        package,
        abi,
        extensions,
        description,
        bridge: Arc::new(remote),
    })
}

fn with_libraries<T>(act: impl FnOnce(&mut Libraries) -> T) -> T {
    let mut libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
    act(libraries.get_or_insert_default())
}

/// The open file, its real path, and what it is known by.
fn open_file(path: &Path) -> Result<(File, PathBuf, (u64, u64)), Error> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => Error::NotFound {
            file: path.to_owned(),
        },
        _ => Error::Io {
            file: path.to_owned(),
            reason: error.to_string(),
        },
    };
    // The real path has a slash in it: a bare name would send the loader to the system's libraries.
    let real = std::fs::canonicalize(path).map_err(failed)?;
    // Looked at before it is opened: opening a pipe waits for its other end.
    let metadata = std::fs::metadata(&real).map_err(failed)?;
    let kind = metadata.file_type();
    if !kind.is_file() {
        let found = if kind.is_dir() {
            "a directory"
        } else if kind.is_fifo() {
            "a pipe"
        } else if kind.is_socket() {
            "a socket"
        } else {
            "a device"
        };
        return Err(Error::NotRegular {
            file: path.to_owned(),
            found,
        });
    }
    let opened = File::open(&real).map_err(failed)?;
    let metadata = opened.metadata().map_err(failed)?;
    Ok((opened, real, (metadata.dev(), metadata.ino())))
}

fn header_error(path: &Path, fault: Fault) -> Error {
    let file = path.to_owned();
    match fault {
        Fault::Io(reason) => Error::Io { file, reason },
        Fault::NotElf(reason) => Error::NotElf { file, reason },
        Fault::Truncated { expected, found } => Error::Truncated {
            file,
            expected,
            found,
        },
        Fault::Machine { expected, found } => Error::Machine {
            file,
            expected,
            found,
        },
    }
}

fn read_declaration(
    path: &Path,
    library: &Library,
    passed: &mut impl FnMut(String),
) -> Result<PluginDecl, Error> {
    let text = |magic: [u8; 8]| format!("{:?}", decl::unpadded(&magic));
    let file = path.to_owned();
    match library.declaration() {
        Ok(declaration) => {
            passed(text(MAGIC));
            passed(format!("{} bytes", PluginDecl::SIZE));
            Ok(declaration)
        }
        Err(DeclFault::Magic(found)) => Err(Error::Magic {
            file,
            expected: text(MAGIC),
            found: text(found),
        }),
        Err(DeclFault::Size(found)) => {
            passed(text(MAGIC));
            Err(Error::Size {
                file,
                expected: PluginDecl::SIZE,
                found,
            })
        }
    }
}

fn package_of(declaration: &PluginDecl) -> String {
    let (name, version) = (
        decl::unpadded(&declaration.name),
        decl::unpadded(&declaration.version),
    );
    format!("{name} {version}")
}

/// The steps from major version to layout. Returns the contract's version as the plugin has it.
fn accept_declaration(
    path: &Path,
    package: &str,
    declaration: &PluginDecl,
    passed: &mut impl FnMut(String),
) -> Result<String, Error> {
    let (file, plugin) = (path.to_owned(), package.to_owned());
    let abi = format!("{}.{}", declaration.abi_major, declaration.abi_minor);
    if declaration.abi_major != ABI_MAJOR {
        return Err(Error::Major {
            file,
            plugin,
            expected: format!("{ABI_MAJOR}.{ABI_MINOR}"),
            found: abi,
        });
    }
    passed(abi.clone());
    let target = decl::unpadded(&declaration.target);
    if target != TARGET {
        return Err(Error::Target {
            file,
            plugin,
            expected: TARGET.to_owned(),
            found: target,
        });
    }
    passed(target);
    let strategy = match declaration.panic_strategy {
        panic_strategy::NONE => "none",
        panic_strategy::UNWIND => "unwind",
        other => {
            let found = match other {
                panic_strategy::ABORT => "abort".to_owned(),
                other => other.to_string(),
            };
            return Err(Error::PanicStrategy {
                file,
                plugin,
                found,
            });
        }
    };
    passed(strategy.to_owned());
    match Library::compare_layout(declaration) {
        Ok(true) => passed(format!("equal, by {}", decl::LAYOUT_VERSION)),
        Ok(false) => passed("no report that this host can read".to_owned()),
        Err(mismatch) => {
            return Err(Error::Layout {
                file,
                plugin,
                mismatch: Box::new(mismatch),
            });
        }
    }
    Ok(abi)
}
