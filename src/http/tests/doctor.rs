//! What `doctor` says of the swarm.

use super::*;

#[tokio::test]
async fn doctor_says_what_to_do_about_the_swarm() {
    let report = NetReport {
        suite: "noise + yamux".into(),
        listening: vec![([192, 0, 2, 7], 40_001).into()],
        interfaces: vec!["eth0".into()],
        ways: vec![
            DiscoveryWay {
                name: "mdns",
                problem: Some("multicast is refused".into()),
                found: Vec::new(),
            },
            DiscoveryWay {
                name: "kademlia",
                problem: Some(SWITCHED_OFF.into()),
                found: Vec::new(),
            },
            DiscoveryWay {
                name: "broadcast",
                problem: None,
                found: vec![node_id(2)],
            },
        ],
        foreign_nodes: 3,
        other_versions: vec![("192.0.2.9:1".into(), 9)],
        ..NetReport::default()
    };
    let brain = |query: &Query| match query {
        Query::Nodes => Ok(Answer::Nodes(vec![member(1, "alpha", true)])),
        _ => Err(QueryError::Leaving),
    };
    let doctor = FakeNode::start_with(brain, report, false)
        .await
        .client
        .doctor()
        .await
        .unwrap();
    assert_eq!(doctor.suite.as_deref(), Some("noise + yamux"));
    let told: Vec<_> = doctor
        .findings
        .iter()
        .map(|finding| (finding.check.as_str(), finding.severity))
        .collect();
    use api::Severity;
    let expected = [
        ("network", Severity::Ok),
        ("discovery.mdns", Severity::Warning),
        ("discovery.kademlia", Severity::Ok),
        ("discovery.broadcast", Severity::Ok),
        ("secret", Severity::Problem),
        ("version", Severity::Problem),
        ("members", Severity::Warning),
        ("owner", Severity::Ok),
        ("users", Severity::Ok),
    ];
    assert_eq!(told, expected);
    assert!(
        doctor
            .findings
            .iter()
            .all(|finding| finding.severity == Severity::Ok || finding.hint.is_some())
    );
    assert_eq!(
        doctor.findings[4].message,
        "3 nodes here do not share this secret"
    );
}

#[tokio::test]
async fn doctor_names_who_is_reached_through_others_or_not_at_all() {
    let report = NetReport {
        connected: vec![node_id(2)],
        relayed: vec![node_id(2)],
        foreign_nodes: 1,
        ..NetReport::default()
    };
    let mut gone = member(4, "delta", false);
    gone.info.leaving = true;
    let all = move || {
        vec![
            member(1, "alpha", true),
            member(2, "beta", true),
            member(3, "gamma", true),
            gone.clone(),
        ]
    };
    let brain = move |query: &Query| match query {
        Query::Nodes => Ok(Answer::Nodes(all())),
        _ => Err(QueryError::Leaving),
    };
    let doctor = FakeNode::start_with(brain, report, false)
        .await
        .client
        .doctor()
        .await
        .unwrap();
    let message = |check: &str| {
        doctor
            .findings
            .iter()
            .find(|finding| finding.check == check)
            .unwrap()
            .message
            .clone()
    };
    // Who left is missed by nobody.
    assert_eq!(message("members"), "3 nodes alive");
    assert_eq!(message("relay"), "reached through another node: beta");
    assert_eq!(message("reach"), "alive, but out of reach: gamma");
    // Another cluster in the room is no problem of one that has found its own.
    let secret = doctor
        .findings
        .iter()
        .find(|finding| finding.check == "secret");
    assert_eq!(secret.unwrap().severity, api::Severity::Warning);
}
