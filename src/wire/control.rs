//! Control messages between nodes: postcard, length first, validated before use.

use super::{beginnings::are_first_voters, members::are_sane};
use nodectl_types::{
    Admits, Answer, Author, Beginning, CopyDigest, Gang, GangWord, JobHead, JobQuery, JobSpec,
    KeptSecret, Message, NodeId, NodeInfo, Params, Query, Roster, RowSet, TaskRecord, Voters,
    WorkSpec,
    check::row_bytes,
    event::ClusterEvent,
    history::{GpuPage, LoadPage},
    limits,
    membership::{Body, MemberRecords, News, Packet},
    message::Assignment,
    query::EntryKey,
    roster::Word,
    secret::is_secret_name,
    text::is_name,
};
use std::{collections::BTreeSet, sync::Arc};

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
    if bytes.len() > limits::MAX_MESSAGE_BYTES {
        Err(BadMessage::TooLarge(bytes.len()))
    } else {
        Ok(bytes)
    }
}

/// Inverse of `encode`. Postcard never allocates more than the input has bytes left, so memory is
/// bounded by `MAX_MESSAGE_BYTES` times the size of the largest element.
pub fn decode(bytes: &[u8]) -> Result<Message, BadMessage> {
    if bytes.len() > limits::MAX_MESSAGE_BYTES {
        return Err(BadMessage::TooLarge(bytes.len()));
    }
    let (message, rest) = postcard::take_from_bytes(bytes)
        .map_err(|error| BadMessage::Malformed(error.to_string()))?;
    if !rest.is_empty() {
        return Err(BadMessage::Invalid("bytes left over"));
    }
    validate(&message)?;
    Ok(message)
}

fn check(holds: bool, problem: &'static str) -> Result<(), BadMessage> {
    if holds {
        Ok(())
    } else {
        Err(BadMessage::Invalid(problem))
    }
}

fn validate_shown(shown: &CopyDigest) -> Result<(), BadMessage> {
    let most = limits::MAX_TASKS.div_ceil(u64::from(limits::DIGEST_CHUNK)) as usize;
    match shown {
        CopyDigest::Chunks(digests) => check(digests.len() <= most, "too many digests"),
        CopyDigest::Whole(_) => Ok(()),
    }
}

/// Checks what the types alone do not say. A new message is decided upon here: what has neither
/// list nor text passes.
fn validate(message: &Message) -> Result<(), BadMessage> {
    match message {
        Message::Swim(packet) => validate_packet(packet),
        Message::Info(info) => validate_info(info),
        Message::Heads(heads) => {
            check(heads.len() <= limits::HEADS_BATCH, "too many job heads")?;
            heads.iter().try_for_each(validate_head)
        }
        Message::Removed(jobs) => check(jobs.len() <= limits::REMOVED_BATCH, "too many removed jobs"),
        Message::Offer { head, spec } => {
            validate_head(head)?;
            spec.as_deref().map_or(Ok(()), validate_spec)
        }
        Message::Replicate { head, records, .. } => {
            check(records.len() <= limits::RECORD_BATCH, "too many records")?;
            head.as_deref().map_or(Ok(()), validate_head)
        }
        Message::Pulled { records, .. } => check(records.len() <= limits::RECORD_BATCH, "too many records"),
        Message::HeadsDigests { digests, .. } => check(digests.len() <= limits::HEADS_BUCKETS, "too many digests"),
        Message::Digests { shown, .. } => validate_shown(shown),
        Message::Pull { cells, .. } => check(cells.len() <= limits::DIGEST_CHUNK as usize, "too many cells"),
        Message::Assign { work, tasks, .. } => {
            check(tasks.len() <= limits::MAX_PREFETCH as usize, "too many assignments")?;
            let are_few = |task: &Assignment| task.needs.len() <= limits::MAX_NEEDS;
            check(tasks.iter().all(are_few), "a task that needs too many others")?;
            work.as_deref().map_or(Ok(()), validate_work)
        }
        Message::Report { refuses, finished, .. } => {
            let is_end = |record: &Arc<TaskRecord>| !record.is_added();
            check(finished.iter().all(is_end), "a report of a task that has not ended")?;
            let is_short = refuses.as_ref().is_none_or(|why| why.len() <= limits::MAX_REASON_BYTES);
            check(is_short, "an oversized reason to refuse a job")
        }
        Message::Metrics { points, .. } => check(points.len() <= limits::METRIC_POINTS, "too many values of a metric"),
        Message::Ask { query, .. } => validate_query(query),
        Message::Answer { answer, .. } => answer.as_ref().map_or(Ok(()), validate_answer),
        Message::AskBallot { voters, .. } => validate_first(voters.as_deref()),
        Message::BallotTold { known, members, .. } => validate_told(known, members),
        Message::Secrets(secrets) => {
            check(secrets.len() <= limits::MAX_SECRETS, "too many secrets")?;
            check(secrets.iter().all(is_secret), "an impossible secret")
        }
        Message::Roster(roster) => validate_roster(roster),
        Message::AssignGang { work, seats, .. } => {
            check(seats.len() <= limits::MAX_RANKS as usize, "a gang on too many nodes")?;
            validate_work(work)
        }
        Message::GangMissed { missed, .. } => {
            check(missed.len() <= limits::MAX_RANKS as usize, "a gang on too many nodes")?;
            let is_short = missed.iter().all(|(_, why)| why.len() <= limits::MAX_REASON_BYTES);
            check(is_short, "an oversized reason not to take part in a gang")
        }
        Message::Gang { word, .. } => validate_gang_word(word),
        // What is in lists of these is looked up one by one, and what is unknown passed over; texts
        // are shown, and shortened then.
        Message::Declined { .. }
        | Message::Stop { .. }
        | Message::ReportKept { .. }
        | Message::Holding { .. }
        // Numbers.
        | Message::Describe
        | Message::OfferKept { .. }
        | Message::ReplicateKept { .. }
        | Message::CaughtUp { .. }
        | Message::NoCopy { .. }
        | Message::VoteRefused { .. }
        | Message::Recall { .. }
        | Message::NeedWork { .. }
        | Message::Sync { .. }
        | Message::Leaving
        | Message::Release { .. }
        | Message::SecretsDigest(_) => Ok(()),
    }
}

