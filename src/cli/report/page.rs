//! The page. maud escapes whatever is text: names and outputs of tasks cannot add anything to it.

use super::{
    super::plot,
    figures::{Figures, has_run, node_name},
    meanwhile::{self, Meanwhile},
    stream::{self, seconds},
};
use crate::selection;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use nodectl_types::{text, units::format_bytes};
use nodectl_wire::api::{Job, TaskResult};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const STYLE: &str = include_str!("style.css");
/// Rows of the list of slow tasks.
const SLOWEST: usize = 10;
/// Characters of a task's parameters, and of a command.
const PARAMS_CHARS: usize = 160;
/// Pictures of a sweep.
const MOST_PLOTS: usize = 12;
/// Numbers of failed tasks that are listed with one reason.
const LISTED: usize = 20;

/// The whole page. `now` is when it was written.
pub fn page(
    job: &Job,
    results: &[TaskResult],
    (figures, meanwhile): (&Figures, &Meanwhile),
    now: SystemTime,
) -> String {
    let title = format!("{} ({})", job.line.name, job.line.id);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                // Whatever a task has written, nothing of it runs here, and nothing is fetched.
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (job.line.name) " " span.(job.line.phase.word()) { (job.line.phase.word()) } }
                    p.quiet { (about(job)) }
                    @if let Some(reason) = &job.line.reason { p { (reason) } }
                }
                main {
                    (summary(job, figures, meanwhile))
                    h2 { "Tasks over time" }
                    (stream::tasks(results))
                    (nodes(figures))
                    (meanwhile::events(meanwhile))
                    (failures(figures))
                    (stream::durations(results))
                    (best(job, results))
                    (sweep(job, results))
                    (slowest(results))
                }
                footer {
                    p { "Times are by the clocks of the nodes where tasks ran. Of a task that ran more than once, the run is shown that gave its result." }
                    p { "Written " (utc(now)) " by nodectl " (env!("CARGO_PKG_VERSION")) "." }
                }
            }
        }
    };
    page.into_string()
}

fn about(job: &Job) -> String {
    let submitted = UNIX_EPOCH + Duration::from_millis(job.line.submitted_ms);
    let user = match job.line.user.as_str() {
        "" => String::new(),
        user => format!(" by {user}"),
    };
    let ended = job.line.ended_ms.map(|ended| {
        let taken = ended.saturating_sub(job.line.submitted_ms);
        format!(", ended after {}", seconds(taken as f64 / 1e3))
    });
    let command = match (&job.work.worker, job.work.command.as_slice()) {
        (Some(worker), _) => format!(": {worker}"),
        (None, []) => String::new(),
        (None, command) => format!(": {}", text::shortened(&command.join(" "), PARAMS_CHARS)),
    };
    format!(
        "job {}, submitted {}{user}{}{command}",
        job.line.id,
        utc(submitted),
        ended.unwrap_or_default()
    )
}

