//! Waits, each of which ends.
//!
//! What could wait for ever in this backend, and why it does not:
//!
//! | wait | ends |
//! |---|---|
//! | drivers that are asked for adapters, or open one | [`within`]: a thread of its own asks, and is left alone after the deadline |
//! | futures of wgpu: adapters, devices, error scopes | [`done`]: outside of browsers they are done when they are made; they are asked once |
//! | work that was submitted | `Shared::wait` polls with the deadline; afterwards the device is not used again |
//! | a submission, for which a driver may wait until there is room | `Shared::submit` waits before, with the deadline |
//! | a mapping that another thread is told of | a channel, with the deadline |
//! | the end of a queue, for which wgpu waits without one | [`end`]: a queue that is not idle ends on a thread of its own |
//!
//! A driver that compiles a shader computes, and is not waited for: it is as any other call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How long a driver may take to say which adapters there are, and to open one: starting a sleeping GPU is not quick.
pub(crate) const DRIVER_DEADLINE: Duration = Duration::from_secs(60);

/// What a future of wgpu has, without waiting for it. `None` if it is not done, which no future of a native platform is.
pub(crate) fn done<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    match future.as_mut().poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// What a call that only a driver can end gives, or `None` after a deadline, and if it panics.
pub(crate) fn within<T: Send + 'static>(
    deadline: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (told, given) = mpsc::channel();
    let asked = std::thread::Builder::new()
        .name("rialto-wgpu-driver".to_owned())
        .spawn(move || {
            // Nobody listens only after the deadline.
            let _ = told.send(call());
        });
    asked.ok()?;
    given.recv_timeout(deadline).ok()
}

/// Waits for a submission, or for all of them. wgpu panics where a driver reports in the middle of a wait that the device is lost: that is an error as any other,
/// and wgpu has let go of its locks by then.
pub(crate) fn poll(
    device: &wgpu::Device,
    submission_index: Option<wgpu::SubmissionIndex>,
    timeout: Duration,
) -> Result<(), Option<wgpu::PollError>> {
    let wait = wgpu::PollType::Wait {
        submission_index,
        timeout: Some(timeout),
    };
    match caught(|| device.poll(wait)) {
        Some(polled) => polled.map(|_| ()).map_err(Some),
        None => Err(None),
    }
}

/// What a call gives, `None` if it panics.
fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// Lets go of a queue. wgpu then waits without a deadline for what was submitted: here if there is nothing, else on a thread of its
/// own, which lasts as long as the device hangs.
pub(crate) fn end(queue: wgpu::Queue, is_idle: bool) {
    if is_idle {
        drop(queue);
        return;
    }
    let name = "rialto-wgpu-queue".to_owned();
    let ends = move || {
        let _ = caught(|| drop(queue));
    };
    // Without threads there is nothing better left to do than what would be done without this function.
    let _ = std::thread::Builder::new().name(name).spawn(ends);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn fc_67_a_call_of_a_driver_that_does_not_return_is_left_alone() {
        let begun = Instant::now();
        let (_hold, never) = mpsc::channel::<()>();
        let hangs = move || never.recv().is_ok();
        assert_eq!(within(Duration::from_millis(20), hangs), None);
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
    }

    #[test]
    fn fc_67_a_future_that_is_not_done_is_not_waited_for() {
        assert_eq!(done(std::future::ready(7)), Some(7));
        assert_eq!(done(std::future::pending::<()>()), None);
    }

    #[test]
    fn fc_67_a_panic_inside_of_a_wait_is_caught() {
        assert_eq!(caught(|| 7), Some(7));
        assert_eq!(
            caught(|| panic!("as wgpu does: Error in Device::poll")),
            None::<()>
        );
        let panics = || -> u8 { panic!("a driver's library is broken") };
        assert_eq!(within(Duration::from_secs(60), panics), None);
    }
}
