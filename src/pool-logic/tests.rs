//! A pool against workers and clients that do anything in any order.

mod data;

use super::*;
use proptest::prelude::*;

const A: NodeId = NodeId([1; 32]);
const B: NodeId = NodeId([2; 32]);
const C: NodeId = NodeId([3; 32]);

fn at(millis: u64) -> Time {
    Time(millis * 1000)
}

fn pool(retries: u32) -> Pool<()> {
    Pool::new(
        PoolConfig {
            retries,
            timeout: None,
            max_tasks: None,
            one_at_a_time: false,
        },
        at(0),
    )
}

fn raised(error: &str) -> WorkerEnd<'_> {
    WorkerEnd {
        error: Some(error),
        process: None,
    }
}

fn ended(how: &str) -> WorkerEnd<'_> {
    WorkerEnd {
        error: None,
        process: Some(how),
    }
}

fn turn(pool: &mut Pool<()>, millis: u64) -> Vec<PoolEffect<()>> {
    pool.finish_turn(at(millis)).collect()
}

fn run(worker: WorkerKey, task: u64) -> PoolEffect<()> {
    PoolEffect::Run {
        worker,
        task,
        arguments: (),
    }
}

fn with_workers(pool: &mut Pool<()>, nodes: &[NodeId]) {
    for (key, node) in nodes.iter().enumerate() {
        pool.join(key as u64, *node, at(0));
        assert!(pool.ready(key as u64));
    }
}

#[test]
fn long_tasks_wait_here_and_not_behind_each_other() {
    let mut pool = pool(0);
    with_workers(&mut pool, &[A, A]);
    (1..=5).for_each(|id| pool.submit(id, Some(()), 10));
    assert_eq!(turn(&mut pool, 0), [run(0, 1), run(1, 2)]);
    assert_eq!(pool.answered(0, 1, at(1000)), AnswerOutcome::Forward);
    assert_eq!(
        turn(&mut pool, 1000),
        [run(0, 3)],
        "one in the place of one"
    );
}

#[test]
fn short_tasks_are_sent_ahead_and_shared_evenly() {
    let mut pool = pool(0);
    with_workers(&mut pool, &[A, B]);
    let mut sent = [Vec::new(), Vec::new()];
    (1..=1000).for_each(|id| pool.submit(id, Some(()), 10));
    let mut deepest = 0;
    for _ in 0..2000 {
        for effect in turn(&mut pool, 0) {
            let PoolEffect::Run { worker, task, .. } = effect else {
                panic!("{effect:?}")
            };
            sent[worker as usize].push(task);
        }
        deepest = deepest.max(sent[0].len());
        if pool.waiting.is_empty() && sent[0].len().abs_diff(sent[1].len()) > 1 {
            panic!(
                "the rest is not shared evenly: {} and {}",
                sent[0].len(),
                sent[1].len()
            );
        }
        for (worker, sent) in sent.iter_mut().enumerate() {
            if !sent.is_empty() {
                assert_eq!(
                    pool.answered(worker as u64, sent.remove(0), at(0)),
                    AnswerOutcome::Forward
                );
            }
        }
    }
    assert_eq!((pool.open, pool.open_bytes), (0, 0));
    assert!(deepest > 50, "{deepest} at once hide no round trips");
}

#[test]
fn a_death_is_blamed_on_the_task_that_ran_and_it_is_tried_elsewhere() {
    let mut pool = pool(1);
    with_workers(&mut pool, &[A, A, B]);
    pool.submit(7, Some(()), 1);
    assert_eq!(turn(&mut pool, 0), [run(0, 7)]);
    pool.died(0, ended("killed"), at(1));
    assert_eq!(
        turn(&mut pool, 1),
        [run(2, 7)],
        "not on the same node again"
    );
    pool.died(2, ended("killed"), at(2));
    assert_eq!(
        turn(&mut pool, 2),
        [PoolEffect::Lost {
            task: 7,
            why: "the task ended 2 workers; the last one: killed".into()
        }]
    );
    assert_eq!((pool.open, pool.open_bytes), (0, 0));
}

