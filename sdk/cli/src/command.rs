//! One file a command.

pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod inspect;
pub(crate) mod plan;
pub(crate) mod plugin;
pub(crate) mod verify;
