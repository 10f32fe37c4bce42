//! What a node makes of its own journals when it starts.

use super::*;
use nodectl_types::{After, JobHead};

const JOB: JobId = JobId(7);

/// The head was in the damaged part of the only journal that had it.
#[test]
fn a_job_whose_head_was_damaged_is_gone_on_with() {
    let mut state = State::new(Now::default(), info(1), config());
    let spec = Arc::new(JobSpec {
        repeat: 3,
        ..(*spec()).clone()
    });
    let attempt = Attempt {
        epoch: 4,
        claim: 0,
        number: 1,
    };
    let record = TaskRecord {
        accepted: 4,
        ..TaskRecord::plain(1, attempt, state.node(), Outcome::Done)
    };
    state.restore(JOB, Record::Spec(spec));
    state.restore(JOB, Record::Task(Arc::new(record)));
    state.start();
    let mut at = |seconds: u64| {
        state.handle(
            Now {
                mono: Time(1) + Duration::from_secs(seconds),
                wall_ms: 0,
            },
            [Input::Tick],
        );
        (
            state.claim_of(JOB),
            state.core().directory.get(JOB).cloned(),
        )
    };
    assert_eq!(at(4), (None, None), "others may know more of it");
    let (claim, head) = at(6);
    assert_eq!(claim, Some(5));
    let head = head.expect("it is claimed");
    assert_eq!(
        (head.name.as_str(), head.tasks, head.done),
        ("squares", 3, 1)
    );
}

/// As `wire/former.rs` reads them.
#[test]
fn heads_of_the_version_before_learn_what_their_job_comes_after() {
    let mut state = State::new(Now::default(), info(1), config());
    let mut spec = (*spec()).clone();
    let before = JobId(6);
    Arc::make_mut(&mut spec.work).after = vec![After::named("images".into(), before)];
    let head = JobHead {
        epoch: 1,
        after: Vec::new(),
        ..JobHead::unclaimed(JOB, &spec, spec.hash())
    };
    state.restore(JOB, Record::Spec(Arc::new(spec)));
    state.restore(JOB, Record::Head(head));
    state.start();
    assert_eq!(state.core().directory.needed(), [(before, JOB)].into());
}

/// A job was done when its only other holder was lost with a result that this node lacks. Whoever
/// cancels it then does not see it go on.
#[test]
fn a_done_job_that_lost_a_result_is_cancelled_for_good() {
    let mut state = State::new(Now::default(), info(1), config());
    let spec = JobSpec {
        repeat: 2,
        ..(*spec()).clone()
    };
    let me = state.node();
    let record = trio::done(0, me);
    let head = JobHead {
        epoch: 1,
        version: 2,
        holder: me,
        phase: Phase::Done,
        done: 2,
        ..JobHead::unclaimed(JOB, &spec, spec.hash())
    };
    state.restore(JOB, Record::Spec(Arc::new(spec)));
    state.restore(JOB, Record::Head(head));
    state.restore(JOB, Record::Task(Arc::new(record)));
    state.start();
    let query = Query::Job(JOB, JobQuery::Cancel);
    let mut inputs = vec![Input::Ask { id: 1, query }];
    let mut answered = false;
    for tick in 0..200 {
        let now = Now {
            mono: Time(1) + Duration::from_millis(50 * tick),
            wall_ms: 0,
        };
        inputs.push(Input::Tick);
        for effect in state.handle(now, std::mem::take(&mut inputs)) {
            match effect {
                Effect::Disk(DiskEffect::Persist { ticket, .. }) => {
                    let result = Ok(());
                    inputs.push(Input::Persisted { ticket, result });
                }
                Effect::Answer { answer, .. } => answered |= answer.is_ok(),
                Effect::Task(TaskEffect::Start(_)) => panic!("it was cancelled"),
                _ => {}
            }
        }
    }
    let head = state.core().directory.get(JOB).expect("restored");
    assert_eq!(
        (head.phase, head.done, answered),
        (Phase::Cancelled, 1, true)
    );
}