#[test]
fn what_was_sent_ahead_of_a_death_is_not_blamed() {
    let mut pool = pool(0);
    with_workers(&mut pool, &[A]);
    (1..=20).for_each(|id| pool.submit(id, Some(()), 1));
    for id in 1..=10 {
        turn(&mut pool, 0);
        pool.answered(0, id, at(0));
    }
    assert!(
        turn(&mut pool, 0).len() > 1 || pool.workers[&0].sent.len() > 1,
        "nothing was sent ahead"
    );
    pool.died(0, ended("killed"), at(0));
    pool.join(1, A, at(0));
    pool.ready(1);
    let effects = turn(&mut pool, 0);
    assert!(
        matches!(effects[0], PoolEffect::Lost { task: 11, .. }),
        "{effects:?}"
    );
    assert_eq!(effects[1], run(1, 12), "in the order submitted");
}

#[test]
fn a_pool_whose_workers_cannot_start_ends_with_what_they_said() {
    let mut pool = pool(0);
    for key in 0..3 {
        pool.join(key, A, at(0));
        pool.died(key, raised("ValueError: no"), at(0));
    }
    assert_eq!(pool.next_deadline(), Some(at(2000)));
    pool.expire(at(1999));
    assert_eq!(turn(&mut pool, 1999), []);
    pool.expire(at(2000));
    let why = "3 workers could not start, and none could: ValueError: no".to_string();
    assert_eq!(turn(&mut pool, 2000), [PoolEffect::Fail { why }]);
    pool.expire(at(9000));
    assert_eq!(turn(&mut pool, 9000), [], "once");
}

/// Review: a module on one node of three, the other two quicker to say that they lack it.
#[test]
fn a_pool_waits_for_nodes_that_were_not_tried() {
    let mut pool = pool(0);
    let fails = |pool: &mut Pool<()>, key, node, now| {
        pool.join(key, node, at(now));
        pool.died(key, raised("ModuleNotFoundError"), at(now));
    };
    for key in 0..4 {
        fails(&mut pool, key, if key % 2 == 0 { A } else { B }, 0);
    }
    pool.join(9, C, at(1500));
    pool.expire(at(60_000));
    assert_eq!(
        (pool.next_deadline(), turn(&mut pool, 60_000)),
        (None, vec![])
    );
    pool.ready(9);
    fails(&mut pool, 10, A, 61_000);
    pool.expire(at(90_000));
    assert_eq!(turn(&mut pool, 90_000), [], "one works");
}

#[test]
fn a_pool_that_fails_on_every_node_says_on_how_many() {
    let mut pool = pool(0);
    for (key, node) in [(0, A), (1, B), (2, A)] {
        pool.join(key, node, at(0));
    }
    (0..3).for_each(|key| pool.died(key, WorkerEnd::default(), at(10)));
    pool.expire(at(2010));
    let why =
        "3 workers could not start on 2 nodes, and none could: they ended before they were ready"
            .to_string();
    assert_eq!(turn(&mut pool, 2010), [PoolEffect::Fail { why }]);
}

#[test]
fn a_task_that_runs_too_long_ends_its_worker() {
    let config = PoolConfig {
        timeout: Some(Duration::from_secs(1)),
        ..pool(0).config
    };
    let mut pool = Pool::new(config, at(0));
    with_workers(&mut pool, &[A]);
    pool.submit(1, Some(()), 1);
    turn(&mut pool, 0);
    assert_eq!(pool.next_deadline(), Some(at(1000)));
    pool.expire(at(999));
    assert_eq!(turn(&mut pool, 999), []);
    pool.expire(at(1000));
    assert_eq!(turn(&mut pool, 1000), [PoolEffect::Kill { worker: 0 }]);
    pool.died(0, WorkerEnd::default(), at(1001));
    let why = "the task ran longer than `timeout` and ended its worker".into();
    assert_eq!(turn(&mut pool, 1001), [PoolEffect::Lost { task: 1, why }]);
}

