//! What a machine's owner says holds on that machine, whoever orders or asks.

use super::*;
use nodectl_types::{
    Admits, Author, Closed, OwnerWord, Pause, Policy, StartTask, Surroundings, WhenClosed,
    message::Assignment, policy::Idle,
};

const ALPHA: NodeId = NodeId([1; 32]);
const BETA: NodeId = NodeId([2; 32]);

/// Two members, and a wire between them that loses nothing. Their disks answer at once; tasks run
/// until they are ended.
struct MemberPair {
    nodes: [State; 2],
    mono: Time,
    /// What runs, and where.
    running: Vec<(usize, JobId, TaskIndex, Attempt)>,
    /// Every attempt that was started, by its node.
    started: Vec<usize>,
    /// Orders that were sent to the second node.
    ordered: usize,
    answers: Vec<Result<Answer, QueryError>>,
    kept: Option<OwnerWord>,
    /// Whether each stands still.
    suspended: [bool; 2],
    wall_ms: u64,
}

impl MemberPair {
    fn new(first: Terms, second: Terms) -> Self {
        let state = |id: NodeId, name: &str, terms: Terms| {
            let info = NodeInfo {
                id,
                name: name.into(),
                ..info(1)
            };
            let mut state = State::new(Now::default(), info, Config { terms, ..config() });
            state.start();
            state
        };
        let nodes = [state(ALPHA, "alpha", first), state(BETA, "beta", second)];
        let (running, started, answers) = (Vec::new(), Vec::new(), Vec::new());
        let mut pair = Self {
            nodes,
            mono: Time(1),
            running,
            started,
            ordered: 0,
            answers,
            kept: None,
            suspended: [false; 2],
            wall_ms: 0,
        };
        pair.give(0, Input::PeerUp(BETA));
        pair.give(1, Input::PeerUp(ALPHA));
        pair.wait(2_000);
        pair
    }

    fn give(&mut self, node: usize, input: Input) {
        let mut inputs = vec![(node, input)];
        while !inputs.is_empty() {
            let (node, input) = inputs.remove(0);
            self.mono = self.mono + Duration::from_micros(10);
            let effects = self.nodes[node].handle(
                Now {
                    mono: self.mono,
                    wall_ms: self.wall_ms,
                },
                [input],
            );
            for effect in effects {
                match effect {
                    Effect::Send { to, message } => {
                        let other = usize::from(to == BETA);
                        self.ordered +=
                            usize::from(other == 1 && matches!(message, Message::Assign { .. }));
                        inputs.push((
                            other,
                            Input::Message {
                                from: self.nodes[node].node(),
                                message,
                            },
                        ));
                    }
                    Effect::Disk(DiskEffect::Persist { ticket, .. }) => inputs.push((
                        node,
                        Input::Persisted {
                            ticket,
                            result: Ok(()),
                        },
                    )),
                    Effect::Disk(DiskEffect::FetchBlobs { ticket, .. })
                    | Effect::Disk(DiskEffect::FetchTree { ticket, .. }) => {
                        inputs.push((
                            node,
                            Input::Fetched {
                                ticket,
                                result: Ok(()),
                            },
                        ));
                    }
                    Effect::Task(TaskEffect::Start(StartTask {
                        job, task, attempt, ..
                    })) => {
                        self.started.push(node);
                        self.running.push((node, job, task, attempt));
                        inputs.push((node, Input::TaskStarted { job, task, attempt }));
                    }
                    Effect::Task(TaskEffect::Stop {
                        job, task, attempt, ..
                    }) => {
                        self.running
                            .retain(|running| *running != (node, job, task, attempt));
                        inputs.push((node, Input::TaskStopped { job, task, attempt }));
                    }
                    Effect::Answer { answer, .. } => self.answers.push(answer),
                    Effect::Keep { note, then } => {
                        match note {
                            Note::Owner(word) => self.kept = Some(word),
                            Note::Members(_) => {}
                            other => panic!("{other:?}"),
                        }
                        self.answers.extend(then.map(|(_, answer)| Ok(answer)));
                    }
                    Effect::Task(TaskEffect::Suspend(on)) => self.suspended[node] = on,
                    _ => {}
                }
            }
        }
    }

