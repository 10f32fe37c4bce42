//! What a node makes of its own journals when it starts.

use super::*;
use nodectl_types::{After, JobHead};

const JOB: JobId = JobId(7);

/// What a node does in ten seconds after these inputs. Its disk takes all that is written.
fn of_ten_seconds(state: &mut State, mut inputs: Vec<Input>) -> Vec<Effect> {
    let mut effects = Vec::new();
    for tick in 0..200 {
        let now = Now {
            mono: Time(1) + Duration::from_millis(50 * tick),
            wall_ms: 0,
        };
        inputs.push(Input::Tick);
        for effect in state.handle(now, std::mem::take(&mut inputs)) {
            if let Effect::Disk(DiskEffect::Persist { ticket, .. }) = &effect {
                let (ticket, result) = (*ticket, Ok(()));
                inputs.push(Input::Persisted { ticket, result });
            }
            effects.push(effect);
        }
    }
    effects
}

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

/// The only disk that had a job was damaged. The one that comes after its end has begun, or has
/// not.
#[test]
fn a_job_that_has_begun_does_not_wait_again_for_one_that_is_lost() {
    for (phase, goes_on) in [(Phase::Waiting, false), (Phase::Running, true)] {
        let mut state = State::new(Now::default(), info(1), config());
        let mut spec = (*spec()).clone();
        Arc::make_mut(&mut spec.work).after = vec![After::End(JobId(6))];
        let head = JobHead {
            epoch: 1,
            holder: state.node(),
            phase,
            ..JobHead::unclaimed(JOB, &spec, spec.hash())
        };
        state.restore(JOB, Record::Spec(Arc::new(spec)));
        state.restore(JOB, Record::Head(head));
        state.start();
        let effects = of_ten_seconds(&mut state, Vec::new());
        let starts = |effect: &Effect| matches!(effect, Effect::Task(TaskEffect::Start(_)));
        assert_eq!(effects.iter().any(starts), goes_on);
    }
}

/// A job had ended when its only other holder was lost with a result that this node lacks. Whoever
/// cancels it then does not see it go on.
#[test]
fn an_ended_job_that_lost_a_result_is_cancelled_for_good() {
    for (phase, then) in [
        (Phase::Done, Phase::Cancelled),
        (Phase::Failed, Phase::Failed),
    ] {
        assert_cancelled_for_good(phase, then);
    }
}

fn assert_cancelled_for_good(phase: Phase, then: Phase) {
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
        phase,
        done: 2,
        ..JobHead::unclaimed(JOB, &spec, spec.hash())
    };
    state.restore(JOB, Record::Spec(Arc::new(spec)));
    state.restore(JOB, Record::Head(head));
    state.restore(JOB, Record::Task(Arc::new(record)));
    state.start();
    let query = Query::Job(JOB, JobQuery::Cancel);
    let effects = of_ten_seconds(&mut state, vec![Input::Ask { id: 1, query }]);
    let starts = |effect: &Effect| matches!(effect, Effect::Task(TaskEffect::Start(_)));
    assert!(!effects.iter().any(starts), "it was cancelled");
    let is_answered =
        |effect: &Effect| matches!(effect, Effect::Answer { answer, .. } if answer.is_ok());
    let answered = effects.iter().any(is_answered);
    let head = state.core().directory.get(JOB).expect("restored");
    assert_eq!((head.phase, head.done, answered), (then, 1, true));
}