fn validate_told(known: &Beginning, members: &MemberRecords) -> Result<(), BadMessage> {
    check(
        are_sane(members),
        "too many members, or one with an impossible name",
    )?;
    let accepted = known.accepted.as_ref();
    validate_first(accepted.map(|(_, voters)| voters.as_slice()))
}

fn validate_first(voters: Option<&[NodeId]>) -> Result<(), BadMessage> {
    let are_few = voters.is_none_or(are_first_voters);
    check(are_few, "too many first voters, or none")
}

fn validate_gang_word(word: &GangWord) -> Result<(), BadMessage> {
    let most = limits::MAX_RANKS as usize;
    match word {
        GangWord::Reserve { work, seat, .. } => {
            check(*seat < limits::MAX_RANKS, "an impossible place in a gang")?;
            validate_work(work)
        }
        GangWord::Start { seats, heard, .. } => check(
            seats.len() <= most && heard.len() <= most,
            "a gang of too many",
        ),
        GangWord::Ended { rank, .. } | GangWord::Abort { rank, .. } => {
            check(*rank < limits::MAX_RANKS, "an impossible rank in a gang")
        }
        GangWord::Gone { why } => check(
            why.len() <= limits::MAX_REASON_BYTES,
            "an oversized reason not to take part in a gang",
        ),
        GangWord::Grow { nodes } => check(nodes.len() <= most, "a gang of too many"),
        GangWord::Probe { work } => validate_work(work),
        GangWord::Keep | GangWord::Stop | GangWord::Ready | GangWord::Waits => Ok(()),
    }
}

fn validate_query(query: &Query) -> Result<(), BadMessage> {
    match query {
        Query::Submit { spec, .. } => validate_spec(spec),
        Query::PutSecret { name, sealed } => check(
            is_secret_of(name, sealed.as_deref()),
            "an impossible secret",
        ),
        Query::Job(_, query) => validate_job_query(query),
        // None of what a node is asked about itself has a size of its own.
        Query::Node(_, _)
        | Query::Nodes
        | Query::Jobs
        | Query::Remove { .. }
        | Query::Resume { .. }
        | Query::Aside
        | Query::Pause(_)
        | Query::Secrets
        | Query::Roster(_) => Ok(()),
    }
}