#[test]
fn a_worker_gets_so_many_tasks_and_no_more() {
    let config = PoolConfig {
        max_tasks: Some(3),
        ..pool(0).config
    };
    let mut pool = Pool::new(config, at(0));
    with_workers(&mut pool, &[A]);
    (1..=10).for_each(|id| pool.submit(id, Some(()), 1));
    let mut sent = Vec::new();
    for _ in 0..10 {
        for effect in turn(&mut pool, 0) {
            let PoolEffect::Run { task, .. } = effect else {
                panic!("{effect:?}")
            };
            sent.push(task);
        }
        if let Some(task) = pool.workers[&0].sent.front().map(|task| task.id) {
            pool.answered(0, task, at(0));
        }
    }
    assert_eq!(sent, [1, 2, 3]);
    // Nobody is blamed for its end.
    pool.died(0, WorkerEnd::default(), at(0));
    assert_eq!(turn(&mut pool, 0), []);
    pool.join(1, A, at(0));
    pool.ready(1);
    assert_eq!(turn(&mut pool, 0), [run(1, 4)]);
}

#[test]
fn a_lost_task_is_told_with_how_its_worker_ended() {
    let mut pool = pool(1);
    with_workers(&mut pool, &[A, B]);
    pool.submit(1, Some(()), 1);
    let killed = ended("killed by signal 11 (SIGSEGV)");
    turn(&mut pool, 0);
    pool.died(0, killed, at(0));
    turn(&mut pool, 0);
    pool.died(1, killed, at(0));
    let why = "the task ended 2 workers; the last one: killed by signal 11 (SIGSEGV)".into();
    assert_eq!(turn(&mut pool, 0), [PoolEffect::Lost { task: 1, why }]);
}

#[test]
fn large_arguments_go_to_idle_workers_only() {
    let mut pool = pool(0);
    with_workers(&mut pool, &[A]);
    (1..=9).for_each(|id| pool.submit(id, Some(()), 1));
    pool.submit(10, None, 5 << 20);
    assert!(pool.open_bytes() < 1 << 20, "they wait at the client");
    for id in 1..=9 {
        assert!(!turn(&mut pool, 0).contains(&PoolEffect::Pull {
            worker: 0,
            task: 10
        }));
        pool.answered(0, id, at(0));
    }
    assert_eq!(
        turn(&mut pool, 0),
        [PoolEffect::Pull {
            worker: 0,
            task: 10
        }]
    );
    pool.submit(11, Some(()), 1);
    assert_eq!(turn(&mut pool, 0), [], "nothing is sent behind them");
}

#[test]
fn room_is_made_at_once_by_an_idle_pool_and_else_only_on_demand() {
    let mut pool = pool(0);
    with_workers(&mut pool, &[A, A, B]);
    assert!(
        !pool.release(A, false, at(500)),
        "its client may be about to send"
    );
    assert!(pool.release(A, false, at(1000)));
    assert_eq!(turn(&mut pool, 1000), [PoolEffect::Exit { worker: 0 }]);
    pool.submit(1, Some(()), 1);
    assert_eq!(
        turn(&mut pool, 1000),
        [run(1, 1)],
        "the leaving worker gets nothing"
    );
    assert!(!pool.release(A, false, at(9000)));
    assert!(pool.release(A, true, at(9000)));
    assert_eq!(pool.count(), (1, 1, 0));
    assert_eq!(
        pool.answered(1, 1, at(9001)),
        AnswerOutcome::Forward,
        "what it was sent it finishes"
    );
}

#[test]
fn cancelled_tasks_are_neither_sent_nor_answered() {
    let mut pool = pool(9);
    with_workers(&mut pool, &[A]);
    (1..=3).for_each(|id| pool.submit(id, Some(()), 1));
    turn(&mut pool, 0);
    pool.cancel(1);
    pool.cancel(2);
    assert_eq!(pool.answered(0, 1, at(5000)), AnswerOutcome::Discard);
    assert_eq!(turn(&mut pool, 5000), [run(0, 3)]);
    pool.cancel(3);
    pool.died(0, WorkerEnd::default(), at(5000));
    assert_eq!(turn(&mut pool, 5000), []);
    assert_eq!(
        (pool.open, pool.open_bytes, pool.cancelled.len()),
        (0, 0, 0)
    );
}

