//! What a user is told is done is on the disk: the answer waits for the note that says it.

use super::*;
use nodectl_types::{Decision, OwnerWord, Pause, Retention, Standing};

const BETA: NodeId = NodeId([2; 32]);

fn ask(id: u64, query: Query) -> Input {
    Input::Ask { id, query }
}

fn at(ms: u64) -> Now {
    Now {
        mono: Time::default() + Duration::from_millis(ms),
        wall_ms: ms,
    }
}

/// The notes that have to be on the disk before local user `id` has an answer; None if that comes
/// without any.
fn awaited(effects: &[Effect], id: u64) -> Option<Note> {
    effects.iter().find_map(|effect| match effect {
        Effect::Keep {
            note,
            then: Some((Asker::Local(of), _)),
        } if *of == id => Some(note.clone()),
        _ => None,
    })
}

#[test]
fn whatever_is_to_outlast_the_node_is_answered_when_it_is_on_the_disk() {
    let mut state = node();
    let me = state.node();
    let job = JobId(7);
    state.restore_retention(Retention {
        removed: [(job, 0)].into(),
        ..Default::default()
    });
    state.start();
    let secret = |sealed| Query::PutSecret {
        name: "TOKEN".into(),
        sealed,
    };
    let judge = |standing| {
        Query::Roster(Some(Decision::Judge {
            node: BETA,
            standing,
        }))
    };
    let pause = Pause {
        until_ms: None,
        finish: false,
    };
    let told = [
        Query::Pause(Some(pause)),
        Query::Pause(None),
        Query::Node(me, NodeQuery::Drain { on: true }),
        Query::Node(me, NodeQuery::Drain { on: false }),
        Query::Node(
            me,
            NodeQuery::Forget {
                lost: BETA,
                sure: true,
            },
        ),
        // Asked again: the first answer may have been lost with the first note.
        Query::Remove { job },
        secret(Some(vec![1])),
        secret(None),
        judge(Standing::Banned),
        judge(Standing::Unknown),
        Query::Roster(Some(Decision::Admission { approve: true })),
    ];
    for (id, query) in told.into_iter().enumerate() {
        let text = format!("{query:?}");
        let effects = state.handle(at(id as u64 + 1), [ask(id as u64, query)]);
        assert!(
            awaited(&effects, id as u64).is_some(),
            "{text}: {effects:?}"
        );
        assert_eq!(answers(&effects), [] as [&Result<_, _>; 0], "{text}");
    }
}

#[test]
fn what_is_refused_or_only_asked_waits_for_nothing() {
    let mut state = node();
    let me = state.node();
    let forget = Query::Node(
        me,
        NodeQuery::Forget {
            lost: BETA,
            sure: false,
        },
    );
    let job = JobId(7);
    let dropped = Query::PutSecret {
        name: "TOKEN".into(),
        sealed: None,
    };
    for query in [forget, Query::Remove { job }, dropped, Query::Roster(None)] {
        let effects = state.handle(at(1), [ask(1, query)]);
        assert_eq!(answers(&effects).len(), 1, "{effects:?}");
    }
}

#[test]
fn who_was_forgotten_is_so_in_the_next_life_until_it_is_back() {
    let mut state = node();
    let forget = Query::Node(
        state.node(),
        NodeQuery::Forget {
            lost: BETA,
            sure: true,
        },
    );
    let effects = state.handle(at(1), [ask(1, forget)]);
    let Some(Note::Owner(word)) = awaited(&effects, 1) else {
        panic!("{effects:?}")
    };
    let mut next = node();
    next.restore_owner(word);
    next.start();
    assert!(next.core().members.is_forgotten(BETA));
    // Another word leaves this one as it was.
    let effects = next.handle(at(2), [ask(1, Query::Pause(None))]);
    let Some(Note::Owner(word)) = awaited(&effects, 1) else {
        panic!("{effects:?}")
    };
    assert_eq!(word.forgotten, [BETA].into());
    let effects = next.handle(at(3), [Input::PeerUp(BETA)]);
    let forgets = |effect: &Effect| {
        let word = match effect {
            Effect::Keep {
                note: Note::Owner(word),
                then: None,
            } => word,
            _ => return false,
        };
        *word == OwnerWord::default()
    };
    assert!(effects.iter().any(forgets), "{effects:?}");
}
