//! Which tasks wait that nodes of an elastic launch could run, and how many of them such a node
//! runs at once. What a launch asks for says what its nodes have; what its nodes say when they are
//! there counts more, and a job that none of them may run deserves no node.

use nodectl_http::{Client, ClientError};
use nodectl_launch::elastic::{NodeOffer, TaskNeed, WaitingTasks};
use nodectl_ports::say::tell;
use nodectl_wire::api::{
    Explanation, Job, JobLine, Node, PhaseName, ReasonName, ReasonView, ResourceView, WorkView,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// A node that has had nothing to do for so long is not about to be given something.
const SETTLED: Duration = Duration::from_secs(3);

/// A node of the launch that is a member.
pub struct OwnNode<'a> {
    pub node: &'a Node,
    /// How long it has had nothing to do, if it has nothing.
    pub idle: Option<Duration>,
    /// A small part of its time has passed: what it refuses for want of time, each would refuse.
    pub is_fresh: bool,
}

/// The jobs that have not ended, as an elastic launch sees them.
pub struct TaskQueue {
    /// As the request has it.
    offer: NodeOffer,
    /// What nodes of the launch had that were there.
    seen: NodeOffer,
    /// As the user says, or as the request has it.
    tasks_per_node: Option<u32>,
    usual_per_node: u32,
    jobs: BTreeMap<String, KnownJob>,
}

struct KnownJob {
    needs: Vec<JobNeed>,
    /// When it was looked at before: tasks that were submitted just now have not started where they
    /// can.
    waited: u64,
    /// No node of the launch may run it.
    is_unsuited: bool,
    /// The job's tasks may need each other.
    is_graph: bool,
    /// How many of its tasks wait for others.
    held: u32,
}

/// What tasks of one kind need.
#[derive(Clone, Copy, Debug, PartialEq)]
struct JobNeed {
    tasks: u32,
    of_each: TaskNeed,
    /// Each is processes on so many nodes.
    nodes: u32,
    /// The job begins when the cluster has so many.
    min_nodes: u32,
}

impl TaskQueue {
    pub fn new(offer: NodeOffer, tasks_per_node: Option<u32>, usual_per_node: u32) -> Self {
        Self {
            offer,
            seen: NodeOffer::default(),
            tasks_per_node,
            usual_per_node,
            jobs: BTreeMap::new(),
        }
    }

