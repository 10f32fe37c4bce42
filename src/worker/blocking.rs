//! Work on threads that may block.

use std::{future, panic};
use tokio::task::spawn_blocking;

/// Runs on a thread that may block; a panic there goes on here. Never returns once the runtime ends
/// before the work began: whoever waits for it ends as well.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => panic::resume_unwind(panic),
            Err(_) => future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::sync::mpsc;
    use tokio::runtime::Builder;

    #[test]
    fn work_that_a_node_did_not_begin_before_it_ended_is_no_panic() {
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let (go_on, wait) = mpsc::sync_channel::<()>(0);
        runtime.spawn_blocking(move || wait.recv());
        let entered = runtime.enter();
        let mut waiting = Box::pin(blocking::<()>(|| unreachable!("the only thread is taken")));
        assert!((&mut waiting).now_or_never().is_none());
        drop(entered);
        runtime.shutdown_background();
        drop(go_on);
        assert!((&mut waiting).now_or_never().is_none());
    }

    #[test]
    #[should_panic = "on purpose"]
    fn a_panic_goes_on_where_it_is_waited_for() {
        Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(blocking(|| panic!("on purpose")))
    }
}
