//! The command line: the real binary in a scratch directory; exit code, stdout as JSON, and what lies there afterwards.

mod conversion;
mod machine;
mod plugins;
mod refusals;
mod world;
