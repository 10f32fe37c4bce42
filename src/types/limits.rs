//! Every bound in the system, with the relations between them checked at compile time.

use std::time::Duration;

/// The newest version of the messages between nodes that this program speaks.
pub const PROTOCOL_VERSION: u32 = 5;
/// The oldest. Two nodes use the newest that both speak, and refuse each other where there is none.
pub const OLDEST_PROTOCOL_VERSION: u32 = 5;

/// The largest control message accepted from a peer, in bytes. Checked before anything is allocated
/// for it.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;
/// Records are sent in batches of about this many bytes.
pub const RECORD_BATCH_BYTES: usize = 256 << 10;
/// Lines of an explanation: some for each node.
pub const MAX_EXPLANATION: usize = 65_536;
/// Processes of one task that is a gang: what its nodes say to each other is one message.
pub const MAX_RANKS: u32 = 256;
/// Nodes of which anything was decided, and nodes that a change of the secret lists.
pub const MAX_WORDS: usize = 4096;
/// Nodes that a node remembers as dead for good, since a person said so.
pub const MAX_FORGOTTEN: usize = 1024;
/// A longer text is no secret but a mistake in a file's name.
pub const MAX_CLUSTER_SECRET_BYTES: usize = 4096;
/// Records in one batch.
pub const RECORD_BATCH: usize = 512;
/// Specifications up to this size travel inside messages, larger ones as blobs.
pub const INLINE_SPEC_BYTES: usize = 64 << 10;
/// Of a job that has ended, and that nobody asks about, the tables of a larger specification are on
/// the disk alone: each holder of the job has it as a blob, too.
pub const RESTING_SPEC_BYTES: usize = 2 << 10;
/// The largest specification (parameters included) that a node accepts.
pub const MAX_SPEC_BYTES: usize = 256 << 20;
/// Bytes of a task's command, variables and output patterns together, its parameters in their
/// places. No kernel starts a program with more.
pub const MAX_TASK_TEXT_BYTES: usize = 8 << 20;
/// The most nodes that a job may wait for.
pub const MAX_MIN_NODES: u32 = 100_000;
/// The most patterns of output files.
pub const MAX_OUTPUT_PATTERNS: usize = 1_024;
/// The most tasks in a job.
pub const MAX_TASKS: u64 = 50_000_000;
/// The most tasks of a job whose parameters are drawn as results come.
pub const MAX_TRIALS: u32 = 10_000;
/// And their parameters.
pub const MAX_SEARCH_AXES: usize = 256;
/// The most tasks of an open job.
pub const MAX_OPEN_TASKS: u32 = 100_000;
/// And their parameters.
pub const MAX_ROW_COLUMNS: usize = 256;
/// Bytes of the parameters of one task that is added to an open job, with their names.
pub const MAX_ROW_BYTES: usize = 64 << 10;
/// The most tasks that are added at a time.
pub const MAX_ADDED: usize = 1_000;
/// And their bytes.
pub const MAX_ADDED_BYTES: usize = 4 << 20;
/// The most entries of a log.
pub const MAX_LOG_ENTRIES: u32 = 1 << 20;
/// The most tasks that may wait on one node for one job.
pub const MAX_PREFETCH: u32 = 512;
/// Bytes of stdout and stderr kept inside a task's record; more becomes a blob.
pub const INLINE_LOG_BYTES: usize = 2 << 10;
/// Bytes of `nodectl-result:` or `result.json` kept in a record.
pub const MAX_RESULT_BYTES: usize = 64 << 10;
/// Values of a metric in one message; what a task reports between two of them is thinned out to so
/// many.
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
/// And their bytes.
pub const PEER_QUEUE_BYTES: usize = 8 * MAX_MESSAGE_BYTES;
/// Tasks under one digest, when copies of a job's state are compared.
pub const DIGEST_CHUNK: u32 = 1024;
/// Nodes of which a job's members know that they have its newest checkpoint.
pub const CHECKPOINT_NODES: usize = 4;
/// Jobs remembered by a node.
pub const MAX_JOBS: usize = 16_384;
/// Jobs that one comes after.
pub const MAX_AFTER: usize = 256;
/// Names of secrets, those of dropped ones included; all of them are one message.
pub const MAX_SECRETS: usize = 256;
/// Bytes of a secret's value.
pub const MAX_SECRET_BYTES: usize = 8 << 10;
/// A secret of the greatest length with its nonce and tag.
pub const MAX_SEALED_SECRET_BYTES: usize = MAX_SECRET_BYTES + 28;
/// Secrets that one job asks for.
pub const MAX_JOB_SECRETS: usize = 32;
/// Bytes of a node's name, and of a label's key and value.
pub const MAX_LABEL_BYTES: usize = 256;
/// Patterns in one list of what a node's owner admits.
pub const MAX_ADMITS: usize = 64;
/// Bytes of a job's name, and of a parameter's or resource's.
pub const MAX_NAME_BYTES: usize = 256;
/// Kinds of tasks in one job: all of them travel to each of its nodes.
pub const MAX_TASK_KINDS: usize = 1024;
/// Bytes of what the kinds of a job's tasks say, together.
pub const MAX_KINDS_BYTES: usize = 1 << 20;
/// Tasks of its job that one needs: its order names them, and their results are linked into its
/// directory.
pub const MAX_NEEDS: usize = 10_000;
/// Tasks of a job whose results have names; beyond that, nobody reads directories.
pub const MAX_NAMED_TASKS: u64 = 100_000;
/// Removed jobs that a node remembers, so that they do not come back from one that was away.
pub const MAX_REMOVED: usize = 4 * MAX_JOBS;
/// Removed jobs in one message.
pub const REMOVED_BATCH: usize = 4096;
/// Job heads in one message.
pub const HEADS_BATCH: usize = 128;
/// Digests of all job heads: a difference costs sending the heads of one of so many parts.
pub const HEADS_BUCKETS: usize = 64;
/// Bytes of records on their way to a replica that has not confirmed them. One that falls further
/// behind gets no more, and catches up afterwards.
pub const REPLICA_WINDOW_BYTES: usize = 16 << 20;
/// Batches of records on their way to a replica that has not confirmed them.
pub const REPLICA_WINDOW_BATCHES: usize = 1024;
/// Copies of a job's state: its coordinator's and two more.
pub const JOB_REPLICAS: usize = 3;
/// Nodes that decide which entries of a log count, at most.
pub const MAX_VOTERS: usize = 8;
/// Nodes among which more than half begin a log, at most.
pub const MAX_ELECTORS: usize = 4096;
/// Logs and open jobs of which a node remembers what it has said about their first voters.
pub const MAX_BEGINNINGS: usize = MAX_JOBS;

