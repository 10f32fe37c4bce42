//! `after`: names that exist, no cycles, and an order in which each job follows those it waits for.

use super::{Fault, PlacedJob, PlannedJob};

/// The jobs in an order in which they can be submitted; otherwise as in the file.
pub(super) fn order(jobs: Vec<PlacedJob>) -> Result<Vec<PlannedJob>, Fault> {
    check_names(&jobs)?;
    let mut waiting = jobs;
    let mut ordered: Vec<PlannedJob> = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let is_ready = |placed: &PlacedJob| {
            placed.job.after.iter().all(|name| ordered.iter().any(|earlier| earlier.name == *name))
        };
        let Some(next) = waiting.iter().position(is_ready) else { return Err(cycle(&waiting)) };
        ordered.push(waiting.remove(next).job);
    }
    Ok(ordered)
}

fn check_names(jobs: &[PlacedJob]) -> Result<(), Fault> {
    for (index, placed) in jobs.iter().enumerate() {
        let name = &placed.job.name;
        if jobs[..index].iter().any(|earlier| earlier.job.name == *name) {
            let fault = Fault::new(placed.name_span.clone(), format!("two jobs have the name `{name}`"));
            return Err(fault.hint("in a file with several jobs, give each a `name` of its own"));
        }
        for (edge, (other, span)) in placed.job.after.iter().zip(&placed.after_spans).enumerate() {
            if placed.job.after[..edge].contains(other) {
                return Err(Fault::new(span.clone(), format!("`{other}` is named twice")));
            }
            if !jobs.iter().any(|candidate| candidate.job.name == *other) {
                let names: Vec<&str> =
                    jobs.iter().map(|job| job.job.name.as_str()).filter(|known| known != name).collect();
                let fault = Fault::new(span.clone(), format!("this file has no job `{other}` to wait for"));
                return Err(fault.suggest(other, &names));
            }
        }
    }
    Ok(())
}

/// Every job of `waiting` waits for another of them: follows the first ones until one comes again.
fn cycle(waiting: &[PlacedJob]) -> Fault {
    let awaited = |index: usize| {
        let mut edges = waiting[index].job.after.iter().enumerate();
        edges.find_map(|(edge, name)| Some((edge, waiting.iter().position(|other| other.job.name == *name)?)))
    };
    let mut path = vec![0];
    loop {
        let last = path[path.len() - 1];
        let (edge, next) = awaited(last).expect("a job that is not ready waits for one that is not ordered");
        if let Some(start) = path.iter().position(|seen| *seen == next) {
            let names = path[start..].iter().chain([&next]).map(|index| format!("`{}`", waiting[*index].job.name));
            let message = format!("these jobs wait for each other: {}", names.collect::<Vec<_>>().join(" after "));
            return Fault::new(waiting[last].after_spans[edge].clone(), message);
        }
        path.push(next);
    }
}
