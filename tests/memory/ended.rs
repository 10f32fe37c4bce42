//! What an ended job costs the memory of a node's core, byte by byte. A program of its own, because
//! it counts all that is allocated.

use nodectl_logic::{Config, DiskEffect, Effect, Input, Now, State};
use nodectl_types::{
    Attempt, JobHead, JobId, JobSpec, NodeId, NodeInfo, Outcome, Phase, Record, Resources,
    TaskRecord, Terms, Time, WorkSpec,
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::BTreeMap,
    sync::Arc,
    time::Duration,
};

/// Passes on to the system's allocator and counts what the current thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // `try_with`: a thread that ends frees memory after its locals are gone.
    let _ = HELD.try_with(|held| held.set(held.get() + change));
}

// SAFETY: every call goes unchanged to the system's allocator, whose contract this one takes over.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ME: NodeId = NodeId([1; 32]);
const JOBS: u32 = 1000;

fn info() -> NodeInfo {
    NodeInfo {
        id: ME,
        version: 1,
        name: "alpha".into(),
        software: "0.1.0".into(),
        model: String::new(),
        addrs: Vec::new(),
        resources: Resources::one_core(),
        gpus: Vec::new(),
        labels: BTreeMap::new(),
        draining: false,
        closed: None,
        admits: Default::default(),
        leaving: false,
        returning: false,
        problem: None,
        seeks_gpus: false,
    }
}

/// A node alone whose disk has that many ended jobs of one task each.
fn with_ended(jobs: u32) -> State {
    let config = Config {
        seed: 1,
        generation: 1,
        keep_jobs: Duration::from_secs(3600),
        lifetime: None,
        terms: Terms::default(),
        alone: true,
    };
    let mut state = State::new(Now::default(), info(), config);
    for number in 0..jobs {
        let job = JobId(u64::from(number) << 32 | 7);
        let work = WorkSpec::plain("one", &["/bin/true", &number.to_string()]);
        let spec = JobSpec::plain(work, ME);
        let head = JobHead {
            epoch: 1,
            phase: Phase::Done,
            done: 1,
            ..JobHead::unclaimed(job, &spec, spec.hash())
        };
        let attempt = Attempt {
            epoch: 1,
            claim: number + 1,
            number: 1,
        };
        let record = TaskRecord {
            accepted: 1,
            ..TaskRecord::plain(0, attempt, ME, Outcome::Done)
        };
        state.restore(job, Record::Spec(Arc::new(spec)));
        state.restore(job, Record::Head(head));
        state.restore(job, Record::Task(Arc::new(record)));
    }
    state
}

/// On a disk that takes everything at once.
fn until(state: &mut State, end: Time) {
    loop {
        let at = state.next_deadline().unwrap_or(end);
        if at >= end {
            return;
        }
        let mut inputs = vec![Input::Tick];
        while !inputs.is_empty() {
            let now = Now {
                mono: at,
                wall_ms: 1,
            };
            for effect in state.handle(now, std::mem::take(&mut inputs)) {
                if let Effect::Disk(DiskEffect::Persist { ticket, .. }) = effect {
                    let result = Ok(());
                    inputs.push(Input::Persisted { ticket, result });
                }
            }
        }
    }
}

#[test]
fn an_ended_job_costs_less_than_a_kilobyte() {
    let before = HELD.get();
    let mut state = with_ended(JOBS);
    drop(state.start());
    until(&mut state, Time::default() + Duration::from_secs(60));
    let each = (HELD.get() - before) / JOBS as isize;
    assert!(each < 1000, "{each} bytes");
}
