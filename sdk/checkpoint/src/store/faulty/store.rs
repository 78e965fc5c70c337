//! A store in which calls fail.

use std::sync::Arc;

use rialto_tensor::Location;

use super::{Call, Fault, Faults, read_error};
use crate::Error;
use crate::store::{FileEntry, Source, Stamp, Store};

/// A store whose listing, opening and reading fail as told.
#[derive(Debug)]
pub struct FaultyStore {
    store: Arc<dyn Store>,
    faults: Faults,
}

impl FaultyStore {
    /// Wraps a store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, faults: Faults) -> FaultyStore {
        FaultyStore { store, faults }
    }
}

impl Store for FaultyStore {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn files(&self) -> Result<Vec<FileEntry>, Error> {
        match self.faults.record(Call::List) {
            None => self.store.files(),
            Some(fault) => Err(read_error(fault, Location::file(self.name()))),
        }
    }

    fn stamp(&self, name: &str) -> Result<Stamp, Error> {
        let fault = self.faults.record(Call::Stamp);
        let stamp = self.store.stamp(name)?;
        match fault {
            None => Ok(stamp),
            Some(Fault::Short) => Ok(Stamp {
                len: stamp.len / 2,
                ..stamp
            }),
            Some(fault) => {
                let location = Location::file(format!("{}/{name}", self.name()));
                Err(read_error(fault, location))
            }
        }
    }

    fn open(&self, name: &str) -> Result<Box<dyn Source>, Error> {
        let fault = self.faults.record(Call::Open);
        let source = self.store.open(name)?;
        let len = match fault {
            None => source.len(),
            Some(Fault::Short) => source.len() / 2,
            Some(fault) => return Err(read_error(fault, Location::file(source.name()))),
        };
        Ok(Box::new(FaultySource {
            source,
            len,
            faults: self.faults.clone(),
        }))
    }
}

#[derive(Debug)]
struct FaultySource {
    source: Box<dyn Source>,
    len: u64,
    faults: Faults,
}

impl Source for FaultySource {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let end = offset.saturating_add(buffer.len() as u64);
        let location = Location::file(self.name()).with_bytes(offset, end);
        match self.faults.record(Call::Read) {
            None if end <= self.len => self.source.read_at(offset, buffer),
            None => Err(Error::ShortRead {
                location,
                len: self.len,
            }),
            Some(Fault::Short) => {
                let half = buffer.len() / 2;
                self.source.read_at(offset, &mut buffer[..half])?;
                Err(Error::ShortRead {
                    location,
                    len: offset + half as u64,
                })
            }
            Some(fault) => Err(read_error(fault, location)),
        }
    }
}
