//! What takes long says so: a line on stderr now and then, also where there is no terminal.

use std::{future::Future, time::Duration};

/// Quicker work says nothing.
const PERIOD: Duration = Duration::from_secs(5);

/// Does the work, and says how far it is while it goes on.
pub async fn telling<T>(work: impl Future<Output = T>, how_far: impl Fn() -> String) -> T {
    telling_to(work, PERIOD, || tell!("{}", how_far())).await
}

async fn telling_to<T>(
    work: impl Future<Output = T>,
    period: Duration,
    mut tell: impl FnMut(),
) -> T {
    tokio::pin!(work);
    loop {
        match tokio::time::timeout(period, &mut work).await {
            Ok(done) => return done,
            Err(_) => tell(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test]
    async fn long_work_is_told_of_and_short_work_is_not() {
        assert_eq!(
            telling_to(async { 1 }, PERIOD, || panic!("it is done")).await,
            1
        );
        // Work that ends when it has been told of three times.
        let told = Cell::new(0);
        let work = std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            if told.get() < 3 {
                std::task::Poll::Pending
            } else {
                std::task::Poll::Ready("done")
            }
        });
        assert_eq!(
            telling_to(work, Duration::from_millis(1), || told.set(told.get() + 1)).await,
            "done"
        );
    }
}
