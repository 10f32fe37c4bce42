//! Bans, admissions and the change of the secret, between nodes of paper.

use super::{answers, info, node};
use crate::{Config, Effect, Input, Note, Now, State};
use nodectl_types::{
    Decision, KeptSecret, Message, NodeId, NodeInfo, Query, QueryError, Roster, Standing, Terms,
    Time, roster::SecretText,
};
use std::time::Duration;

const ALPHA: NodeId = NodeId([1; 32]);
const BETA: NodeId = NodeId([2; 32]);

fn at(ms: u64) -> Now {
    Now {
        mono: Time::default() + Duration::from_millis(ms),
        wall_ms: ms,
    }
}

fn decide(decision: Decision) -> Input {
    Input::Ask {
        id: 1,
        query: Query::Roster(Some(decision)),
    }
}

fn ban(node: NodeId) -> Decision {
    Decision::Judge {
        node,
        standing: Standing::Banned,
    }
}

/// Connected to another, which has described itself.
fn connected() -> State {
    let mut state = node();
    let described = Message::Info(Box::new(NodeInfo {
        id: BETA,
        name: "beta".into(),
        ..info(1)
    }));
    state.handle(
        at(1),
        [
            Input::PeerUp(BETA),
            Input::Message {
                from: BETA,
                message: described,
            },
        ],
    );
    state
}

fn adopted(effects: &[Effect]) -> Option<Roster> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::Keep {
            note: Note::Roster(roster),
            ..
        } => Some((**roster).clone()),
        _ => None,
    })
}

fn shown(effects: &[Effect]) -> Option<Roster> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::Send {
            message: Message::Roster(roster),
            ..
        } => Some((**roster).clone()),
        _ => None,
    })
}

#[test]
fn a_ban_is_told_kept_and_nothing_that_the_banned_one_says_is_heard() {
    let mut state = connected();
    let effects = state.handle(at(2), [decide(ban(BETA))]);
    let roster = adopted(&effects).expect("it is kept");
    assert!(roster.is_banned(BETA) && roster.words[&BETA].name == "beta");
    assert!(!state.core().members.may_be_alive(BETA));
    let late = Message::Info(Box::new(NodeInfo {
        id: BETA,
        version: 99,
        name: "late".into(),
        ..info(1)
    }));
    state.handle(
        at(3),
        [Input::Message {
            from: BETA,
            message: late,
        }],
    );
    assert_eq!(state.core().members.name(BETA), "beta");
    // Another node hears of it, and shows it to whoever connects.
    let gamma = NodeInfo {
        id: NodeId([3; 32]),
        ..info(1)
    };
    let config = Config {
        seed: 1,
        generation: 1,
        keep_jobs: Duration::from_secs(1),
        lifetime: None,
        terms: Terms::default(),
        alone: false,
    };
    let mut other = State::new(at(1), gamma, config);
    let effects = other.handle(
        at(4),
        [
            Input::PeerUp(ALPHA),
            Input::Message {
                from: ALPHA,
                message: Message::Roster(Box::new(roster.clone())),
            },
        ],
    );
    assert_eq!(adopted(&effects), Some(roster.clone()));
    assert_eq!(
        shown(&other.handle(at(5), [Input::PeerUp(NodeId([4; 32]))])),
        Some(roster.clone())
    );
    // What it knew before its restart it knows after it; a pardon is a later word.
    let mut again = node();
    again.restore_roster(roster);
    let effects = again.handle(
        at(6),
        [decide(Decision::Judge {
            node: BETA,
            standing: Standing::Unknown,
        })],
    );
    assert!(
        adopted(&effects)
            .is_some_and(|roster| !roster.is_banned(BETA) && roster.words[&BETA].version == 2)
    );
}

#[test]
fn what_makes_no_sense_is_refused_and_others_are_told_nothing() {
    let mut state = node();
    let effects = state.handle(at(1), [decide(ban(ALPHA))]);
    assert!(
        matches!(answers(&effects)[..], [Err(QueryError::Refused(why))] if why.contains("hint: "))
    );
    let effects = state.handle(at(2), [decide(Decision::Finish)]);
    assert!(matches!(
        answers(&effects)[..],
        [Err(QueryError::Refused(_))]
    ));
    let asked = Message::Ask {
        id: 7,
        query: Query::Roster(None),
    };
    let effects = state.handle(
        at(3),
        [
            Input::PeerUp(BETA),
            Input::Message {
                from: BETA,
                message: asked,
            },
        ],
    );
    let told = effects.iter().find_map(|effect| match effect {
        Effect::Send {
            message: Message::Answer { answer, .. },
            ..
        } => Some(answer.clone()),
        _ => None,
    });
    assert!(matches!(told, Some(Err(QueryError::Refused(_)))));
}

