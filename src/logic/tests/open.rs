//! Open jobs: tasks that are added, once each, until the job is closed.

use super::*;
use nodectl_types::{ParamSpace, Params, Value, query::EntryKey};

fn open() -> Solo {
    let mut work = WorkSpec::plain("growing", &["fit", "{x}"]);
    work.resources.cpu_milli = 250;
    work.adaptive = true;
    let spec = JobSpec {
        params: ParamSpace::Open(vec!["x".into()]),
        ..JobSpec::plain(work, NodeId([1; 32]))
    };
    Solo::on(node(), spec)
}

fn row(key: u8, x: i64) -> (EntryKey, Params) {
    ([key; 16], vec![("x".into(), Value::Int(x))])
}

impl Solo {
    fn ask(&mut self, query: Query) -> Result<Answer, QueryError> {
        self.answers.clear();
        self.turn(vec![Input::Ask { id: 9, query }]);
        self.answers.pop().expect("it is answered at once")
    }

    fn add(&mut self, rows: &[(u8, i64)]) -> Result<Vec<TaskIndex>, String> {
        let rows = rows.iter().map(|(key, x)| row(*key, *x)).collect();
        let job = self.job;
        match self.ask(Query::Job(job, JobQuery::Add { rows })) {
            Ok(Answer::Added { tasks }) => Ok(tasks),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Members hear how far the job is.
    fn tell(&mut self) {
        self.mono = self.mono + Duration::from_secs(5);
        self.turn(vec![Input::Tick]);
    }

    fn close(&mut self) {
        let job = self.job;
        assert_eq!(self.ask(Query::Job(job, JobQuery::Close)), Ok(Answer::Ok));
    }
}

#[test]
fn rows_are_tasks_once_and_the_job_ends_when_it_is_closed() {
    let mut solo = open();
    assert_eq!((solo.head().open, solo.head().tasks), (Some(true), 0));
    assert_eq!(solo.add(&[(1, 10), (2, 20)]), Ok(vec![0, 1]));
    assert_eq!(solo.add(&[(2, 20), (3, 30), (3, 30)]), Ok(vec![1, 2, 2]));
    assert_eq!(solo.running.len(), 3);
    for _ in 0..3 {
        solo.end(Outcome::Done);
    }
    solo.tell();
    assert_eq!((solo.head().phase, solo.head().tasks), (Phase::Running, 3));
    assert_eq!(solo.add(&[(4, 40)]), Ok(vec![3]));
    solo.close();
    assert_eq!(solo.head().phase, Phase::Running, "a task has not ended");
    assert_eq!(solo.add(&[(4, 40)]), Ok(vec![3]), "it was added before");
    let late = solo.add(&[(4, 40), (5, 50)]).expect_err("it is closed");
    assert!(late.contains("the job is closed"), "{late}");
    solo.end(Outcome::Done);
    let head = solo.head();
    assert_eq!((head.phase, head.tasks, head.done), (Phase::Done, 4, 4));
    let late = solo.add(&[(5, 50)]).expect_err("it has ended");
    assert!(late.contains("the job has ended"), "{late}");
}

#[test]
fn a_closed_job_without_tasks_is_done() {
    let mut solo = open();
    solo.close();
    assert_eq!((solo.head().phase, solo.head().tasks), (Phase::Done, 0));
}

#[test]
fn what_cannot_be_added_is_refused_as_a_whole() {
    let mut solo = open();
    let job = solo.job;
    let strange = ([2; 16], vec![("y".into(), Value::Int(1))]);
    let rows = vec![row(1, 1), strange];
    let refused = solo.ask(Query::Job(job, JobQuery::Add { rows }));
    let refused = refused.expect_err("the job has no `y`").to_string();
    assert!(
        refused.contains("row 1: `params`: a row has no `x`"),
        "{refused}"
    );
    assert_eq!(solo.running.len(), 0);
    let none = solo.ask(Query::Job(job, JobQuery::CancelTasks { tasks: vec![0] }));
    assert!(matches!(none, Err(QueryError::NoTask { tasks: 0, .. })));
    let mut plain = Solo::with(2, 0);
    let refused = plain.add(&[(1, 1)]).expect_err("it has its tasks");
    assert!(refused.contains("came with its submission"), "{refused}");
}

#[test]
fn a_failed_task_is_tried_again_with_its_row() {
    let mut solo = open();
    assert_eq!(solo.add(&[(1, 10)]), Ok(vec![0]));
    solo.end(Outcome::Failed(Failure::Exit(1)));
    solo.tell();
    assert_eq!(solo.running.len(), 0);
    let job = solo.job;
    assert_eq!(
        solo.ask(Query::Job(job, JobQuery::Retry)),
        Ok(Answer::Retried { tasks: 1 })
    );
    assert_eq!(solo.running.len(), 1);
    solo.end(Outcome::Done);
    solo.close();
    assert_eq!((solo.head().phase, solo.head().done), (Phase::Done, 1));
}
