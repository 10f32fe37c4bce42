//! Every bound in the system, with the relations between them checked at compile time.

use std::time::Duration;

/// The version of the messages between nodes. Nodes of different versions refuse each other.
pub const PROTOCOL_VERSION: u32 = 4;

/// The largest control message accepted from a peer, in bytes. Checked before anything is allocated for it.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;
/// Records are sent in batches of about this many bytes.
pub const RECORD_BATCH_BYTES: usize = 256 << 10;
/// Records in one batch.
pub const RECORD_BATCH: usize = 512;
/// Specifications up to this size travel inside messages, larger ones as blobs.
pub const INLINE_SPEC_BYTES: usize = 64 << 10;
/// The largest specification (parameters included) that a node accepts.
pub const MAX_SPEC_BYTES: usize = 256 << 20;
/// The most tasks in a job.
pub const MAX_TASKS: u64 = 50_000_000;
/// The most tasks that may wait on one node for one job.
pub const MAX_PREFETCH: u32 = 512;
/// Bytes of stdout and stderr kept inside a task's record; more becomes a blob.
pub const INLINE_LOG_BYTES: usize = 2 << 10;
/// Bytes of `nodectl-result:` or `result.json` kept in a record.
pub const MAX_RESULT_BYTES: usize = 64 << 10;
/// Values of a metric in one message; what a task reports between two of them is thinned out to so many.
pub const METRIC_POINTS: usize = 64;
/// Tasks cancelled by one request.
pub const MAX_CANCELLED: usize = 100_000;
/// Bytes kept of an exception that a task raised: class, message and traceback.
pub const MAX_ERROR_BYTES: usize = 16 << 10;
/// Bytes of the reason for which a coordinator gave a job up; every member keeps it.
pub const MAX_REASON_BYTES: usize = 4 << 10;
/// Output files named by one task.
pub const MAX_OUTPUT_FILES: usize = 4096;
/// Messages waiting for one peer; past this the connection is dropped and resynchronised.
pub const PEER_QUEUE: usize = 4096;
/// Tasks under one digest of a replica's summary.
pub const SUMMARY_CHUNK: usize = 1024;
/// Nodes of which a job's members know that they have its newest checkpoint.
pub const CHECKPOINT_NODES: usize = 4;
/// Jobs remembered by a node.
pub const MAX_JOBS: usize = 16_384;
/// Job heads in one message.
pub const HEADS_BATCH: usize = 128;
/// Copies of a job's state: its coordinator's and two more.
pub const JOB_REPLICAS: usize = 3;

/// SWIM: how often one random member is probed.
pub const PROBE_PERIOD: Duration = Duration::from_millis(500);
/// SWIM: how long a direct answer may take before others are asked to probe.
pub const PROBE_RTT: Duration = Duration::from_millis(200);
/// SWIM: how long a suspect has to show that it lives.
pub const SUSPICION: Duration = Duration::from_millis(1000);
/// SWIM: the largest packet, in bytes; it rides a stream, so no datagram's size binds it.
pub const SWIM_PACKET_BYTES: usize = 16 << 10;

/// How often a coordinator asks the nodes with its tasks what they hold.
pub const SYNC_PERIOD: Duration = Duration::from_millis(1000);
/// How long a new coordinator waits for reports of running tasks before it orders anything.
pub const TAKEOVER_WAIT: Duration = Duration::from_millis(400);
/// How often job heads are compared with one random member's.
pub const HEADS_PERIOD: Duration = Duration::from_secs(5);
/// How long an answer to a user may take before it is reported missing.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that a watcher waits for news in one request.
pub const WATCH_WAIT: Duration = Duration::from_secs(8);
/// A failed write to the journal is tried again after this long.
pub const STORE_RETRY: Duration = Duration::from_secs(2);

const _: () = assert!(RECORD_BATCH_BYTES * 4 < MAX_MESSAGE_BYTES, "a batch must fit into a message");
const _: () = assert!(INLINE_SPEC_BYTES * 4 < MAX_MESSAGE_BYTES, "an inline specification must fit into a message");
const _: () = assert!(MAX_TASKS / 8 < (MAX_MESSAGE_BYTES * 3 / 4) as u64, "a summary has a bit for each task");
const _: () = assert!(HEADS_BATCH * (MAX_REASON_BYTES + 1024) < MAX_MESSAGE_BYTES, "a batch of heads is a message");
const _: () = assert!(SWIM_PACKET_BYTES < MAX_MESSAGE_BYTES);
const _: () = assert!(PROBE_RTT.as_millis() * 2 < PROBE_PERIOD.as_millis(), "indirect probes need the second half");
const _: () = assert!(WATCH_WAIT.as_millis() < QUERY_TIMEOUT.as_millis());
