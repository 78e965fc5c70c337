//! Ctrl-C: the first asks a conversion to stop and to keep what is done for `--resume`, the second ends the process.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Failure, INTERNAL};

/// Exit code after an interrupt.
const INTERRUPTED: i32 = 130;

/// Whether Ctrl-C was pressed.
static ASKED: AtomicBool = AtomicBool::new(false);

/// From here on Ctrl-C asks first. Only for commands that ask [`is_asked`] or [`check`]: others end at once.
pub(crate) fn listen() -> Result<(), Failure> {
    let handler = || {
        if ASKED.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED);
        }
    };
    ctrlc::set_handler(handler)
        .map_err(|error| Failure::own(INTERNAL, format!("cannot listen for ctrl-c: {error}")))
}

/// Whether the user asked to stop.
pub(crate) fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Stops here if the user asked for it.
pub(crate) fn check() -> Result<(), Failure> {
    if is_asked() {
        return Err(rialto_engine::Error::Cancelled.into());
    }
    Ok(())
}
