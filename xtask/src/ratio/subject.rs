//! What is compared: a direction and a place, who runs, and which bars rialto is to meet.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;

/// The contender that is judged.
pub(super) const OURS: &str = "rialto";
/// Floor: `cp -r`, and a sync of every file.
pub(crate) const CP: &str = "cp";
/// Floor: the copier of this repository, in two threads.
pub(crate) const COPY: &str = "copy";
/// Rival: PyTorch and safetensors.
pub(crate) const RIVAL: &str = "rival";
/// No contender: the time of the copy and what hashing on two cores adds to it.
pub(super) const COPY_AND_HASH: &str = "copy + hash";

/// A conversion in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Subject {
    /// Import on a disk.
    ImportDisk,
    /// Export on a disk.
    ExportDisk,
    /// Import of FP8, which becomes BF16, on a disk.
    ImportFp8Disk,
    /// Import in memory, with checksums.
    ImportTmpfs,
    /// Import in memory, without checksums.
    ImportTmpfsUnhashed,
}

/// What a bar is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantity {
    /// How many times as long the other takes.
    Speed,
    /// How many times as much memory the other has at its peak.
    Memory,
}

/// What is to be met: at least so many times, against another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bar {
    pub(super) quantity: Quantity,
    pub(super) against: &'static str,
    pub(super) at_least: f64,
}

const fn speed(against: &'static str, at_least: f64) -> Bar {
    Bar {
        quantity: Quantity::Speed,
        against,
        at_least,
    }
}

/// A tenth of the rival's memory.
const MEMORY: Bar = Bar {
    quantity: Quantity::Memory,
    against: RIVAL,
    at_least: 10.0,
};

impl Subject {
    pub(super) fn is_in_memory(self) -> bool {
        matches!(self, Subject::ImportTmpfs | Subject::ImportTmpfsUnhashed)
    }

    pub(super) fn is_export(self) -> bool {
        self == Subject::ExportDisk
    }

    /// Whether the rate of hashing is needed for a bar.
    pub(super) fn hashes(self) -> bool {
        self.bars().iter().any(|bar| bar.against == COPY_AND_HASH)
    }

    /// Arguments of rialto, if the user gives none.
    pub(super) fn rialto_args(self) -> &'static [&'static str] {
        match self {
            Subject::ImportTmpfsUnhashed => &["--hash", "none"],
            Subject::ExportDisk => &[],
            _ => &["--hash", "blake3"],
        }
    }

    /// What is to be met.
    pub(super) fn bars(self) -> &'static [Bar] {
        match self {
            Subject::ImportDisk | Subject::ExportDisk => {
                const { &[speed(CP, 1.0), speed(COPY, 0.9), speed(RIVAL, 1.5), MEMORY] }
            }
            Subject::ImportFp8Disk => const { &[speed(COPY, 0.9), speed(RIVAL, 1.5), MEMORY] },
            Subject::ImportTmpfs => {
                const { &[speed(COPY_AND_HASH, 0.9), speed(RIVAL, 3.0), MEMORY] }
            }
            Subject::ImportTmpfsUnhashed => {
                const { &[speed(COPY, 0.8), speed(RIVAL, 3.0), MEMORY] }
            }
        }
    }

    /// Who runs, rialto first. All read `stage.source` and make `stage.target`.
    pub(super) fn contenders(self, stage: &Stage) -> Vec<Contender> {
        let direction = if self.is_export() { "export" } else { "import" };
        let mut contenders = vec![stage.rialto(direction)];
        // Beside FP8 it would read as much and write less; in memory the other floor is the better one.
        if matches!(self, Subject::ImportDisk | Subject::ExportDisk) {
            contenders.push(stage.cp());
        }
        contenders.push(stage.copy(self == Subject::ImportFp8Disk));
        contenders.extend(stage.rival(direction));
        let is_left_out =
            |contender: &Contender| stage.without.iter().any(|name| name == contender.name);
        contenders.retain(|contender| !is_left_out(contender));
        contenders
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        out.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.quantity {
            Quantity::Speed => write!(out, "speed, against {}", self.against),
            Quantity::Memory => write!(out, "peak memory of {} by ours", self.against),
        }
    }
}

/// A process that competes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    /// What it does, for the record.
    pub(super) says: String,
    pub(super) command: Vec<OsString>,
    /// Whether its last line of output is its time, which then counts instead of that of the process.
    pub(super) says_seconds: bool,
}

/// Where things are while contenders run.
pub(super) struct Stage {
    pub(super) source: PathBuf,
    /// Made by each contender and deleted after it.
    pub(super) target: PathBuf,
    pub(super) scratch: PathBuf,
    pub(super) rialto: PathBuf,
    pub(super) rialto_args: Vec<String>,
    /// This program, which is the copier too.
    pub(super) this: PathBuf,
    /// The interpreter of the rival, unless it is left out.
    pub(super) python: Option<OsString>,
    pub(super) rival: PathBuf,
    pub(super) without: Vec<String>,
    /// Bytes that a conversion writes for each byte that it reads.
    pub(super) write_factor: f64,
    /// What the source is, for the record.
    pub(super) says: String,
}

