//! Jobs that run beside each other, and share how many tasks they may have at once.

use super::*;
use nodectl_types::After;

/// Two jobs on one node that has room for eight of their tasks.
struct JobPair {
    solo: Solo,
    first: JobId,
    second: JobId,
}

fn small(name: &str, tasks: u32) -> JobSpec {
    let mut work = WorkSpec::plain(name, &["true"]);
    work.resources.cpu_milli = 250;
    JobSpec {
        repeat: tasks,
        ..JobSpec::plain(work, NodeId([1; 32]))
    }
}

impl JobPair {
    fn new(tasks: u32, at_once: u32) -> Self {
        let mut solo = Solo::on(node(), small("first", tasks));
        let first = solo.job;
        let mut spec = small("second", 8);
        spec.at_once = Some(at_once);
        Arc::make_mut(&mut spec.work).after = vec![After::Beside(first)];
        solo.turn(vec![Input::Ask {
            id: 2,
            query: Query::Submit {
                job: None,
                asked_before: 0,
                spec: Arc::new(spec),
            },
        }]);
        let second = solo.job;
        assert_ne!(first, second);
        Self {
            solo,
            first,
            second,
        }
    }

    /// A task of the first job ends, and its head tells of that.
    fn end_one(&mut self) {
        self.solo.job = self.first;
        self.solo.end(Outcome::Done);
        self.solo.mono = self.solo.mono + Duration::from_secs(5);
        self.solo.turn(vec![Input::Tick]);
    }

    /// How many tasks of the second job were started; `first` of the first one were.
    fn started(&self, first: u32) -> u32 {
        self.solo.started - first
    }

    fn phase(&self, job: JobId) -> Phase {
        let head = self.solo.state.core().directory.get(job);
        head.expect("both jobs were taken").phase
    }
}

#[test]
fn open_tasks_of_a_job_count_against_those_of_one_beside_it() {
    let mut pair = JobPair::new(3, 4);
    assert_eq!(
        pair.started(3),
        1,
        "three of the four places are the first's"
    );
    pair.end_one();
    assert_eq!(pair.started(3), 2);
    pair.end_one();
    assert_eq!(pair.started(3), 3);
    pair.end_one();
    assert_eq!(pair.phase(pair.first), Phase::Done);
    assert_eq!((pair.started(3), pair.solo.running.len()), (4, 4));
}

#[test]
fn a_job_whose_places_are_all_taken_beside_it_waits_and_says_for_whom() {
    let mut pair = JobPair::new(4, 2);
    assert_eq!(pair.started(4), 0);
    assert_eq!(pair.phase(pair.second), Phase::Waiting);
    let now = Now {
        mono: pair.solo.mono,
        wall_ms: 0,
    };
    let query = Query::Job(pair.second, JobQuery::Explain { task: None });
    let told = pair.solo.state.handle(now, [Input::Ask { id: 9, query }]);
    let wanted = format!("job {}, which has all tasks", pair.first.short());
    assert!(format!("{told:?}").contains(&wanted), "{told:?}");
    for started in [0, 0, 1] {
        pair.end_one();
        assert_eq!(pair.started(4), started);
    }
    assert_eq!(pair.phase(pair.second), Phase::Running);
}
