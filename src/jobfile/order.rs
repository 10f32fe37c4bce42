//! `after`: names that exist, no cycles, and an order in which each job follows those it waits for.

use super::{Fault, PlacedJob, PlannedJob};
use nodectl_types::units::counted;
use std::collections::{BTreeMap, BTreeSet};

/// The most jobs of a cycle that are named.
const NAMED: usize = 8;

/// The jobs in an order in which they can be submitted; otherwise as in the file.
pub fn order(jobs: Vec<PlacedJob>) -> Result<Vec<PlannedJob>, Fault> {
    check_names(&jobs)?;
    let places: BTreeMap<&str, usize> = jobs
        .iter()
        .map(|placed| placed.job.name())
        .zip(0..)
        .collect();
    // For each job, how many it still waits for, and who waits for it.
    let awaited_by = |placed: &PlacedJob| placed.job.earlier().count();
    let mut awaited: Vec<usize> = jobs.iter().map(awaited_by).collect();
    let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); jobs.len()];
    for (index, placed) in jobs.iter().enumerate() {
        placed
            .job
            .earlier()
            .for_each(|name| waiting[places[name.as_str()]].push(index));
    }
    let mut ready: BTreeSet<usize> = (0..jobs.len())
        .filter(|index| awaited[*index] == 0)
        .collect();
    let mut order = Vec::with_capacity(jobs.len());
    while let Some(next) = ready.pop_first() {
        order.push(next);
        for follower in &waiting[next] {
            awaited[*follower] -= 1;
            if awaited[*follower] == 0 {
                ready.insert(*follower);
            }
        }
    }
    if order.len() < jobs.len() {
        let left: Vec<PlacedJob> = jobs
            .into_iter()
            .zip(awaited)
            .filter(|(_, awaited)| *awaited > 0)
            .map(|(placed, _)| placed)
            .collect();
        return Err(cycle(&left));
    }
    let mut jobs: Vec<Option<PlacedJob>> = jobs.into_iter().map(Some).collect();
    Ok(order
        .into_iter()
        .filter_map(|index| jobs[index].take())
        .map(|placed| placed.job)
        .collect())
}

fn check_names(jobs: &[PlacedJob]) -> Result<(), Fault> {
    let mut known = BTreeSet::new();
    for placed in jobs {
        let name = placed.job.name();
        if !known.insert(name) {
            let fault = Fault::new(
                placed.name_span.clone(),
                format!("two jobs have the name `{name}`"),
            );
            return Err(fault.hint("in a file with several jobs, give each a `name` of its own"));
        }
    }
    for placed in jobs {
        let mut named = BTreeSet::new();
        for (other, span) in placed.job.after.iter().zip(&placed.after_spans) {
            if !named.insert(other) {
                return Err(Fault::new(
                    span.clone(),
                    format!("`{other}` is named twice"),
                ));
            }
            if !known.contains(other.as_str()) {
                let names: Vec<&str> = known
                    .iter()
                    .copied()
                    .filter(|known| *known != placed.job.name())
                    .collect();
                let fault = Fault::new(
                    span.clone(),
                    format!("this file has no job `{other}` to wait for"),
                );
                return Err(fault.suggest(other, &names));
            }
        }
    }
    Ok(())
}

/// Every job of `waiting` waits for another of them: follows the first ones until one comes again.
fn cycle(waiting: &[PlacedJob]) -> Fault {
    let places: BTreeMap<&str, usize> = waiting
        .iter()
        .map(|placed| placed.job.name())
        .zip(0..)
        .collect();
    let awaited = |index: usize| {
        let mut edges = waiting[index].job.after.iter().enumerate();
        edges.find_map(|(edge, name)| Some((edge, *places.get(name.as_str())?)))
    };
    let mut path = vec![0];
    let mut seen = BTreeMap::from([(0, 0)]);
    loop {
        let last = path[path.len() - 1];
        let (edge, next) =
            awaited(last).expect("a job that is not ready waits for one that is not ordered");
        if let Some(start) = seen.insert(next, path.len()) {
            let cycle = &path[start..];
            let mut names: Vec<String> = cycle
                .iter()
                .take(NAMED)
                .map(|index| format!("`{}`", waiting[*index].job.name()))
                .collect();
            if cycle.len() > NAMED {
                names.push(counted(cycle.len() - NAMED, "other"));
            }
            names.push(format!("`{}`", waiting[next].job.name()));
            let message = format!("these jobs wait for each other: {}", names.join(" after "));
            return Fault::new(waiting[last].after_spans[edge].clone(), message);
        }
        path.push(next);
    }
}
