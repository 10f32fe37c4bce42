//! Examples at the end of the help of each command.

use clap::Command;

/// By command; each line can be typed.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("demo", &["nodectl demo"]),
    ("schema", &["nodectl schema job > job.schema.json"]),
    (
        "ui",
        &["nodectl ui", "nodectl ui --port 8080", "nodectl ui --write"],
    ),
    ("init", &["nodectl init", "nodectl init worker"]),
    (
        "attach",
        &["nodectl attach last", "nodectl attach areas --into results"],
    ),
    (
        "jobs",
        &[
            "nodectl jobs --open",
            "nodectl jobs --name sweep -n 5",
            "nodectl jobs --watch",
        ],
    ),
    (
        "job",
        &["nodectl job last", "nodectl job areas --tasks=failed"],
    ),
    (
        "explain",
        &["nodectl explain last", "nodectl explain areas 3"],
    ),
    (
        "cancel",
        &["nodectl cancel last", "nodectl cancel areas 3 7"],
    ),
    ("add", &["nodectl add last rows.csv"]),
    ("close", &["nodectl close last"]),
    ("retry", &["nodectl retry last --failed"]),
    ("top", &["nodectl top", "nodectl top --once"]),
    (
        "metrics",
        &[
            "nodectl metrics",
            "nodectl metrics -o /var/lib/prometheus/node-exporter/nodectl.prom",
        ],
    ),
    (
        "remove",
        &["nodectl remove areas", "nodectl remove --older 7d"],
    ),
    (
        "results",
        &[
            "nodectl results last",
            "nodectl results areas --sort -value -n 3",
            "nodectl results sweep --best",
            "nodectl results sweep --plot lr:loss",
            "nodectl results areas --into results --flat",
            "nodectl results areas --csv > areas.csv",
        ],
    ),
    (
        "report",
        &["nodectl report last", "nodectl report sweep -o sweep.html"],
    ),
    (
        "logs",
        &[
            "nodectl logs last",
            "nodectl logs areas 3 --stderr",
            "nodectl logs last -f",
        ],
    ),
    (
        "predict",
        &[
            "nodectl predict model.safetensors new.csv",
            "nodectl predict --job last new.csv",
        ],
    ),
    (
        "join",
        &[
            "nodectl join --detach",
            "nodectl join --detach --label rack=b --peer 192.0.2.7:4000",
        ],
    ),
    ("leave", &["nodectl leave"]),
    ("status", &["nodectl status", "nodectl status --watch"]),
    ("nodes", &["nodectl nodes", "nodectl nodes --json"]),
    ("devices", &["nodectl devices", "nodectl devices --measure"]),
    (
        "up",
        &[
            "nodectl up cluster.csv",
            "nodectl up --slurm --nodes 4 --time 1h --partition gpu",
            "nodectl up --condor --max 10",
        ],
    ),
    ("down", &["nodectl down", "nodectl down cluster.csv"]),
    (
        "psd-run",
        &["nodectl psd-run -c cluster.json -o logs 'python3 train.py'"],
    ),
    (
        "doctor",
        &[
            "nodectl doctor",
            "nodectl doctor job.toml",
            "nodectl doctor --security",
        ],
    ),
    (
        "drain",
        &[
            "nodectl drain",
            "nodectl drain box-b",
            "nodectl drain --off",
        ],
    ),
    (
        "pause",
        &["nodectl pause --for 2h", "nodectl pause --finish"],
    ),
    ("resume", &["nodectl resume"]),
    (
        "upgrade",
        &[
            "nodectl upgrade ./nodectl",
            "nodectl upgrade ./nodectl --cluster --except gpu-box-1",
        ],
    ),
    (
        "events",
        &["nodectl events", "nodectl events --within 12h --json"],
    ),
    ("audit", &["nodectl audit -n 20"]),
    (
        "secret",
        &[
            "nodectl secret show",
            "nodectl secret put HF_TOKEN < token.txt",
        ],
    ),
    ("invite", &["nodectl invite"]),
    ("admit", &["nodectl admit box-c"]),
    ("admission", &["nodectl admission approve"]),
    ("ban", &["nodectl ban box-c"]),
    ("unban", &["nodectl unban box-c"]),
    ("forget", &["nodectl forget box-c"]),
    ("config", &["nodectl config show"]),
    ("bench", &["nodectl bench scheduler"]),
    (
        "completions",
        &["nodectl completions bash > ~/.local/share/bash-completion/completions/nodectl"],
    ),
    ("man", &["nodectl man | man -l -", "nodectl man man1"]),
];

/// The commands with their examples, after whatever their help ends in.
pub fn with_examples(mut top: Command) -> Command {
    for (name, lines) in EXAMPLES {
        top = top.mut_subcommand(name, |command| {
            let notes = command.get_after_help().map(ToString::to_string);
            let mut text = notes.map_or_else(String::new, |notes| notes + "\n\n");
            text += if lines.len() == 1 {
                "Example:"
            } else {
                "Examples:"
            };
            lines.iter().for_each(|line| text += &format!("\n  {line}"));
            command.after_help(text)
        });
    }
    top
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar;
    use std::collections::BTreeMap;

    #[test]
    fn every_command_has_examples_that_it_understands() {
        let examples: BTreeMap<_, _> = EXAMPLES.iter().copied().collect();
        let all = grammar::command();
        for command in all
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
        {
            let name = command.get_name();
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(help.contains("\n  nodectl "), "{name}: {help}");
            for line in examples.get(name).copied().unwrap_or_default() {
                assert!(line.starts_with(&format!("nodectl {name}")), "{line}");
                let line = line.split([' ', '\'']).filter(|word| !word.is_empty());
                let words = line.take_while(|word| !["|", ">", "<"].contains(word));
                // A command of several words is one argument.
                let words: Vec<_> = words.filter(|word| *word != "train.py").collect();
                if let Err(error) = grammar::command().try_get_matches_from(&words) {
                    panic!("{words:?}: {error}");
                }
            }
        }
    }
}
