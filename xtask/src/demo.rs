//! The main job on the checkpoint in the tree: plan, import, export, compare with the source.

use anyhow::{Result, bail};

use crate::compare::compare;
use crate::workspace::{CHECKPOINT, Workspace, remove};

/// The config that was published with the full model.
const FULL_MODEL: &str = "tests/fixtures/configs/glm-5.2";

/// Runs it. Errors: a command that fails; an export that differs from the source.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let folder = workspace.scratch("demo");
    let (source, run, exported) = (
        workspace.path(CHECKPOINT),
        folder.join("run"),
        folder.join("exported"),
    );
    remove(&folder)?;
    std::fs::create_dir_all(&folder)?;

    workspace.build_rialto()?;
    workspace.rialto(["plan".as_ref(), workspace.path(FULL_MODEL).as_os_str()])?;
    workspace.rialto(["import".as_ref(), source.as_os_str(), run.as_os_str()])?;
    workspace.rialto(["export".as_ref(), run.as_os_str(), exported.as_os_str()])?;

    println!(
        "\ncompare {} with {}",
        workspace.shown(&exported),
        workspace.shown(&source)
    );
    let comparison = compare(&source, &exported)?;
    print!("{comparison}");
    if !comparison.differences.is_empty() {
        bail!(
            "demo: the export differs from the source, {} findings",
            comparison.differences.len()
        );
    }
    println!("demo: the export equals the source");
    Ok(())
}