impl Stage {
    fn paths(&self) -> [OsString; 2] {
        [&self.source, &self.target].map(|path| path.as_os_str().to_owned())
    }

    fn rialto(&self, direction: &str) -> Contender {
        let mut command = vec![self.rialto.clone().into_os_string(), direction.into()];
        command.extend(self.paths());
        command.push("--quiet".into());
        command.extend(self.rialto_args.iter().map(OsString::from));
        let words = [
            &["rialto".to_owned(), direction.to_owned()],
            self.rialto_args.as_slice(),
        ]
        .concat();
        Contender {
            name: OURS,
            says: format!("`{}`", words.join(" ")),
            command,
            says_seconds: false,
        }
    }

    fn cp(&self) -> Contender {
        let script = r#"cp -r -- "$1" "$2" && find "$2" -exec sync -- {} +"#;
        let mut command: Vec<OsString> = ["sh", "-c", script, "sh"].map(Into::into).to_vec();
        command.extend(self.paths());
        Contender {
            name: CP,
            says: "`cp -r`, then `sync` of every file and directory".to_owned(),
            command,
            says_seconds: false,
        }
    }

    fn copy(&self, with_factor: bool) -> Contender {
        let mut command = vec![self.this.clone().into_os_string(), "copy".into()];
        command.extend(self.paths());
        command.extend(["--threads", "2"].map(OsString::from));
        let mut says = "`cargo xtask copy --threads 2".to_owned();
        if with_factor {
            let factor = format!("{:.4}", self.write_factor);
            says += &format!(" --write-factor {factor}");
            command.extend(["--write-factor".into(), factor.into()]);
        }
        Contender {
            name: COPY,
            says: says + "`",
            command,
            says_seconds: false,
        }
    }

    fn rival(&self, direction: &str) -> Option<Contender> {
        let python = self.python.clone()?;
        let mut command: Vec<OsString> = vec!["env".into(), "PYTHONWARNINGS=ignore".into(), python];
        command.push(self.rival.clone().into_os_string());
        command.extend(self.paths());
        command.push(direction.into());
        Some(Contender {
            name: RIVAL,
            says: format!(
                "`benches/rival.py {direction}`; its seconds are without the start of Python and the import of PyTorch"
            ),
            command,
            says_seconds: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(without: &[&str]) -> Stage {
        Stage {
            source: "/s".into(),
            target: "/t".into(),
            scratch: "/".into(),
            rialto: "/bin/rialto".into(),
            rialto_args: vec!["--hash".to_owned(), "none".to_owned()],
            this: "/bin/xtask".into(),
            python: Some("python".into()),
            rival: "/rival.py".into(),
            without: without.iter().map(|&name| name.to_owned()).collect(),
            write_factor: 1.798_16,
            says: String::new(),
        }
    }

    fn commands(subject: Subject, without: &[&str]) -> Vec<String> {
        let contenders = subject.contenders(&stage(without));
        let command =
            |contender: &Contender| contender.command.join(" ".as_ref()).into_string().unwrap();
        contenders.iter().map(command).collect()
    }

    #[test]
    fn every_contender_reads_the_source_and_makes_the_target() {
        let expected = [
            "/bin/rialto export /s /t --quiet --hash none",
            r#"sh -c cp -r -- "$1" "$2" && find "$2" -exec sync -- {} + sh /s /t"#,
            "/bin/xtask copy /s /t --threads 2",
            "env PYTHONWARNINGS=ignore python /rival.py /s /t export",
        ];
        assert_eq!(commands(Subject::ExportDisk, &[]), expected);
        assert_eq!(
            commands(Subject::ExportDisk, &["cp", "rival"]),
            [expected[0], expected[2]]
        );
    }

    #[test]
    fn the_floor_of_fp8_writes_as_much_more_as_the_import() {
        let commands = commands(Subject::ImportFp8Disk, &[]);
        assert_eq!(
            commands[1],
            "/bin/xtask copy /s /t --threads 2 --write-factor 1.7982"
        );
        assert!(!commands.iter().any(|command| command.contains("cp -r")));
    }

    #[test]
    fn every_bar_is_against_somebody_who_runs() {
        for subject in Subject::value_variants() {
            let contenders = subject.contenders(&stage(&[]));
            let mut names: Vec<_> = contenders.iter().map(|contender| contender.name).collect();
            assert_eq!(names[0], OURS);
            if subject.hashes() {
                names.push(COPY_AND_HASH);
            }
            let is_there = |bar: &Bar| names.contains(&bar.against);
            assert!(subject.bars().iter().all(is_there), "{subject}");
            // And everybody who runs is somebody's measure.
            for name in names
                .iter()
                .filter(|&&name| name != OURS && !(subject.hashes() && name == COPY))
            {
                assert!(
                    subject.bars().iter().any(|bar| bar.against == *name),
                    "{subject} {name}"
                );
            }
        }
    }

    #[test]
    fn only_hashing_in_memory_is_held_against_the_rate_of_hashing() {
        let hashing: Vec<_> = Subject::value_variants()
            .iter()
            .filter(|subject| subject.hashes())
            .collect();
        assert_eq!(hashing, [&Subject::ImportTmpfs]);
    }
}
