//! Single decisions that the simulation does not look at: what users are told, what outlasts what.

mod pools;

use super::*;
use crate::types::{Answer, JobSpec, NodeInfo, ParamSpace, Phase, Query, QueryError, Resources, WorkSpec};
use std::sync::Arc;

fn info(version: u64) -> NodeInfo {
    NodeInfo {
        id: NodeId([1; 32]),
        version,
        name: "alpha".into(),
        software: "0.1.0".into(),
        model: String::new(),
        addrs: Vec::new(),
        resources: Resources { cpu_milli: 2_000, memory_bytes: 1 << 30, ..Resources::default() },
        gpus: Vec::new(),
        labels: BTreeMap::new(),
        draining: false,
    }
}

fn node() -> State {
    let config = Config { seed: 1, generation: 1, keep_jobs: Duration::from_secs(3600) };
    let mut state = State::new(Now::default(), info(1), config);
    state.start();
    state
}

fn spec() -> Arc<JobSpec> {
    let work = WorkSpec {
        name: "squares".into(),
        command: vec!["true".into()],
        worker: None,
        env: Vec::new(),
        resources: Resources::one_core(),
        priority: 0,
        timeout_ms: None,
        grace_ms: 1_000,
        inputs: None,
        after: Vec::new(),
        outputs: Vec::new(),
        output_limit_bytes: 1 << 20,
        log_limit_bytes: 1 << 20,
        sweep: None,
    };
    Arc::new(JobSpec {
        work: Arc::new(work),
        params: ParamSpace::Single,
        repeat: 1,
        retries: 0,
        min_nodes: 0,
        place: String::new(),
        speculate: false,
        wait_for_nodes: false,
        extends: None,
        submitter: NodeId([1; 32]),
        submitted_ms: 0,
    })
}

fn answers(effects: &[Effect]) -> Vec<&Result<Answer, QueryError>> {
    let answers = effects.iter().filter_map(|effect| match effect {
        Effect::Answer { answer, .. } => Some(answer),
        _ => None,
    });
    answers.collect()
}

#[test]
fn a_drained_node_stays_so_when_it_is_described_anew() {
    let mut state = node();
    let me = state.node();
    state.handle(Now::default(), [Input::Ask { id: 1, query: Query::Drain { node: me, on: true } }]);
    let drained = state.core().members.my_info().version;
    state.handle(Now::default(), [Input::Info(info(1))]);
    let after = state.core().members.my_info();
    assert!(after.draining && after.version > drained, "{after:?}");
    state.handle(Now::default(), [Input::Ask { id: 2, query: Query::Drain { node: me, on: false } }]);
    assert!(!state.core().members.my_info().draining);
}

#[test]
fn a_job_that_finds_no_room_on_disk_is_refused_with_the_reason() {
    let mut state = node();
    let effects = state.handle(Now::default(), [Input::Ask { id: 1, query: Query::Submit { spec: spec() } }]);
    assert!(answers(&effects).is_empty(), "nothing is promised before it is on disk");
    let writes = effects.iter().filter_map(|effect| match effect {
        Effect::Persist { job, records, ticket } => Some((*job, records, *ticket)),
        _ => None,
    });
    let (job, records, ticket) = writes.into_iter().next().expect("the specification is written");
    assert!(matches!(records.as_slice(), [Keep::Spec(_), Keep::Head(_)]), "in one piece, the specification first");
    let full = Input::Persisted { ticket, result: Err("No space left on device".into()) };
    let effects = state.handle(Now::default(), [full]);
    let expected = Err(QueryError::Storage("No space left on device".into()));
    assert_eq!(answers(&effects), [&expected]);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::StartTask { .. })));
    assert_eq!(state.core().directory.get(job).map(|head| head.phase), Some(Phase::Cancelled));
}