/// GPUs of a node whose load is remembered: as many as its memory of it has room for.
pub const HISTORY_GPUS: usize = 10;
/// Rows of a node's load in one message.
pub const HISTORY_ROWS: usize = 1000;

/// Events of members, and of jobs, that a node remembers: all of them are one message.
pub const EVENTS: usize = 500;
/// Bytes of what is said of an event.
pub const EVENT_TEXT_BYTES: usize = 512;

/// Membership: how often one member is asked whether it lives, by a node that is not slow.
pub const PROBE_PERIOD: Duration = Duration::from_millis(350);
/// Membership: how long a direct answer may take before others are asked to ask.
pub const PROBE_RTT: Duration = Duration::from_millis(150);
/// Membership: how long a suspect has to show that it lives, where all is well and others suspect
/// it too.
pub const SUSPICION: Duration = Duration::from_millis(1500);
/// Membership: news in one packet.
pub const SWIM_NEWS: usize = 64;
/// Addresses that a member is known by.
pub const MEMBER_ADDRS: usize = 16;

/// How often a coordinator asks the nodes with its tasks what they hold.
pub const SYNC_PERIOD: Duration = Duration::from_millis(1000);
/// How often job heads are compared with one random member's.
pub const HEADS_PERIOD: Duration = Duration::from_secs(5);
/// How long an answer to a user may take before it is reported missing.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that a watcher waits for news in one request.
pub const WATCH_WAIT: Duration = Duration::from_secs(8);
/// A failed write to the journal is tried again after this long.
pub const STORE_RETRY: Duration = Duration::from_secs(2);

const _: () = assert!(OLDEST_PROTOCOL_VERSION <= PROTOCOL_VERSION);
const _: () = assert!(
    RECORD_BATCH_BYTES * 4 < MAX_MESSAGE_BYTES,
    "a batch must fit into a message"
);
const _: () = assert!(
    MAX_NEEDS * 256 + RECORD_BATCH_BYTES < MAX_MESSAGE_BYTES
        && MAX_KINDS_BYTES * 4 < MAX_MESSAGE_BYTES,
    "an order with all that its task needs is a message, as are the kinds of a job's tasks"
);
const _: () = assert!(
    RESTING_SPEC_BYTES <= INLINE_SPEC_BYTES,
    "what no message holds is a blob"
);
const _: () = assert!(
    INLINE_SPEC_BYTES * 4 < MAX_MESSAGE_BYTES,
    "an inline specification must fit into a message"
);
const _: () = assert!(
    (MAX_TASKS as usize).div_ceil(DIGEST_CHUNK as usize) * 10 < MAX_MESSAGE_BYTES,
    "the digests of a job are one message, each of at most 10 bytes"
);
const _: () = assert!(
    HEADS_BATCH * (MAX_REASON_BYTES + MAX_NAME_BYTES + MAX_AFTER * 10 + 2 * MAX_LABEL_BYTES + 1024)
        < MAX_MESSAGE_BYTES,
    "a batch of heads is a message"
);
const _: () = assert!(
    2 * EVENTS * (EVENT_TEXT_BYTES + MAX_NAME_BYTES + 64) < MAX_MESSAGE_BYTES,
    "the events of a node are a message"
);
const _: () = assert!(
    REPLICA_WINDOW_BYTES * 2 < PEER_QUEUE_BYTES && REPLICA_WINDOW_BATCHES * 2 < PEER_QUEUE,
    "a slow replica does not cost its connection"
);
const _: () = assert!(
    (SWIM_NEWS + 1) * (MEMBER_ADDRS * 32 + 128) < MAX_MESSAGE_BYTES,
    "news fit into a message"
);
const _: () = assert!(
    PROBE_RTT.as_millis() * 2 < PROBE_PERIOD.as_millis(),
    "indirect probes need the second half"
);
const _: () = assert!(
    MAX_SECRETS * (MAX_SEALED_SECRET_BYTES + 128) < MAX_MESSAGE_BYTES,
    "all secrets are a message"
);
const _: () = assert!(
    HISTORY_ROWS * (9 + 4 * HISTORY_GPUS) * 5 + HISTORY_GPUS * 2 * MAX_NAME_BYTES
        < MAX_MESSAGE_BYTES / 16,
    "a page of a node's load delays nothing that comes after it"
);
const _: () = assert!(WATCH_WAIT.as_millis() < QUERY_TIMEOUT.as_millis());
