//! From arguments to an exit code.

use super::{
    args::{BenchCommand, Cli, Command, ConfigCommand, JobCommand, PlainCommand, SecretCommand},
    argv::{self, Given},
    ask, bench, complete, demo, doctor, events,
    exit::{CliError, Exit},
    files, flags, forget,
    grammar::command,
    join, leave, membership, metrics, mistyped, owner, place, plot, predict, psd_run, remove,
    report, rows, run, secrets, security, solo, top, ui, up, upgrade, welcome,
};
use clap::FromArgMatches;
use nodectl_app as app;
use nodectl_app::PROBE_COMMAND;
use nodectl_app::settings::{Flags, LogFormat, LogLevel, LogSettings, Settings};
use nodectl_http::Client;
use nodectl_types::Builtin;
use std::{ffi::OsString, io::IsTerminal, path::PathBuf, process::ExitCode, time::Duration};
use zeroize::Zeroizing;

/// How long blocking threads may take to end; one may wait for a line of the terminal forever.
const SHUTDOWN: Duration = Duration::from_millis(200);

/// The `nodectl` program.
pub fn main() -> ExitCode {
    let given = argv::take();
    // Started by nodes and by the Python package, not by people: before anything that it does not
    // need, such as a runtime with its threads.
    let first = given.args.get(1).and_then(|first| first.to_str());
    if let Some(part) = first.and_then(Builtin::of_subcommand) {
        return nodectl_workloads::work_as(part);
    }
    match first {
        Some(PROBE_COMMAND) => {
            let arguments: Vec<_> = given.args[2..]
                .iter()
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect();
            return app::gpu_probe(&arguments);
        }
        Some("kernel-interface") => return app::kernel_interface(&given.args[2..]),
        _ => {}
    }
    let parsed = match complete::answer(&given.args) {
        Ok(true) => return Exit::Done.into(),
        Ok(false) => parse(&given),
        Err(error) => Err(error),
    };
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Done
            };
            mistyped::tell(error, &given.args);
            return code.into();
        }
    };
    let exit = execute(cli, given.secret).unwrap_or_else(|error| {
        error.tell();
        error.exit()
    });
    exit.into()
}

fn parse(given: &Given) -> Result<Cli, clap::Error> {
    let args: &[OsString] = &given.args;
    let mut command = command();
    let matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn execute(cli: Cli, secret: Option<Zeroizing<String>>) -> Result<Exit, CliError> {
    match cli.command {
        Some(Command::Plain(command)) => return plain(command, cli.data_dir),
        Some(Command::Predict(args)) if args.job.is_none() => return predict::predict(&args),
        _ => {}
    }
    let (settings, _) = flags::settings(&cli)?;
    start_log(&settings.log, matches!(cli.command, Some(Command::Join(_))));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|source| CliError::File {
        doing: "starting threads".into(),
        source,
    })?;
    let exit = runtime.block_on(dispatch(cli.command, settings, secret));
    runtime.shutdown_timeout(SHUTDOWN);
    exit
}

/// Most of these need no settings, and must work where those are broken.
fn plain(command: PlainCommand, data_dir: Option<PathBuf>) -> Result<Exit, CliError> {
    match command {
        PlainCommand::Completions { shell } => complete::script(shell),
        PlainCommand::Man { dir } => files::man(dir.as_deref()),
        PlainCommand::Init(args) => files::init(&args),
        PlainCommand::Schema { of } => files::schema(of),
        PlainCommand::Bench(BenchCommand::Scheduler(args)) => bench::scheduler(&args),
        PlainCommand::Config(ConfigCommand::Show(args)) => {
            let (_, origins) = place::settings(Flags::default(), data_dir.as_deref())?;
            files::config_show(&origins, args.json)
        }
    }
}