#[test]
fn what_is_stopped_ends_its_worker_and_is_no_others_fault() {
    let mut pool = pool(0);
    with_workers(&mut pool, &[A, A]);
    (1..=3).for_each(|id| pool.submit(id, Some(()), 1));
    assert_eq!(turn(&mut pool, 0), [run(0, 1), run(1, 2)]);
    // One that no worker has, and one that is answered meanwhile.
    pool.stop(3);
    assert_eq!(turn(&mut pool, 0), []);
    pool.stop(1);
    pool.stop(2);
    assert_eq!(
        turn(&mut pool, 0),
        [
            PoolEffect::Kill { worker: 0 },
            PoolEffect::Kill { worker: 1 }
        ]
    );
    assert_eq!(pool.answered(1, 2, at(0)), AnswerOutcome::Discard);
    pool.submit(4, Some(()), 1);
    assert_eq!(turn(&mut pool, 0), [], "both are ended");
    pool.died(0, WorkerEnd::default(), at(0));
    pool.died(1, WorkerEnd::default(), at(0));
    pool.join(2, A, at(0));
    pool.ready(2);
    assert_eq!(turn(&mut pool, 0), [run(2, 4)]);
    assert_eq!(pool.answered(2, 4, at(0)), AnswerOutcome::Forward);
    assert_eq!((pool.open, pool.cancelled.len()), (0, 0));
}

#[test]
fn a_task_that_was_sent_ahead_is_not_blamed_where_the_one_before_is_stopped() {
    let mut pool = pool(0);
    with_workers(&mut pool, &[A]);
    (1..=9).for_each(|id| pool.submit(id, Some(()), 1));
    turn(&mut pool, 0);
    pool.answered(0, 1, at(0));
    turn(&mut pool, 0);
    pool.stop(2);
    assert!(pool.workers[&0].sent.len() > 1, "nothing was sent ahead");
    pool.answered(0, 2, at(0));
    pool.died(0, WorkerEnd::default(), at(0));
    pool.join(1, A, at(0));
    pool.ready(1);
    assert_eq!(
        turn(&mut pool, 0).last(),
        Some(&run(1, 3)),
        "it is tried again"
    );
}

#[test]
fn a_worker_of_whose_end_nobody_knows_costs_no_retry_so_many_times() {
    let mut pool = pool(0);
    pool.submit(1, Some(()), 1);
    let last = u64::from(LOST_RETRIES);
    for key in 0..=last {
        pool.join(key, A, at(0));
        pool.ready(key);
        assert_eq!(turn(&mut pool, 0), [run(key, 1)]);
        pool.died(key, WorkerEnd::default(), at(0));
    }
    let why = "the task ended 9 workers".into();
    assert_eq!(turn(&mut pool, 0), [PoolEffect::Lost { task: 1, why }]);
    pool.join(last + 1, A, at(0));
    pool.ready(last + 1);
    pool.submit(2, Some(()), 1);
    turn(&mut pool, 0);
    pool.died(last + 1, ended("killed by signal 11 (SIGSEGV)"), at(0));
    let why = "the task ended its worker; the last one: killed by signal 11 (SIGSEGV)".into();
    assert_eq!(turn(&mut pool, 0), [PoolEffect::Lost { task: 2, why }]);
}

#[test]
fn one_at_a_time_waits_here_however_short_tasks_are() {
    let config = PoolConfig {
        one_at_a_time: true,
        ..pool(0).config
    };
    let mut pool = Pool::new(config, at(0));
    with_workers(&mut pool, &[A]);
    (1..=50).for_each(|id| pool.submit(id, Some(()), 1));
    for id in 1..=50 {
        assert_eq!(turn(&mut pool, 0), [run(0, id)]);
        pool.answered(0, id, at(0));
    }
}

