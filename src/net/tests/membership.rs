//! Who may connect: bans, admissions, the change of the secret, invitations.

use super::cluster::{TestNode, config, free_udp_port, keys, pair};
use crate::{Identity, NetConfig, redeem};
use nodectl_ports::{NetEvent, Network};
use nodectl_types::{
    NodeId, Roster, Standing,
    roster::{Rotation, SecretText, Word},
};

const NEW_SECRET: &str = "granite lantern, orbit walnut, fjord";

fn kept_the_new_secret(event: &NetEvent) -> bool {
    matches!(event, NetEvent::SecretKept { secret } if secret.0 == NEW_SECRET)
}

fn judged(node: NodeId, standing: Standing) -> Roster {
    let mut roster = Roster::default();
    roster.put(
        node,
        Word {
            version: 1,
            standing,
            name: "n".into(),
            at_ms: 0,
        },
    );
    roster
}

#[tokio::test]
async fn a_banned_node_is_hung_up_on_refused_and_told() {
    let (mut one, two) = pair().await;
    one.net
        .adopt(judged(two.id, Standing::Banned))
        .await
        .unwrap();
    one.until(|event| matches!(event, NetEvent::PeerDown { peer } if *peer == two.id))
        .await;
    let report = two.until_report(|report| report.refused.is_some()).await;
    assert!(
        report
            .refused
            .is_some_and(|why| why.contains("banned") && why.contains("hint: "))
    );
    assert!(one.net.report().connected.is_empty());
    // As if nothing had been said.
    let mut pardoned = judged(two.id, Standing::Unknown);
    pardoned.words.get_mut(&two.id).unwrap().version = 2;
    one.net.adopt(pardoned).await.unwrap();
    one.until_up(two.id).await;
}

#[tokio::test]
async fn who_has_to_be_admitted_waits_until_somebody_does() {
    let mut one = TestNode::start(config()).await;
    let mut roster = Roster::default();
    (roster.admission.version, roster.admission.approve) = (1, true);
    one.net.adopt(roster.clone()).await.unwrap();
    let two = TestNode::start(NetConfig {
        peers: vec![one.peer()],
        ..config()
    })
    .await;
    one.until_report(|report| report.waiting.iter().any(|(node, _)| *node == two.id))
        .await;
    two.until_report(|report| {
        report
            .refused
            .as_ref()
            .is_some_and(|why| why.contains("nodectl admit"))
    })
    .await;
    roster.merge(judged(two.id, Standing::Admitted));
    one.net.adopt(roster).await.unwrap();
    one.until_up(two.id).await;
    two.until_report(|report| report.refused.is_none()).await;
}

#[tokio::test]
async fn nodes_change_the_secret_while_they_are_connected_and_the_old_one_is_worth_nothing_then() {
    let (mut one, mut two) = pair().await;
    let away = Identity::ephemeral();
    let rotation = Rotation {
        number: 1,
        secret: SecretText(NEW_SECRET.into()),
        listed: [one.id, two.id, away.node_id()].into(),
        changed: [].into(),
        finished: false,
        at_ms: 0,
    };
    let mut roster = Roster {
        rotation: Some(rotation),
        ..Roster::default()
    };
    one.net.adopt(roster.clone()).await.unwrap();
    one.until(kept_the_new_secret).await;
    // One that has not heard of it comes with the old one: it is listed.
    let mut late = TestNode::start_with(
        NetConfig {
            peers: vec![one.peer()],
            ..config()
        },
        away,
        keys(),
    )
    .await;
    one.until_up(late.id).await;
    late.until_up(one.id).await;
    // So does somebody else who has it, and is not.
    let thief = TestNode::start(NetConfig {
        peers: vec![one.peer()],
        ..config()
    })
    .await;
    thief
        .until_report(|report| {
            report
                .refused
                .as_ref()
                .is_some_and(|why| why.contains("secret was changed"))
        })
        .await;
    assert!(!one.net.report().connected.contains(&thief.id));
    // Two that have both meet by the new one, and by the old one with whom that is all there is.
    two.net.adopt(roster.clone()).await.unwrap();
    two.until(kept_the_new_secret).await;
    roster.rotation.as_mut().unwrap().finished = true;
    one.net.adopt(roster).await.unwrap();
    let newcomer = crate::Secret::new(NEW_SECRET)
        .unwrap()
        .derive_blocking("test")
        .unwrap();
    let newcomer = TestNode::start_with(
        NetConfig {
            peers: vec![two.peer()],
            ..config()
        },
        Identity::ephemeral(),
        newcomer,
    )
    .await;
    two.until_up(newcomer.id).await;
    let back = TestNode::start(NetConfig {
        peers: vec![one.peer()],
        ..config()
    })
    .await;
    back.until_report(|report| report.refused.is_some()).await;
}

#[tokio::test]
async fn a_changed_secret_is_there_again_after_a_restart() {
    let one = TestNode::start(config()).await;
    let (identity, directory) = (Identity::ephemeral(), tempfile::tempdir().unwrap());
    let rotation = Rotation {
        number: 1,
        secret: SecretText(NEW_SECRET.into()),
        listed: [one.id].into(),
        changed: [].into(),
        finished: true,
        at_ms: 0,
    };
    let roster = Roster {
        rotation: Some(rotation),
        ..Roster::default()
    };
    let mut first = TestNode::start_in(config(), identity, keys(), directory).await;
    first.net.adopt(roster.clone()).await.unwrap();
    first.until(kept_the_new_secret).await;
    let replaced = crate::replacement(
        &first.directory.path().join("net"),
        "test",
        "a secret of the tests",
    );
    assert_eq!(
        replaced.unwrap().as_deref().map(String::as_str),
        Some(NEW_SECRET)
    );
    assert_eq!(first.net.roster(), roster);
}

#[tokio::test]
async fn an_invitation_brings_the_secret_over_beacons_or_an_address() {
    let port = free_udp_port();
    let mut one = TestNode::start(NetConfig {
        beacon_port: port,
        ..config()
    })
    .await;
    for by_address in [true, false] {
        let code = one.net.invite().unwrap();
        let config = match by_address {
            true => NetConfig {
                peers: vec![one.peer()],
                ..config()
            },
            false => NetConfig {
                beacon_port: port,
                ..config()
            },
        };
        let identity = Identity::ephemeral();
        let secret = redeem(&config, &identity, &code.to_lowercase(), "test")
            .await
            .unwrap();
        assert_eq!(secret.as_str(), "a secret of the tests");
        one.until(
            |event| matches!(event, NetEvent::Invited { peer } if *peer == identity.node_id()),
        )
        .await;
    }
    assert!(
        redeem(&config(), &Identity::ephemeral(), "no code", "test")
            .await
            .unwrap_err()
            .to_string()
            .contains("hint: ")
    );
}