    fn wait(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(50) {
            self.mono = self.mono + Duration::from_millis(50);
            self.wall_ms += 50;
            self.give(0, Input::Tick);
            self.give(1, Input::Tick);
        }
    }

    /// What the node answers to whom sits there.
    fn ask(&mut self, node: usize, query: Query) -> Result<Answer, QueryError> {
        self.answers.clear();
        self.give(node, Input::Ask { id: 7, query });
        self.wait(100);
        self.answers.pop().expect("an answer")
    }

    /// A job that the first node coordinates.
    fn submit(&mut self, tasks: u32) -> JobId {
        let spec = JobSpec {
            repeat: tasks,
            ..(*spec()).clone()
        };
        let job = (1..)
            .map(JobId)
            .find(|job| rank::ranked(*job, [ALPHA, BETA])[0] == ALPHA);
        let job = job.expect("one that the first node coordinates");
        self.submit_as(job, &Arc::new(spec));
        job
    }

    fn submit_as(&mut self, job: JobId, spec: &Arc<JobSpec>) {
        let query = Query::Submit {
            job: Some(job),
            asked_before: 0,
            spec: spec.clone(),
        };
        assert_eq!(self.ask(0, query), Ok(Answer::Submitted { job }));
    }

    fn here(&self, node: usize) -> usize {
        self.running
            .iter()
            .filter(|running| running.0 == node)
            .count()
    }

    fn failures(&self) -> u32 {
        self.nodes[0]
            .core
            .directory
            .iter()
            .map(|head| head.failed)
            .sum()
    }

    fn info(&self, node: usize) -> &NodeInfo {
        self.nodes[node].core.members.my_info()
    }
}

fn takes_none() -> Terms {
    Terms {
        takes_work: false,
        ..Terms::default()
    }
}

#[test]
fn an_order_to_a_node_that_takes_no_work_is_returned_whoever_sends_it() {
    for word in [Closed::TakesNone, Closed::Drained] {
        let terms = if word == Closed::TakesNone {
            takes_none()
        } else {
            Terms::default()
        };
        let mut state = node_with(Config { terms, ..config() });
        if word == Closed::Drained {
            state.handle(
                Now::default(),
                [Input::Ask {
                    id: 1,
                    query: Query::Node(ALPHA, NodeQuery::Drain { on: true }),
                }],
            );
        }
        let task = Assignment {
            task: 0,
            attempt: Attempt {
                epoch: 1,
                claim: 0,
                number: 1,
            },
            params: Vec::new(),
            needs: Vec::new(),
        };
        let (job, work) = (JobId(5), Some(spec().work.clone()));
        let order = Message::Assign {
            job,
            epoch: 1,
            work,
            tasks: vec![task.clone()],
        };
        let effects = state.handle(
            Now::default(),
            [Input::Message {
                from: BETA,
                message: order,
            }],
        );
        assert!(
            !effects
                .iter()
                .any(|effect| matches!(effect, Effect::Task(TaskEffect::Start(StartTask { .. })))),
            "{effects:?}"
        );
        let returned = effects.iter().find_map(|effect| match effect {
            Effect::Send {
                to: BETA,
                message:
                    Message::Report {
                        returned,
                        refuses: Some(why),
                        ..
                    },
            } => Some((returned.clone(), why.clone())),
            _ => None,
        });
        assert_eq!(
            returned,
            Some((vec![(0, task.attempt)], format!("it {word}")))
        );
    }
}

