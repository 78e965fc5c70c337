//! Which of the processes of a run this one is: as the user says, else as a launcher says.

use rialto_engine::World;

use crate::arguments::RunFlags;
use crate::failure::{Failure, WRONG_USAGE};

/// A launcher and the variables in which it says the rank of a process and how many there are.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    /// A variable that only processes have that were launched to work together. A batch script has the others as well.
    witness: &'static str,
}

/// The first whose variables are all there is believed: one that runs inside another goes before it, and what anybody may have
/// set comes last.
const LAUNCHERS: &[Launcher] = &[
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        witness: "OMPI_COMM_WORLD_SIZE",
    },
    Launcher {
        name: "MVAPICH",
        rank: "MV2_COMM_WORLD_RANK",
        size: "MV2_COMM_WORLD_SIZE",
        witness: "MV2_COMM_WORLD_SIZE",
    },
    Launcher {
        name: "MPI (PMI)",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        witness: "PMI_SIZE",
    },
    Launcher {
        name: "torchrun",
        rank: "RANK",
        size: "WORLD_SIZE",
        witness: "TORCHELASTIC_RUN_ID",
    },
    Launcher {
        name: "srun",
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        witness: "SLURM_STEP_ID",
    },
    Launcher {
        name: "RANK and WORLD_SIZE",
        rank: "RANK",
        size: "WORLD_SIZE",
        witness: "WORLD_SIZE",
    },
];

/// The world, and the launcher that said so if one did. What the user says goes before all; `--world-size 1` is alone.
///
/// Errors: wrong usage, if a launcher says what no number is, or a rank that there is not.
pub(crate) fn of(
    flags: &RunFlags,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(World, Option<&'static str>), Failure> {
    if let Some(size) = flags.world_size {
        let rank = match (flags.rank, size) {
            (Some(rank), _) => rank,
            (None, 1) => 0,
            (None, _) => return Err(wrong("--world-size needs --rank".to_owned())),
        };
        return checked(World { rank, size }, "--rank").map(|world| (world, None));
    }
    let launcher = LAUNCHERS.iter().find(|launcher| {
        let all = [launcher.rank, launcher.size, launcher.witness];
        all.iter().all(|name| variable(name).is_some())
    });
    let Some(launcher) = launcher else {
        return Ok((World::ALONE, None));
    };
    let number = |name: &str| {
        let text = variable(name).unwrap_or_default();
        let parsed = text.trim().parse::<u64>();
        parsed.map_err(|_| wrong(format!("{name}={text:?} is no number")))
    };
    let world = World {
        rank: number(launcher.rank)?,
        size: number(launcher.size)?,
    };
    let world = checked(world, launcher.rank)?;
    Ok((world, (world.size > 1).then_some(launcher.name)))
}

fn checked(world: World, said_by: &str) -> Result<World, Failure> {
    let World { rank, size } = world;
    match rank < size {
        true => Ok(world),
        false => Err(wrong(format!(
            "{said_by} gives rank {rank} of {size} processes, expected 0 to {}",
            size.saturating_sub(1)
        ))),
    }
}

fn wrong(message: String) -> Failure {
    let mut failure = Failure::own(WRONG_USAGE, message);
    failure.help =
        Some("`--rank R --world-size N` says it, and `--world-size 1` runs alone".to_owned());
    failure
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: RunFlags,
    }

    fn found(
        arguments: &str,
        variables: &[(&str, &str)],
    ) -> Result<(u64, u64, Option<&'static str>), String> {
        let words = ["rialto"].into_iter().chain(arguments.split_whitespace());
        let flags = Command::try_parse_from(words)
            .map_err(|error| error.to_string())?
            .flags;
        let variable = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let world = of(&flags, variable).map_err(|failure| failure.message)?;
        Ok((world.0.rank, world.0.size, world.1))
    }

    #[test]
    fn every_launcher_is_understood() {
        let slurm = [
            ("SLURM_PROCID", "3"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_STEP_ID", "0"),
        ];
        assert_eq!(found("", &slurm), Ok((3, 8, Some("srun"))));
        let mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        assert_eq!(found("", &mpi), Ok((1, 2, Some("Open MPI"))));
        let mvapich = [("MV2_COMM_WORLD_RANK", "1"), ("MV2_COMM_WORLD_SIZE", "2")];
        assert_eq!(found("", &mvapich), Ok((1, 2, Some("MVAPICH"))));
        let pmi = [("PMI_RANK", "0"), ("PMI_SIZE", "2")];
        assert_eq!(found("", &pmi), Ok((0, 2, Some("MPI (PMI)"))));
        let torchrun = [
            ("RANK", "5"),
            ("WORLD_SIZE", "6"),
            ("TORCHELASTIC_RUN_ID", "x"),
        ];
        assert_eq!(found("", &torchrun), Ok((5, 6, Some("torchrun"))));
        let plain = [("RANK", "5"), ("WORLD_SIZE", "6")];
        assert_eq!(found("", &plain), Ok((5, 6, Some("RANK and WORLD_SIZE"))));
        // Each process of a step starts several: the inner launcher tells them apart.
        let inside: Vec<_> = slurm.iter().chain(&torchrun).copied().collect();
        assert_eq!(found("", &inside), Ok((5, 6, Some("torchrun"))));
        // A step in which somebody once exported these.
        let stale: Vec<_> = slurm.iter().chain(&plain).copied().collect();
        assert_eq!(found("", &stale), Ok((3, 8, Some("srun"))));
        // One that launched a single process says nothing worth a word.
        assert_eq!(
            found("", &[("RANK", "0"), ("WORLD_SIZE", "1")]),
            Ok((0, 1, None))
        );
    }

    #[test]
    fn a_batch_script_that_is_one_process_runs_alone() {
        // What sbatch and salloc set, where only srun starts several.
        let batch = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_JOB_ID", "1"),
        ];
        assert_eq!(found("", &batch), Ok((0, 1, None)));
        assert_eq!(found("", &[]), Ok((0, 1, None)));
    }

    #[test]
    fn what_the_user_says_goes_before_a_launcher() {
        let torchrun = [("RANK", "5"), ("WORLD_SIZE", "6")];
        assert_eq!(
            found("--rank 1 --world-size 2", &torchrun),
            Ok((1, 2, None))
        );
        assert_eq!(found("--world-size 1", &torchrun), Ok((0, 1, None)));
    }

    #[test]
    fn what_is_no_rank_is_refused() {
        for (arguments, variables, said) in [
            (
                "--rank 2 --world-size 2",
                &[][..],
                "rank 2 of 2 processes, expected 0 to 1",
            ),
            ("--world-size 2", &[], "needs --rank"),
            ("--rank 0", &[], "--world-size"),
            (
                "",
                &[("RANK", "x"), ("WORLD_SIZE", "2")],
                "RANK=\"x\" is no number",
            ),
            (
                "",
                &[("RANK", "2"), ("WORLD_SIZE", "2")],
                "RANK gives rank 2 of 2",
            ),
        ] {
            let error = found(arguments, variables).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
