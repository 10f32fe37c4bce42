//! Nobody is found dead who lives, also where machines are starved; who is dead is found soon; news
//! reach everybody.
//!
//! | file | owns |
//! |---|---|
//! | `fleet` | members on a made-up network, on made-up machines |

mod fleet;

use super::{Members, news::NewsQueue, patience::PatienceTuning};
use fleet::{MemberFleet, ScheduledLoad, id};
use nodectl_types::{NodeId, NodeInfo, membership::News};
use rand::RngExt;
use std::time::Duration;

/// SWIM as it was before Lifeguard: a suspect has a second, whatever anybody knows of itself.
const PLAIN: PatienceTuning = PatienceTuning {
    period: Duration::from_millis(500),
    rtt: Duration::from_millis(200),
    least: Duration::from_secs(1),
    most: 1,
    confirmations: 0,
    slowest: 0,
    ..PatienceTuning::LIFEGUARD
};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// False deaths in half an hour, and how long it takes then until all have found a machine that has
/// fallen silent.
fn half_an_hour(
    size: usize,
    tuning: PatienceTuning,
    load: ScheduledLoad,
    seed: u64,
) -> (usize, Duration) {
    let mut fleet = MemberFleet::formed(size, tuning, load, seed);
    fleet.notices = tuning.slowest > 0;
    fleet.run(seconds(30 * 60));
    let falsely = fleet.false_deaths();
    let since = fleet.now;
    fleet.fall_silent(size - 1);
    fleet.run(seconds(60));
    (
        falsely,
        fleet
            .found_by_all(size - 1, since)
            .expect("within a minute"),
    )
}

#[test]
fn starved_nodes_are_not_taken_for_dead_and_silent_ones_are_found() {
    let without: usize = (0..2)
        .map(|seed| half_an_hour(8, PLAIN, ScheduledLoad::Starved, seed).0)
        .sum();
    assert!(without > 100, "such machines are what Lifeguard is for");
    let mut times = Vec::new();
    for seed in 0..9 {
        let (falsely, found) =
            half_an_hour(8, PatienceTuning::LIFEGUARD, ScheduledLoad::Starved, seed);
        assert_eq!(falsely, 0, "seed {seed}");
        times.push(found);
    }
    times.sort_unstable();
    assert!(
        times[4] <= seconds(8) && times[8] <= seconds(15),
        "until all have found a dead one: {times:?}"
    );
}

#[test]
fn on_quiet_machines_a_silent_one_is_found_within_three_seconds() {
    for (size, seeds, bound) in [
        (2, 20, 3.0),
        (3, 20, 3.0),
        (8, 20, 3.0),
        (30, 4, 4.0),
        (100, 1, 5.0),
    ] {
        for seed in 0..seeds {
            let mut fleet =
                MemberFleet::formed(size, PatienceTuning::LIFEGUARD, ScheduledLoad::Quiet, seed);
            fleet.run(seconds(10));
            let since = fleet.now;
            fleet.fall_silent(0);
            fleet.run(seconds(10));
            let found = fleet.found_by_all(0, since).expect("within ten seconds");
            assert!(
                found.as_secs_f64() <= bound && fleet.false_deaths() == 0,
                "{size} nodes, seed {seed}: {found:?}"
            );
        }
    }
}

/// Nobody answered it while it was cut off, which says nothing of how slow it is.
#[test]
fn a_node_that_was_cut_off_and_falls_silent_soon_after_is_found_as_soon_as_others() {
    for (size, seed) in [2, 3, 8]
        .into_iter()
        .flat_map(|size| (0..20).map(move |seed| (size, seed)))
    {
        let mut fleet =
            MemberFleet::formed(size, PatienceTuning::LIFEGUARD, ScheduledLoad::Quiet, seed);
        (1..size).for_each(|other| fleet.cut(0, other));
        fleet.run(seconds(10));
        fleet.mend();
        fleet.run(seconds(1));
        assert_eq!(fleet.strangers(), [], "{size} nodes, seed {seed}");
        let since = fleet.now;
        fleet.fall_silent(0);
        fleet.run(seconds(20));
        let found = fleet.found_by_all(0, since).expect("within 20 seconds");
        assert!(found <= seconds(3), "{size} nodes, seed {seed}: {found:?}");
    }
}

#[test]
fn who_stood_still_finds_nobody_dead_and_comes_back() {
    for seed in 0..20 {
        let mut fleet =
            MemberFleet::formed(6, PatienceTuning::LIFEGUARD, ScheduledLoad::Quiet, seed);
        fleet.freeze(0, seconds(6));
        fleet.run(seconds(6));
        assert!(
            (1..6).all(|node| !fleet.sees(node, 0)),
            "seed {seed}: it was silent for long"
        );
        fleet.run(seconds(2));
        assert!(
            fleet.deaths.iter().all(|(by, _, _)| *by != 0),
            "seed {seed}: {:?}",
            fleet.deaths
        );
        assert!(
            (1..6).all(|node| fleet.sees(node, 0) && fleet.sees(0, node)),
            "seed {seed}"
        );
    }
}

