//! Open jobs: what one may be, and what may be added to it.

use super::{BadSpec, Checked, bad, check};
use crate::{JobDraft, JobSpec, Needs, ParamSpace, Params, Value, WorkSpec, limits, text::shown};

/// An open job is one of tasks that differ in their parameters alone.
pub fn check_open(work: &WorkSpec, params: &ParamSpace, repeat: u32) -> Checked {
    let ParamSpace::Open(columns) = params else {
        return Ok(());
    };
    let most = limits::MAX_ROW_COLUMNS;
    check((1..=most).contains(&columns.len()), "open", || {
        format!("a task that is added gives 1 to {most} parameters")
    })?;
    check(work.adaptive, "open", || {
        "the parameters of its tasks are not noted with their results".into()
    })?;
    check(repeat == 1, "repeat", || {
        "each task that is added to an open job runs once".into()
    })?;
    check(work.task_names.is_none(), "task_names", || {
        "tasks are added while the job runs, too late to name them".into()
    })?;
    check(work.pool().is_none() && !work.is_log(), "open", || {
        "pools and logs take what is new in a way of their own".into()
    })
}

/// Tasks that are added need no others: these have names in job files alone.
pub fn check_needs(params: &ParamSpace, needs: &Needs) -> Checked {
    let is_open = matches!(params, ParamSpace::Open(_));
    check(!is_open || needs.is_empty(), "needs", || {
        "tasks of an open job need no others".into()
    })
}

impl JobDraft {
    /// Whether tasks are added to the job while it runs, until it is closed.
    pub fn is_open(&self) -> bool {
        matches!(self.params, ParamSpace::Open(_))
    }
}

impl JobSpec {
    /// The parameters of a task that is added to this job, which is open, in their order. Fails
    /// unless each of them is given once, and a task may have their values.
    pub fn row_of(&self, mut given: Params) -> Result<Params, BadSpec> {
        let ParamSpace::Open(columns) = &self.params else {
            return Err(bad("open", "all its tasks came with its submission"));
        };
        let mut row = Params::with_capacity(columns.len());
        for column in columns {
            let at = given.iter().position(|(name, _)| name == column);
            let at =
                at.ok_or_else(|| bad("params", format!("a row has no `{}`", shown(column))))?;
            row.push(given.swap_remove(at));
        }
        if let Some((name, _)) = given.first() {
            let problem = format!(
                "the job has no parameter `{}`, or a row has it twice",
                shown(name)
            );
            return Err(bad("params", problem));
        }
        let bytes = row_bytes(&row);
        check(bytes <= limits::MAX_ROW_BYTES, "params", || {
            let most = limits::MAX_ROW_BYTES;
            format!("a row has {bytes} bytes; at most {most} are possible")
        })?;
        let (columns, cells) = row.iter().cloned().unzip();
        let alone = ParamSpace::Rows { columns, cells };
        self.work.check_placeholders(&alone)?;
        Ok(row)
    }
}

/// About how many bytes a row takes.
pub fn row_bytes(row: &Params) -> usize {
    let cell = |(name, value): &(String, Value)| {
        let value = match value {
            Value::Text(text) | Value::Spelled(text) => text.len(),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => 9,
        };
        name.len() + value
    };
    row.iter().map(cell).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;

    fn open(command: &[&str], columns: &[&str]) -> JobSpec {
        let mut work = WorkSpec::plain("scan", command);
        work.adaptive = true;
        let columns = columns.iter().map(|column| (*column).into()).collect();
        JobSpec {
            params: ParamSpace::Open(columns),
            ..JobSpec::plain(work, NodeId([1; 32]))
        }
    }

    fn row(cells: &[(&str, &str)]) -> Params {
        let cell = |(name, text): &(&str, &str)| (name.to_string(), Value::Text((*text).into()));
        cells.iter().map(cell).collect()
    }

    #[test]
    fn a_row_gives_every_parameter_once_in_the_order_of_the_job() {
        let job = open(&["fit", "{sample}", "{lr}"], &["sample", "lr"]);
        job.check().expect("it is an open job");
        let given = row(&[("lr", "1"), ("sample", "a")]);
        assert_eq!(job.row_of(given), Ok(row(&[("sample", "a"), ("lr", "1")])));
        for (given, problem) in [
            (row(&[("lr", "1")]), "a row has no `sample`"),
            (
                row(&[("lr", "1"), ("sample", "a"), ("x", "")]),
                "no parameter `x`",
            ),
            (
                row(&[("lr", "1"), ("sample", "a"), ("lr", "2")]),
                "has it twice",
            ),
            (row(&[("lr", "1"), ("sample", "a\0")]), "a NUL character"),
            (
                row(&[("lr", &"1".repeat(70_000)), ("sample", "")]),
                "70008 bytes",
            ),
        ] {
            let error = job.row_of(given).expect_err(problem).to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn what_an_open_job_cannot_be_is_told() {
        let job = || open(&["fit", "{sample}"], &["sample"]);
        let plain = JobSpec {
            params: ParamSpace::Single,
            ..open(&["fit"], &[])
        };
        let twice = JobSpec { repeat: 2, ..job() };
        for (job, problem) in [
            (open(&["fit"], &[]), "1 to 256 parameters"),
            (open(&["fit", "{size}"], &["sample"]), "`size`"),
            (open(&["fit"], &["a", "a"]), "two parameters"),
            (plain, "no parameters are drawn"),
            (twice, "runs once"),
        ] {
            let error = job.check().expect_err(problem).to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