fn utc(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

fn summary(job: &Job, figures: &Figures, meanwhile: &Meanwhile) -> Markup {
    let progress = &job.progress;
    let counted = [
        (progress.failed, "failed"),
        (progress.stopped, "stopped"),
        (progress.running, "running"),
    ];
    let memory = job.work.resources.memory_bytes;
    html! {
        dl.figures {
            div {
                dt { "tasks done" }
                dd { (progress.done) " of " (progress.tasks) }
                @for (count, what) in counted {
                    @if count > 0 { dd.more { (count) " " (what) } }
                }
            }
            div {
                dt { "first start to last end" }
                dd { (seconds(figures.wall)) }
                dd.more { (seconds(figures.task_seconds)) " of tasks; the first began " (seconds(figures.waited(job))) " after the job was submitted" }
            }
            div {
                dt { "tasks at once" }
                dd { (format!("{:.1}", figures.mean_at_once())) }
                dd.more { (figures.most_at_once) " at most, of which " (percent(figures.busy())) " of the time were used" }
            }
            div {
                dt { "processors" }
                dd { (percent(figures.cpu_use(job))) }
                dd.more { "of the cores asked for; " (seconds(figures.cpu_seconds)) " of processor time" }
            }
            @if progress.failures > progress.failed {
                div {
                    dt { "attempts lost" }
                    dd { (progress.failures - progress.failed) }
                    dd.more { "that failed, and were tried again" }
                }
            }
            @if let Some(energy) = meanwhile.gpu_energy_wh {
                div {
                    dt { "energy of its nodes' GPUs" }
                    dd { (format!("{energy:.1} Wh")) }
                    dd.more { "while it ran, whoever used them, as far as they tell and nodes remember" }
                }
            }
            div {
                dt { "most memory of a task" }
                dd { (format_bytes(figures.peak_memory)) }
                @if memory > 0 { dd.more { (format_bytes(memory)) " asked for" } }
                @if let Some(suggestion) = figures.memory_suggestion(job) {
                    dd.more { "better: " code { "memory = \"" (format_bytes(suggestion)) "\"" } }
                }
            }
        }
    }
}

fn nodes(figures: &Figures) -> Markup {
    if figures.nodes.is_empty() {
        return html! {};
    }
    html! {
        h2 { "Nodes" }
        table {
            thead { tr { th { "node" } th.number { "tasks" } th.number { "time of tasks" } th.number { "processor time" } th.number { "most memory" } } }
            tbody {
                @for node in &figures.nodes {
                    tr {
                        td { (node.name) }
                        td.number { (node.tasks) }
                        td.number { (seconds(node.task_seconds)) }
                        td.number { (seconds(node.cpu_seconds)) }
                        td.number { (format_bytes(node.peak_memory)) }
                    }
                }
            }
        }
    }
}

fn failures(figures: &Figures) -> Markup {
    if figures.failures.is_empty() {
        return html! {};
    }
    html! {
        h2 { "Failures" }
        @for group in &figures.failures {
            section.failure {
                h3 { (group.message) }
                p { (tasks_in_words(&group.tasks)) }
                @if !group.last_lines.is_empty() { pre { (group.last_lines) } }
            }
        }
    }
}

fn tasks_in_words(tasks: &[u32]) -> String {
    let listed: Vec<_> = tasks.iter().take(LISTED).map(u32::to_string).collect();
    let rest = tasks.len() - listed.len();
    let more = if rest > 0 {
        format!(" and {rest} more")
    } else {
        String::new()
    };
    let noun = if tasks.len() == 1 { "task" } else { "tasks" };
    format!("{noun} {}{more}", listed.join(", "))
}

/// The metric of a sweep over each of its parameters.
fn sweep(job: &Job, results: &[TaskResult]) -> Markup {
    let Some(sweep) = &job.work.sweep else {
        return html! {};
    };
    let names = job.work.params.iter().take(MOST_PLOTS);
    let plots: Vec<String> = names
        .filter_map(|name| plot::picture(job, results, name, &sweep.metric))
        .collect();
    if plots.is_empty() {
        return html! {};
    }
    html! {
        h2 { (sweep.metric) " over the parameters" }
        // Of our own making: what it says of tasks is escaped there.
        div.plots { @for plot in &plots { figure { (PreEscaped(plot)) } } }
    }
}

/// The best task of a sweep.
fn best(job: &Job, results: &[TaskResult]) -> Markup {
    let best = job
        .work
        .sweep
        .as_ref()
        .and_then(|sweep| Some((sweep, selection::best(results, sweep)?)));
    let Some((sweep, best)) = best else {
        return html! {};
    };
    let value = selection::column(best, &sweep.metric).map(|value| selection::word(&value));
    html! {
        h2 { "Best" }
        p { (sweep.metric) " = " (value.unwrap_or_default()) ": task " (best.task) ", " code { (params(best)) } }
    }
}

fn slowest(results: &[TaskResult]) -> Markup {
    let mut slowest: Vec<&TaskResult> = results.iter().filter(|result| has_run(result)).collect();
    slowest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then(a.task.cmp(&b.task)));
    slowest.truncate(SLOWEST);
    if slowest.is_empty() {
        return html! {};
    }
    html! {
        h2 { "Slowest tasks" }
        table {
            thead { tr { th.number { "task" } th { "parameters" } th { "node" } th { "end" } th.number { "time" } th.number { "processor time" } th.number { "memory" } } }
            tbody {
                @for result in slowest {
                    tr {
                        td.number { (result.task) }
                        td { code { (params(result)) } }
                        td { (node_name(result)) }
                        td { (result.status.word()) }
                        td.number { (seconds(result.seconds)) }
                        td.number { (seconds(result.cpu_seconds)) }
                        td.number { (format_bytes(result.max_rss_bytes)) }
                    }
                }
            }
        }
    }
}