#[test]
fn what_a_node_refuses_runs_elsewhere_and_is_no_failure() {
    let mut pair = MemberPair::new(Terms::default(), takes_none());
    // The coordinator does not know: as one of an older version, or one that lies.
    let version = pair.info(1).version + 1;
    let open = NodeInfo {
        closed: None,
        version,
        ..pair.info(1).clone()
    };
    pair.give(
        0,
        Input::Message {
            from: BETA,
            message: Message::Info(Box::new(open.clone())),
        },
    );
    let job = pair.submit(8);
    pair.wait(5_000);
    assert!(
        pair.started.iter().all(|node| *node == 0),
        "{:?}",
        pair.started
    );
    assert_eq!(pair.running.len(), 2, "as many as the other has cores");
    let ordered = pair.ordered;
    assert!((1..=2).contains(&ordered), "{ordered} orders in vain");
    let explained = pair.ask(0, Query::Job(job, JobQuery::Explain { task: None }));
    assert!(
        format!("{explained:?}").contains("beta: cannot take it: it takes no work"),
        "{explained:?}"
    );
    let failures = |pair: &MemberPair| {
        pair.nodes
            .iter()
            .map(|state| state.core.directory.get(job).unwrap().failed)
            .sum::<u32>()
    };
    assert_eq!(failures(&pair), 0);
    // It is asked again when it describes itself anew.
    pair.give(
        0,
        Input::Message {
            from: BETA,
            message: Message::Info(Box::new(NodeInfo {
                version: version + 1,
                ..open
            })),
        },
    );
    pair.wait(500);
    assert_eq!(pair.ordered, ordered + 1);
    assert!(pair.started.iter().all(|node| *node == 0));
}

#[test]
fn another_member_cannot_take_back_what_the_owner_said() {
    let mut pair = MemberPair::new(Terms::default(), Terms::default());
    let drain = |on| Query::Node(BETA, NodeQuery::Drain { on });
    // Said by another member, and taken back by one.
    assert_eq!(pair.ask(0, drain(true)), Ok(Answer::Ok));
    assert_eq!(
        (pair.info(1).draining, pair.info(1).closed.clone()),
        (true, None)
    );
    assert_eq!(pair.ask(0, drain(false)), Ok(Answer::Ok));
    assert_eq!(pair.info(1).takes_no_work(), None);
    // Said at the node itself.
    assert_eq!(pair.ask(1, drain(true)), Ok(Answer::Ok));
    assert_eq!(
        (pair.info(1).draining, pair.info(1).closed.clone()),
        (false, Some(Closed::Drained))
    );
    assert_eq!(
        pair.kept,
        Some(OwnerWord {
            drained: true,
            ..OwnerWord::default()
        })
    );
    let denied = Err(QueryError::Denied("beta was drained by its owner".into()));
    assert_eq!(pair.ask(0, drain(false)), denied);
    assert_eq!(pair.info(1).closed, Some(Closed::Drained));
    // The owner takes back what others said, too.
    assert_eq!(pair.ask(0, drain(true)), Ok(Answer::Ok));
    assert_eq!(pair.ask(1, drain(false)), Ok(Answer::Ok));
    assert_eq!(pair.info(1).takes_no_work(), None);
    assert_eq!(pair.kept, Some(OwnerWord::default()));
}

#[test]
fn what_a_setting_says_only_the_setting_takes_back() {
    let mut pair = MemberPair::new(Terms::default(), takes_none());
    let denied = Err(QueryError::Denied(
        "beta takes no work (node.takes_work)".into(),
    ));
    for node in [0, 1] {
        assert_eq!(
            pair.ask(node, Query::Node(BETA, NodeQuery::Drain { on: false })),
            denied,
            "asked at {node}"
        );
        assert_eq!(pair.info(1).closed, Some(Closed::TakesNone));
    }
    pair.submit(8);
    pair.wait(1_000);
    assert!(
        pair.started.iter().all(|node| *node == 0),
        "{:?}",
        pair.started
    );
}

#[test]
fn a_drain_by_its_owner_outlasts_the_node() {
    let mut state = State::new(Now::default(), info(1), config());
    state.restore_owner(OwnerWord {
        drained: true,
        ..OwnerWord::default()
    });
    state.start();
    assert_eq!(state.core().members.my_info().closed, Some(Closed::Drained));
}