fn validate_job_query(query: &JobQuery) -> Result<(), BadMessage> {
    match query {
        JobQuery::Append { value, .. } => check(
            value.len() <= limits::MAX_RESULT_BYTES,
            "an oversized entry of a log",
        ),
        JobQuery::Add { rows } => check(are_rows(rows), "too many tasks to add"),
        JobQuery::CancelTasks { tasks } => check(
            tasks.len() <= limits::MAX_CANCELLED,
            "too many tasks to cancel",
        ),
        JobQuery::Detail
        | JobQuery::Tasks { .. }
        | JobQuery::Watch { .. }
        | JobQuery::Locate { .. }
        | JobQuery::Explain { .. }
        | JobQuery::Cancel
        | JobQuery::Close
        | JobQuery::Retry
        | JobQuery::Saved { .. } => Ok(()),
    }
}

fn are_rows(rows: &[(EntryKey, Params)]) -> bool {
    let bytes: usize = rows.iter().map(|(_, row)| row_bytes(row)).sum();
    rows.len() <= limits::MAX_ADDED && bytes <= limits::MAX_ADDED_BYTES
}

fn validate_answer(answer: &Answer) -> Result<(), BadMessage> {
    match answer {
        Answer::Explanation(lines) => check(
            lines.len() <= limits::MAX_EXPLANATION,
            "too long an explanation",
        ),
        Answer::Nodes(lines) => lines.iter().try_for_each(|line| validate_info(&line.info)),
        Answer::Jobs(heads) => heads.iter().try_for_each(validate_head),
        Answer::Roster(roster) => validate_roster(roster),
        Answer::History(page) => check(is_page(page), "an impossible load over time"),
        Answer::Events(events) => check(are_events(events), "impossible events"),
        // For whoever asked: kept by nobody.
        Answer::Ok
        | Answer::Submitted { .. }
        | Answer::Load(_)
        | Answer::Job(_)
        | Answer::Tasks { .. }
        | Answer::Watch { .. }
        | Answer::Where(_)
        | Answer::Log { .. }
        | Answer::Training(_)
        | Answer::Retried { .. }
        | Answer::Appended { .. }
        | Answer::KeysUnknown { .. }
        | Answer::Added { .. }
        | Answer::Aside(_)
        | Answer::Secrets(_)
        | Answer::Program(_) => Ok(()),
    }
}

fn are_events(events: &[ClusterEvent]) -> bool {
    let is_sane = |event: &ClusterEvent| {
        event.name.len() <= limits::MAX_NAME_BYTES && event.text.len() <= limits::EVENT_TEXT_BYTES
    };
    events.len() <= 2 * limits::EVENTS && events.iter().all(is_sane)
}

fn is_page(page: &LoadPage) -> bool {
    let is_short = |text: &str| is_name(text) && text.len() <= limits::MAX_NAME_BYTES;
    let is_gpu = |gpu: &GpuPage| is_short(&gpu.id) && is_short(&gpu.name);
    page.rows() <= limits::HISTORY_ROWS && page.is_sound() && page.gpus.iter().all(is_gpu)
}

fn validate_packet(Packet { body, news, .. }: &Packet) -> Result<(), BadMessage> {
    let is_wide = |addrs: &Vec<_>| addrs.len() > limits::MEMBER_ADDRS;
    let is_wide_news = |news: &News| matches!(news, News::Alive { addrs, .. } if is_wide(addrs));
    check(news.len() <= limits::SWIM_NEWS, "too much news of members")?;
    check(
        !news.iter().any(is_wide_news),
        "a member with too many addresses",
    )?;
    check(
        !matches!(body, Body::Join { addrs, .. } if is_wide(addrs)),
        "a sender with too many addresses",
    )
}

fn validate_info(info: &NodeInfo) -> Result<(), BadMessage> {
    check(is_bounded(info), "an oversized node description")?;
    // Printed by everybody, and compared by eye.
    check(is_name(&info.name), "a node's name with control characters")
}

fn validate_head(head: &JobHead) -> Result<(), BadMessage> {
    let is_short = head
        .reason
        .as_ref()
        .is_none_or(|why| why.len() <= limits::MAX_REASON_BYTES);
    check(is_short, "an oversized reason for a job's end")?;
    let is_narrow = head
        .saved
        .as_ref()
        .is_none_or(|saved| saved.nodes.len() <= limits::CHECKPOINT_NODES);
    check(is_narrow, "a checkpoint on too many nodes")?;
    let is_few = |voters: &Voters| voters.sets().all(|set| set.len() <= limits::MAX_VOTERS);
    check(head.voters.as_deref().is_none_or(is_few), "too many voters")?;
    check(is_small(head), "an oversized job head")
}

fn validate_roster(roster: &Roster) -> Result<(), BadMessage> {
    check(
        is_sane(roster),
        "an oversized roster, or a name with control characters",
    )
}

