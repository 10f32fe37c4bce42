//! How a log begins: what a node says of its first voters, and what its user hears meanwhile.

use super::{trio::Trio, *};
use nodectl_types::{
    Ballot, Beginnings, JobDraft, JobHead, Voters,
    query::{EntryKey, NodeQuery},
};

const LOG: JobId = JobId(7);
const BETA: NodeId = NodeId([2; 32]);
const KEY: EntryKey = [1; 16];

fn ballot(round: u32, node: u8) -> Ballot {
    Ballot {
        round,
        node: Some(NodeId([node; 32])),
        claim: 1,
    }
}

fn ask(state: &mut State, ballot: Ballot, voters: Option<Vec<NodeId>>) -> Vec<Effect> {
    let message = Message::AskBallot {
        job: LOG,
        ballot,
        voters,
    };
    let input = Input::Message {
        from: BETA,
        message,
    };
    state.handle(Now::default(), [input])
}

/// What is written before the answer, and the answer.
fn written(effects: Vec<Effect>) -> Option<(Beginnings, Message)> {
    effects.into_iter().find_map(|effect| match effect {
        Effect::KeepThenSend {
            note: Note::Beginnings(said),
            to: BETA,
            message,
        } => Some((said, *message)),
        _ => None,
    })
}

fn sent(effects: Vec<Effect>) -> Vec<Message> {
    let sent = effects.into_iter().filter_map(|effect| match effect {
        Effect::Send { to: BETA, message } => Some(message),
        _ => None,
    });
    sent.collect()
}

#[test]
fn what_is_said_is_written_first_and_holds_in_the_next_life() {
    let mut state = node();
    let promised = written(ask(&mut state, ballot(2, 2), None));
    let (said, told) = promised.expect("it takes part");
    assert_eq!(said[&LOG].promised, ballot(2, 2));
    let Message::BallotTold { known, members, .. } = told else {
        panic!("{told:?}")
    };
    assert_eq!(known, said[&LOG]);
    assert!(members.into_keys().eq([state.node()]));
    let again = written(ask(&mut state, ballot(2, 2), None));
    assert!(again.is_some(), "it may not be on the disk yet");
    let voters = Some(vec![BETA]);
    let accepted = written(ask(&mut state, ballot(2, 2), voters.clone()));
    let (said, _) = accepted.expect("nothing later was promised");
    assert_eq!(said[&LOG].accepted, Some((ballot(2, 2), vec![BETA])));

    let mut next = node();
    next.restore_beginnings(said.clone());
    let effects = ask(&mut next, ballot(1, 3), voters);
    let refused = sent(effects);
    assert!(
        matches!(refused.as_slice(), [Message::BallotTold { known, .. }] if *known == said[&LOG]),
        "{refused:?}"
    );
    let later = written(ask(&mut next, ballot(3, 3), None));
    let (said, _) = later.expect("it takes part in later ones");
    assert_eq!(said[&LOG].accepted, Some((ballot(2, 2), vec![BETA])));
}

#[test]
fn who_knows_the_voters_says_who_they_are_and_what_was_removed_does_not_begin() {
    let spec = JobDraft::log("log").submitted(BETA, 0);
    let head = JobHead {
        epoch: 1,
        holder: BETA,
        voters: Some(Voters::first(vec![BETA]).into()),
        ..JobHead::unclaimed(LOG, &spec, spec.hash())
    };
    let mut state = node();
    let tell = |message| Input::Message {
        from: BETA,
        message,
    };
    state.handle(Now::default(), [tell(Message::Heads(vec![head.clone()]))]);
    let told = sent(ask(&mut state, ballot(1, 3), None));
    assert_eq!(told, [Message::Heads(vec![head])]);
    state.handle(Now::default(), [tell(Message::Removed(vec![(LOG, 1)]))]);
    let effects = ask(&mut state, ballot(1, 3), None);
    assert!(written(effects).is_none());
}

impl Trio {
    fn asks(&mut self, node: usize, query: Query) {
        self.answers.clear();
        self.give(vec![(node, Input::Ask { id: 9, query })]);
    }
}

