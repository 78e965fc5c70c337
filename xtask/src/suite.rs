//! The tests.

use anyhow::Result;

use crate::workspace::Workspace;

/// Builds everything first: some tests run the binary and load the plugins from their shared libraries, which `cargo test`
/// alone does not make. The example of a plugin is a workspace of its own and is tested as its author tests it.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    workspace.cargo(["build", "--locked", "--workspace", "--all-targets"])?;
    workspace.cargo(["test", "--locked", "--workspace"])?;
    // The program with adapters is another program. As part of the workspace, so that nothing but it is built again.
    workspace.cargo([
        "test",
        "--locked",
        "--workspace",
        "--features",
        "rialto/wgpu",
        "--test",
        "cli",
        "devices::",
    ])?;
    workspace.test_plugin("examples/plugin-qwen3/Cargo.toml")?;
    println!("\ntests: all passed");
    Ok(())
}
