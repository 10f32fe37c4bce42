//! A task's parameters put into the places that its job has for them, within bounds: the same ones
//! that its job was accepted by.

use nodectl_types::{
    Failure, StartTask, limits,
    template::{self, TemplateError},
    text::shown,
};

/// Expands what one task is started with. All of it together has a bound.
pub struct Expander<'t> {
    task: &'t StartTask,
    room: usize,
}

impl<'t> Expander<'t> {
    pub fn new(task: &'t StartTask) -> Self {
        Self {
            task,
            room: limits::MAX_TASK_TEXT_BYTES,
        }
    }

    /// Replaces `{name}` by parameters and by what every task has.
    pub fn text(&mut self, text: &str) -> Result<String, Failure> {
        let task = self.task;
        let known = |name: &str| match name {
            "task" => Some(task.task.to_string()),
            "attempt" => Some(task.whole_attempt().number.to_string()),
            "job" => Some(task.job.to_string()),
            _ => task
                .params
                .iter()
                .find(|(param, _)| param == name)
                .map(|(_, value)| value.to_string()),
        };
        let lookup = |name: &str| template::value(name, &known);
        template::expand_within(text, &lookup, &mut self.room).map_err(|error| {
            let limit = limits::MAX_TASK_TEXT_BYTES;
            Failure::Spawn(match error {
                TemplateError::TooLong { .. } => format!(
                    "with its parameters in their places, the task's command, variables and outputs have more than {limit} \
                     bytes\nhint: programs read more from files: params.json has the parameters"
                ),
                error => format!("in `{}`: {error}", shown(text)),
            })
        })
    }

    pub fn all(&mut self, templates: &[String]) -> Result<Vec<String>, Failure> {
        templates.iter().map(|text| self.text(text)).collect()
    }

    /// The values of variables.
    pub fn env<'e>(
        &mut self,
        env: impl IntoIterator<Item = &'e (String, String)>,
    ) -> Result<Vec<(String, String)>, Failure> {
        env.into_iter()
            .map(|(name, value)| Ok((name.clone(), self.text(value)?)))
            .collect()
    }
}
