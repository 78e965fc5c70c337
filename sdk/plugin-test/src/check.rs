//! The checks, a module each.

pub(crate) mod answers;
pub(crate) mod claim;
pub(crate) mod damage;
pub(crate) mod description;
pub(crate) mod documents;
pub(crate) mod library;
pub(crate) mod meshes;
pub(crate) mod program;
pub(crate) mod totality;
