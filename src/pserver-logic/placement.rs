//! Which nodes keep a block: rendezvous hashing (Thaler and Ravishankar, 1998), weighted, with a
//! bound on what one node gets (Mirrokni, Thorup and Zadimoghaddam, arXiv 1608.01350). A function
//! of the nodes and their weights, the same on every node: integers only.

use nodectl_types::{NodeId, servers::message::Block};

/// The finest difference of weights: a node with less than a 16th of the heaviest one's weight
/// counts as a 16th. One without any weight gets blocks only where no others are left for them.
const STEPS: u64 = 16;

/// The nodes of every block, by index into the nodes given; the first of each is its primary, the
/// others are replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    homes: Vec<Vec<u16>>,
}

impl Placement {
    /// Puts `blocks` blocks on `replicas` nodes each, or on all if there are fewer. `nodes` are
    /// sorted, with a weight each. Primaries are on `servers` of them, those with a weight first,
    /// else chosen by a hash, if there are so many; replicas may be on any.
    pub fn new(nodes: &[(NodeId, u32)], blocks: u32, replicas: u32, servers: Option<u32>) -> Self {
        let seeds: Vec<u64> = nodes.iter().map(|(node, _)| seed(*node)).collect();
        let heaviest = nodes
            .iter()
            .map(|(_, weight)| u64::from(*weight))
            .max()
            .unwrap_or(0);
        let share = |weight: u32| match (u64::from(weight), heaviest) {
            (_, 0) => STEPS,
            (0, _) => 0,
            (weight, heaviest) => (weight * STEPS / heaviest).max(1),
        };
        let shares: Vec<u64> = nodes.iter().map(|(_, weight)| share(*weight)).collect();
        let rank = |index: usize| (shares[index] > 0, seeds[index]);
        let mut ranked: Vec<(bool, u64)> = (0..nodes.len()).map(rank).collect();
        ranked.sort_unstable_by(|a, b| b.cmp(a));
        let last = servers
            .and_then(|servers| ranked.get(servers.max(1) as usize - 1))
            .copied()
            .unwrap_or_default();
        let is_server = |index: usize| rank(index) >= last;
        let total: u64 = (0..nodes.len())
            .filter(|index| is_server(*index))
            .map(|index| shares[index])
            .sum();
        let part = |share: u64| (u64::from(blocks) * share).div_ceil(total.max(1));
        let mut room: Vec<u64> = (0..nodes.len())
            .map(|index| {
                if is_server(index) {
                    part(shares[index])
                } else {
                    0
                }
            })
            .collect();
        let homes = (0..blocks)
            .map(|block| {
                let mut scored: Vec<(u64, u16)> = (0..nodes.len())
                    .map(|index| (score(seeds[index], shares[index], block), index as u16))
                    .collect();
                scored.sort_unstable_by(|a, b| b.cmp(a));
                let mut order: Vec<u16> = scored.into_iter().map(|(_, index)| index).collect();
                let primary = order
                    .iter()
                    .position(|index| room[usize::from(*index)] > 0)
                    .unwrap_or(0);
                if let Some(index) = order.get(primary) {
                    room[usize::from(*index)] = room[usize::from(*index)].saturating_sub(1);
                    order[..=primary].rotate_right(1);
                }
                order.truncate(replicas.max(1) as usize);
                order
            })
            .collect();
        Self { homes }
    }

    /// Who keeps blocks that only some nodes have: of those who shall, who have it; beside them
    /// others who have it, as long as some of the former have not. `holders` are the nodes that
    /// have each block, of which there is at least one.
    pub fn among(&self, holders: &[Vec<u16>]) -> Self {
        let homes = self.homes.iter().zip(holders).map(|(shall, have)| {
            let right = shall.iter().filter(|node| have.contains(node));
            let others = have.iter().filter(|node| !shall.contains(node));
            right.chain(others).copied().take(shall.len()).collect()
        });
        Self {
            homes: homes.collect(),
        }
    }

    /// As a view says.
    pub fn of(homes: Vec<Vec<u16>>) -> Self {
        Self { homes }
    }

    pub fn into_homes(self) -> Vec<Vec<u16>> {
        self.homes
    }

    /// All of `nodes` keep this block.
    pub fn keep_everywhere(&mut self, block: Block, nodes: usize) {
        self.homes[block as usize] = (0..nodes as u16).collect();
    }

    /// Who keeps a block, the primary first.
    pub fn homes(&self, block: Block) -> &[u16] {
        &self.homes[block as usize]
    }
}

fn seed(node: NodeId) -> u64 {
    let hash = blake3::hash(&node.0);
    u64::from_le_bytes(
        hash.as_bytes()[..8]
            .try_into()
            .expect("a hash has 32 bytes"),
    )
}

/// The highest of as many draws as the node's share: so it wins in proportion.
fn score(seed: u64, share: u64, block: Block) -> u64 {
    (0..share)
        .map(|draw| mix(seed ^ mix((u64::from(block) << 8) | draw)))
        .max()
        .unwrap_or(0)
}

