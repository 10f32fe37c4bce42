//! Messages of other nodes: to which part of the state each goes.

use super::{core::Try, *};
use nodectl_types::{MetricPoint, StreamToken, membership::Packet, message::Inventory};

impl State {
    #[allow(
        clippy::too_many_lines,
        reason = "one arm a message, and one call an arm"
    )]
    pub(super) fn message(&mut self, from: NodeId, message: Message) {
        // What was on its way when it was banned.
        if self.roster.is_banned(from) {
            return;
        }
        let Some(message) = self.when_recalled(from, message) else {
            return;
        };
        match message {
            Message::Swim(packet) => self.swim_packet(from, packet),
            Message::Info(info) => self.peer_info(from, *info),
            Message::Describe => self.describe_to(from),
            Message::Heads(heads) => heads
                .into_iter()
                .for_each(|head| self.hear_head(from, head)),
            Message::HeadsDigests { digests, reply } => self.heads_digests(from, &digests, reply),
            Message::Offer { head, spec } => self.offered(from, *head, spec),
            Message::Declined { job, error } => self.declined(from, job, error),
            Message::OfferKept { job, lacks_inputs } => self.offer_kept(from, job, lacks_inputs),
            Message::Replicate {
                job,
                epoch,
                ticket,
                head,
                records,
                without_files,
            } => {
                let head = head.map(|head| *head);
                self.replicate(from, (job, epoch, ticket), head, (records, without_files));
            }
            Message::ReplicateKept { job, epoch, ticket } => {
                self.replicate_kept(from, job, epoch, ticket);
            }
            Message::Digests {
                job,
                epoch,
                mark,
                reply,
                shown,
            } => self.digests(from, (job, epoch), (mark, reply), &shown),
            Message::Pull {
                job,
                epoch,
                chunk,
                left,
                cells,
            } => self.pull(from, (job, epoch), (chunk, left), &cells),
            Message::Pulled {
                job,
                epoch: _,
                chunk,
                records,
                more,
                error,
            } => self.pulled(from, (job, chunk), records, more, error),
            Message::CaughtUp {
                job,
                epoch: _,
                mark,
            } => self.caught_up(from, job, mark),
            Message::NoCopy { job, epoch } => self.no_copy(from, job, epoch),
            Message::VoteRefused { job, epoch } => self.vote_refused(job, epoch),
            Message::AskBallot {
                job,
                ballot,
                voters,
            } => self.ballot_asked(from, job, ballot, voters),
            Message::BallotTold {
                job,
                ballot,
                known,
                members,
            } => self.with_coordinator(job, |coordinator, core, copy| {
                coordinator.ballot_told(core, &copy.lattice, from, ballot, (known, members));
            }),
            Message::Assign {
                job,
                epoch,
                work,
                tasks,
            } => self
                .executor
                .assign(&mut self.core, from, (job, epoch), work, tasks),
            Message::Recall { job, epoch, count } => {
                self.executor.recall(&self.core, from, job, epoch, count);
            }
            Message::Stop {
                job,
                epoch,
                waiting,
                tasks,
            } => self
                .executor
                .stop(&mut self.core, from, (job, epoch), waiting, &tasks),
            Message::NeedWork { job, epoch } => self.needs_work(from, job, epoch),
            report @ Message::Report { .. } => self.report(from, report),
            Message::Metrics {
                job,
                epoch,
                task,
                attempt,
                points,
            } => self.metrics(from, (job, epoch), (task, attempt), &points),
            Message::ReportKept { job, tasks } => self.executor.kept(job, &tasks),
            Message::Sync {
                job,
                epoch,
                sequence,
            } => self.synced(from, (job, epoch, sequence)),
            Message::Holding {
                job,
                epoch,
                sequence,
                inventory,
                copy,
            } => self.holding(from, (job, epoch, sequence), &inventory, copy),
            Message::Ask { id, query } => self.ask(Asker::Remote(from, id), query),
            Message::Answer { id, answer } => self.answered(id, answer),
            Message::Release { pool, must } => self.release_worker(from, pool, must),
            Message::Leaving => self.peer_gone(from, true),
            Message::Removed(jobs) => self.remove_all(&jobs),
            Message::SecretsDigest(digest) => self.secrets_digest(from, digest),
            Message::Secrets(secrets) => self.secrets_told(from, secrets),
            Message::Roster(roster) => self.hear_roster(from, *roster),
            Message::AssignGang {
                job,
                epoch,
                work,
                task,
                seats,
                waits,
            } => {
                let (core, whose) = (&mut self.core, (from, job, epoch));
                self.executor
                    .lead_gang(core, whose, work, task, (seats, waits));
            }
            Message::GangMissed {
                job,
                epoch,
                task,
                attempt,
                missed,
            } => self.with_claim(job, epoch, |coordinator, core, _| {
                coordinator.gang_missed(core, from, (task, attempt), missed);
            }),
            Message::Gang {
                job,
                task,
                attempt,
                word,
            } => self
                .executor
                .gang_word(&mut self.core, from, (job, (task, attempt)), word),
        }
    }

    fn swim_packet(&mut self, from: NodeId, packet: Packet) {
        let outcome = self.core.members.packet(self.core.now.mono, from, packet);
        self.membership(outcome);
    }

    fn describe_to(&mut self, from: NodeId) {
        let info = self.core.members.my_info().clone();
        self.core.send(from, Message::Info(Box::new(info)));
    }

    fn replicate_kept(&mut self, from: NodeId, job: JobId, epoch: u32, ticket: u64) {
        self.with_claim(job, epoch, |coordinator, core, copy| {
            coordinator.replicate_kept(core, &mut copy.lattice, from, ticket);
        });
    }

    fn needs_work(&mut self, from: NodeId, job: JobId, epoch: u32) {
        self.with_claim(job, epoch, |coordinator, core, _| {
            coordinator.resend_work(core, from);
        });
    }

    fn report(&mut self, from: NodeId, report: Message) {
        let Message::Report {
            job,
            epoch,
            started,
            finished,
            returned,
            free,
            refuses,
        } = report
        else {
            return;
        };
        self.with_claim(job, epoch, |coordinator, core, copy| {
            coordinator.node_refuses(core, from, refuses);
            coordinator.started(core, &copy.lattice, from, &started);
            coordinator.report(core, &copy.lattice, from, finished, free);
            coordinator.returned(core, from, &returned);
        });
    }

    fn metrics(
        &mut self,
        from: NodeId,
        (job, epoch): (JobId, u32),
        key: Try,
        points: &[MetricPoint],
    ) {
        self.with_claim(job, epoch, |coordinator, core, copy| {
            coordinator.metrics(core, &copy.lattice, from, key, points);
        });
    }

    fn synced(&mut self, from: NodeId, (job, epoch, sequence): (JobId, u32, u64)) {
        let copy = self.keeps_copy(job);
        self.executor
            .holding(&mut self.core, from, (job, epoch, sequence), copy);
    }

    fn holding(
        &mut self,
        from: NodeId,
        (job, epoch, sequence): (JobId, u32, u64),
        inventory: &Inventory,
        has_copy: bool,
    ) {
        self.with_claim(job, epoch, |coordinator, core, copy| {
            if has_copy {
                coordinator.holds_copy(core, from);
            }
            coordinator.holding(core, &copy.lattice, from, sequence, inventory);
        });
    }

    fn release_worker(&mut self, from: NodeId, pool: StreamToken, must: bool) {
        self.core
            .effects
            .push(Effect::Task(TaskEffect::ReleaseWorker {
                node: from,
                pool,
                must,
            }));
    }
}
