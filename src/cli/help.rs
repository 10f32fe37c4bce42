//! The first page of help: commands in groups, in the order in which a user meets them.

use super::args::Command;
use clap::{Subcommand, builder::Styles};

/// Every command that is shown, once. `help` is clap's own.
const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Jobs",
        &[
            "demo", "init", "run", "attach", "add", "close", "jobs", "job", "explain", "cancel",
            "retry", "remove",
        ],
    ),
    ("Results", &["results", "report", "logs", "predict"]),
    (
        "Cluster",
        &[
            "join", "leave", "status", "top", "ui", "nodes", "devices", "events", "metrics", "up",
            "down", "psd-run", "doctor",
        ],
    ),
    (
        "This machine, and who may join",
        &[
            "drain",
            "pause",
            "resume",
            "upgrade",
            "audit",
            "secret",
            "invite",
            "admit",
            "admission",
            "ban",
            "unban",
            "forget",
        ],
    ),
    (
        "More",
        &["config", "schema", "bench", "completions", "man", "help"],
    ),
];
/// What clap says of its own command.
const HELP: &str = "Prints this page, or that of a command";

/// clap's template with the groups in place of its list.
pub fn template() -> String {
    let styles = Styles::styled();
    let (head, name) = (styles.get_header(), styles.get_literal());
    let all = Command::augment_subcommands(clap::Command::new("nodectl"));
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for (title, commands) in GROUPS {
        text += &format!("\n{head}{title}:{head:#}\n");
        for command in commands {
            let about = all
                .find_subcommand(command)
                .and_then(clap::Command::get_about);
            let about = about.map_or_else(|| HELP.into(), ToString::to_string);
            text += &format!("  {name}{command:<11}{name:#}  {about}\n");
        }
    }
    text + &format!("\n{head}Options:{head:#}\n{{options}}{{after-help}}")
}

/// The kinds of job files that `init` writes, a line each.
pub fn kinds() -> String {
    let head = Styles::styled();
    let head = head.get_header();
    let mut text = format!("{head}Kinds:{head:#}");
    for template in nodectl_workloads::templates::kinds() {
        text += &format!("\n  {:<11} {}", template.kind, template.summary);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_help_of_init_names_every_kind() {
        let mut all = crate::grammar::command();
        let help = all.find_subcommand_mut("init").expect("a command");
        let help = help.render_help().to_string();
        for template in nodectl_workloads::templates::kinds() {
            let line = format!("\n  {:<11} {}", template.kind, template.summary);
            assert!(help.contains(&line), "{line}: {help}");
        }
    }

    #[test]
    fn every_command_is_in_one_group_and_fits_80_columns() {
        let all = Command::augment_subcommands(clap::Command::new("nodectl"));
        let shown = all
            .get_subcommands()
            .filter(|command| !command.is_hide_set());
        let shown: BTreeSet<_> = shown
            .map(|command| command.get_name().to_string())
            .collect();
        let grouped = GROUPS.iter().flat_map(|(_, commands)| commands.iter());
        let grouped: Vec<_> = grouped.filter(|name| **name != "help").collect();
        assert_eq!(grouped.len(), shown.len());
        assert!(grouped.iter().all(|name| shown.contains(**name)));
        for command in all
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
        {
            let about = command
                .get_about()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                about.len() <= 65,
                "{}: {} columns",
                command.get_name(),
                about.len() + 15
            );
        }
    }
}
