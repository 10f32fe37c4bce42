//! A node that is back after it said goodbye. More than half of those that it left may have decided
//! something without it since, and may not have heard that it is back. So it counts for one that
//! has left until it has met half of them again: of any that are more than half one is among those,
//! and knows of it.

use nodectl_types::{NodeId, membership::MemberRecords};
use std::collections::BTreeSet;

/// Whom this node's last life left behind.
#[derive(Debug, Default)]
pub(super) struct Returning {
    count: usize,
    unmet: BTreeSet<NodeId>,
}

impl Returning {
    /// `records`: whom it had met.
    pub fn after_goodbye(records: &MemberRecords) -> Self {
        let stayed = records.iter().filter(|(_, record)| !record.left);
        let unmet: BTreeSet<_> = stayed.map(|(node, _)| *node).collect();
        Self {
            count: unmet.len(),
            unmet,
        }
    }

    pub fn is_over(&self) -> bool {
        2 * (self.count - self.unmet.len()) >= self.count
    }

    pub fn met(&mut self, node: NodeId) {
        self.unmet.remove(&node);
    }

    /// Nothing is decided at this node: it is dead for good, as a person said, or just back itself.
    pub fn forget(&mut self, node: NodeId) {
        self.count -= usize::from(self.unmet.remove(&node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::membership::MemberRecord;

    fn id(byte: usize) -> NodeId {
        NodeId([byte as u8; 32])
    }

    fn left_behind(count: usize) -> Returning {
        let gone = MemberRecord {
            left: true,
            ..MemberRecord::default()
        };
        let mut records = MemberRecords::from([(id(99), gone)]);
        records.extend((0..count).map(|byte| (id(byte), MemberRecord::default())));
        Returning::after_goodbye(&records)
    }

    /// Whoever decided without it is more than half of those that stayed.
    #[test]
    fn it_has_met_one_of_any_that_decided_without_it() {
        for count in 0..20 {
            let mut returning = left_behind(count);
            let needed = (0..=count).find(|met| {
                let is_over = returning.is_over();
                returning.met(id(*met));
                is_over
            });
            let majority = count / 2 + 1;
            assert_eq!(needed, Some((count + 1).saturating_sub(majority)));
        }
    }

    #[test]
    fn who_is_dead_for_good_need_not_be_met() {
        let mut returning = left_behind(3);
        returning.met(id(0));
        assert!(!returning.is_over());
        returning.forget(id(1));
        assert!(returning.is_over());
    }
}
