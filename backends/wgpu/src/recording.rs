//! A recorded list of calls.

use std::sync::Arc;

use rialto_backend::{Counts, Error, OpCall, Recording};

use crate::ops;
use crate::recorder::Recorder;
use crate::replay::Replay;
use crate::shared::Shared;

/// A list of calls on one device.
pub(crate) struct WgpuRecording {
    replay: Replay,
}

impl WgpuRecording {
    pub(crate) fn new(calls: &[OpCall], shared: &Arc<Shared>) -> Result<WgpuRecording, Error> {
        let mut recorder = Recorder::new(shared);
        let replay = shared.guarded(0, || {
            for call in calls {
                ops::record(call, &mut recorder)?;
                recorder.end_of_call();
            }
            Replay::new(recorder.into_steps(), shared)
        })?;
        Ok(WgpuRecording { replay })
    }
}

impl Recording for WgpuRecording {
    fn replay(&mut self) -> Result<(), Error> {
        self.replay.run()
    }

    fn counts(&self) -> Counts {
        self.replay.counts()
    }
}
