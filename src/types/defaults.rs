//! What a job has whose user says nothing of it: in job files, over the API and in pools alike.

/// Milliseconds between SIGTERM and SIGKILL.
pub const GRACE_MS: u64 = 5_000;
/// The most bytes that a task's outputs may have.
pub const OUTPUT_LIMIT_BYTES: u64 = 4 << 30;
/// The most bytes of stdout and of stderr that are kept.
pub const LOG_LIMIT_BYTES: u64 = 64 << 20;
/// Failures of a task that are forgiven where tasks are commands.
pub const COMMAND_RETRIES: u32 = 2;
/// Retries of tasks that are calls of workers. Exceptions are not tried again: these are for
/// workers that die or hang.
pub const WORKER_RETRIES: u32 = 3;

/// The interpreter of Python workers, as it is found on the node's PATH.
pub const PYTHON: &str = "python3";

/// Steps that a task of a sweep reports before it may be given up.
pub const MIN_STEPS: u32 = 1;
/// Tasks that are done before others are compared with their median, as in Google Vizier's open
/// successors: fewer say little.
pub const MIN_TRIALS: u32 = 5;
/// Of so many tasks one goes on at each rung of ASHA. η of the paper's experiments is 4; 3 is what
/// the schedulers in use have.
pub const REDUCTION: u32 = 3;
