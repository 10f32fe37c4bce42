//! Room for connections that have not shown yet that they are a member's. Strangers may open as
//! many as they like: when the room is full the newest comes in and the oldest goes, of the address
//! that has most. A member shows itself within a round trip, so that it has long left the room when
//! it would be its turn.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio_util::sync::CancellationToken;

/// Waiting at once, in all and from one address.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub total: usize,
    pub of_one: usize,
}

#[derive(Clone)]
pub struct Gate {
    limits: Limits,
    waiting: Arc<Mutex<WaitingStranger>>,
}

#[derive(Default)]
struct WaitingStranger {
    /// In the order of their coming.
    all: BTreeMap<u64, (IpAddr, CancellationToken)>,
    counts: HashMap<IpAddr, usize>,
    next: u64,
}

/// A place in the room, for as long as it is held.
pub struct Pass {
    gate: Gate,
    number: u64,
    evicted: CancellationToken,
}

impl Gate {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            waiting: Arc::default(),
        }
    }

    /// Lets a connection in. Another may have to go for it.
    pub fn admit(&self, from: IpAddr) -> Pass {
        let (from, evicted) = (source(from), CancellationToken::new());
        let mut waiting = self.lock();
        if waiting
            .counts
            .get(&from)
            .is_some_and(|count| *count >= self.limits.of_one)
        {
            waiting.evict_oldest_of(from);
        } else if waiting.all.len() >= self.limits.total {
            let most = waiting
                .counts
                .iter()
                .max_by_key(|(_, count)| **count)
                .map(|(from, _)| *from);
            waiting.evict_oldest_of(most.unwrap_or(from));
        }
        let number = waiting.next;
        waiting.next += 1;
        waiting.all.insert(number, (from, evicted.clone()));
        *waiting.counts.entry(from).or_default() += 1;
        drop(waiting);
        Pass {
            gate: self.clone(),
            number,
            evicted,
        }
    }

    fn lock(&self) -> MutexGuard<'_, WaitingStranger> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingStranger {
    fn evict_oldest_of(&mut self, from: IpAddr) {
        let oldest = self
            .all
            .iter()
            .find(|(_, (of, _))| *of == from)
            .map(|(number, _)| *number);
        if let Some((_, evicted)) = oldest.and_then(|number| self.remove(number)) {
            evicted.cancel();
        }
    }

    fn remove(&mut self, number: u64) -> Option<(IpAddr, CancellationToken)> {
        let removed = self.all.remove(&number)?;
        if let Some(count) = self.counts.get_mut(&removed.0) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&removed.0);
            }
        }
        Some(removed)
    }
}

impl Pass {
    /// Another took the place.
    pub async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.lock().remove(self.number);
    }
}

/// Whom an address stands for: of IPv6 one machine has 2^64.
fn source(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn gone(pass: &Pass) -> bool {
        pass.evicted().now_or_never().is_some()
    }

    #[test]
    fn the_oldest_of_the_loudest_goes() {
        let gate = Gate::new(Limits {
            total: 4,
            of_one: 3,
        });
        let quiet = gate.admit(ip(1));
        let loud: Vec<Pass> = (0..5).map(|_| gate.admit(ip(2))).collect();
        assert_eq!(
            loud.iter().map(gone).collect::<Vec<_>>(),
            [true, true, false, false, false]
        );
        // The room is full now.
        let other = gate.admit(ip(3));
        assert!(gone(&loud[2]) && !gone(&quiet) && !gone(&other));
        assert_eq!(gate.lock().all.len(), 4);
        drop((quiet, loud, other));
        assert!(gate.lock().all.is_empty() && gate.lock().counts.is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let gate = Gate::new(Limits {
            total: 9,
            of_one: 1,
        });
        let first = gate.admit("2001:db8::1".parse().unwrap());
        let second = gate.admit("2001:db8::2".parse().unwrap());
        let elsewhere = gate.admit("2001:db8:0:1::1".parse().unwrap());
        assert!(gone(&first) && !gone(&second) && !gone(&elsewhere));
        let (mapped, plain) = (
            gate.admit("::ffff:10.0.0.1".parse().unwrap()),
            gate.admit(ip(1)),
        );
        assert!(gone(&mapped) && !gone(&plain));
    }
}
