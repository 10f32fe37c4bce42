//! Tests of the wire formats: their bytes are held in `tests/golden/`, decoders survive whatever
//! they are given. Two nodes that disagree about these bytes corrupt each other's state, so a
//! change must be deliberate.
//!
//! | file | owns |
//! |---|---|
//! | `samples` | one value of every variant |

mod samples;

use super::{
    control,
    journal::{self, READABLE},
};
use data_encoding::HEXLOWER;
use nodectl_types::{
    Answer, Attempt, Author, Builtin, Failure, Isolation, JobHead, JobQuery, JobSpec, Message,
    NodeQuery, Query, QueryError, Record, TaskRecord, WorkSpec, limits, query::Location,
};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use std::{fmt::Debug, path::PathBuf, sync::Arc};

#[test]
fn messages_have_the_bytes_of_their_protocol_version() {
    let encoded = samples::messages()
        .into_iter()
        .map(|message| (name(&message), encode(&message)));
    check(
        "messages.txt",
        limits::PROTOCOL_VERSION,
        "limits::PROTOCOL_VERSION",
        encoded.collect(),
    );
}

#[test]
fn records_have_the_bytes_of_their_journal_version() {
    let encoded = samples::records()
        .into_iter()
        .map(|record| (name(&record), journal::encode(&record)));
    check(
        "records.txt",
        super::journal::JOURNAL_VERSION,
        "journal::JOURNAL_VERSION",
        encoded.collect(),
    );
}

/// A node that is brought up to date reads what it wrote before.
#[test]
fn records_of_the_version_before_are_read() {
    let held =
        std::fs::read_to_string(golden("records-before.txt")).expect("the golden file exists");
    let mut lines = held.lines();
    assert_eq!(
        lines.next(),
        Some(format!("version {}", READABLE.start()).as_str())
    );
    for line in lines {
        let (name, hex) = line.split_once(' ').expect("a name and hex digits");
        let bytes = HEXLOWER.decode(hex.as_bytes()).expect("hex digits");
        let record = journal::decode_version(*READABLE.start(), &bytes).expect(name);
        assert!(
            samples::records()
                .into_iter()
                .map(as_before)
                .any(|sample| sample == record),
            "{name} is not what it was: {record:?}"
        );
    }
}

/// A record without what the version before did not have.
fn as_before(record: Record) -> Record {
    match record {
        Record::Spec(spec) => {
            let (author, isolation) = (Author::default(), Isolation::default());
            let mut after = spec.work.after.clone();
            after.retain(|after| after.beside().is_none());
            let work = WorkSpec {
                after,
                author,
                isolation,
                secrets: Vec::new(),
                checkpoint_dir: None,
                task_names: None,
                is_step: false,
                gang: None,
                kinds: Vec::new(),
                adaptive: false,
                ..(*spec.work).clone()
            };
            Record::Spec(Arc::new(JobSpec {
                work: Arc::new(work),
                ..(*spec).clone()
            }))
        }
        Record::Head(head) => Record::Head(JobHead {
            after: Vec::new(),
            author: Author::default(),
            is_step: false,
            given_up: 0,
            is_log: false,
            voters: None,
            open: None,
            ..head
        }),
        Record::Task(task) => Record::Task(Arc::new(TaskRecord {
            attempt: Attempt {
                claim: 0,
                ..task.attempt
            },
            accepted: task.attempt.epoch,
            params: Vec::new(),
            row: None,
            ..(*task).clone()
        })),
    }
}

#[test]
fn every_variant_has_a_sample() {
    let messages = samples::messages();
    assert_eq!(distinct(&messages), variants::<Message>());
    assert_eq!(distinct(&samples::queries()), variants::<Query>());
    assert_eq!(distinct(&samples::job_queries()), variants::<JobQuery>());
    assert_eq!(distinct(&samples::node_queries()), variants::<NodeQuery>());
    assert_eq!(distinct(&samples::answers()), variants::<Answer>());
    assert_eq!(distinct(&samples::query_errors()), variants::<QueryError>());
    assert_eq!(distinct(&samples::failures()), variants::<Failure>());
    assert_eq!(distinct(&samples::locations()), variants::<Location>());
    assert_eq!(distinct(&samples::records()), variants::<Record>());
    // Each is sent to a worker.
    assert_eq!(Builtin::ALL.len(), variants::<Builtin>());
}

#[test]
fn decoding_inverts_encoding() {
    for message in samples::messages() {
        assert_eq!(control::decode(&encode(&message)), Ok(message));
    }
    for record in samples::records() {
        assert_eq!(journal::decode(&journal::encode(&record)), Ok(record));
    }
}

