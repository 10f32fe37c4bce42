//! More parameter sets of a job: a job of their own, of the same work, that extends it.

use super::{JobDraft, JobId, JobSpec, ParamSpace, Value};

/// Why parameter sets are none of a job's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadExtension {
    #[error("a job with `[[task]]` takes no more parameter sets")]
    Graph,
    #[error("the job has no parameters\nhint: submit it once more for more of the same")]
    NoParameters,
    #[error("there is no column `{column}`\nhint: the job's parameters are {names}")]
    Missing { column: String, names: String },
    #[error("the job has no parameter `{column}`\nhint: they are {names}")]
    Strange { column: String, names: String },
}

impl JobSpec {
    /// The job that does this one's work, `job`, with more parameter sets: rows of `cells`, whose
    /// columns may be in any order.
    pub fn extended(
        self,
        job: JobId,
        columns: &[String],
        cells: &[Value],
    ) -> Result<JobDraft, BadExtension> {
        if !self.work.kinds.is_empty() {
            return Err(BadExtension::Graph);
        }
        let names: Vec<String> = self
            .params
            .names()
            .iter()
            .map(ToString::to_string)
            .collect();
        if names.is_empty() {
            return Err(BadExtension::NoParameters);
        }
        let known = || names.join(", ");
        if let Some(missing) = names.iter().find(|name| !columns.contains(name)) {
            return Err(BadExtension::Missing {
                column: missing.clone(),
                names: known(),
            });
        }
        if let Some(strange) = columns.iter().find(|column| !names.contains(column)) {
            return Err(BadExtension::Strange {
                column: strange.clone(),
                names: known(),
            });
        }
        let place = |name: &String| columns.iter().position(|column| column == name);
        let places: Vec<usize> = names.iter().filter_map(place).collect();
        let rows = cells.chunks_exact(columns.len());
        let cells = rows.flat_map(|row| places.iter().map(|place| row[*place].clone()));
        let params = ParamSpace::Rows {
            cells: cells.collect(),
            columns: names.clone(),
        };
        let mut draft = JobDraft {
            params,
            extends: Some(job),
            ..self.into()
        };
        // These are given, whatever the job before drew from.
        draft.work.adaptive = false;
        Ok(draft)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeId, WorkSpec};

    fn spec(names: &[&str]) -> JobSpec {
        let axis = |name: &&str| (name.to_string(), vec![Value::Int(1)]);
        JobSpec {
            params: ParamSpace::Grid(names.iter().map(axis).collect()),
            ..JobSpec::plain(WorkSpec::named("fit"), NodeId([1; 32]))
        }
    }

    fn columns(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn columns_come_in_the_order_of_the_parameters() {
        let cells = [1, 2, 3, 4].map(Value::Int);
        let draft = spec(&["a", "b"]).extended(JobId(7), &columns(&["b", "a"]), &cells);
        let draft = draft.expect("its parameters");
        assert_eq!(draft.extends, Some(JobId(7)));
        let wanted = ParamSpace::Rows {
            columns: columns(&["a", "b"]),
            cells: [2, 1, 4, 3].map(Value::Int).to_vec(),
        };
        assert_eq!(draft.params, wanted);
    }

    #[test]
    fn other_parameters_are_refused_by_name() {
        let refused = |names: &[&str], given: &[&str]| {
            let cells = vec![Value::Int(1); given.len()];
            let refused = spec(names).extended(JobId(7), &columns(given), &cells);
            refused.expect_err("other parameters").to_string()
        };
        assert!(refused(&["a", "b"], &["a"]).starts_with("there is no column `b`\n"));
        assert!(refused(&["a"], &["a", "c"]).starts_with("the job has no parameter `c`\n"));
        assert!(refused(&[], &["a"]).starts_with("the job has no parameters\n"));
        assert!(refused(&[], &[]).starts_with("the job has no parameters\n"));
    }
}
