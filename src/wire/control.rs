//! Control messages between nodes: postcard, length first, validated before use.

use nodectl_types::{
    Admits, Answer, Author, JobHead, JobSpec, KeptSecret, Message, NodeInfo, Query, Roster, limits,
    membership::{Body, News, Packet},
    roster::Word,
    secret::is_secret_name,
    text::is_name,
};
use std::collections::BTreeSet;

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
        Message::Swim(Packet { body, news, .. }) => {
            let is_wide = |addrs: &Vec<_>| addrs.len() > limits::MEMBER_ADDRS;
            let is_wide_news = |news: &News| matches!(news, News::Alive { addrs, .. } if is_wide(addrs));
            check(news.len() <= limits::SWIM_NEWS, "too much news of members")?;
            check(!news.iter().any(is_wide_news), "a member with too many addresses")?;
            check(!matches!(body, Body::Join { addrs, .. } if is_wide(addrs)), "a sender with too many addresses")
        }
        Message::Info(info) => {
            check(is_bounded(info), "an oversized node description")?;
            // Printed by everybody, and compared by eye.
            check(is_name(&info.name), "a node's name with control characters")
        }
        Message::Heads(heads) => {
            let is_long = |head: &JobHead| {
                head.name.len() > limits::MAX_NAME_BYTES
                    || head.reason.as_ref().is_some_and(|why| why.len() > limits::MAX_REASON_BYTES)
            };
            check(heads.len() <= limits::HEADS_BATCH, "too many job heads")?;
            check(!heads.iter().any(is_long), "an oversized name of a job, or reason for its end")?;
            let is_wide =
                |head: &JobHead| head.saved.as_ref().is_some_and(|saved| saved.nodes.len() > limits::CHECKPOINT_NODES);
            check(!heads.iter().any(is_wide), "a checkpoint on too many nodes")?;
            check(heads.iter().all(is_small), "an oversized job head")
        }
        Message::Removed(jobs) => check(jobs.len() <= limits::REMOVED_BATCH, "too many removed jobs"),
        Message::Offer { head, .. } if !is_small(head) => Err(BadMessage::Invalid("an oversized job head")),
        Message::Offer { spec: Some(spec), .. } => validate_spec(spec),
        Message::Ask { query: Query::Submit { spec, .. }, .. } => validate_spec(spec),
        Message::Ask { query: Query::CancelTasks { tasks, .. }, .. } => {
            check(tasks.len() <= limits::MAX_CANCELLED, "too many tasks to cancel")
        }
        Message::Replicate { records, .. } | Message::Pulled { records, .. } => {
            check(records.len() <= limits::RECORD_BATCH, "too many records")
        }
        Message::HeadsDigests { digests, .. } => check(digests.len() <= limits::HEADS_BUCKETS, "too many digests"),
        Message::Digests { digests, .. } => {
            let most = limits::MAX_TASKS.div_ceil(u64::from(limits::DIGEST_CHUNK)) as usize;
            check(digests.len() <= most, "too many digests")
        }
        Message::Pull { cells, .. } => check(cells.len() <= limits::DIGEST_CHUNK as usize, "too many cells"),
        Message::Assign { tasks, .. } => check(tasks.len() <= limits::MAX_PREFETCH as usize, "too many assignments"),
        Message::Report { refuses: Some(why), .. } => {
            check(why.len() <= limits::MAX_REASON_BYTES, "an oversized reason to refuse a job")
        }
        Message::Ask { query: Query::PutSecret { name, sealed }, .. } => {
            check(is_secret_of(name, sealed.as_deref()), "an impossible secret")
        }
        Message::Secrets(secrets) => {
            check(secrets.len() <= limits::MAX_SECRETS, "too many secrets")?;
            check(secrets.iter().all(is_secret), "an impossible secret")
        }
        Message::Answer { answer: Ok(Answer::Explanation(lines)), .. } => {
            check(lines.len() <= limits::MAX_EXPLANATION, "too long an explanation")
        }
        Message::Roster(roster) => check(is_sane(roster), "an oversized roster, or a name with control characters"),
        Message::Metrics { points, .. } => check(points.len() <= limits::METRIC_POINTS, "too many values of a metric"),
        _ => Ok(()),
    }
}

