//! `bench`: what this machine can do. `bench scheduler` needs no node and no settings.

use super::{
    args::SchedulerArgs,
    exit::{CliError, Exit, print},
    output,
};
use nodectl_app::bench::{self, SchedulerCost};
use serde_json::json;

/// Slots of the nodes that are measured: with few, a turn of the loop decides about few tasks.
const SLOTS: [u32; 3] = [2, 16, 128];

/// CPU time a task of coordinator and executor together.
pub fn scheduler(args: &SchedulerArgs) -> Result<Exit, CliError> {
    // As many tasks that need none, and that need one each, side by side.
    let each = SLOTS
        .iter()
        .flat_map(|slots| [(*slots, false), (*slots, true)])
        .filter(|(_, graph)| !(args.plain && *graph));
    let costs = each
        .map(|(slots, graph)| bench::scheduler(args.tasks, slots, graph).map_err(CliError::Node));
    let costs = costs.collect::<Result<Vec<_>, _>>()?;
    if args.json {
        let entry = |cost: &SchedulerCost| {
            let SchedulerCost {
                tasks,
                slots,
                graph,
                appends,
                ..
            } = cost;
            json!({"tasks": tasks, "slots": slots, "graph": graph, "cpu_ms_per_task": cost.ms_a_task(), "journal_appends": appends})
        };
        print(&output::document(
            &costs.iter().map(entry).collect::<Vec<_>>(),
        ))?;
    } else {
        let row = |cost: &SchedulerCost| {
            vec![
                cost.tasks.to_string(),
                cost.slots.to_string(),
                if cost.graph { "one" } else { "none" }.to_string(),
                format!("{:.4}", cost.ms_a_task()),
                cost.appends.to_string(),
            ]
        };
        print(&output::columns(
            &[
                "TASKS",
                "SLOTS",
                "NEEDS",
                "CPU MS A TASK",
                "JOURNAL APPENDS",
            ],
            costs.iter().map(row),
        ))?;
    }
    Ok(Exit::Done)
}