#[test]
fn what_waits_on_a_drained_node_goes_elsewhere_and_what_runs_goes_on() {
    let mut pair = MemberPair::new(Terms::default(), Terms::default());
    pair.submit(40);
    pair.wait(200);
    assert_eq!(pair.here(1), 2);
    assert_eq!(
        pair.ask(1, Query::Node(BETA, NodeQuery::Drain { on: true })),
        Ok(Answer::Ok)
    );
    pair.wait(500);
    assert_eq!(
        (
            pair.here(1),
            pair.started.iter().filter(|node| **node == 1).count()
        ),
        (2, 2)
    );
}

fn idle(when_closed: WhenClosed) -> Terms {
    let idle = Some(Idle {
        after: Duration::from_secs(600),
        load_milli: 500,
    });
    let policy = Policy {
        idle,
        when_closed,
        grace: Duration::from_secs(60),
        ..Policy::default()
    };
    Terms {
        policy,
        ..Terms::default()
    }
}

fn seen(seconds: u64) -> Input {
    Input::Seen(Surroundings {
        minute: 0,
        untouched: Some(Duration::from_secs(seconds)),
        others_milli: 0,
    })
}

/// The second node is idle at first, and runs as much as it can.
fn lent(when_closed: WhenClosed) -> MemberPair {
    let mut pair = MemberPair::new(Terms::default(), idle(when_closed));
    assert_eq!(pair.info(1).closed, Some(Closed::Looking));
    pair.give(1, seen(601));
    assert_eq!(pair.info(1).closed, None);
    pair.submit(40);
    pair.wait(500);
    assert_eq!((pair.here(0), pair.here(1)), (2, 2));
    pair
}

#[test]
fn tasks_of_a_machine_that_is_used_stand_still_and_after_the_grace_run_elsewhere() {
    let mut pair = lent(WhenClosed::Suspend);
    pair.give(1, seen(0));
    assert_eq!((pair.suspended, pair.here(1)), ([false, true], 2));
    pair.wait(30_000);
    pair.give(1, seen(601));
    assert_eq!(
        (pair.suspended, pair.here(1)),
        ([false, false], 2),
        "they go on"
    );
    pair.give(1, seen(0));
    pair.wait(59_000);
    assert_eq!(pair.here(1), 2);
    pair.wait(2_000);
    assert_eq!(
        (pair.here(1), pair.failures()),
        (0, 0),
        "given back, and no failure"
    );
    pair.wait(1_000);
    assert_eq!(
        pair.started.iter().filter(|node| **node == 1).count(),
        2,
        "nothing new starts there"
    );
    assert_eq!(pair.here(0), 2);
}

#[test]
fn tasks_may_finish_or_have_a_grace() {
    let mut pair = lent(WhenClosed::Finish);
    pair.give(1, seen(0));
    pair.wait(120_000);
    assert_eq!((pair.suspended, pair.here(1)), ([false, false], 2));
    let mut pair = lent(WhenClosed::Stop);
    pair.give(1, seen(0));
    pair.wait(59_000);
    assert_eq!((pair.suspended, pair.here(1)), ([false, false], 2));
    pair.wait(2_000);
    assert_eq!((pair.here(1), pair.failures()), (0, 0));
}