#[test]
fn a_truncated_or_extended_message_is_refused() {
    for message in samples::messages() {
        let mut bytes = encode(&message);
        for length in 0..bytes.len() {
            assert!(
                control::decode(&bytes[..length]).is_err(),
                "{} cut to {length}",
                name(&message)
            );
        }
        bytes.push(0);
        assert_eq!(
            control::decode(&bytes),
            Err(control::BadMessage::Invalid("bytes left over"))
        );
    }
    for record in samples::records() {
        let mut bytes = journal::encode(&record);
        assert!(
            (0..bytes.len()).all(|length| journal::decode(&bytes[..length]).is_err()),
            "{}",
            name(&record)
        );
        bytes.push(0);
        assert!(journal::decode(&bytes).is_err());
    }
}

#[test]
fn sizes_beyond_the_limits_are_refused() {
    assert!(matches!(
        control::decode(&vec![0; limits::MAX_MESSAGE_BYTES + 1]),
        Err(control::BadMessage::TooLarge(_))
    ));
    for (message, limit) in samples::oversized() {
        let bytes = postcard::to_stdvec(&message).expect("plain data always encodes");
        assert!(
            control::decode(&bytes).is_err(),
            "{} beyond {limit}",
            name(&message)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = control::decode(&bytes);
        let _ = journal::decode(&bytes);
    }

    /// Near-valid input reaches deeper than noise. What still decodes must survive the way out and
    /// in again.
    #[test]
    fn damaged_messages_are_refused_or_are_messages(
        pick in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let all = samples::messages();
        let mut bytes = encode(pick.get(&all));
        for (at, byte) in &damage {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        if let Ok(message) = control::decode(&bytes) {
            let again = encode(&message);
            // Bytes are compared, not values: damage can make a NaN.
            prop_assert_eq!(encode(&control::decode(&again).expect("its own encoding")), again);
        }
    }

    #[test]
    fn damaged_records_are_refused_or_are_records(
        pick in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let all = samples::records();
        let mut bytes = journal::encode(pick.get(&all));
        for (at, byte) in &damage {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        if let Ok(record) = journal::decode(&bytes) {
            let again = journal::encode(&record);
            let read = journal::decode(&again).expect("its own encoding");
            prop_assert_eq!(journal::encode(&read), again);
        }
    }
}

fn encode(message: &Message) -> Vec<u8> {
    control::encode(message).expect("samples are small")
}

/// The variant, and those inside for questions and answers: `Ask.Nodes`, `Ask.Job.Cancel`.
fn name(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    let word = |text: &str| {
        text.chars()
            .take_while(|c| c.is_alphanumeric())
            .collect::<String>()
    };
    let inner = ["query: ", "answer: Ok(", "answer: Err(", "outcome: Failed("]
        .iter()
        .find_map(|mark| {
            let (_, after) = text.split_once(mark)?;
            Some(after)
        });
    // Behind the job or the node that is asked.
    let asked = text.split_once("query: ").and_then(|(_, query)| {
        let to_one = query.starts_with("Job(") || query.starts_with("Node(");
        let (_, inside) = query.split_once(", ").filter(|_| to_one)?;
        Some(word(inside))
    });
    [Some(word(&text)), inner.map(word), asked]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(".")
}

fn golden(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden")
        .join(file)
}

/// Compares with the file, or writes it if `UPDATE_GOLDEN` is set.
fn check(file: &str, version: u32, constant: &str, encoded: Vec<(String, Vec<u8>)>) {
    let path = golden(file);
    let lines = encoded
        .iter()
        .map(|(name, bytes)| format!("{name} {}\n", HEXLOWER.encode(bytes)));
    let now = format!("version {version}\n{}", lines.collect::<String>());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &now).expect("the golden file is writable");
    }
    let held = std::fs::read_to_string(&path).expect("the golden file exists");
    let changed = now
        .lines()
        .zip(held.lines())
        .find(|(now, held)| now != held);
    let lengths = (now.lines().count(), held.lines().count());
    assert!(
        changed.is_none() && lengths.0 == lengths.1,
        "the bytes of {file} changed: {changed:?}, lines {lengths:?}\nIf a release has spoken the old ones, raise \
         `{constant}`, so that older nodes refuse newer ones instead of misreading them. Then run the test with \
         UPDATE_GOLDEN=1."
    );
}

/// How many variants an enum has, by asking its decoder: it knows variant n, or says that there is
/// none.
fn variants<T: DeserializeOwned>() -> usize {
    let unknown = |n: &u8| {
        matches!(
            postcard::from_bytes::<T>(&[*n]),
            Err(postcard::Error::SerdeDeCustom)
        )
    };
    usize::from((0..127).find(unknown).expect("fewer than 127 variants"))
}

/// How many different variants the samples have.
fn distinct<T: serde::Serialize>(samples: &[T]) -> usize {
    let index = |sample| postcard::to_stdvec(sample).expect("plain data always encodes")[0];
    samples
        .iter()
        .map(index)
        .collect::<std::collections::BTreeSet<u8>>()
        .len()
}