#[test]
fn nodes_that_stand_still_again_and_again_find_the_dead_all_the_same() {
    for seed in 0..10 {
        let mut fleet =
            MemberFleet::formed(3, PatienceTuning::LIFEGUARD, ScheduledLoad::Quiet, seed);
        let since = fleet.now;
        fleet.fall_silent(2);
        for round in 0..20 {
            fleet.freeze(round % 2, Duration::from_millis(700));
            fleet.run(Duration::from_millis(1000));
        }
        assert!(
            fleet.found_by_all(2, since).is_some() && fleet.false_deaths() == 0,
            "seed {seed}: {:?}",
            fleet.deaths
        );
    }
}

#[test]
fn a_short_standstill_is_forgiven() {
    for seed in 0..20 {
        let mut fleet =
            MemberFleet::formed(4, PatienceTuning::LIFEGUARD, ScheduledLoad::Quiet, seed);
        for round in 0..40 {
            fleet.freeze(round % 4, Duration::from_millis(1200));
            fleet.run(seconds(4));
        }
        assert_eq!(fleet.deaths, [], "seed {seed}");
    }
}

/// Others may have been told all the news there were before a member was heard for the first time.
#[test]
fn who_is_linked_to_one_member_only_hears_of_all() {
    for (size, seed) in [3, 4, 5, 8]
        .into_iter()
        .flat_map(|size| (0..200).map(move |seed| (size, seed)))
    {
        let within = Duration::from_millis(500);
        let mut fleet = MemberFleet::around_one(size, PatienceTuning::LIFEGUARD, within, seed);
        fleet.run(seconds(5));
        assert_eq!(fleet.strangers(), [], "{size} nodes, seed {seed}");
    }
}

/// One member is linked to all others, and nobody else to anybody; links break and come back.
#[test]
fn around_one_member_all_find_each_other_again() {
    for (size, seed) in [3, 5, 8]
        .into_iter()
        .flat_map(|size| (0..60).map(move |seed| (size, seed)))
    {
        let within = Duration::from_millis(500);
        let mut fleet = MemberFleet::around_one(size, PatienceTuning::LIFEGUARD, within, seed);
        fleet.run(seconds(5));
        for _ in 0..4 {
            let node = fleet.rng.random_range(1..size);
            let away = fleet.rng.random_range(0..12);
            fleet.cut(0, node);
            fleet.run(seconds(away));
            fleet.mend();
            let pause = fleet.rng.random_range(0..4);
            fleet.run(seconds(pause));
        }
        fleet.run(seconds(20));
        assert_eq!(fleet.strangers(), [], "{size} nodes, seed {seed}");
    }
}

#[test]
fn a_tenth_of_many_is_lost_at_once() {
    let mut fleet = MemberFleet::formed(100, PatienceTuning::LIFEGUARD, ScheduledLoad::Quiet, 1);
    let since = fleet.now;
    (0..10).for_each(|node| fleet.fall_silent(node));
    fleet.run(seconds(20));
    let found: Vec<_> = (0..10)
        .map(|node| fleet.found_by_all(node, since))
        .collect();
    assert!(
        found
            .iter()
            .all(|time| time.is_some_and(|time| time < seconds(15))),
        "{found:?}"
    );
    assert_eq!(fleet.false_deaths(), 0);
}

#[test]
fn halves_of_a_split_cluster_find_each_other_again() {
    let mut fleet = MemberFleet::formed(8, PatienceTuning::LIFEGUARD, ScheduledLoad::Quiet, 3);
    (0..4).for_each(|a| (4..8).for_each(|b| fleet.cut(a, b)));
    fleet.run(seconds(20));
    assert!((0..8).all(|a| (0..8).all(|b| a == b || fleet.sees(a, b) == ((a < 4) == (b < 4)))));
    fleet.mend();
    fleet.run(seconds(5));
    assert_eq!(fleet.strangers(), []);
}

#[test]
fn who_comes_back_from_a_cut_makes_nobody_believe_that_the_others_are_dead() {
    for seed in 0..20 {
        let mut fleet =
            MemberFleet::formed(6, PatienceTuning::LIFEGUARD, ScheduledLoad::Quiet, seed);
        (1..6).for_each(|other| fleet.cut(0, other));
        fleet.run(seconds(40));
        assert!((1..6).all(|other| !fleet.sees(0, other)), "seed {seed}");
        fleet.mend();
        fleet.run(seconds(5));
        let of_others = fleet
            .deaths
            .iter()
            .filter(|(by, of, _)| *by != 0 && *of != 0)
            .count();
        assert_eq!(of_others, 0, "seed {seed}: {:?}", fleet.deaths);
        assert_eq!(fleet.strangers(), [], "seed {seed}");
    }
}