#[test]
fn who_is_cut_off_begins_no_log_and_says_what_it_waits_for() {
    let mut trio = Trio::new();
    trio.cut.extend([(0, 1), (0, 2)]);
    trio.wait(10_000);
    let spec = Arc::new(JobDraft::log("log").submitted(trio.id(0), 0));
    let job = Some(LOG);
    let query = Query::Submit {
        job,
        asked_before: 0,
        spec,
    };
    trio.asks(0, query);
    trio.wait(3_000);
    trio.asks(0, Query::Job(LOG, JobQuery::Explain { task: None }));
    let text = format!("{:?}", trio.answers);
    let why = "waiting for more than half of 3 nodes to agree that it begins; no answer yet from";
    assert!(text.contains(why), "{text}");
    let (key, known, value) = (KEY, 0, "first".to_string());
    let append = JobQuery::Append { key, known, value };
    trio.asks(0, Query::Job(LOG, append.clone()));
    trio.wait(11_000);
    let text = format!("{:?}", trio.answers);
    assert!(text.contains("nodectl forget NODE"), "{text}");

    for other in [1, 2] {
        trio.connect(0, other);
    }
    trio.wait(10_000);
    trio.asks(0, Query::Job(LOG, append));
    trio.wait(5_000);
    let appended = Ok(Answer::Appended { entry: 0 });
    assert_eq!(trio.answers, [(0, appended)]);
    let voters = trio.nodes[1].core().voters(LOG).expect("it has begun");
    assert_eq!(voters.nodes.len(), 3);
}

#[test]
fn who_was_met_in_an_earlier_life_decides_until_it_leaves_or_is_forgotten() {
    let mut trio = Trio::new();
    trio.wait(2_000);
    let met = trio.nodes[0].core().members.records();
    assert_eq!(met.len(), 3);
    let beta = trio.id(1);

    let mut next = node();
    next.restore_members(met);
    let known = |state: &State| {
        let records = state.core().electors(LOG);
        let electors = records.into_iter().filter(|(_, record)| !record.left);
        electors.map(|(node, _)| node).collect::<Vec<_>>()
    };
    assert!(known(&next).contains(&beta), "it may go on beyond a cut");
    let lines = next.handle(
        Now::default(),
        [Input::Ask {
            id: 1,
            query: Query::Nodes,
        }],
    );
    let lines = format!("{lines:?}");
    assert!(lines.contains(&beta.short()), "{lines}");

    let refused = [Input::PeerRefused(beta)];
    next.handle(Now::default(), refused);
    assert!(known(&next).contains(&beta), "it may be started anew there");
    let goodbye = Input::Message {
        from: beta,
        message: Message::Leaving,
    };
    let effects = next.handle(Now::default(), [goodbye]);
    let kept = effects.iter().find_map(|effect| match effect {
        Effect::Keep {
            note: Note::Members(records),
            ..
        } => Some(records),
        _ => None,
    });
    assert!(kept.is_some_and(|records| records[&beta].left));
    assert!(!known(&next).contains(&beta));
}

#[test]
fn who_said_goodbye_counts_for_away_until_it_has_met_half_of_those_it_left() {
    let mut trio = Trio::new();
    trio.wait(2_000);
    trio.give(vec![(0, Input::Leave)]);
    let me = trio.id(0);
    let met = trio.nodes[0].core().members.records();
    assert!(met[&me].left);

    let mut next = node();
    let last_life = met.into_iter().map(|(id, record)| match id == me {
        true => (next.node(), record),
        false => (id, record),
    });
    next.restore_members(last_life.collect());
    let is_away = |state: &State| state.core().electors(LOG)[&state.node()].left;
    assert!(is_away(&next));
    for lost in [trio.id(1), trio.id(2)] {
        let query = Query::Node(next.node(), NodeQuery::Forget { lost, sure: true });
        next.handle(Now::default(), [Input::Ask { id: 1, query }]);
        assert_eq!(is_away(&next), lost == trio.id(1));
    }
}