async fn dispatch(
    command: Option<Command>,
    settings: Settings,
    secret: Option<Zeroizing<String>>,
) -> Result<Exit, CliError> {
    let client = Client::new(place::socket(&settings));
    let Some(command) = command else {
        return welcome::welcome(&client).await;
    };
    match command {
        Command::Join(args) => join::join(args, settings, secret).await,
        Command::Solo => solo::solo(&settings).await,
        Command::Leave => leave::leave(&client).await,
        Command::Up(args) => up::up(*args, settings, secret).await,
        Command::Down(args) => up::down(args, &settings).await,
        Command::PsdRun(args) => psd_run::psd_run(args).await,
        Command::Drain(args) => owner::drain(&client, args).await,
        Command::Pause(args) => owner::pause(&client, args).await,
        Command::Resume => owner::resume(&client).await,
        Command::Upgrade(args) => upgrade::upgrade(&client, args).await,
        Command::Events(args) => events::events(&client, args).await,
        Command::Audit(args) => owner::audit(&client, args).await,
        Command::Forget(args) => forget::forget(&client, &args).await,
        Command::Ban(args) => membership::ban(&client, &args.node).await,
        Command::Unban(args) => membership::unban(&client, &args.node).await,
        Command::Admit(args) => membership::admit(&client, &args.node).await,
        Command::Admission { mode } => membership::admission(&client, mode).await,
        Command::Invite(args) => membership::invite(&client, &settings, args.qr).await,
        Command::Secret(SecretCommand::Named(command)) => secrets::secret(&client, command).await,
        Command::Secret(SecretCommand::Cluster(command)) => {
            membership::secret(command, &client, &settings, secret).await
        }
        Command::Run(args) => run::run(args, &settings, secret).await,
        Command::Demo(args) => demo::demo(args, &settings).await,
        Command::Attach(args) => run::attach(args, &settings).await,
        // What a `run` without a node has left is looked at without one, too.
        Command::Jobs(command) => {
            let (client, stay) = solo::look_at_left(&settings).await?;
            let looked = look(&client, command).await;
            stay.end().await;
            looked
        }
        Command::Status(list) => ask::status(&client, list).await,
        Command::Ui(args) => ui::ui(&client, &settings, &args).await,
        Command::Nodes(list) => ask::nodes(&client, list).await,
        Command::Top(args) => top::top(client, args).await,
        Command::Metrics(args) => metrics::metrics(&client, args).await,
        Command::Devices(list) => ask::devices(&settings, list).await,
        Command::Retry(args) => run::retry(args, &settings).await,
        Command::Predict(args) => predict::predict_with_job(&args, &settings).await,
        Command::Doctor(args) if args.security => doctor::show(
            &security::examine(&client, &settings, secret).await,
            args.json,
        ),
        Command::Doctor(args) => doctor::doctor(&client, &settings, args).await,
        Command::Plain(command) => plain(command, None),
    }
}

async fn look(client: &Client, command: JobCommand) -> Result<Exit, CliError> {
    match command {
        JobCommand::Results(args) if args.plot.is_some() => plot::plot(client, &args).await,
        JobCommand::Results(args) if args.into.is_some() => run::collect(client, args).await,
        JobCommand::Results(args) => ask::results(client, args).await,
        JobCommand::Report(args) => report::report(client, &args).await,
        JobCommand::Jobs(list) => ask::jobs(client, list).await,
        JobCommand::Job(args) => ask::job(client, args).await,
        JobCommand::Logs(args) => ask::logs(client, args).await,
        JobCommand::Cancel(args) => ask::cancel(client, args).await,
        JobCommand::Add(args) => rows::add(client, args).await,
        JobCommand::Close(args) => rows::close(client, args).await,
        JobCommand::Remove(args) => remove::remove(client, &args).await,
        JobCommand::Explain(args) => ask::explain(client, args).await,
    }
}

/// Logs go to stderr. News of a node (`info`) are for those who run one; elsewhere they would hide
/// the progress.
fn start_log(settings: &LogSettings, is_node: bool) {
    let level = match settings.level {
        LogLevel::Error => "nodectl=error",
        LogLevel::Warn => "nodectl=warn",
        LogLevel::Info if is_node => "nodectl=info",
        LogLevel::Info => "nodectl=warn",
        LogLevel::Debug => "nodectl=debug",
        // What the network does below, too.
        LogLevel::Trace => "nodectl=trace,libp2p=debug",
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(level))
        .with_writer(std::io::stderr)
        .with_ansi(
            std::io::stderr().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        );
    match settings.format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