/// Whether nodes keep such a one.
pub(super) fn is_secret(secret: &KeptSecret) -> bool {
    is_secret_of(&secret.name, secret.sealed.as_deref())
}

fn is_secret_of(name: &str, sealed: Option<&[u8]>) -> bool {
    is_secret_name(name) && sealed.is_none_or(|sealed| sealed.len() <= limits::MAX_SEALED_SECRET_BYTES)
}

fn is_bounded(info: &NodeInfo) -> bool {
    let is_short = |text: &str| text.len() <= limits::MAX_LABEL_BYTES;
    let counts = info.addrs.len() <= 64 && info.gpus.len() <= 256 && info.labels.len() <= 256;
    let labels = info.labels.iter().all(|(key, value)| is_short(key) && is_short(value));
    let problem = info.problem.as_ref().is_none_or(|why| why.len() <= limits::MAX_REASON_BYTES);
    counts
        && labels
        && problem
        && admits(&info.admits)
        && [&info.name, &info.model, &info.software].into_iter().all(|text| is_short(text))
}

fn admits(admits: &Admits) -> bool {
    let lists = [&admits.users, &admits.nodes, &admits.commands];
    let is_short = |list: &&Vec<String>| {
        list.len() <= limits::MAX_ADMITS && list.iter().all(|pattern| pattern.len() <= limits::MAX_LABEL_BYTES)
    };
    lists.iter().all(is_short) && admits.kinds.len() <= limits::MAX_ADMITS
}

fn is_sane(roster: &Roster) -> bool {
    let is_sane = |word: &Word| word.name.len() <= limits::MAX_LABEL_BYTES && is_name(&word.name);
    let rotation = roster.rotation.as_ref().is_none_or(|rotation| {
        let secret = &rotation.secret.0;
        let is_listed = |nodes: &BTreeSet<_>| nodes.len() <= limits::MAX_WORDS;
        let is_secret = !secret.trim().is_empty() && secret.len() <= limits::MAX_CLUSTER_SECRET_BYTES;
        is_secret && is_listed(&rotation.listed) && is_listed(&rotation.changed)
    });
    roster.words.len() <= limits::MAX_WORDS && roster.words.values().all(is_sane) && rotation
}

fn is_small(head: &JobHead) -> bool {
    head.name.len() <= limits::MAX_NAME_BYTES && head.after.len() <= limits::MAX_AFTER && is_somebody(&head.author)
}

/// Printed by everybody, and compared by eye.
fn is_somebody(author: &Author) -> bool {
    let is_short = |text: &str| text.len() <= limits::MAX_LABEL_BYTES;
    is_short(&author.user)
        && is_short(&author.node)
        && is_name(&author.user)
        && (author.node.is_empty() || is_name(&author.node))
}

/// The invariants of a specification from outside: `ParamSpace::get` and `task_count` rely on them.
pub fn validate_spec(spec: &JobSpec) -> Result<(), BadMessage> {
    use nodectl_types::ParamSpace;
    let check = |holds: bool, problem| if holds { Ok(()) } else { Err(BadMessage::Invalid(problem)) };
    check(spec.work.has_program(), "a job without a command")?;
    check(spec.work.name.len() <= limits::MAX_NAME_BYTES, "a job with a name of more than 256 bytes")?;
    check(is_somebody(&spec.work.author), "a job of a user with an impossible name")?;
    check(spec.work.after.len() <= limits::MAX_AFTER, "a job that comes after more than 256 others")?;
    check((1..=limits::MAX_TASKS).contains(&spec.task_count()), "a job without tasks, or with too many")?;
    if let ParamSpace::Rows { columns, cells } = &spec.params {
        check(!columns.is_empty() && cells.len() % columns.len() == 0, "parameter rows of unequal length")?;
    }
    Ok(())
}