    /// The tasks that wait, and that nodes of the launch could run.
    pub async fn look(
        &mut self,
        client: &Client,
        nodes: &[Node],
        own: &[OwnNode<'_>],
        lines: &[JobLine],
    ) -> Result<Vec<WaitingTasks>, ClientError> {
        let running = running(nodes);
        let open: Vec<_> = lines.iter().filter(|line| is_open(line, lines)).collect();
        let ids: BTreeSet<&str> = open.iter().map(|line| line.id.as_str()).collect();
        self.jobs.retain(|id, _| ids.contains(id.as_str()));
        let others = nodes.iter().filter(|node| node.alive).count() - own.len();
        let offer = self.offer_of(own);
        let mut is_trying = false;
        let mut queue = Vec::new();
        for line in open {
            if !self.jobs.contains_key(&line.id) {
                let known = KnownJob::of(&client.job(&line.id).await?);
                self.jobs.insert(line.id.clone(), known);
            }
            let job = self.jobs.get_mut(&line.id).expect("it was put there");
            if job.is_graph {
                job.held = client.job(&line.id).await?.progress.held;
            }
            let runs = running.get(line.id.as_str()).copied().unwrap_or(0);
            let waiting = job.waiting(line, runs);
            if waiting == 0 || job.is_unsuited {
                continue;
            }
            let fitting = job.fitting(&offer, self.tasks_per_node, self.usual_per_node);
            let Some((share, per_node)) = fitting else {
                let lacks = job.needs.iter().find_map(|need| offer.lacks(&need.of_each));
                let more = || "more than a node of this launch has".to_string();
                job.give_up(
                    line,
                    &format!("a task needs {}", lacks.unwrap_or_else(more)),
                );
                continue;
            };
            let tells = |need: &JobNeed| offer.tells_of(&need.of_each);
            let tries = own.is_empty() && !job.needs_several() && !job.needs.iter().all(tells);
            if tries && std::mem::replace(&mut is_trying, true) {
                // The one that is tried for another job tells of this one, too.
                continue;
            }
            let settled: Vec<_> = own.iter().filter(|own| own.idle >= Some(SETTLED)).collect();
            if !settled.is_empty() && !job.needs_several() {
                // Another such node would have nothing to do either.
                let why = client.explain(&line.id, None).await?;
                if let Some(said) = objection(&why, &settled) {
                    job.give_up(line, &said);
                }
                continue;
            }
            let tasks = (waiting as f64 * share).ceil() as u64;
            queue.push(WaitingTasks {
                tasks: if tries {
                    tasks.min(per_node.into())
                } else {
                    tasks
                },
                per_node,
                nodes: job.nodes_at_once(others as u32),
            });
        }
        Ok(queue)
    }

    /// What one of its nodes has: the most that those had which were there, else as it was asked
    /// for.
    fn offer_of(&mut self, own: &[OwnNode<'_>]) -> NodeOffer {
        let largest = |of: fn(&ResourceView) -> f64| {
            let each = own.iter().map(|own| of(&own.node.resources));
            each.max_by(f64::total_cmp)
        };
        let memory = own.iter().map(|own| own.node.resources.memory_bytes).max();
        let known = own.iter().filter(|own| !own.node.seeks_gpus);
        let gpus = known.map(|own| own.node.resources.gpus);
        self.seen = self.seen.or_more(NodeOffer {
            cpus: largest(|has| has.cpus),
            memory_bytes: memory,
            gpus: gpus.max_by(f64::total_cmp),
        });
        NodeOffer {
            cpus: self.seen.cpus.or(self.offer.cpus),
            memory_bytes: self.seen.memory_bytes.or(self.offer.memory_bytes),
            gpus: self.seen.gpus.or(self.offer.gpus),
        }
    }
}

impl KnownJob {
    fn of(job: &Job) -> Self {
        Self {
            needs: needs(&job.work, job.line.tasks),
            waited: 0,
            is_unsuited: false,
            is_graph: !job.work.tasks.is_empty(),
            held: 0,
        }
    }

    /// Tasks, or parts of tasks on several nodes, that waited when it was looked at before and wait
    /// now.
    fn waiting(&mut self, line: &JobLine, running: u64) -> u64 {
        let ended = line.done + line.failed + line.stopped + self.held;
        let parts = self.needs.first().map_or(1, |need| need.nodes.max(1));
        let open = u64::from(line.tasks.saturating_sub(ended)) * u64::from(parts);
        let now = open.saturating_sub(running);
        now.min(std::mem::replace(&mut self.waited, now))
    }

    /// Which part of its tasks fits a node, and how many of these run there at once; none if none
    /// fits.
    fn fitting(&self, offer: &NodeOffer, said: Option<u32>, usual: u32) -> Option<(f64, u32)> {
        let slots = |need: &JobNeed| match (offer.slots(&need.of_each), said) {
            (Some(0), _) => 0,
            (_, Some(said)) => said,
            (Some(slots), None) => slots,
            (None, None) => usual,
        };
        let fitting = self.needs.iter().filter(|need| slots(need) > 0);
        let per_node = fitting.clone().map(slots).min()?;
        let all: u32 = self.needs.iter().map(|need| need.tasks).sum();
        let fit: u32 = fitting.map(|need| need.tasks).sum();
        Some((f64::from(fit) / f64::from(all.max(1)), per_node))
    }

    /// Idle nodes may wait for others here.
    fn needs_several(&self) -> bool {
        let several = |need: &JobNeed| need.nodes > 1 || need.min_nodes > 1;
        self.needs.iter().any(several)
    }

    /// Nodes of the launch that have to be there together, beside as many `others`.
    fn nodes_at_once(&self, others: u32) -> u32 {
        let least = |need: &JobNeed| need.nodes.max(need.min_nodes);
        let least = self.needs.iter().map(least).max().unwrap_or(0);
        if least > 1 {
            least.saturating_sub(others)
        } else {
            0
        }
    }

    fn give_up(&mut self, line: &JobLine, why: &str) {
        self.is_unsuited = true;
        tell!("no node is asked for {} ({}): {why}", line.name, line.id);
    }
}

/// What tasks of a job need, kind by kind.
fn needs(work: &WorkView, tasks: u32) -> Vec<JobNeed> {
    let processes = work.per_node.unwrap_or(1).max(1);
    let need = |tasks, resources: &ResourceView| JobNeed {
        tasks,
        of_each: TaskNeed {
            cpus: resources.cpus * f64::from(processes),
            memory_bytes: resources.memory_bytes.saturating_mul(u64::from(processes)),
            gpus: resources.gpus * f64::from(processes),
        },
        nodes: work.nodes.unwrap_or(1),
        min_nodes: work.min_nodes,
    };
    match work.tasks.as_slice() {
        [] => vec![need(tasks, &work.resources)],
        kinds => kinds
            .iter()
            .map(|kind| need(kind.tasks, &kind.resources))
            .collect(),
    }
}

/// Whether nodes could run something of the job now. Workers of pools take what there is; who comes
/// after a job waits for that.
fn is_open(line: &JobLine, lines: &[JobLine]) -> bool {
    let is_done = |id: &String| {
        let before = lines.iter().find(|line| line.id == *id);
        before.is_none_or(|before| before.phase == PhaseName::Done)
    };
    let waits_for_nodes = line.after.iter().all(is_done);
    !line.phase.is_ended() && line.workers.is_none() && !line.aside && waits_for_nodes
}

/// How many tasks of each job run.
fn running(nodes: &[Node]) -> BTreeMap<&str, u64> {
    let mut running = BTreeMap::new();
    for load in nodes
        .iter()
        .filter(|node| node.alive)
        .filter_map(|node| node.load.as_ref())
    {
        for job in &load.jobs {
            *running.entry(job.job.as_str()).or_default() += u64::from(job.running);
        }
    }
    running
}

/// Why no node of the launch may run the job, if the explanation says so of all that have nothing
/// to do.
fn objection(why: &Explanation, idle: &[&OwnNode<'_>]) -> Option<String> {
    let mut said = None;
    for own in idle {
        let objects = |view: &ReasonView| {
            let is_kept_out = matches!(
                view.reason,
                ReasonName::NodeLacksResources
                    | ReasonName::NodeConditionUnmet
                    | ReasonName::NodeExcludesJob
            );
            let is_refused = view.reason == ReasonName::NodeRefused && own.is_fresh;
            view.node.as_ref() == Some(&own.node.id) && (is_kept_out || is_refused)
        };
        let line = why.reasons.iter().position(objects)?;
        said = why.lines.get(line).cloned();
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(needs: &[(u32, f64, u64)]) -> KnownJob {
        let need = |(tasks, cpus, gib): &(u32, f64, u64)| JobNeed {
            tasks: *tasks,
            of_each: TaskNeed {
                cpus: *cpus,
                memory_bytes: gib << 30,
                gpus: 0.0,
            },
            nodes: 1,
            min_nodes: 1,
        };
        KnownJob {
            needs: needs.iter().map(need).collect(),
            waited: 0,
            is_unsuited: false,
            is_graph: false,
            held: 0,
        }
    }

    #[test]
    fn a_job_fits_by_what_each_of_its_kinds_needs() {
        let offer = NodeOffer {
            cpus: Some(4.0),
            memory_bytes: Some(8 << 30),
            gpus: Some(0.0),
        };
        let fitting = |needs: &[_], said| known(needs).fitting(&offer, said, 7);
        assert_eq!(fitting(&[(10, 1.0, 0)], None), Some((1.0, 4)));
        assert_eq!(fitting(&[(10, 1.0, 4)], None), Some((1.0, 2)));
        assert_eq!(
            fitting(&[(10, 1.0, 4)], Some(3)),
            Some((1.0, 3)),
            "the user knows"
        );
        assert_eq!(
            fitting(&[(10, 5.0, 0)], Some(3)),
            None,
            "but not everything"
        );
        assert_eq!(
            fitting(&[(30, 2.0, 0), (10, 5.0, 0)], None),
            Some((0.75, 2))
        );
        assert_eq!(fitting(&[(10, 0.0, 0)], None), Some((1.0, 7)), "as usual");
    }

    #[test]
    fn tasks_of_several_nodes_want_them_together() {
        let mut job = known(&[(2, 1.0, 0)]);
        assert!(!job.needs_several() && job.nodes_at_once(0) == 0);
        job.needs[0].nodes = 4;
        assert!(job.needs_several());
        assert_eq!((job.nodes_at_once(0), job.nodes_at_once(3)), (4, 1));
        job.needs[0].nodes = 1;
        job.needs[0].min_nodes = 3;
        assert_eq!(job.nodes_at_once(1), 2);
    }
}
