//! Heads merge the same way everywhere.

use super::*;
use nodectl_types::{BlobHash, NodeId, Phase};
use proptest::{prelude::*, strategy::ValueTree};

prop_compose! {
    fn any_head()(epoch in 0..4u32, holder in 1..4u8, version in 0..4u64, cancelled: bool, given_up in 0..3u32, why in prop::option::of("[ab]"), round in 0..3u32) -> JobHead {
        JobHead {
            job: JobId(7),
            name: "job".into(),
            spec: BlobHash([0; 32]),
            submitter: NodeId([0; 32]),
            author: Default::default(),
            submitted_ms: 0,
            epoch,
            holder: NodeId([holder; 32]),
            version,
            // A holder writes each version once.
            replicas: vec![NodeId([version as u8; 32])],
            cancelled,
            given_up,
            reason: why,
            round,
            phase: Phase::Running,
            tasks: 1,
            after: Vec::new(),
            is_step: false,
            is_log: false,
            voters: None,
            open: None,
            done: 0,
            failed: 0,
            stopped: 0,
            workers: None,
            saved: None,
            ended_ms: 0,
        }
    }
}

proptest! {
    #[test]
    fn joining_is_commutative_associative_and_idempotent(a in any_head(), b in any_head(), c in any_head()) {
        prop_assert_eq!(join(&a, &b), join(&b, &a));
        prop_assert_eq!(join(&join(&a, &b), &c), join(&a, &join(&b, &c)));
        prop_assert_eq!(join(&a, &a), a);
    }

    #[test]
    fn members_that_heard_the_same_heads_have_the_same_digest(heads in prop::collection::vec(any_head(), 1..10)) {
        let (mut forwards, mut backwards) = (Directory::default(), Directory::default());
        for head in &heads {
            forwards.merge(head.clone());
        }
        for head in heads.iter().rev() {
            backwards.merge(head.clone());
        }
        prop_assert_eq!(forwards.digests(), backwards.digests());
    }
}

#[test]
fn whoever_ends_a_job_again_tells_why_it_was_ended() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let head = any_head().new_tree(&mut runner).expect("a head").current();
    let ended = JobHead {
        epoch: 1,
        cancelled: true,
        given_up: 0,
        reason: Some("its host was gone".into()),
        ..head.clone()
    };
    let later = JobHead {
        epoch: 2,
        cancelled: false,
        given_up: 0,
        reason: None,
        ..head
    };
    let joined = join(&ended, &later);
    assert_eq!(
        (joined.epoch, joined.cancelled, &joined.reason),
        (2, true, &ended.reason)
    );
}

#[test]
fn who_tries_a_job_again_is_heard_beyond_a_cut_and_so_is_who_gives_it_up_once_more() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let head = any_head().new_tree(&mut runner).expect("a head").current();
    let given_up = |rounds: u32, why: &str| JobHead {
        cancelled: false,
        given_up: rounds,
        reason: Some(why.into()),
        round: rounds - 1,
        phase: Phase::Failed,
        ..head.clone()
    };
    let first = given_up(1, "no such module");
    assert_eq!(first.end_reason(), Some("no such module"));
    let tried = JobHead {
        round: 1,
        phase: Phase::Running,
        ..first.clone()
    };
    let joined = join(&first, &tried);
    assert_eq!((joined.is_given_up(), joined.end_reason()), (false, None));
    let second = join(&joined, &given_up(2, "a wrong version"));
    assert_eq!(second.end_reason(), Some("a wrong version"));
}

#[test]
fn beyond_the_limit_known_jobs_stay_and_new_ones_are_not_taken_in() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let head = any_head().new_tree(&mut runner).expect("a head").current();
    let mut directory = Directory::default();
    for number in 0..=limits::MAX_JOBS as u64 {
        directory.merge(JobHead {
            job: JobId(number),
            ..head.clone()
        });
    }
    assert!(directory.is_full());
    assert!(directory.get(JobId(0)).is_some());
    assert!(directory.get(JobId(limits::MAX_JOBS as u64)).is_none());
}

#[test]
fn followers_are_unfinished_jobs_that_come_after_others() {
    let head = |job: u64, version, phase, after: &[u64]| JobHead {
        job: JobId(job),
        version,
        phase,
        after: after.iter().copied().map(JobId).collect(),
        ..any_head()
            .new_tree(&mut Default::default())
            .expect("it draws one")
            .current()
    };
    let mut directory = Directory::default();
    let mut followers = |change: &dyn Fn(&mut Directory)| -> Vec<u64> {
        change(&mut directory);
        directory.followers().map(|head| head.job.0).collect()
    };
    let one = head(1, 1, Phase::Running, &[]);
    let two = head(2, 1, Phase::Running, &[1]);
    let ended = JobHead {
        version: 2,
        phase: Phase::Done,
        ..two.clone()
    };
    assert_eq!(followers(&|it| drop(it.merge(one.clone()))), [0; 0]);
    assert_eq!(followers(&|it| drop(it.merge(two.clone()))), [2]);
    assert_eq!(followers(&|it| drop(it.merge(ended.clone()))), [0; 0]);
    let three = head(3, 1, Phase::Running, &[1, 2]);
    assert_eq!(followers(&|it| drop(it.merge(three.clone()))), [3]);
    assert_eq!(followers(&|it| it.remove(JobId(3), 0)), [0; 0]);
}
