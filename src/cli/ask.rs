//! The listings and one-line commands: a question, an answer, printed.

use super::{
    args::{
        CancelArgs, DevicesArgs, ExplainArgs, JobArgs, JobsArgs, ListArgs, ListingArgs, LogsArgs,
        ResultsArgs, TaskStates, WatchArgs,
    },
    exit::{CliError, Exit, print},
    listing, membership,
    output::{self, ClusterStatus, ListedTask, TaskEnd},
    run,
    selection::select,
    shown::ShownLog,
    solo,
};
use futures::{StreamExt, TryStreamExt};
use nodectl_app::settings::Settings;
use nodectl_http::{Client, client::LogRequest};
use nodectl_ports::{say::tell, wall_ms};
use nodectl_types::text;
use nodectl_wire::api::{
    CursorView, Job, PhaseName, ReasonView, StateName, TaskReference, TaskRow,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// Tasks asked for at once.
const TASKS_A_PAGE: u32 = 5_000;
/// Ends of tasks that are kept in memory while tasks are listed; `results` has all.
const MOST_ENDS: usize = 200_000;
/// Results of jobs of more tasks are listed as they ended: to sort them takes memory and time.
const MOST_SORTED: u32 = 10_000;

pub async fn status(client: &Client, args: ListingArgs) -> Result<Exit, CliError> {
    let make = async || {
        let (node, nodes, jobs) = tokio::try_join!(client.node(), client.nodes(), client.jobs())?;
        let jobs = listing::of_users(jobs);
        Ok(output::choose(args.list).status(&ClusterStatus { node, nodes, jobs }))
    };
    listing::show(args.repeat, make).await?;
    Ok(Exit::Done)
}

pub async fn nodes(client: &Client, args: ListingArgs) -> Result<Exit, CliError> {
    let only_table = args.list.json || args.list.quiet;
    let make = async || {
        let table = output::choose(args.list).nodes(&client.nodes().await?);
        if only_table {
            return Ok(table);
        }
        Ok(table + &membership::notes(&client.membership().await?))
    };
    listing::show(args.repeat, make).await?;
    Ok(Exit::Done)
}

pub async fn jobs(client: &Client, args: JobsArgs) -> Result<Exit, CliError> {
    let make = async || {
        let jobs = listing::jobs(client.jobs().await?, &args);
        Ok(output::choose(args.listing.list).jobs(&jobs, wall_ms()))
    };
    listing::show(args.listing.repeat, make).await?;
    Ok(Exit::Done)
}

/// The cluster's GPUs; where no node runs, this machine's.
pub async fn devices(settings: &Settings, args: DevicesArgs) -> Result<Exit, CliError> {
    let (client, mut stay) = solo::connect(settings, true).await?;
    if let Some(node) = stay.own() {
        node.gpus_known().await;
    }
    let listed = list_devices(&client, args).await;
    stay.end().await;
    listed
}

async fn list_devices(client: &Client, args: DevicesArgs) -> Result<Exit, CliError> {
    if args.measure {
        client.measure_devices().await?;
    }
    let output = output::choose(args.listing.list);
    let make = async || Ok(output.devices(&client.devices().await?));
    listing::show(args.listing.repeat, make).await?;
    Ok(Exit::Done)
}

pub async fn job(client: &Client, args: JobArgs) -> Result<Exit, CliError> {
    let list = args.listing.list;
    if let Some(states) = args.tasks {
        let make = async |page: &mut dyn FnMut(String) -> Result<(), CliError>| {
            tasks(client, &args, states, page).await
        };
        return pages(args.listing.repeat, make).await;
    }
    let make = async || {
        let mut job = client.job(&args.name.job).await?;
        if !list.json {
            let names = names(client).await;
            let name = |id: String| names.get(&id).cloned().unwrap_or(id);
            job.line.coordinator = job.line.coordinator.map(name);
        }
        Ok(output::choose(list).job(&job, wall_ms()))
    };
    listing::show(args.listing.repeat, make).await?;
    Ok(Exit::Done)
}

/// Prints what comes page by page: as it comes, or put together where it is watched.
async fn pages(
    repeat: WatchArgs,
    mut make: impl AsyncFnMut(&mut dyn FnMut(String) -> Result<(), CliError>) -> Result<(), CliError>,
) -> Result<Exit, CliError> {
    if repeat.watch.is_none() {
        make(&mut |page| print(&page)).await?;
        return Ok(Exit::Done);
    }
    let whole = async || {
        let mut text = String::new();
        make(&mut |page| {
            text += &page;
            Ok(())
        })
        .await?;
        Ok(text)
    };
    listing::show(repeat, whole).await?;
    Ok(Exit::Done)
}

/// Names of nodes, by their ids. None while the cluster does not say.
async fn names(client: &Client) -> BTreeMap<String, String> {
    let nodes = client.nodes().await.unwrap_or_default();
    nodes.into_iter().map(|node| (node.id, node.name)).collect()
}

/// A job's tasks, page by page.
async fn tasks(
    client: &Client,
    args: &JobArgs,
    states: TaskStates,
    tell: &mut dyn FnMut(String) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let output = output::choose(args.listing.list);
    let state = match states {
        TaskStates::All => None,
        TaskStates::Pending => Some(StateName::Pending),
        TaskStates::Running => Some(StateName::Running),
        TaskStates::Done => Some(StateName::Done),
        TaskStates::Failed => Some(StateName::Failed),
        TaskStates::Cancelled => Some(StateName::Cancelled),
    };
    // Ids and nothing else need neither.
    let (names, mut ends) = match args.listing.list {
        ListArgs { quiet: true, .. } => (BTreeMap::new(), BTreeMap::new()),
        ListArgs { .. } => (names(client).await, ends(client, &args.name.job).await),
    };
    let mut offset = 0;
    loop {
        let page = client
            .tasks(&args.name.job, state, offset, TASKS_A_PAGE)
            .await?;
        let count = page.tasks.len() as u32;
        let line = |row: TaskRow| ListedTask {
            end: ends.remove(&row.task),
            node: row.node.as_ref().map(|node| {
                let name = names.get(node.as_str()).cloned();
                name.unwrap_or_else(|| output::short_id(node))
            }),
            row,
        };
        let lines: Vec<_> = page.tasks.into_iter().map(line).collect();
        if offset == 0 || count > 0 {
            tell(output.tasks(&lines, wall_ms(), offset == 0))?;
        }
        offset += count;
        if count == 0 || offset >= page.total {
            return Ok(());
        }
    }
}

/// The ends of a job's tasks, by task: of the first `MOST_ENDS` that ended. None where results are
/// not this user's to read.
async fn ends(client: &Client, job: &str) -> BTreeMap<u32, TaskEnd> {
    let mut ends = BTreeMap::new();
    let mut cursor = CursorView::default();
    while let Ok(page) = client.results(job, cursor, 0).await {
        if page.results.is_empty() || ends.len() >= MOST_ENDS {
            break;
        }
        ends.extend(
            page.results
                .iter()
                .map(|result| (result.task, TaskEnd::of(result))),
        );
        cursor = page.cursor;
    }
    ends
}

/// The results so far, in the order of tasks; those of large jobs page by page as they are read, in
/// the order in which tasks ended. Does not wait for more.
pub async fn results(client: &Client, args: ResultsArgs) -> Result<Exit, CliError> {
    let make = async |page: &mut dyn FnMut(String) -> Result<(), CliError>| {
        tell_results(client, &args, page).await
    };
    pages(args.listing.repeat, make).await
}

/// A job's results, page by page, or those that are wanted of them.
async fn tell_results(
    client: &Client,
    args: &ResultsArgs,
    tell: &mut dyn FnMut(String) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let output = output::choose(args.listing.list);
    let selects = args.sort.is_some() || args.best || args.number.is_some();
    let job = client.job(&args.name.job).await?;
    if args.all || args.csv || selects || job.line.tasks <= MOST_SORTED {
        let results = run::all_results(client, &args.name.job, args.all).await?;
        let results = select(results, args, job.work.sweep.as_ref()).map_err(CliError::Usage)?;
        let text = if args.csv {
            run::csv(&results)
        } else {
            output.results(&results, true)
        };
        return tell(text);
    }
    let mut cursor = CursorView::default();
    let mut first = true;
    loop {
        let page = client.results(&args.name.job, cursor, 0).await?;
        if first || !page.results.is_empty() {
            tell(output.results(&page.results, first))?;
        }
        if page.results.is_empty() {
            return Ok(());
        }
        (cursor, first) = (page.cursor, false);
    }
}

pub async fn logs(client: &Client, args: LogsArgs) -> Result<Exit, CliError> {
    let request = LogRequest {
        stderr: args.stderr,
        offset: 0,
        follow: args.follow,
        rank: args.rank,
    };
    let mut log = client.log(&args.name.job, &args.task, request).await?;
    let mut shown = ShownLog::new(args.raw);
    let mut is_empty = true;
    while let Some(bytes) = log.try_next().await? {
        is_empty &= bytes.is_empty();
        shown.print(&bytes)?;
    }
    if is_empty && !args.stderr {
        mention_stderr(client, &args).await;
    }
    Ok(Exit::Done)
}

/// Says so where a task has written to its stderr, as those that fail at their start do.
async fn mention_stderr(client: &Client, args: &LogsArgs) {
    let (job, task) = (&args.name.job, &args.task);
    let request = LogRequest {
        stderr: true,
        rank: args.rank,
        ..LogRequest::default()
    };
    let first = async { client.log(job, task, request).await.ok()?.next().await };
    if let Some(Ok(bytes)) = first.await
        && !bytes.is_empty()
    {
        let (job, task) = (text::escaped(job), text::escaped(task));
        tell!(
            "task {task} has written nothing to its stdout; `nodectl logs --stderr {job} {task}` \
             shows what it wrote to its stderr"
        );
    }
}

pub async fn cancel(client: &Client, args: CancelArgs) -> Result<Exit, CliError> {
    let job = &args.name.job;
    if !args.tasks.is_empty() {
        let tasks = args.tasks.iter().map(|task| TaskReference::of(task));
        client.cancel_tasks(job, tasks.collect()).await?;
        let (noun, verb) = if args.tasks.len() == 1 {
            ("task", "has")
        } else {
            ("tasks", "have")
        };
        let tasks = args.tasks.join(", ");
        tell!("{noun} {} of job {job} {verb} ended", text::escaped(&tasks));
        return Ok(Exit::Done);
    }
    // Nothing is known of one that an earlier `run` left, which can be cancelled all the same.
    let before = client.job(job).await.ok().map(|job| job.line);
    // Also where it has ended already: what its coordinator knows may be newer than what was shown.
    client.cancel(job).await?;
    let (named, phase) = match &before {
        Some(line) => (
            format!("{} ({})", text::one_line(&line.name), line.id),
            Some(line.phase),
        ),
        None => (format!("job {}", text::escaped(job)), None),
    };
    match phase {
        Some(PhaseName::Done) => tell!("{named} was done already: there is nothing to cancel"),
        Some(PhaseName::Failed) => {
            tell!("{named} had failed already: there is nothing to cancel")
        }
        Some(PhaseName::Cancelled) => tell!("{named} was cancelled already"),
        _ => tell!("{named} is cancelled; `nodectl results {job}` has what was done"),
    }
    Ok(Exit::Done)
}

/// Why something is as it is: in words, and what is known of it as programs want it.
#[derive(Serialize)]
struct Explained {
    job: Job,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<TaskRow>,
    lines: Vec<String>,
    reasons: Vec<ReasonView>,
}

pub async fn explain(client: &Client, args: ExplainArgs) -> Result<Exit, CliError> {
    let job = &args.name.job;
    let explanation = client.explain(job, args.task.as_deref()).await?;
    if args.json {
        let task = match &args.task {
            None => None,
            Some(task) => task_row(client, job, &TaskReference::of(task)).await?,
        };
        print(&output::document(&Explained {
            job: client.job(job).await?,
            task,
            lines: explanation.lines,
            reasons: explanation.reasons,
        }))?;
    } else {
        print(
            &explanation
                .lines
                .iter()
                .map(|line| format!("{}\n", text::lines(line)))
                .collect::<String>(),
        )?;
    }
    Ok(Exit::Done)
}

/// One task of a job, by its number or its name.
async fn task_row(
    client: &Client,
    job: &str,
    task: &TaskReference,
) -> Result<Option<TaskRow>, CliError> {
    let mut offset = 0;
    let name = match task {
        TaskReference::Number(number) => {
            let page = client.tasks(job, None, *number, 1).await?;
            return Ok(page.tasks.into_iter().next());
        }
        TaskReference::Name(name) => name,
    };
    loop {
        let page = client.tasks(job, None, offset, TASKS_A_PAGE).await?;
        offset += page.tasks.len() as u32;
        let is_last = page.tasks.is_empty() || offset >= page.total;
        let mut rows = page.tasks.into_iter();
        let found = rows.find(|row| row.name.as_ref() == Some(name));
        if found.is_some() || is_last {
            return Ok(found);
        }
    }
}