#[derive(Clone, Debug)]
enum PoolStep {
    Submit { pull: bool, near: u8 },
    Update,
    Join { node: bool },
    Ready(usize),
    Answer(usize),
    Die(usize),
    Release { node: bool, must: bool },
    Cancel { task: usize, stop: bool },
    Pass(u16),
}

fn step() -> impl Strategy<Value = PoolStep> {
    use PoolStep::*;
    let index = any::<usize>;
    prop_oneof![
        8 => (0u8..10, 0u8..8).prop_map(|(pull, near)| Submit { pull: pull == 0, near }),
        2 => Just(Update),
        2 => any::<bool>().prop_map(|node| Join { node }),
        4 => index().prop_map(Ready),
        12 => index().prop_map(Answer),
        1 => index().prop_map(Die),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(node, must)| Release { node, must }),
        1 => (index(), any::<bool>()).prop_map(|(task, stop)| Cancel { task, stop }),
        2 => (0u16..2000).prop_map(Pass),
    ]
}

/// A worker as its process sees it.
#[derive(Default)]
struct SeenWorker {
    ready: bool,
    exit: bool,
    updates: u64,
    tasks: VecDeque<u64>,
}

/// What the world knows of the pool.
struct PoolWorld {
    pool: Pool<()>,
    millis: u64,
    workers: BTreeMap<WorkerKey, SeenWorker>,
    joined: u64,
    submitted: u64,
    /// How many updates there were when a task was submitted.
    updates_before: BTreeMap<u64, u64>,
    ends: BTreeMap<u64, u32>,
    cancelled: BTreeSet<u64>,
}

impl PoolWorld {
    fn new() -> Self {
        Self {
            pool: pool(1),
            millis: 0,
            workers: BTreeMap::new(),
            joined: 0,
            submitted: 0,
            updates_before: BTreeMap::new(),
            ends: BTreeMap::new(),
            cancelled: BTreeSet::new(),
        }
    }

    fn pick(&self, index: usize, wanted: impl Fn(&SeenWorker) -> bool) -> Option<WorkerKey> {
        let keys: Vec<_> = self
            .workers
            .iter()
            .filter(|(_, seen)| wanted(seen))
            .map(|(key, _)| *key)
            .collect();
        (!keys.is_empty()).then(|| keys[index % keys.len()])
    }

    fn step(&mut self, step: PoolStep) {
        let now = at(self.millis);
        match step {
            PoolStep::Submit { pull, near } => {
                self.submitted += 1;
                self.updates_before
                    .insert(self.submitted, self.pool.updates());
                let data = [(A, u64::from(near) << 20), (B, 3 << 20)];
                let holders = &data[..usize::from(near.min(2))];
                let arguments = (!pull).then_some(());
                self.pool
                    .submit_near(self.submitted, arguments, 10, holders);
            }
            PoolStep::Update => assert!(self.pool.update(self.pool.updates() + 1)),
            PoolStep::Join { node } => {
                self.joined += 1;
                self.workers.insert(self.joined, SeenWorker::default());
                self.pool.join(self.joined, if node { A } else { B }, now);
            }
            PoolStep::Ready(index) => {
                if let Some(key) = self.pick(index, |seen| !seen.ready) {
                    self.workers.get_mut(&key).unwrap().ready = true;
                    assert!(self.pool.ready(key));
                }
            }
            PoolStep::Answer(index) => {
                if let Some(key) = self.pick(index, |seen| !seen.tasks.is_empty()) {
                    let task = self
                        .workers
                        .get_mut(&key)
                        .unwrap()
                        .tasks
                        .pop_front()
                        .unwrap();
                    match self.pool.answered(key, task, now) {
                        AnswerOutcome::Forward => *self.ends.entry(task).or_default() += 1,
                        AnswerOutcome::Discard => assert!(self.cancelled.contains(&task)),
                        AnswerOutcome::Unasked => panic!("task {task} was sent to {key}"),
                    }
                }
            }
            PoolStep::Die(index) => {
                if let Some(key) = self.pick(index, |_| true) {
                    self.workers.remove(&key);
                    let end = if index % 2 == 0 {
                        ended("killed")
                    } else {
                        WorkerEnd::default()
                    };
                    self.pool.died(key, end, now);
                }
            }
            PoolStep::Release { node, must } => {
                self.pool.release(if node { A } else { B }, must, now);
            }
            PoolStep::Cancel { task, stop } => {
                if self.submitted > 0 {
                    let task = task as u64 % self.submitted + 1;
                    self.cancelled.insert(task);
                    if stop {
                        self.pool.stop(task);
                    } else {
                        self.pool.cancel(task);
                    }
                }
            }
            PoolStep::Pass(millis) => self.millis += u64::from(millis),
        }
        self.finish_turn();
    }

