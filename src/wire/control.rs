//! Control messages between nodes: postcard, length first, validated before use.

use crate::types::{JobHead, JobSpec, Message, Query, limits};

/// Bytes from a peer that are no valid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    #[error("a message of {0} bytes, more than {max}", max = limits::MAX_MESSAGE_BYTES)]
    TooLarge(usize),
    #[error("not a message of protocol version {version}: {0}", version = limits::PROTOCOL_VERSION)]
    Malformed(String),
    #[error("a message with {0}")]
    Invalid(&'static str),
}

/// Postcard; fails if the message is larger than a peer would accept.
pub fn encode(message: &Message) -> Result<Vec<u8>, BadMessage> {
    let bytes = postcard::to_stdvec(message).expect("plain data always encodes");
    if bytes.len() > limits::MAX_MESSAGE_BYTES { Err(BadMessage::TooLarge(bytes.len())) } else { Ok(bytes) }
}

/// Inverse of `encode`. Postcard never allocates more than the input has bytes left, so memory is bounded by
/// `MAX_MESSAGE_BYTES` times the size of the largest element.
pub fn decode(bytes: &[u8]) -> Result<Message, BadMessage> {
    if bytes.len() > limits::MAX_MESSAGE_BYTES {
        return Err(BadMessage::TooLarge(bytes.len()));
    }
    let (message, rest) = postcard::take_from_bytes(bytes).map_err(|error| BadMessage::Malformed(error.to_string()))?;
    if !rest.is_empty() {
        return Err(BadMessage::Invalid("bytes left over"));
    }
    validate(&message)?;
    Ok(message)
}

/// Checks what the types alone do not say.
fn validate(message: &Message) -> Result<(), BadMessage> {
    let check = |holds: bool, problem| if holds { Ok(()) } else { Err(BadMessage::Invalid(problem)) };
    match message {
        Message::Swim(packet) => check(packet.len() <= limits::SWIM_PACKET_BYTES, "a SWIM packet too large"),
        Message::Info(info) => check(
            info.name.len() <= 256
                && info.model.len() <= 256
                && info.addrs.len() <= 64
                && info.gpus.len() <= 256
                && info.labels.len() <= 256,
            "an oversized node description",
        ),
        Message::Heads(heads) => {
            let is_long = |head: &JobHead| head.reason.as_ref().is_some_and(|why| why.len() > limits::MAX_REASON_BYTES);
            check(heads.len() <= limits::HEADS_BATCH, "too many job heads")?;
            check(!heads.iter().any(is_long), "an oversized reason for a job's end")?;
            let is_wide =
                |head: &JobHead| head.saved.as_ref().is_some_and(|saved| saved.nodes.len() > limits::CHECKPOINT_NODES);
            check(!heads.iter().any(is_wide), "a checkpoint on too many nodes")
        }
        Message::Offer { spec: Some(spec), .. } => validate_spec(spec),
        Message::Ask { query: Query::Submit { spec }, .. } => validate_spec(spec),
        Message::Ask { query: Query::CancelTasks { tasks, .. }, .. } => {
            check(tasks.len() <= limits::MAX_CANCELLED, "too many tasks to cancel")
        }
        Message::Replicate { records, .. } => check(records.len() <= limits::RECORD_BATCH, "too many records"),
        Message::Assign { tasks, .. } => check(tasks.len() <= limits::MAX_PREFETCH as usize, "too many assignments"),
        Message::Metrics { points, .. } => check(points.len() <= limits::METRIC_POINTS, "too many values of a metric"),
        _ => Ok(()),
    }
}

/// The invariants of a specification from outside: `ParamSpace::get` and `task_count` rely on them.
pub fn validate_spec(spec: &JobSpec) -> Result<(), BadMessage> {
    use crate::types::ParamSpace;
    let check = |holds: bool, problem| if holds { Ok(()) } else { Err(BadMessage::Invalid(problem)) };
    check(spec.work.has_program(), "a job without a command")?;
    check((1..=limits::MAX_TASKS).contains(&spec.task_count()), "a job without tasks, or with too many")?;
    if let ParamSpace::Rows { columns, cells } = &spec.params {
        check(!columns.is_empty() && cells.len() % columns.len() == 0, "parameter rows of unequal length")?;
    }
    Ok(())
}
