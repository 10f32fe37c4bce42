//! What nodes that train together say to each other: whatever comes, a node goes on, or ends that
//! connection. And the frames, files and lists that come with it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodectl::{
    pserver::fuzz,
    pserver_logic::{ArenaLayout, Group, GroupConfig, GroupInput, Others},
    types::{
        Manifest, NodeId,
        servers::{TensorSpec, message::ServerMessage},
    },
    wire::frames::{FromTrainer, HEADER_BYTES, Header, ToTrainer},
    worker::protocol::{Inbox, Order, Report},
};
use std::sync::Arc;

const ME: NodeId = NodeId([2; 32]);
const OTHER: NodeId = NodeId([1; 32]);

fn group() -> Group {
    let text = r#"{"workers": 1, "training": {"optimizer": "sgd", "rate": 0.1, "weight_decay": 0,
        "schedule": {"warmup_steps": 0, "decay": "constant"}}, "block_bytes": 64}"#;
    let settings = serde_json::from_str(text).expect("settings");
    let tensors = [TensorSpec {
        name: "a".into(),
        shape: vec![40],
    }];
    let layout = Arc::new(ArenaLayout::new(&tensors, 64).expect("a tensor"));
    let mut group = Group::new(GroupConfig {
        me: ME,
        group: [7; 16],
        settings,
        layout,
        digest: [1; 32],
        weight: 1,
    });
    group.handle(GroupInput::Others(Others::default()));
    group.handle(GroupInput::Joined { worker: 0, life: 1 });
    group.handle(GroupInput::PeerUp(OTHER));
    group
}

fuzz_target!(|bytes: &[u8]| {
    let (mut group, mut rest) = (group(), bytes);
    while let Ok((message, more)) = postcard::take_from_bytes::<ServerMessage>(rest) {
        group.handle(GroupInput::Message {
            from: OTHER,
            message,
        });
        rest = more;
    }
    if let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
        if let Ok(header) = Header::<FromTrainer>::decode(header) {
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
        if let Ok(header) = Header::<ToTrainer>::decode(header) {
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }
    let _ = postcard::from_bytes::<Manifest>(bytes);
    fuzz::part(bytes);
    let mut inbox = Inbox::default();
    inbox.push(bytes);
    while let Ok(Some(_)) = inbox.take::<Order>() {}
    let mut inbox = Inbox::default();
    inbox.push(bytes);
    while let Ok(Some(_)) = inbox.take::<Report>() {}
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("step-000000001.safetensors");
    std::fs::write(&path, bytes).expect("a temporary file");
    fuzz::checkpoint(&path);
});
