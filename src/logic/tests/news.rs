//! How often a node tells a coordinator of what it runs for it.

use super::*;
use nodectl_types::{StartTask, Time, message::Assignment};

const COORDINATOR: NodeId = NodeId([2; 32]);
const JOB: JobId = JobId(7);
const TASKS: u32 = 42;

/// What was told of ends: when, of how many, and how many tasks waited then.
fn told_of(each: Duration) -> Vec<(Duration, usize, usize)> {
    let mut state = node();
    let (mut now, mut running, mut told) = (Time(1), Vec::new(), Vec::new());
    let mut waiting = TASKS as usize;
    let assignment = |task| Assignment {
        task,
        attempt: Attempt {
            epoch: 1,
            claim: 0,
            number: 1,
        },
        params: Vec::new(),
        needs: Vec::new(),
    };
    let mut inputs = vec![Input::Message {
        from: COORDINATOR,
        message: Message::Assign {
            job: JOB,
            epoch: 1,
            work: Some(spec().work.clone()),
            tasks: (0..TASKS).map(assignment).collect(),
        },
    }];
    let mut next_end = now + each;
    while told.iter().map(|(_, ended, _)| ended).sum::<usize>() < TASKS as usize {
        let deadline = state.next_deadline().unwrap_or(next_end);
        now = if inputs.is_empty() {
            deadline.min(next_end).max(now)
        } else {
            now
        };
        if now == next_end {
            next_end = now + each;
            inputs.extend(
                std::mem::take(&mut running)
                    .into_iter()
                    .map(|(task, attempt)| Input::TaskEnded {
                        job: JOB,
                        record: Box::new(TaskRecord::plain(
                            task,
                            attempt,
                            NodeId([1; 32]),
                            Outcome::Done,
                        )),
                    }),
            );
        }
        let mono = now;
        for effect in state.handle(Now { mono, wall_ms: 0 }, std::mem::take(&mut inputs)) {
            match effect {
                Effect::Task(TaskEffect::Start(StartTask { task, attempt, .. })) => {
                    waiting -= 1;
                    running.push((task, attempt));
                }
                Effect::Send {
                    message: Message::Report { finished, .. },
                    ..
                } if !finished.is_empty() => {
                    told.push((now.since(Time(1)), finished.len(), waiting));
                }
                _ => {}
            }
        }
    }
    told
}

#[test]
fn a_coordinator_hears_of_short_tasks_in_time_to_order_more() {
    let told = told_of(Duration::from_millis(2));
    let (_, ended, waiting) = told[0];
    assert!(
        ended >= 16 && waiting >= 16,
        "once half have begun: {told:?}"
    );
    assert!(told.len() <= 7, "and then of half of the rest: {told:?}");
}

#[test]
fn a_coordinator_hears_of_longer_tasks_within_a_fifth_of_a_second() {
    let told = told_of(Duration::from_millis(90));
    let late = |pair: &[(Duration, usize, usize)]| pair[1].0 - pair[0].0;
    assert!(told[0].0 <= Duration::from_millis(90 + 200), "{told:?}");
    assert!(
        told.windows(2)
            .all(|pair| late(pair) <= Duration::from_millis(90 + 200)),
        "{told:?}"
    );
    assert!(
        told.iter()
            .filter(|(_, _, waiting)| *waiting > 2)
            .all(|(_, ended, _)| *ended >= 4),
        "several at once while others wait: {told:?}"
    );
}