/// Whether nodes keep such a one.
pub(super) fn is_secret(secret: &KeptSecret) -> bool {
    is_secret_of(&secret.name, secret.sealed.as_deref())
}

fn is_secret_of(name: &str, sealed: Option<&[u8]>) -> bool {
    is_secret_name(name)
        && sealed.is_none_or(|sealed| sealed.len() <= limits::MAX_SEALED_SECRET_BYTES)
}

fn is_bounded(info: &NodeInfo) -> bool {
    let is_short = |text: &str| text.len() <= limits::MAX_LABEL_BYTES;
    let counts = info.addrs.len() <= 64 && info.gpus.len() <= 256 && info.labels.len() <= 256;
    let labels = info
        .labels
        .iter()
        .all(|(key, value)| is_short(key) && is_short(value));
    let problem = info
        .problem
        .as_ref()
        .is_none_or(|why| why.len() <= limits::MAX_REASON_BYTES);
    counts
        && labels
        && problem
        && admits(&info.admits)
        && [&info.name, &info.model, &info.software]
            .into_iter()
            .all(|text| is_short(text))
}

fn admits(admits: &Admits) -> bool {
    let lists = [&admits.users, &admits.nodes, &admits.commands];
    let is_short = |list: &&Vec<String>| {
        list.len() <= limits::MAX_ADMITS
            && list
                .iter()
                .all(|pattern| pattern.len() <= limits::MAX_LABEL_BYTES)
    };
    lists.iter().all(is_short) && admits.kinds.len() <= limits::MAX_ADMITS
}

fn is_sane(roster: &Roster) -> bool {
    let is_sane = |word: &Word| word.name.len() <= limits::MAX_LABEL_BYTES && is_name(&word.name);
    let rotation = roster.rotation.as_ref().is_none_or(|rotation| {
        let secret = &rotation.secret.0;
        let is_listed = |nodes: &BTreeSet<_>| nodes.len() <= limits::MAX_WORDS;
        let is_secret =
            !secret.trim().is_empty() && secret.len() <= limits::MAX_CLUSTER_SECRET_BYTES;
        is_secret && is_listed(&rotation.listed) && is_listed(&rotation.changed)
    });
    roster.words.len() <= limits::MAX_WORDS && roster.words.values().all(is_sane) && rotation
}

fn is_small(head: &JobHead) -> bool {
    head.name.len() <= limits::MAX_NAME_BYTES
        && head.after.len() <= limits::MAX_AFTER
        && is_somebody(&head.author)
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
    validate_work(&spec.work)?;
    check(
        (1..=limits::MAX_TASKS).contains(&spec.task_count()),
        "a job without tasks, or with too many",
    )?;
    if let ParamSpace::Rows { columns, cells } = &spec.params {
        check(
            !columns.is_empty() && cells.len() % columns.len() == 0,
            "parameter rows of unequal length",
        )?;
    }
    if let ParamSpace::Parts(parts) = &spec.params {
        check(
            parts.iter().all(RowSet::is_sound),
            "parameter rows of unequal length",
        )?;
    }
    if let ParamSpace::Search(space) = &spec.params {
        check(
            space.is_sound() && spec.repeat == 1,
            "parameters of which nothing can be drawn",
        )?;
    }
    if let ParamSpace::Open(columns) = &spec.params {
        let is_sound = (1..=limits::MAX_ROW_COLUMNS).contains(&columns.len());
        check(
            is_sound && spec.repeat == 1,
            "an open job of impossible tasks",
        )?;
    }
    check(
        spec.needs.are_sound(spec.task_count()),
        "tasks that need impossible ones",
    )
}

fn validate_work(work: &WorkSpec) -> Result<(), BadMessage> {
    check(work.has_program(), "a job without a command")?;
    let is_possible =
        |gang: Gang| gang.nodes <= gang.most && (1..=limits::MAX_RANKS).contains(&gang.ranks());
    check(
        work.gang.is_none_or(is_possible),
        "a job whose tasks are no processes, or too many",
    )?;
    check(
        work.name.len() <= limits::MAX_NAME_BYTES,
        "a job with a name of more than 256 bytes",
    )?;
    check(
        is_somebody(&work.author),
        "a job of a user with an impossible name",
    )?;
    check(
        work.after.len() <= limits::MAX_AFTER,
        "a job that comes after more than 256 others",
    )?;
    check(
        work.kinds.len() <= limits::MAX_TASK_KINDS,
        "a job of too many kinds of tasks",
    )
}
