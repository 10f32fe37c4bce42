//! Tasks: how long they take, how they end, what they leave. All of it follows from the seed and
//! the attempt, so that a run with fewer faults has the same tasks.

use crate::world::{AttemptOnNode, PendingFetch, SimEvent, SimWorld};
use nodectl_logic::Input;
use nodectl_types::{
    BlobHash, Failure, MetricPoint, Outcome, TaskRecord, record::Captured, record::OutputFile,
};
use std::time::Duration;

/// How often a task of a sweep reports, of which every value is worse than any other's for one in
/// three.
const REPORT: Duration = Duration::from_millis(150);

impl SimWorld {
    /// A number that follows from the seed and what it is for.
    fn chance(&self, key: &AttemptOnNode, salt: u64) -> u64 {
        let (job, task, attempt) = key;
        let plan = self.user.number(*job).unwrap_or_default() as u64;
        let mut x = self.plan.seed
            ^ (plan << 40)
            ^ (u64::from(*task) << 8)
            ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= u64::from(attempt.epoch) << 52 ^ u64::from(attempt.number) << 33;
        for _ in 0..2 {
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        }
        x ^ (x >> 31)
    }

    pub fn start_task(&mut self, node: usize, life: u64, key: AttemptOnNode) {
        self.statistics.executions += 1;
        let name = self.job_name(key.0);
        self.tell(|| format!("n{node} starts {name} task {} ({})", key.1, key.2));
        self.check_start(node, key);
        if !self.machines[node].running.insert(key) {
            return self.fail(
                "an attempt starts twice",
                format!("n{node}, {name}, task {} ({})", key.1, key.2),
            );
        }
        let (job, task, attempt) = key;
        self.give(node, life, Input::TaskStarted { job, task, attempt });
        let plan = self.user.plan(job);
        let (longest, sweeps) = (plan.longest_ms.max(2), plan.sweep);
        let duration = Duration::from_micros(1_000 + self.chance(&key, 1) % (longest * 1_000));
        let full = self.machines[node].disk.full;
        let duration = if full {
            Duration::from_millis(5)
        } else {
            duration * self.machines[node].slowness.min(3)
        };
        if sweeps {
            self.after(
                REPORT,
                SimEvent::TaskReports {
                    node,
                    life,
                    key,
                    step: 1,
                },
            );
        }
        self.after(duration, SimEvent::TaskEnds { node, life, key });
    }

    pub fn task_reports(&mut self, node: usize, life: u64, key: AttemptOnNode, step: u64) {
        if self.machines[node].life != life || !self.machines[node].running.contains(&key) {
            return;
        }
        let (job, task, attempt) = key;
        let value = if task.is_multiple_of(3) {
            100.0
        } else {
            f64::from(task) / (step as f64)
        };
        self.give(
            node,
            life,
            Input::TaskMetrics {
                job,
                task,
                attempt,
                points: vec![MetricPoint { step, value }],
            },
        );
        self.after(
            REPORT,
            SimEvent::TaskReports {
                node,
                life,
                key,
                step: step + 1,
            },
        );
    }

    /// How an attempt ends at this moment.
    fn outcome(&self, node: usize, key: AttemptOnNode) -> Outcome {
        let (job, task, _) = key;
        let plan = self.user.plan(job);
        let hopeless = plan.hopeless == Some(task);
        let fails = hopeless || self.chance(&key, 2) % 1_000 < u64::from(plan.failing);
        let of_the_node = self.machines[node].disk.full
            || (fails && !hopeless && self.chance(&key, 3).is_multiple_of(3));
        if of_the_node {
            Outcome::Failed(Failure::Inputs("disk full".into()))
        } else if fails {
            Outcome::Failed(Failure::Exit(1))
        } else {
            Outcome::Done
        }
    }

    pub fn task_ends(&mut self, node: usize, life: u64, key: AttemptOnNode) {
        if self.machines[node].life != life || !self.machines[node].running.contains(&key) {
            return;
        }
        let (job, task, attempt) = key;
        let outcome = self.outcome(node, key);
        let fails = outcome == Outcome::Failed(Failure::Exit(1));
        if fails && self.chance(&key, 5).is_multiple_of(2) && self.aborts(node, life, key) {
            return;
        }
        self.machines[node].running.remove(&key);
        let plan = self.user.plan(job).clone();
        let mut record = TaskRecord {
            started_ms: self.now.0 / 1000,
            duration_us: self.chance(&key, 1) % (plan.longest_ms.max(2) * 1_000),
            ..TaskRecord::plain(task, attempt, self.machines[node].id, outcome)
        };
        if record.is_done() {
            record.value = self.search_value(node, key);
            record.stdout = Captured {
                total_bytes: plan.text.into(),
                tail: vec![b'x'; plan.text as usize],
                blob: None,
            };
            if self.chance(&key, 4) % 100 < u64::from(plan.files) {
                let salt = [
                    self.plan.seed,
                    job.0,
                    u64::from(task),
                    u64::from(attempt.epoch),
                    u64::from(attempt.number),
                ];
                let bytes: Vec<u8> = salt
                    .iter()
                    .flat_map(|part| part.to_le_bytes())
                    .chain([node as u8])
                    .collect();
                let hash = BlobHash::of(&bytes);
                record.outputs.push(OutputFile {
                    path: "out".into(),
                    bytes: plan.file_bytes,
                    hash,
                    executable: false,
                });
                self.checker.sizes.insert(hash, plan.file_bytes);
                self.machines[node].disk.blobs.insert(hash, plan.file_bytes);
            }
        } else {
            *self.checker.failed_attempts.entry((job, task)).or_default() += 1;
            self.branch("a task is tried again");
        }
        self.print(node, key, &mut record);
        let (name, how) = (
            self.job_name(job),
            if record.is_done() { "done" } else { "failed" },
        );
        self.tell(|| format!("n{node} ends {name} task {task} ({attempt}): {how}"));
        self.note_end(node, key, record.is_done());
        self.give(
            node,
            life,
            Input::TaskEnded {
                job,
                record: Box::new(record),
            },
        );
    }

    /// A task was ordered to stop; it takes a moment.
    pub fn stop_task(&mut self, node: usize, life: u64, key: AttemptOnNode) {
        if !self.pools.is_pool(key.0) {
            self.check_stop(node, key);
        }
        let delay = self.delay();
        self.after(delay, SimEvent::TaskStops { node, life, key });
    }

    pub fn task_stops(&mut self, node: usize, life: u64, key: AttemptOnNode) {
        if self.machines[node].life == life && self.machines[node].running.remove(&key) {
            self.worker_stopped(node, life, key);
            let (job, task, attempt) = key;
            self.give(node, life, Input::TaskStopped { job, task, attempt });
        }
    }

    pub fn statistics_of_fetch(&mut self, node: usize, fetch: &PendingFetch) {
        self.checker
            .fetching
            .insert((node, self.machines[node].life, fetch.ticket));
        // Files whose maker is gone come from whoever else has them.
        let made_elsewhere = |hash: &BlobHash| {
            let makers = self.checker.makers.get(hash);
            makers.is_some_and(|maker| !fetch.holders.contains(maker))
        };
        if !fetch.is_spec && fetch.hashes.iter().any(made_elsewhere) {
            self.branch("files are healed from another holder");
        }
    }
}
