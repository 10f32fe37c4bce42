//! The language of `where = "…"`. What parses must survive being printed, and be answerable for any
//! node.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodectl::types::{NodeId, NodeInfo, Resources, predicate::Predicate};

fuzz_target!(|text: &str| {
    let Ok(predicate) = Predicate::parse(text) else {
        return;
    };
    let printed = predicate.to_string();
    let again = Predicate::parse(&printed).expect("its own text");
    assert_eq!(again.to_string(), printed);
    assert_eq!(again.eval(&node()), predicate.eval(&node()));
});

fn node() -> NodeInfo {
    NodeInfo {
        id: NodeId([7; 32]),
        version: 1,
        name: "box1".into(),
        software: "0.1.0".into(),
        model: String::new(),
        addrs: Vec::new(),
        resources: Resources::one_core(),
        gpus: Vec::new(),
        labels: [("rack".to_string(), "b".to_string())].into(),
        draining: false,
        closed: None,
        admits: Default::default(),
        leaving: false,
        returning: false,
        problem: None,
        seeks_gpus: false,
    }
}
