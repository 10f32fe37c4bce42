//! `nodectl report JOB`: what a job did, as one HTML file that opens anywhere, without a network
//! and without scripts.
//!
//! | file | owns |
//! |---|---|
//! | `mod` | the command: which job, where the file goes |
//! | `figures` | numbers about the job, from its results |
//! | `stream` | which task ran where and when, and how long tasks took, as pictures |
//! | `meanwhile` | what happened to its nodes while it ran |
//! | `page` | the page; its looks are in `style.css` |

mod figures;
mod meanwhile;
mod page;
mod stream;

use super::{
    args::ReportArgs,
    exit::{CliError, Exit, print},
    run,
};
use figures::Figures;
use meanwhile::Meanwhile;
use nodectl_http::Client;
use std::{path::PathBuf, time::SystemTime};

/// Writes the report of a job as it is now, and prints the file's name.
pub async fn report(client: &Client, args: &ReportArgs) -> Result<Exit, CliError> {
    let job = client.job(&args.name.job).await?;
    let results = run::all_results(client, &job.line.id, false).await?;
    let path = match &args.output {
        Some(path) => path.clone(),
        None => {
            let directory = run::default_directory(&job.line.name, &job.line.id);
            PathBuf::from(format!("{}.html", directory.display()))
        }
    };
    let figures = Figures::of(&job, &results);
    let meanwhile = Meanwhile::of(client, &job, &figures).await;
    let page = page::page(&job, &results, (&figures, &meanwhile), SystemTime::now());
    std::fs::write(&path, page).map_err(|source| CliError::file("writing", &path, source))?;
    print(&format!("{}\n", path.display()))?;
    Ok(Exit::Done)
}
