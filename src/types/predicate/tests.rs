//! What conditions mean, what their errors say, and that no text makes the parser panic.

use super::*;
use crate::{NodeId, Resources};
use proptest::prelude::*;

fn gpu(name: &str, gib: u64, kind: GpuKind) -> Gpu {
    let memory_bytes = gib << 30;
    Gpu {
        name: name.into(),
        vendor: "NVIDIA".into(),
        driver: "550.54.14".into(),
        uuid: [0; 16],
        memory_bytes,
        kind,
        details: Default::default(),
    }
}

fn node() -> NodeInfo {
    NodeInfo {
        id: NodeId([1; 32]),
        version: 1,
        name: "node9".into(),
        software: "0.1.0".into(),
        model: String::new(),
        addrs: Vec::new(),
        resources: Resources {
            cpu_milli: 8000,
            memory_bytes: 32 << 30,
            gpu_milli: 2000,
            ..Resources::default()
        },
        gpus: vec![
            gpu("NVIDIA A100", 40, GpuKind::Discrete),
            gpu("NVIDIA T4", 16, GpuKind::Discrete),
            gpu("llvmpipe", 900, GpuKind::Software),
        ],
        labels: [("rack", "b"), ("slots", "12"), ("scratch", "2 TB")]
            .map(|(k, v)| (k.into(), v.into()))
            .into(),
        draining: false,
        closed: None,
        admits: Default::default(),
        leaving: false,
        returning: false,
        problem: None,
        seeks_gpus: false,
    }
}

fn holds(text: &str) -> bool {
    Predicate::parse(text)
        .unwrap_or_else(|error| panic!("{text}: {error}"))
        .eval(&node())
}

#[test]
fn conditions_mean_what_they_say() {
    for (text, expected) in [
        ("", true),
        ("memory >= 32 GiB", true),
        ("memory > 32GiB", false),
        ("cores < 16 and not (cores < 8)", true),
        ("cores == 7.5", false),
        ("gpus >= 2", true),
        ("gpus in [0, 2]", true),
        ("name in [a, 'node9']", true),
        ("name < node10", true),
        ("software >= 0.1.0", true),
        ("software >= 0.2", false),
        ("labels.rack == 'b' or name == x and name == y", true),
        ("labels.rack == b", true),
        ("labels.slots > 9", true),
        ("labels.scratch >= 500 GB", true),
    ] {
        assert_eq!(holds(text), expected, "{text}");
    }
}

#[test]
fn any_gpu_may_satisfy_and_cpu_drivers_do_not_count() {
    assert!(holds("gpu.memory < 20 GiB"));
    assert!(holds("gpu.memory >= 40 GiB and gpu.name ~ a100"));
    assert!(holds("gpu.vendor != AMD"));
    assert!(holds("gpu.driver >= 550.9 and gpu.driver < 550.100"));
    assert!(!holds("gpu.memory > 100 GiB"));
    let mut node = node();
    node.resources.gpu_milli = 3000;
    assert!(
        Predicate::parse("gpu.memory > 100 GiB")
            .unwrap()
            .eval(&node),
        "the node counts its CPU driver"
    );
}

#[test]
fn what_concerns_gpus_is_known() {
    let concerns = |text: &str| Predicate::parse(text).unwrap().concerns_gpus();
    assert!(concerns("name == 'a' or not (gpu.memory >= 8 GiB)") && concerns("gpus in [1, 2]"));
    assert!(!concerns("labels.gpu == 'yes' and cores > 2") && !concerns(""));
}

#[test]
fn what_is_said_of_gpus_that_a_node_still_looks_for_is_open() {
    let seeking = NodeInfo {
        seeks_gpus: true,
        gpus: Vec::new(),
        ..node()
    };
    for (text, holds, may_hold) in [
        ("gpus == 0", false, true),
        ("not gpus == 0", false, true),
        ("gpu.name in [A100, T4]", false, true),
        ("gpu.memory > 1 GiB or cores == 8", true, true),
        ("gpu.memory > 1 GiB and cores == 9", false, false),
        ("not (gpu.memory > 1 GiB or cores == 8)", false, false),
        ("cores == 8", true, true),
    ] {
        let predicate = Predicate::parse(text).unwrap();
        let found = (predicate.eval(&seeking), predicate.may_hold(&seeking));
        assert_eq!(found, (holds, may_hold), "{text}");
        assert_eq!(predicate.eval(&node()), predicate.may_hold(&node()));
    }
}

#[test]
fn a_missing_label_satisfies_nothing() {
    assert!(!holds("labels.none == x"));
    assert!(!holds("labels.none != x"));
    assert!(holds("not labels.none == x"));
}

