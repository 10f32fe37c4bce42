//! An elastic gang that runs on fewer nodes than it may. Its coordinator names others; the lead
//! asks them for room, and ends the attempt as soon as one has some: the next one has more nodes.
//! What has run since the last checkpoint is lost, so nothing is ended for a node without room.

use super::{super::cards::pick_cards, Executor, GangKey, GangWord, lead::AttemptEnd, say};
use crate::core::Core;
use nodectl_types::{NodeId, WorkSpec};

impl Executor {
    /// The coordinator names nodes that may take part, too.
    pub(super) fn grow_gang(
        &mut self,
        core: &mut Core,
        from: NodeId,
        key: GangKey,
        nodes: Vec<NodeId>,
    ) {
        let is_its = self
            .jobs
            .get(&key.0)
            .is_some_and(|job| job.coordinator == from);
        let Some(lead) = self.gangs.led.get_mut(&key) else {
            return;
        };
        if !is_its || !lead.is_running() {
            return;
        }
        let new = nodes.into_iter().filter(|node| !lead.has_member(*node));
        let new: Vec<_> = new.collect();
        lead.probed.extend(&new);
        let word = lead.probe();
        for node in new {
            say(core, node, key, word.clone());
        }
    }

    /// A lead asks whether there is room here. What waits here goes before it.
    pub(super) fn tell_room(&self, core: &mut Core, from: NodeId, key: GangKey, work: &WorkSpec) {
        let need = work.holds(&self.capacity);
        let is_free = self.jobs.values().all(|job| job.queue.is_empty())
            && self.free.fits(&need)
            && pick_cards(&self.cards, need.gpu_milli).is_some();
        let word = match self.gang_refusal(core, &key, work) {
            None if is_free => GangWord::Ready,
            refusal => GangWord::Gone {
                why: refusal.unwrap_or_else(|| "it has no room now".into()),
            },
        };
        say(core, from, key, word);
    }

    /// A node that is no member of the gang says whether it has room.
    pub(super) fn probe_answered(
        &mut self,
        core: &mut Core,
        from: NodeId,
        key: GangKey,
        ready: bool,
    ) {
        let Some(lead) = self.gangs.led.get_mut(&key) else {
            return;
        };
        let was_asked = lead.probed.remove(&from);
        if ready && was_asked && lead.is_running() {
            self.disband(core, key, AttemptEnd::Back);
        }
    }
}
