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

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread::Builder;
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

/// Why a driver that was asked something gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// It is still at it.
    Late(Duration),
    /// It, or wgpu with what it said, panicked so.
    Panicked(String),
    /// No thread could be started to ask.
    NotAsked(String),
    /// What wgpu returned is not done, and nobody would do it.
    Unfinished,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unanswered::Late(deadline) => {
                write!(f, "did not answer within {} s", deadline.as_secs_f64())
            }
            Unanswered::Panicked(text) => write!(f, "panicked: {text}"),
            Unanswered::NotAsked(reason) => {
                write!(
                    f,
                    "was not asked, since no thread could be started: {reason}"
                )
            }
            Unanswered::Unfinished => write!(f, "did not answer at once, and nothing waits for it"),
        }
    }
}

/// What a call that only a driver can end gives, if it does before a deadline. The call gives `None` for what [`done`] finds undone.
pub(crate) fn within<T: Send + 'static>(
    deadline: Duration,
    call: impl FnOnce() -> Option<T> + Send + 'static,
) -> Result<T, Unanswered> {
    let thread = Builder::new().name("rialto-wgpu-driver".to_owned());
    within_on(thread, deadline, call)
}

fn within_on<T: Send + 'static>(
    thread: Builder,
    deadline: Duration,
    call: impl FnOnce() -> Option<T> + Send + 'static,
) -> Result<T, Unanswered> {
    let (told, given) = mpsc::channel();
    let asked = thread.spawn(move || {
        let called = catch_unwind(AssertUnwindSafe(call));
        let called = called.map_err(|panic| Unanswered::Panicked(text_of(panic.as_ref())));
        // Nobody listens only after the deadline.
        let _ = told.send(called.and_then(|given| given.ok_or(Unanswered::Unfinished)));
    });
    asked.map_err(|error| Unanswered::NotAsked(error.to_string()))?;
    match given.recv_timeout(deadline) {
        Ok(answered) => answered,
        Err(_) => Err(Unanswered::Late(deadline)),
    }
}

/// What a panic said.
fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a word").to_owned()
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
    let _ = Builder::new().name(name).spawn(ends);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn fc_67_a_call_of_a_driver_that_does_not_return_is_left_alone() {
        let begun = Instant::now();
        let (_hold, never) = mpsc::channel::<()>();
        let hangs = move || never.recv().ok();
        let deadline = Duration::from_millis(20);
        let late = within(deadline, hangs).unwrap_err();
        assert_eq!(late, Unanswered::Late(deadline));
        assert_eq!(late.to_string(), "did not answer within 0.02 s");
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(within(DRIVER_DEADLINE, || Some(7)), Ok(7));
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
    }

    /// None of them has waited for a minute, and none says so.
    #[test]
    fn why_a_driver_gave_nothing_is_told_apart() {
        let said = |unanswered: Result<u8, Unanswered>| unanswered.unwrap_err().to_string();
        let panics = || -> Option<u8> { panic!("a library of version {} is broken", 7) };
        assert_eq!(
            said(within(DRIVER_DEADLINE, panics)),
            "panicked: a library of version 7 is broken"
        );
        assert_eq!(
            within::<u8>(DRIVER_DEADLINE, || None),
            Err(Unanswered::Unfinished)
        );
        // No machine has room for its stack.
        let thread = Builder::new().stack_size(1 << 60);
        let said = said(within_on(thread, DRIVER_DEADLINE, || Some(7)));
        assert!(said.starts_with("was not asked, since no thread"), "{said}");
    }
}