#[test]
fn errors_say_where_and_what_to_write() {
    for (text, offset, message) in [
        (
            "gpu.memroy > 1 GiB",
            0,
            "a node has no field `gpu.memroy`\nhint: did you mean `gpu.memory`?",
        ),
        (
            "cpus > 1",
            0,
            "a node has no field `cpus`\nhint: did you mean `cores`?",
        ),
        (
            "label.rack == b",
            0,
            "a node has no field `label.rack`\nhint: a label is written `labels.NAME`",
        ),
        (
            "memory >= 8",
            10,
            "`8` would be 8 bytes\nhint: write `8 GiB`",
        ),
        (
            "memory >= big",
            10,
            "`memory` is compared with a size, and `big` is none\nhint: e.g. `8 GiB`",
        ),
        (
            "cores >= 8 GiB",
            9,
            "`cores` is compared with a number, and `8 GiB` is none",
        ),
        (
            "memory ~ 8",
            7,
            "`~` looks for text, and `memory` is a number",
        ),
        (
            "name = x",
            5,
            "`=` means nothing here\nhint: equality is written `==`",
        ),
        (
            "cores > 1 && gpus > 1",
            10,
            "`&&` means nothing here\nhint: write `and`",
        ),
        (
            "cores > 1 gpus > 1",
            10,
            "expected `and`, `or` or the end, found `gpus`",
        ),
        ("cores >", 7, "expected a value, it ends here"),
        ("(cores > 1", 10, "expected `)`, it ends here"),
        ("name in [a b]", 11, "expected `,` or `]`, found `b`"),
        ("name == 'x", 8, "the quote ' is never closed"),
    ] {
        let error = Predicate::parse(text).expect_err(text);
        assert_eq!(
            (error.offset, error.to_string().as_str()),
            (offset, message),
            "{text}"
        );
    }
    let flower = Predicate::parse("flower == 1").unwrap_err().to_string();
    assert!(
        flower.contains("there are name, software, cores, memory"),
        "{flower}"
    );
}

#[test]
fn length_and_depth_are_bounded() {
    let deep = format!("{}name == x{}", "(".repeat(33), ")".repeat(33));
    assert!(
        Predicate::parse(&deep)
            .unwrap_err()
            .message
            .contains("32 levels")
    );
    assert!(
        Predicate::parse(&"not ".repeat(1000))
            .unwrap_err()
            .message
            .contains("32 levels")
    );
    assert!(
        Predicate::parse(&" ".repeat(5000))
            .unwrap_err()
            .message
            .contains("5000 bytes")
    );
    let wide = vec!["name == x"; 300].join(" or ");
    assert!(Predicate::parse(&wide).is_ok());
}

fn literal() -> impl Strategy<Value = Literal> {
    let text = prop_oneof![
        "[a-z0-9.]{1,6}",
        "[a-zA-Z0-9 '\"\\\\é]{0,8}",
        Just("8 GiB".to_string())
    ];
    text.prop_map(Literal::new)
}

fn expr() -> impl Strategy<Value = Expr> {
    let ops = prop::sample::select(OPS.map(|(_, op)| op).to_vec());
    let text_field = prop_oneof![
        Just(PredicateField::Name),
        Just(PredicateField::GpuDriver),
        "[a-z-]{1,5}".prop_map(PredicateField::Label)
    ];
    let leaf = prop_oneof![
        (text_field.clone(), ops, literal()).prop_map(|(field, op, value)| Expr::Test {
            field,
            op,
            value
        }),
        (text_field, prop::collection::vec(literal(), 1..4))
            .prop_map(|(field, values)| Expr::In { field, values }),
        (1u32..100).prop_map(|gib| Expr::Test {
            field: PredicateField::GpuMemory,
            op: ComparisonOp::GreaterEqual,
            value: Literal::new(format!("{gib} GiB")),
        }),
    ];
    leaf.prop_recursive(4, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..4).prop_map(Expr::Any),
            prop::collection::vec(inner.clone(), 2..4).prop_map(Expr::All),
            inner.prop_map(|expr| Expr::Not(Box::new(expr))),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_displayed_parses_to_itself(expr in expr()) {
        let predicate = Predicate(expr);
        prop_assert_eq!(Predicate::parse(&predicate.to_string()), Ok(predicate));
    }

    #[test]
    fn no_text_panics(text in ".{0,60}") {
        let _ = Predicate::parse(&text);
    }

    #[test]
    fn no_tokens_panic(tokens in prop::collection::vec(prop::sample::select(vec![
        "(", ")", "[", "]", ",", "and", "or", "not", "in", "==", "~", "<", "=", "memory", "name", "labels.", "'é", "8", "GiB", "\\",
    ]), 0..16)) {
        if let Ok(predicate) = Predicate::parse(&tokens.join(" ")) {
            predicate.eval(&node());
        }
    }
}