/// SplitMix64's output function (Steele, Lea and Flood, 2014).
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nodes(weights: &[u32]) -> Vec<(NodeId, u32)> {
        weights
            .iter()
            .enumerate()
            .map(|(i, weight)| (NodeId([i as u8 + 1; 32]), *weight))
            .collect()
    }

    fn primaries(nodes: &[(NodeId, u32)], blocks: u32) -> Vec<NodeId> {
        let placement = Placement::new(nodes, blocks, 2, None);
        (0..blocks)
            .map(|block| nodes[usize::from(placement.homes(block)[0])].0)
            .collect()
    }

    proptest! {
        #[test]
        fn homes_are_different_nodes_and_none_has_more_than_its_share(
            weights in prop::collection::vec(1u32..64, 1..12), blocks in 1u32..300, replicas in 1u32..4
        ) {
            let nodes = nodes(&weights);
            let placement = Placement::new(&nodes, blocks, replicas, None);
            let mut load = vec![0u64; nodes.len()];
            for block in 0..blocks {
                let homes = placement.homes(block);
                prop_assert_eq!(homes.len(), nodes.len().min(replicas as usize));
                let mut sorted = homes.to_vec();
                sorted.sort_unstable();
                sorted.dedup();
                prop_assert_eq!(sorted.len(), homes.len());
                load[usize::from(homes[0])] += 1;
            }
            let heaviest = u64::from(*weights.iter().max().unwrap());
            let shares: Vec<u64> = weights.iter().map(|w| (u64::from(*w) * STEPS / heaviest).max(1)).collect();
            let total: u64 = shares.iter().sum();
            for (load, share) in load.iter().zip(shares) {
                prop_assert!(*load <= (u64::from(blocks) * share).div_ceil(total));
            }
        }
    }

    #[test]
    fn nodes_without_weight_keep_what_nobody_else_can() {
        let placed = |weights: &[u32], block| {
            Placement::new(&nodes(weights), 40, 2, None)
                .homes(block)
                .to_vec()
        };
        for block in 0..40 {
            let mut both = placed(&[0, 4, 0, 8], block);
            both.sort_unstable();
            assert_eq!(both, [1, 3], "two servers need no help");
            assert_eq!(
                placed(&[0, 0, 4], block)[0],
                2,
                "a second copy is elsewhere"
            );
        }
        let one = Placement::new(&nodes(&[0, 4, 0, 8]), 40, 2, Some(1));
        let primaries: std::collections::BTreeSet<u16> =
            (0..40).map(|block| one.homes(block)[0]).collect();
        assert!(
            primaries.len() == 1 && primaries.is_subset(&[1, 3].into()),
            "one server of two: {primaries:?}"
        );
        let homes = |weights: &[u32]| {
            (0..40)
                .map(|block| placed(weights, block))
                .collect::<Vec<_>>()
        };
        assert_eq!(homes(&[0, 0, 0]), homes(&[3, 3, 3]), "all servers are gone");
    }

    #[test]
    fn a_join_or_a_death_moves_little_more_than_its_share() {
        let blocks = 4000;
        for count in [2usize, 4, 8, 16] {
            let more = nodes(&vec![8; count + 1]);
            let before = primaries(&more[..count], blocks);
            let after = primaries(&more, blocks);
            let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count() as f64
                / f64::from(blocks);
            let share = 1.0 / (count + 1) as f64;
            assert!(moved < 1.5 * share, "{moved} moved when one joined {count}");
        }
    }

    #[test]
    fn so_many_servers_have_the_primaries_and_replicas_are_on_others_too() {
        let nodes = nodes(&[4; 6]);
        for servers in [1, 3, 6, 9] {
            let placement = Placement::new(&nodes, 600, 2, Some(servers));
            let homes = |place: usize| {
                let all: std::collections::BTreeSet<u16> = (0..600)
                    .map(|block| placement.homes(block)[place])
                    .collect();
                all.len()
            };
            assert_eq!(homes(0), servers.min(6) as usize, "{servers}");
            assert!(homes(1) >= 5, "{servers}");
        }
    }

    #[test]
    fn the_replica_of_a_dead_primary_mostly_takes_its_place() {
        let all = nodes(&[4; 5]);
        let placement = Placement::new(&all, 500, 2, None);
        let rest = all[1..].to_vec();
        let after = primaries(&rest, 500);
        let of_dead: Vec<u32> = (0..500)
            .filter(|block| placement.homes(*block)[0] == 0)
            .collect();
        let promoted = of_dead
            .iter()
            .filter(|block| {
                all[usize::from(placement.homes(**block)[1])].0 == after[**block as usize]
            })
            .count();
        assert!(
            promoted * 3 > of_dead.len() * 2,
            "{promoted} of {}",
            of_dead.len()
        );
    }
}
