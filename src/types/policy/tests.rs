//! Parts of the week, what closes a node, and what its owner admits.

use super::*;
use crate::Author;
use proptest::prelude::*;

fn span(text: &str) -> Span {
    text.parse().expect(text)
}

fn at(day: u16, hour: u16, minute: u16) -> u16 {
    day * DAY + hour * 60 + minute
}

#[test]
fn hours_past_midnight_belong_to_the_day_on_which_they_begin() {
    let nights = span("Mon-Fri 20:00-08:00");
    assert!(nights.contains(at(0, 20, 0)) && nights.contains(at(1, 7, 59)));
    assert!(
        !nights.contains(at(0, 7, 59)),
        "Sunday's night is not one of them"
    );
    assert!(nights.contains(at(5, 3, 0)), "Friday's night");
    assert!(!nights.contains(at(5, 20, 0)) && !nights.contains(at(2, 8, 0)));
    let weekend = span("sat,SUN");
    assert!(
        weekend.contains(at(5, 0, 0))
            && weekend.contains(at(6, 23, 59))
            && !weekend.contains(at(0, 0, 0))
    );
    assert!(span("Fri-Mon").contains(at(6, 1, 0)) && !span("Fri-Mon").contains(at(1, 1, 0)));
    assert!(
        span("18:30-24:00").contains(at(3, 23, 59)) && !span("18:30-24:00").contains(at(3, 18, 29))
    );
}

#[test]
fn what_is_no_part_of_the_week_is_refused() {
    for bad in [
        "",
        "Mon Tue 1:00-2:00",
        "Someday",
        "25:00-26:00",
        "8-9",
        "08:00-08:00",
        "8:0-9:00",
        "24:00-8:00",
        "Mon-",
    ] {
        assert!(bad.parse::<Span>().is_err(), "{bad}");
    }
}

#[test]
fn a_node_is_closed_while_somebody_uses_it_and_does_not_flutter() {
    let idle = Idle {
        after: Duration::from_secs(600),
        load_milli: 500,
    };
    let policy = Policy {
        idle: Some(idle),
        ..Policy::default()
    };
    let seen = |minutes: u64, others_milli| Surroundings {
        minute: 0,
        untouched: Some(Duration::from_secs(60 * minutes)),
        others_milli,
    };
    assert_eq!(policy.closed(None, false), Some(Closed::Looking));
    assert_eq!(
        policy.closed(Some(&seen(9, 0)), true),
        Some(Closed::Keyboard)
    );
    assert_eq!(policy.closed(Some(&seen(10, 0)), false), None);
    assert_eq!(
        policy.closed(Some(&seen(10, 700)), false),
        Some(Closed::Busy)
    );
    assert_eq!(policy.closed(Some(&seen(10, 700)), true), None);
    assert_eq!(
        policy.closed(Some(&seen(10, 1001)), true),
        Some(Closed::Busy)
    );
    let nobody = Surroundings {
        minute: 0,
        untouched: None,
        others_milli: 0,
    };
    assert_eq!(policy.closed(Some(&nobody), false), None);
    assert_eq!(Policy::default().closed(None, false), None);
}

#[test]
fn only_what_every_list_admits_is_taken() {
    let author = Author {
        user: "alice".into(),
        uid: Some(1000),
        node: "box-1".into(),
    };
    let work = WorkSpec {
        author,
        ..WorkSpec::plain("a", &["/opt/lab/fit", "-x"])
    };
    let list = |pattern: &str| vec![pattern.to_string()];
    let all = Admits {
        users: list("ali*"),
        nodes: list("box-?"),
        kinds: vec![WorkKind::Command],
        commands: list("/opt/lab/*"),
    };
    assert_eq!(Admits::default().objection(&work), None);
    assert_eq!(all.objection(&work), None);
    for (admits, key) in [
        (
            Admits {
                users: list("bob"),
                ..all.clone()
            },
            "node.policy.users",
        ),
        (
            Admits {
                nodes: list("laptop"),
                ..all.clone()
            },
            "node.policy.nodes",
        ),
        (
            Admits {
                kinds: vec![WorkKind::Train, WorkKind::Kernel],
                ..all.clone()
            },
            "node.policy.kinds",
        ),
        (
            Admits {
                commands: list("python3"),
                ..all.clone()
            },
            "node.policy.commands",
        ),
    ] {
        assert!(
            admits.objection(&work).is_some_and(|why| why.contains(key)),
            "{key}"
        );
    }
}

fn any_span() -> impl Strategy<Value = Span> {
    (1u8..128, 0..DAY, 1..=DAY).prop_filter_map("it ends when it begins", |(days, from, to)| {
        (from != to).then_some(Span { days, from, to })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(span in any_span()) {
        prop_assert_eq!(span.to_string().parse::<Span>(), Ok(span));
    }

    #[test]
    fn no_text_is_too_much(text in "\\PC{0,80}", minute in any::<u16>()) {
        if let Ok(span) = text.parse::<Span>() {
            span.contains(minute);
        }
    }

    /// As many minutes of a week as its days have, minute by minute.
    #[test]
    fn a_span_is_as_long_as_it_says(span in any_span()) {
        let length = if span.from < span.to { span.to - span.from } else { DAY - span.from + span.to };
        let minutes = (0..WEEK).filter(|minute| span.contains(*minute)).count();
        let whole = usize::from(length) * span.days.count_ones() as usize;
        prop_assert!(minutes == whole, "{} of {}", minutes, whole);
    }

    /// Less use of the machine, or being open already, never closes it.
    #[test]
    fn a_quieter_machine_is_open_where_a_busier_one_was(
        spans in proptest::collection::vec(any_span(), 0..3),
        minute in 0..WEEK,
        (seconds, more) in (0u64..2_000, 0u64..2_000),
        (load, less) in (0u32..4_000, 0u32..4_000),
        is_open in any::<bool>(),
    ) {
        let idle = Some(Idle { after: Duration::from_secs(600), load_milli: 500 });
        let policy = Policy { hours: spans, idle, ..Policy::default() };
        let seen = |seconds, others_milli| Surroundings {
            minute,
            untouched: Some(Duration::from_secs(seconds)),
            others_milli,
        };
        if policy.closed(Some(&seen(seconds, load)), is_open).is_none() {
            let quieter = seen(seconds + more, load.saturating_sub(less));
            prop_assert_eq!(policy.closed(Some(&quieter), is_open), None);
            prop_assert_eq!(policy.closed(Some(&quieter), true), None);
        }
    }
}