#[test]
fn a_pause_is_its_owners_outlasts_the_node_and_ends() {
    let mut pair = MemberPair::new(Terms::default(), Terms::default());
    pair.submit(40);
    pair.wait(500);
    let pause = Pause {
        until_ms: Some(pair.wall_ms + 7_200_000),
        finish: false,
    };
    let denied = {
        let query = Query::Pause(Some(pause));
        pair.nodes[1].handle(
            Now::default(),
            [Input::Message {
                from: ALPHA,
                message: Message::Ask { id: 1, query },
            }],
        )
    };
    let is_denied = |effect: &Effect| {
        matches!(
            effect,
            Effect::Send {
                message: Message::Answer {
                    answer: Err(QueryError::Denied(_)),
                    ..
                },
                ..
            }
        )
    };
    assert!(denied.iter().any(is_denied), "{denied:?}");
    assert_eq!(pair.ask(1, Query::Pause(Some(pause))), Ok(Answer::Ok));
    assert_eq!((pair.suspended, pair.here(1)), ([false, true], 2));
    pair.wait(3_600_000);
    assert_eq!(pair.here(1), 2, "longer than any grace");
    assert_eq!(
        pair.kept,
        Some(OwnerWord {
            pause: Some(pause),
            ..OwnerWord::default()
        })
    );
    // Its next life keeps to it, for what is left of it.
    let mut next = State::new(
        Now {
            wall_ms: pair.wall_ms,
            ..Now::default()
        },
        info(1),
        config(),
    );
    next.restore_owner(pair.kept.clone().unwrap());
    assert_eq!(
        next.core().members.my_info().closed,
        Some(Closed::Paused(pause))
    );
    let suspends = |effects: &[Effect], on| {
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Task(TaskEffect::Suspend(is)) if *is == on))
    };
    assert!(suspends(&next.start(), true));
    let later = Now {
        mono: Time(1) + Duration::from_secs(7_200),
        wall_ms: pause.until_ms.unwrap(),
    };
    assert!(suspends(&next.handle(later, [Input::Tick]), false));
    // It is ended by its owner.
    assert_eq!(pair.ask(1, Query::Pause(None)), Ok(Answer::Ok));
    assert_eq!(
        (pair.suspended, pair.info(1).closed.clone()),
        ([false, false], None)
    );
}

/// A job of that user's, of which alpha stands first.
fn job_of(user: &str, job: u64) -> (JobId, Arc<JobSpec>) {
    let author = Author {
        user: user.into(),
        uid: None,
        node: "alpha".into(),
    };
    let work = WorkSpec {
        author,
        ..WorkSpec::plain("squares", &["true"])
    };
    let spec = JobSpec {
        repeat: 8,
        ..JobSpec::plain(work, ALPHA)
    };
    let job = (job..)
        .map(JobId)
        .find(|job| rank::ranked(*job, [ALPHA, BETA])[0] == ALPHA);
    (job.unwrap(), Arc::new(spec))
}

#[test]
fn a_node_takes_the_jobs_that_its_owner_admits_and_explain_says_why_not() {
    let admits = Admits {
        users: vec!["alice".into()],
        ..Admits::default()
    };
    let policy = Policy {
        admits,
        ..Policy::default()
    };
    let mut pair = MemberPair::new(
        Terms::default(),
        Terms {
            policy,
            ..Terms::default()
        },
    );
    let (job, spec) = job_of("bob", 1);
    pair.submit_as(job, &spec);
    pair.wait(500);
    assert_eq!(
        (pair.here(0), pair.here(1), pair.ordered),
        (2, 0, 0),
        "nothing is sent there in vain"
    );
    let explained = format!(
        "{:?}",
        pair.ask(0, Query::Job(job, JobQuery::Explain { task: None }))
    );
    assert!(
        explained.contains("beta: cannot take it: it takes no jobs of user bob"),
        "{explained}"
    );
    // Nor does it take one that is sent all the same.
    let task = Assignment {
        task: 0,
        attempt: Attempt {
            epoch: 1,
            claim: 0,
            number: 9,
        },
        params: Vec::new(),
        needs: Vec::new(),
    };
    let order = Message::Assign {
        job: JobId(77),
        epoch: 1,
        work: Some(spec.work.clone()),
        tasks: vec![task],
    };
    pair.give(
        1,
        Input::Message {
            from: ALPHA,
            message: order,
        },
    );
    assert_eq!(pair.here(1), 0);
    let (job, spec) = job_of("alice", 100);
    pair.submit_as(job, &spec);
    pair.wait(500);
    assert_eq!(pair.here(1), 2);
}
