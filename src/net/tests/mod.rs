//! Real swarms in one process, over loopback. Each test picks its own ports; mDNS is off, so that
//! tests do not meet.

mod blobs;
mod bulk;
pub(super) mod cluster;
mod discovery;
mod membership;
mod relays;
mod rogue;
mod sessions;
mod streams;