    fn finish_turn(&mut self) {
        let effects: Vec<_> = self.pool.finish_turn(at(self.millis)).collect();
        for effect in effects {
            match effect {
                PoolEffect::Run { worker, task, .. } | PoolEffect::Pull { worker, task } => {
                    let seen = self.workers.get_mut(&worker).expect("a worker that lives");
                    assert!(seen.ready && !seen.exit, "{worker} takes no tasks");
                    assert!(
                        self.updates_before[&task] <= seen.updates,
                        "an update before task {task} is missing"
                    );
                    if matches!(effect, PoolEffect::Pull { .. }) {
                        assert!(seen.tasks.is_empty(), "pulled for a busy worker");
                    }
                    seen.tasks.push_back(task);
                }
                PoolEffect::Feed { worker, through } => {
                    let seen = self.workers.get_mut(&worker).expect("a worker that lives");
                    assert!(seen.updates < through, "nothing new in it");
                    seen.updates = through;
                }
                PoolEffect::Exit { worker } => self.workers.get_mut(&worker).unwrap().exit = true,
                PoolEffect::Lost { task, .. } => *self.ends.entry(task).or_default() += 1,
                // The process goes on for a moment, and may answer.
                PoolEffect::Kill { worker } => self.workers.get_mut(&worker).unwrap().exit = true,
                PoolEffect::Fail { .. } => {}
            }
        }
        let idle = self
            .workers
            .values()
            .any(|seen| seen.ready && !seen.exit && seen.tasks.is_empty());
        let moment = at(self.millis) + near::MOST;
        assert!(
            !idle || self.pool.waiting.is_empty() || self.pool.settles_at <= Some(moment),
            "a task waits for longer than a moment while a worker idles"
        );
        let plain = self.pool.waiting.iter().take(LOOK_AHEAD);
        assert!(
            !idle || plain.into_iter().all(|task| !task.near.is_empty()),
            "a task without data waits while a worker idles"
        );
        let memory: usize = self.pool.waiting.iter().map(|task| task.bytes).sum();
        let sent: usize = self
            .pool
            .workers
            .values()
            .map(|worker| worker.sent_bytes)
            .sum();
        assert_eq!(self.pool.open_bytes(), memory + sent);
    }

    /// From here on nothing fails: everything must end.
    fn heal(&mut self) {
        self.step(PoolStep::Join { node: true });
        let zero = 0;
        while self.workers.values().any(|seen| !seen.ready) {
            self.step(PoolStep::Ready(zero));
        }
        for _ in 0..=self.submitted {
            while self.workers.values().any(|seen| !seen.tasks.is_empty()) {
                self.step(PoolStep::Answer(zero));
            }
            self.step(PoolStep::Pass(200));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_task_ends_once_and_every_update_arrives_in_order(steps in proptest::collection::vec(step(), 0..200)) {
        let mut world = PoolWorld::new();
        steps.into_iter().for_each(|step| world.step(step));
        world.heal();
        for task in 1..=world.submitted {
            let ends = world.ends.get(&task).copied().unwrap_or(0);
            prop_assert!(ends == 1 || (ends == 0 && world.cancelled.contains(&task)), "task {} ended {} times", task, ends);
        }
        prop_assert_eq!((world.pool.open, world.pool.open_bytes), (0, 0));
    }
}
