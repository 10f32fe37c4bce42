//! What `squeue` prints, and SLURM's times. Pure.

use crate::LaunchError;
use std::time::Duration;

/// Before the launch's id, in a job's comment.
const COMMENT: &str = "nodectl:";
/// Job or array element, state, node, time left, reason, comment (squeue(1), --format).
const FORMAT: &str = "%i|%T|%N|%L|%r|%k";

/// A job that waits or runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// As `scancel` takes it: `12` or `12_3`.
    pub id: String,
    pub state: AllocationState,
    /// Where it runs; empty before.
    pub nodes: String,
    /// Until its walltime; None without one.
    pub left: Option<Duration>,
    /// Why it waits, in SLURM's word.
    pub reason: String,
    /// The launch that it belongs to, if its comment says so.
    pub launch: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationState {
    Pending,
    Running,
    /// The allocation is ending, or has ended.
    Ending,
}

/// The comment of a launch's jobs.
pub fn comment(launch: &str) -> String {
    format!("{COMMENT}{launch}")
}

/// This user's jobs of that name, array elements one by one.
pub fn squeue_args(job_name: &str) -> Vec<String> {
    vec![
        "--me".into(),
        "-h".into(),
        "-r".into(),
        format!("--name={job_name}"),
        "-o".into(),
        FORMAT.into(),
    ]
}

/// The jobs that `sbatch --parsable` says it has made (`12`, or `12;cluster`), as `squeue` names
/// them.
pub fn parse_sbatch(text: &str, together: bool, count: u32) -> Vec<String> {
    let id = text
        .lines()
        .last()
        .and_then(|line| line.split(';').next())
        .unwrap_or_default()
        .trim();
    match !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()) {
        false => Vec::new(),
        true if together => vec![id.to_string()],
        true => (0..count)
            .map(|element| format!("{id}_{element}"))
            .collect(),
    }
}

/// Asks for the number of a job, or of an array's element.
pub fn number_args(id: &str) -> Vec<String> {
    vec![
        "-h".into(),
        format!("--jobs={id}"),
        "-o".into(),
        "%A".into(),
    ]
}

pub fn parse_squeue(text: &str) -> Result<Vec<Allocation>, LaunchError> {
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(parse_line)
        .collect()
}

fn parse_line(line: &str) -> Result<Allocation, LaunchError> {
    let fields: Vec<&str> = line.trim().splitn(6, '|').collect();
    let [id, state, nodes, left, reason, comment] = fields[..] else {
        return Err(LaunchError::Unparsable {
            program: "squeue",
            text: line.to_string(),
        });
    };
    let state = match state {
        "PENDING" | "CONFIGURING" | "REQUEUED" | "REQUEUE_HOLD" | "RESV_DEL_HOLD"
        | "SPECIAL_EXIT" => AllocationState::Pending,
        "RUNNING" | "SUSPENDED" | "STOPPED" | "RESIZING" | "SIGNALING" => AllocationState::Running,
        _ => AllocationState::Ending,
    };
    Ok(Allocation {
        id: id.to_string(),
        state,
        nodes: nodes.to_string(),
        left: parse_time(left),
        reason: reason.to_string(),
        launch: comment.strip_prefix(COMMENT).map(str::to_string),
    })
}

/// SLURM's `[days-]hours:minutes:seconds`, also `minutes:seconds`; None for anything else, such as
/// `UNLIMITED`.
pub fn parse_time(text: &str) -> Option<Duration> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let parts: Vec<u64> = clock
        .split(':')
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    let seconds = match parts[..] {
        [minutes, seconds] => minutes.checked_mul(60)?.checked_add(seconds)?,
        [hours, minutes, seconds] => hours
            .checked_mul(3600)?
            .checked_add(minutes.checked_mul(60)?)?
            .checked_add(seconds)?,
        _ => return None,
    };
    days.checked_mul(86_400)?
        .checked_add(seconds)
        .map(Duration::from_secs)
}

/// A time as `sbatch --time` has it.
pub fn format_time(time: Duration) -> String {
    let seconds = time.as_secs();
    format!(
        "{}-{:02}:{:02}:{:02}",
        seconds / 86_400,
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As slurm-wlm 22.05.8 of Debian 12 printed it.
    const CAPTURED: &str = include_str!("../../../tests/fixtures/launch/squeue.txt");

    #[test]
    fn a_captured_queue_is_read() {
        let jobs = parse_squeue(CAPTURED).unwrap();
        let seen: Vec<_> = jobs
            .iter()
            .map(|job| {
                (
                    job.id.as_str(),
                    job.state,
                    job.nodes.as_str(),
                    job.reason.as_str(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("4_2", AllocationState::Pending, "", "JobArrayTaskLimit"),
                ("4_3", AllocationState::Pending, "", "JobArrayTaskLimit"),
                ("4_0", AllocationState::Running, "n1", "None"),
                ("4_1", AllocationState::Running, "n2", "None"),
                ("3", AllocationState::Ending, "n[3-4]", "None"),
            ]
        );
        assert_eq!(jobs[2].launch.as_deref(), Some("c0ffee00"));
        assert_eq!(jobs[2].left, Some(Duration::from_secs(59 * 60 + 57)));
        assert_eq!(jobs[4].left, None, "without a limit");
        assert_eq!(parse_squeue("").unwrap(), []);
        assert!(
            parse_squeue("squeue: something new")
                .unwrap_err()
                .to_string()
                .contains("something new")
        );
    }

    #[test]
    fn jobs_are_known_before_the_queue_shows_them() {
        assert_eq!(parse_sbatch("12\n", false, 2), ["12_0", "12_1"]);
        assert_eq!(parse_sbatch("12;lab\n", true, 2), ["12"]);
        for text in ["", "Submitted batch job 12\n", ";"] {
            assert_eq!(parse_sbatch(text, false, 2), [""; 0], "{text}");
        }
    }

    #[test]
    fn slurms_times_in_all_their_forms() {
        for (text, seconds) in [
            ("4:58", 298),
            ("1:00:00", 3600),
            ("1-02:03:04", 93_784),
            ("0:00", 0),
        ] {
            assert_eq!(
                parse_time(text),
                Some(Duration::from_secs(seconds)),
                "{text}"
            );
        }
        for text in [
            "UNLIMITED",
            "INVALID",
            "",
            "5",
            "a:b",
            "1-",
            "99999999999999999999:00",
        ] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn times_are_read_as_they_are_written(seconds in 0u64..10_000_000) {
            let time = Duration::from_secs(seconds);
            prop_assert_eq!(parse_time(&format_time(time)), Some(time));
        }

        #[test]
        fn any_output_is_read_or_refused(text in "[0-9_|:A-Z\n-]{0,60}") {
            let _ = parse_squeue(&text);
        }
    }
}
