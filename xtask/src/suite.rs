//! The tests.

use anyhow::Result;

use crate::workspace::Workspace;

/// Builds everything first: some tests run the binary and load the plugins from their shared libraries, which `cargo test`
/// alone does not make.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    workspace.cargo(["build", "--locked", "--workspace", "--all-targets"])?;
    workspace.cargo(["test", "--locked", "--workspace"])?;
    println!("\ntests: all passed");
    Ok(())
}