fn params(result: &TaskResult) -> String {
    text::shortened(&selection::params(result), PARAMS_CHARS).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{
        super::figures::tests::{job, results},
        *,
    };

    fn written(job: &Job, results: &[TaskResult]) -> String {
        let figures = Figures::of(job, results);
        page(job, results, (&figures, &Meanwhile::default()), UNIX_EPOCH)
    }

    #[test]
    fn a_page_tells_what_happened() {
        let page = written(&job(1 << 30), &results());
        for said in [
            "<title>areas (00000000000000aa)</title>",
            "3 of 4",
            "1 failed",
            "exit status 3",
            "memory = &quot;256 MiB&quot;",
            "submitted 2023-11-14T22:13:20Z by ada, ended after 9.0 s",
        ] {
            assert!(page.contains(said), "{said}: {page}");
        }
    }

    #[test]
    fn whatever_tasks_wrote_is_text_and_nothing_is_fetched() {
        let page = written(&job(0), &results());
        assert!(page.contains("echo &lt;b&gt;") && page.contains("two &lt;i&gt;"));
        for never in ["<script", "<b>", "<i>", "http://", "https://", "src="] {
            assert!(!page.contains(never), "{never}");
        }
    }

    #[test]
    fn a_sweep_has_a_picture_for_each_parameter() {
        let mut swept = job(0);
        swept.work.sweep = Some(nodectl_wire::api::SweepView {
            metric: "loss".into(),
            goal: "min".into(),
        });
        let mut results = results();
        for (result, loss) in results.iter_mut().zip([0.3, 0.1, 0.2, 0.4]) {
            result.value = Some(serde_json::json!({ "loss": loss, "<b>": 1 }));
        }
        let page = written(&swept, &results);
        assert!(page.contains("loss over the parameters"));
        assert_eq!(page.matches("<figure>").count(), 1, "one parameter");
        for never in ["<script", "<b>", "http://", "https://"] {
            assert!(!page.contains(never), "{never}");
        }
    }

    #[test]
    fn energy_and_lost_attempts_are_told_where_they_are_known() {
        let mut job = job(0);
        job.progress.failures = 4;
        let figures = Figures::of(&job, &results());
        let meanwhile = Meanwhile {
            gpu_energy_wh: Some(12.34),
            ..Meanwhile::default()
        };
        let page = page(&job, &results(), (&figures, &meanwhile), UNIX_EPOCH);
        assert!(page.contains("12.3 Wh") && page.contains("attempts lost"));
        assert!(!written(&self::job(0), &results()).contains("Wh"));
    }

    #[test]
    fn a_job_without_results_has_a_page() {
        let page = written(&job(0), &[]);
        assert!(page.contains("No task has ended yet."), "{page}");
    }

    #[test]
    fn a_job_of_many_tasks_has_a_page_that_opens() {
        let one = results().remove(0);
        let results: Vec<_> = (0..100_000)
            .map(|task| TaskResult {
                task,
                started_ms: one.started_ms + u64::from(task),
                ..one.clone()
            })
            .collect();
        let page = written(&job(0), &results);
        assert!(page.len() < 3_000_000, "{}", page.len());
    }
}
