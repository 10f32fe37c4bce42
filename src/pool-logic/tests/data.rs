//! Tasks and the nodes that have their data.

use super::*;

#[test]
fn a_task_goes_to_the_free_worker_that_has_most_of_its_data() {
    let mut pool = pool(0);
    with_workers(&mut pool, &[A, B, C]);
    pool.submit_near(1, Some(()), 1, &[(B, 1 << 20), (C, 5 << 20)]);
    pool.submit_near(2, Some(()), 1, &[(B, 1 << 20)]);
    pool.submit(3, Some(()), 1);
    assert_eq!(turn(&mut pool, 0), [run(2, 1), run(1, 2), run(0, 3)]);
}

#[test]
fn a_task_waits_for_a_busy_worker_beside_its_data_for_a_moment_and_others_overtake_it() {
    let mut pool = pool(0);
    with_workers(&mut pool, &[A, B]);
    pool.submit_near(1, Some(()), 1, &[(A, 1 << 30)]);
    // 1 MB is moved within 10 ms.
    pool.submit_near(2, Some(()), 1, &[(A, 1_000_000)]);
    assert_eq!(turn(&mut pool, 0), [run(0, 1)]);
    assert_eq!(pool.next_deadline(), Some(at(10)));
    pool.submit(3, Some(()), 1);
    assert_eq!(turn(&mut pool, 5), [run(1, 3)], "it has no data");
    pool.answered(1, 3, at(9));
    assert_eq!(turn(&mut pool, 9), []);
    assert_eq!(turn(&mut pool, 10), [run(1, 2)]);
    assert_eq!(pool.next_deadline(), None);
    // However much it is.
    pool.submit_near(4, Some(()), 1, &[(A, u64::MAX)]);
    pool.answered(1, 2, at(20));
    assert_eq!(turn(&mut pool, 20), []);
    pool.answered(0, 1, at(30));
    assert_eq!(
        turn(&mut pool, 30),
        [run(0, 4)],
        "here it need not be moved"
    );
    pool.submit_near(5, Some(()), 1, &[(A, u64::MAX)]);
    assert_eq!(turn(&mut pool, 30), []);
    assert_eq!(pool.next_deadline(), Some(at(230)));
    pool.died(0, ended("it was stopped"), at(40));
    turn(&mut pool, 40);
    assert!(pool.waiting.is_empty(), "nobody else has its data");
}

#[test]
fn where_a_task_ended_a_worker_it_is_not_drawn_by_its_data() {
    let mut pool = pool(3);
    with_workers(&mut pool, &[A, A, B]);
    pool.submit_near(1, Some(()), 1, &[(A, 1 << 20)]);
    assert_eq!(turn(&mut pool, 0), [run(0, 1)]);
    pool.died(0, ended("killed"), at(1));
    assert_eq!(turn(&mut pool, 1), [run(2, 1)]);
}
