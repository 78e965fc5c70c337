//! Loads built libraries, whole and damaged, the way an application does.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]

mod documents;
mod handshake;
mod header;
mod layout;
mod library;
mod panics;
mod pinned;
mod plain_c;
mod plugin_c;
mod program;
mod raw;
mod same;
mod search;
#[path = "../plugins/toy/src/lib.rs"]
#[allow(
    unreachable_pub,
    reason = "the file is a crate of its own; here it is the linked twin of the loaded plugin"
)]
mod toy;