#[test]
fn who_is_cut_off_from_one_member_only_is_no_suspect() {
    let mut fleet = MemberFleet::formed(5, PatienceTuning::LIFEGUARD, ScheduledLoad::Quiet, 3);
    fleet.cut(0, 1);
    fleet.run(seconds(120));
    assert_eq!(fleet.deaths, []);
}

#[test]
fn a_node_that_starts_with_an_older_number_than_it_had_is_heard() {
    let mut fleet = MemberFleet::formed(4, PatienceTuning::LIFEGUARD, ScheduledLoad::Quiet, 3);
    fleet.fall_silent(0);
    fleet.run(seconds(6));
    fleet.start(0, 5);
    fleet.run(seconds(2));
    assert!((1..4).all(|node| fleet.sees(node, 0) && fleet.sees(0, node)));
    assert!(
        fleet.swim(1).incarnation(id(0)) > Some(1_000_000),
        "it took a number above its earlier life's"
    );
}

#[test]
fn members_that_have_nothing_to_tell_ask_and_answer_only() {
    let mut fleet = MemberFleet::formed(50, PatienceTuning::LIFEGUARD, ScheduledLoad::Quiet, 3);
    fleet.run(seconds(30));
    let before = fleet.packets;
    fleet.run(seconds(60));
    let sent = (fleet.packets - before) as f64 / 50.0 / 60.0;
    let expected = 2.0 / PatienceTuning::LIFEGUARD.period.as_secs_f64();
    assert!(
        (sent - expected).abs() < 0.2,
        "a ping and an answer each period, not {sent} packets a second"
    );
}

#[test]
fn a_suspicion_that_others_confirm_ends_sooner_and_slow_nodes_wait_longer() {
    let tuning = PatienceTuning::LIFEGUARD;
    let confirmed: Vec<_> = (0..=4).map(|count| tuning.suspicion(8, count, 0)).collect();
    assert!(
        confirmed.windows(2).all(|pair| pair[0] >= pair[1]),
        "{confirmed:?}"
    );
    assert_eq!(
        (confirmed[0], confirmed[3], confirmed[4]),
        (tuning.least * 5, tuning.least, tuning.least)
    );
    assert_eq!(
        tuning.suspicion(2, 0, 0),
        tuning.least,
        "nobody could confirm it"
    );
    assert_eq!(tuning.suspicion(8, 3, 4), tuning.least * 2);
    assert_eq!(
        tuning.suspicion(1000, 3, 0),
        tuning.least * 3,
        "it takes longer to hear of, and to object"
    );
}

#[test]
fn news_are_told_a_bounded_number_of_times_and_the_latest_only() {
    let (node, other) = (id(1), id(2));
    let suspect = |by| News::Suspect {
        node,
        incarnation: 1,
        by,
    };
    let mut queue = NewsQueue::default();
    queue.push(suspect(other));
    queue.push(suspect(id(3)));
    queue.push(suspect(other));
    assert_eq!(queue.take(9, 4), [suspect(id(3)), suspect(other)]);
    let alive = News::Alive {
        node,
        incarnation: 2,
        addrs: Vec::new(),
    };
    queue.push(alive.clone());
    assert_eq!(
        queue.take(9, 4),
        std::slice::from_ref(&alive),
        "it has objected"
    );
    let down = News::Down {
        node: other,
        incarnation: 1,
    };
    queue.push(down.clone());
    assert_eq!(
        queue.take(1, 4),
        std::slice::from_ref(&down),
        "what was told least"
    );
    let told: Vec<usize> = (0..4).map(|_| queue.take(9, 4).len()).collect();
    assert_eq!(told, [2, 2, 2, 0]);
    assert!(queue.is_empty());
}

/// A node said that it leaves; it starts again after its clock was set back, and what it says then
/// has a lower number.
#[test]
fn the_first_word_of_a_connection_counts_and_then_the_newest() {
    let mut members = Members::new(info(id(0), 1, false), 1, 1);
    let peer = id(1);
    let leaving = |members: &Members| members.info(peer).map(|info| info.leaving);
    members.peer_up(peer);
    assert!(members.set_info(info(peer, 10, true)));
    members.peer_down(peer);
    members.peer_up(peer);
    assert_eq!(members.undescribed(), [peer]);
    assert!(members.set_info(info(peer, 5, false)));
    assert_eq!(
        (leaving(&members), members.undescribed()),
        (Some(false), Vec::new())
    );
    assert!(!members.set_info(info(peer, 4, true)) && members.set_info(info(peer, 6, true)));
    assert_eq!(leaving(&members), Some(true));
}

fn info(id: NodeId, version: u64, leaving: bool) -> NodeInfo {
    NodeInfo {
        version,
        leaving,
        ..NodeInfo::remembered(id, String::new())
    }
}
