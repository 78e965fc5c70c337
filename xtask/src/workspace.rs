//! Where things are, and commands that are shown before they run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The checkpoint that ships in the tree.
pub(crate) const CHECKPOINT: &str = "tests/fixtures/glm52-tiny";

/// Where plugins are built that are no part of the workspace.
const PLUGINS: &str = "plugins";

/// The repository and its build folder. Every command runs in the root, so that what is printed can be typed there.
pub(crate) struct Workspace {
    root: PathBuf,
    /// `target/debug`: where cargo puts the binary, and the plugin beside it.
    binaries: PathBuf,
}

impl Workspace {
    /// From where this program itself lies: cargo built it into the same folder as the rest.
    pub(crate) fn find() -> Result<Workspace> {
        let program = std::env::current_exe().context("this program's own path")?;
        let binaries = program
            .parent()
            .context("this program lies in no folder")?
            .to_owned();
        // Read when running rather than when compiling: the repository may have moved since.
        let package = std::env::var_os("CARGO_MANIFEST_DIR")
            .context("CARGO_MANIFEST_DIR is not set; use `cargo xtask`")?;
        let root = Path::new(&package)
            .parent()
            .context("the package lies in no folder")?
            .to_owned();
        ensure!(
            root.join(CHECKPOINT).is_dir(),
            "{CHECKPOINT} is not in {}",
            root.display()
        );
        Ok(Workspace { root, binaries })
    }

    /// An absolute path of something in the repository.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A folder of ours in the build folder.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.binaries.parent().unwrap_or(&self.binaries).join(name)
    }

    /// A path as it is typed from the root.
    pub(crate) fn shown(&self, path: &Path) -> String {
        path.strip_prefix(&self.root)
            .unwrap_or(path)
            .display()
            .to_string()
    }

    /// Builds the program and the plugin. In the dev profile: the build is the one that the tests use, and the checkpoint in
    /// the tree is small.
    pub(crate) fn build_rialto(&self) -> Result<()> {
        self.cargo([
            "build",
            "--locked",
            "--package",
            "rialto",
            "--package",
            "rialto-glm5",
        ])
    }

    /// Builds both as users have them, and says where the program lies; the plugin lies beside it.
    pub(crate) fn build_release(&self) -> Result<PathBuf> {
        self.cargo([
            "build",
            "--locked",
            "--release",
            "--package",
            "rialto",
            "--package",
            "rialto-glm5",
        ])?;
        Ok(self.scratch("release").join("rialto"))
    }

    /// Builds a plugin that is a workspace of its own. Its build folder is one of its own too: beside rialto, its library would be
    /// found by every command and every test.
    pub(crate) fn build_plugin(&self, manifest: &str) -> Result<()> {
        self.cargo_of_plugin("build", manifest)
    }

    /// Runs the tests of such a plugin, in the same build folder.
    pub(crate) fn test_plugin(&self, manifest: &str) -> Result<()> {
        self.cargo_of_plugin("test", manifest)
    }

    fn cargo_of_plugin(&self, subcommand: &str, manifest: &str) -> Result<()> {
        let mut command = self.cargo_command();
        command
            .args([subcommand, "--locked", "--manifest-path"])
            .arg(self.path(manifest))
            .arg("--target-dir")
            .arg(self.scratch(PLUGINS));
        self.run("cargo", &mut command)
    }

    /// A library that [`build_plugin`](Workspace::build_plugin) made.
    pub(crate) fn plugin(&self, library: &str) -> PathBuf {
        self.scratch(PLUGINS).join("debug").join(library)
    }

    /// Runs cargo.
    pub(crate) fn cargo<const N: usize>(&self, arguments: [&str; N]) -> Result<()> {
        let mut command = self.cargo_command();
        command.args(arguments);
        self.run("cargo", &mut command)
    }

    /// Cargo itself, yet without arguments.
    pub(crate) fn cargo_command(&self) -> Command {
        Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
    }

    /// Runs rialto, which finds the plugin in its own folder.
    pub(crate) fn rialto<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<()> {
        let mut command = self.rialto_command(arguments);
        self.run(&self.shown(&self.binary()), &mut command)
    }

    /// Runs rialto and shows only the command, and its errors.
    pub(crate) fn rialto_silently<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<()> {
        let mut command = self.rialto_command(arguments);
        command.arg("--quiet").stdout(Stdio::null());
        self.run(&self.shown(&self.binary()), &mut command)
    }

    /// Rialto itself, with arguments.
    pub(crate) fn rialto_command<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = Command::new(self.binary());
        // The plugin of this build and no other.
        command.args(arguments).env_remove("RIALTO_PLUGIN_PATH");
        command
    }

    /// The program as built.
    pub(crate) fn binary(&self) -> PathBuf {
        self.binaries.join("rialto")
    }

    /// Runs a command in the root, printed first.
    pub(crate) fn run(&self, name: &str, command: &mut Command) -> Result<()> {
        println!();
        let status = self.spawn(name, command)?.wait()?;
        if !status.success() {
            let first = command.get_args().next().map(Path::new);
            bail!(
                "{name} {} ended with {status}",
                first.map_or(String::new(), |first| self.shown(first))
            );
        }
        Ok(())
    }

    /// Starts a command in the root, printed first.
    pub(crate) fn spawn(&self, name: &str, command: &mut Command) -> Result<Child> {
        let arguments: Vec<String> = command
            .get_args()
            .map(|argument| self.shown(Path::new(argument)))
            .collect();
        println!("$ {name} {}", arguments.join(" "));
        command
            .current_dir(&self.root)
            .spawn()
            .with_context(|| format!("{name} could not be started"))
    }
}

/// Removes a folder and what is in it; none is as well.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} could not be removed", folder.display()))
        }
        _ => Ok(()),
    }
}