#[test]
fn a_change_of_the_secret_is_over_when_all_who_were_there_keep_it() {
    let mut state = connected();
    let rotate = |text: &str| {
        decide(Decision::Rotate {
            secret: SecretText(text.into()),
        })
    };
    let effects = state.handle(at(2), [rotate("new")]);
    let mut roster = adopted(&effects).expect("it is kept");
    assert_eq!(roster.missing().collect::<Vec<_>>(), [ALPHA, BETA]);
    let effects = state.handle(at(3), [Input::SecretKept(SecretText("new".into()))]);
    assert!(adopted(&effects).is_some_and(|roster| roster.missing().eq([BETA])));
    let effects = state.handle(at(4), [rotate("newer")]);
    assert!(
        matches!(answers(&effects)[..], [Err(QueryError::Refused(why))] if why.contains("beta"))
    );
    roster.rotation.as_mut().unwrap().changed.insert(BETA);
    let heard = Input::Message {
        from: BETA,
        message: Message::Roster(Box::new(roster)),
    };
    let effects = state.handle(at(5), [heard]);
    assert!(adopted(&effects).is_some_and(|roster| !roster.is_under_way()));
    assert!(
        shown(&effects).is_some(),
        "it lacks that this node has changed"
    );
    let effects = state.handle(at(6), [rotate("newer")]);
    assert!(adopted(&effects).is_some_and(|roster| roster.rotation.unwrap().number == 2));
}

#[test]
fn named_secrets_are_sealed_anew_once_for_each_change_and_compared_then() {
    let mut state = connected();
    let secret = |sealed: &[u8]| KeptSecret {
        name: "TOKEN".into(),
        version: 1,
        changed_ms: 0,
        sealed: Some(sealed.to_vec()),
    };
    let told = Message::Secrets(vec![secret(b"z by the key before")]);
    state.handle(
        at(2),
        [Input::Message {
            from: BETA,
            message: told,
        }],
    );
    state.handle(
        at(3),
        [decide(Decision::Rotate {
            secret: SecretText("new".into()),
        })],
    );
    let kept = |secret: &str| Input::SecretKept(SecretText(secret.into()));
    let asked = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::RenewSecrets(secrets) => Some(secrets.clone()),
            _ => None,
        })
    };
    assert_eq!(
        asked(&state.handle(at(4), [kept("another, of a change that lost")])),
        None
    );
    let were = asked(&state.handle(at(5), [kept("new")])).expect("there is another key");
    assert_eq!(were, [secret(b"z by the key before")]);
    let are = vec![secret(b"a by the new one")];
    let effects = state.handle(
        at(6),
        [Input::SecretsRenewed {
            were,
            are: are.clone(),
        }],
    );
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Keep { note: Note::Secrets(secrets), .. } if *secrets == are))
    );
    let compares = |effect: &Effect| {
        matches!(
            effect,
            Effect::Send {
                to: BETA,
                message: Message::SecretsDigest(_)
            }
        )
    };
    assert!(
        effects.iter().any(compares),
        "what could not be read until now is told again"
    );
    assert!(!effects.iter().any(|effect| matches!(
        effect,
        Effect::Send {
            message: Message::Secrets(_),
            ..
        }
    )));
    assert_eq!(asked(&state.handle(at(7), [kept("new")])), None);
}

#[test]
fn who_was_there_or_came_with_an_invitation_need_not_be_admitted() {
    let mut state = connected();
    state.handle(at(2), [decide(ban(BETA))]);
    let effects = state.handle(
        at(3),
        [
            decide(Decision::Admission { approve: true }),
            Input::Invited(NodeId([5; 32])),
        ],
    );
    let roster = adopted(&effects).expect("it is kept");
    let standing = |number: u8| roster.standing(NodeId([number; 32]));
    assert_eq!(
        [standing(1), standing(2), standing(5)],
        [Standing::Admitted, Standing::Banned, Standing::Admitted],
    );
    assert!(roster.waits(NodeId([6; 32])));
}
