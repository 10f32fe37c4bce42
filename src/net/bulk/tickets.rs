//! Transfers and streams that were offered, or asked for, and not yet begun. A ticket works once,
//! for a short time, and there are only so many.

use super::offer::TICKET_BYTES;
use crate::{sealed::DirectionKeys, secret::fill_random};
use nodectl_types::{BlobHash, NodeId, StreamToken};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{net::TcpStream, sync::oneshot};
use zeroize::Zeroizing;

pub const TTL: Duration = Duration::from_secs(30);
pub const MAX_TICKETS: usize = 256;

/// What a ticket stands for.
pub enum TicketPromise {
    Blob(Transfer),
    /// A stream from that node to this one.
    Stream {
        from: NodeId,
        token: StreamToken,
        keys: DirectionKeys,
    },
    /// What this node asked for: the holder brings it.
    Called(oneshot::Sender<TcpStream>),
}

#[derive(Debug)]
pub struct Transfer {
    pub hash: BlobHash,
    pub offset: u64,
    pub size: u64,
    pub key: Zeroizing<[u8; 32]>,
}

#[derive(Default)]
pub struct Tickets {
    open: Mutex<HashMap<[u8; TICKET_BYTES], (Instant, TicketPromise)>>,
}

impl Tickets {
    /// A number nobody can guess.
    pub fn draw() -> [u8; TICKET_BYTES] {
        let mut ticket = [0; TICKET_BYTES];
        fill_random(&mut ticket);
        ticket
    }

    /// False if there are too many.
    pub fn issue(&self, ticket: [u8; TICKET_BYTES], promise: TicketPromise, now: Instant) -> bool {
        let mut open = self.lock();
        open.retain(|_, (issued, _)| now.duration_since(*issued) < TTL);
        if open.len() >= MAX_TICKETS {
            return false;
        }
        open.insert(ticket, (now, promise));
        true
    }

    /// What it stands for, the first time and in time.
    pub fn redeem(&self, ticket: &[u8; TICKET_BYTES], now: Instant) -> Option<TicketPromise> {
        let (issued, promise) = self.lock().remove(ticket)?;
        (now.duration_since(issued) < TTL).then_some(promise)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; TICKET_BYTES], (Instant, TicketPromise)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer() -> TicketPromise {
        TicketPromise::Blob(Transfer {
            hash: BlobHash([0; 32]),
            offset: 0,
            size: 1,
            key: Zeroizing::new([0; 32]),
        })
    }

    #[test]
    fn a_ticket_works_once_and_not_for_long() {
        let (tickets, now) = (Tickets::default(), Instant::now());
        let (first, second) = (Tickets::draw(), Tickets::draw());
        assert!(tickets.issue(first, transfer(), now) && tickets.issue(second, transfer(), now));
        assert!(tickets.redeem(&first, now).is_some());
        assert!(tickets.redeem(&first, now).is_none());
        assert!(tickets.redeem(&second, now + TTL).is_none());
        assert!(tickets.redeem(&[0; TICKET_BYTES], now).is_none());
    }

    #[test]
    fn there_are_only_so_many_until_they_expire() {
        let (tickets, now) = (Tickets::default(), Instant::now());
        assert!((0..MAX_TICKETS).all(|_| tickets.issue(Tickets::draw(), transfer(), now)));
        assert!(!tickets.issue(Tickets::draw(), transfer(), now));
        assert!(tickets.issue(Tickets::draw(), transfer(), now + TTL));
    }
}
