//! Disks that are full: no failure of a task.

use crate::{disk::SmallDisk, harness::*};
use nodectl::types::{Failure, Outcome, WorkSpec};
use std::fs;

/// A node whose disk has so much room left.
fn nearly_full(room: usize) -> Option<(SmallDisk, WorkerLab)> {
    let disk = SmallDisk::new("12m")?;
    let lab = WorkerLab::at(disk.path());
    fs::write(disk.path().join("ballast"), vec![1; (12 << 20) - room])
        .expect("there is room for it");
    Some((disk, lab))
}

#[test]
fn an_output_that_finds_no_room_is_the_nodes_failure() {
    let Some((disk, mut lab)) = nearly_full(3 << 20) else {
        return;
    };
    let large = || WorkSpec {
        outputs: vec!["out".into()],
        output_limit_bytes: 8 << 20,
        ..sh("head -c 2000000 /dev/urandom > out")
    };
    let record = lab.run(large());
    assert!(
        matches!(failure(&record), Failure::Storage(why) if why.contains("No space left")),
        "{record:?}"
    );
    fs::remove_file(disk.path().join("ballast")).unwrap();
    until("the disk can be written again", || {
        lab.disk.problem().is_none()
    });
    assert_eq!(lab.run(large()).outcome, Outcome::Done);
}

#[test]
fn a_program_that_finds_the_disk_full_is_excused_unless_it_fills_it() {
    let Some((disk, mut lab)) = nearly_full(1 << 20) else {
        return;
    };
    let record = lab.sh("head -c 2000000 /dev/zero > out");
    assert!(
        matches!(failure(&record), Failure::Storage(why) if why.contains("exit status 1")),
        "{record:?}"
    );
    fs::remove_file(disk.path().join("ballast")).unwrap();
    until("the disk can be written again", || {
        lab.disk.problem().is_none()
    });
    assert_eq!(
        *failure(&lab.sh("exit 4")),
        Failure::Exit(4),
        "there is room"
    );
    let endless = WorkSpec {
        output_limit_bytes: 1 << 30,
        ..sh("cat /dev/zero > out; exit 5")
    };
    assert_eq!(*failure(&lab.run(endless)), Failure::Exit(5));
}
