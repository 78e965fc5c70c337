//! Unpacks what lies packed among the fixtures, Megatron checkpoints and forward passes, once for all suites.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Component, Path, PathBuf};

use lzma_rust2::XzReader;
use tar::{Archive, EntryType};

/// Each archive, and the folder it is unpacked into.
const ARCHIVES: [(&str, &str); 2] = [
    ("fixtures/megatron/topologies.tar.xz", "megatron"),
    ("fixtures/goldens.tar.xz", "goldens"),
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names a folder"));
    for (archive, folder) in ARCHIVES {
        println!("cargo::rerun-if-changed={archive}");
        if let Err(error) = unpack(Path::new(archive), &out.join(folder)) {
            panic!("{archive}: {error}");
        }
    }
}

/// Makes the folder anew, with the archive's files and folders in it. Anything else in the archive is an error, and so is a name
/// that is not plainly inside.
fn unpack(archive: &Path, folder: &Path) -> io::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir(folder)?;
    // A fixture is one stream: what would follow it is not expected.
    let mut archive = Archive::new(XzReader::new(BufReader::new(File::open(archive)?), false));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.into_owned();
        let is_inside = name
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        let kind = entry.header().entry_type();
        match kind {
            EntryType::Directory if is_inside => fs::create_dir(folder.join(&name))?,
            EntryType::Regular if is_inside => {
                let mut file = File::create_new(folder.join(&name))?;
                io::copy(&mut entry, &mut file)?;
            }
            _ => {
                let message = format!("{kind:?} {name:?} does not belong there");
                return Err(io::Error::other(message));
            }
        }
    }
    Ok(())
}
