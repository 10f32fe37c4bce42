//! Asks nodes what they have, by a task on each of them: it sees what a job's tasks would see, the
//! PATH and the variables that they get, and what is hidden from them.

use super::needs::Requirement;
use crate::{
    exit::CliError,
    run::{CommandKey, all_results, submit_job},
};
use nodectl_http::{Client, ClientError};
use nodectl_types::{JobDraft, Resources, WorkSpec};
use nodectl_wire::api::{CursorView, StatusName};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// How long a node may take to answer. A first import on a cold disk takes seconds.
const PATIENCE: Duration = Duration::from_secs(30);
const PAGE_MS: u32 = 1_000;
/// Before what waits on a full node, of which it takes nothing.
const PRIORITY: i32 = i32::MAX;

/// Says `lacks` with each argument that is not there.
const SHELL: &str = r#"
check=$1; shift
for want do
  rest=${want#*:}
  case $want in
    python:*) { "python$rest" -c "" || command -v uv || "$HOME/.pyenv/versions/$rest"*/bin/python3 -c "" ||
      "$HOME/.local/share/uv/python/cpython-$rest"*/bin/python3 -c ""; } >/dev/null 2>&1 || echo "lacks $want" ;;
    program:*) command -v "$rest" >/dev/null 2>&1 || echo "lacks $want" ;;
    *) "${rest%%:*}" -c "$check" "$want" 2>/dev/null || echo "lacks $want" ;;
  esac
done
echo looked
"#;
const PYTHON: &str = r#"
import sys
kind, _, name = sys.argv[1].split(":", 2)
if kind == "module":
    from importlib.util import find_spec
    sys.exit(find_spec(name) is None)
from importlib.metadata import version
version(name)
"#;

/// What became of a question to a node.
pub enum ProbeReply {
    Lacks(BTreeSet<Requirement>),
    /// The rest of a sentence that begins with the node's name.
    None(String),
}

/// What the node of this name lacks of `needs`. `place` is the condition that the job has, `env`
/// the variables that its tasks get.
pub async fn ask(
    client: &Client,
    node: &str,
    place: &str,
    env: &[(String, String)],
    needs: &[Requirement],
) -> Result<ProbeReply, CliError> {
    let draft = question(node, place, env, needs);
    let id = match submit_job(client, &draft, (&CommandKey::draw(), 0), None).await {
        Ok(id) => id.to_string(),
        Err(CliError::Client(ClientError::Refused { problem, .. })) => {
            return Ok(ProbeReply::None(match place {
                "" => format!("gets no task of it: {}", problem.error),
                place => format!("gets no task of it: where = \"{place}\""),
            }));
        }
        Err(error) => return Err(error),
    };
    let answer = answer(client, &id, needs).await;
    // Nobody needs it any more. What is left of one that has not ended grows old by itself.
    let _ = client.cancel(&id).await;
    let _ = client.remove(&id).await;
    answer
}

async fn answer(client: &Client, id: &str, needs: &[Requirement]) -> Result<ProbeReply, CliError> {
    let begin = Instant::now();
    let mut cursor = CursorView::default();
    while begin.elapsed() < PATIENCE {
        let page = client.results(id, cursor, PAGE_MS).await?;
        cursor = page.cursor;
        if page.progress.phase.is_ended() {
            let results = all_results(client, id, false).await?;
            let result = results.first();
            let said = result.filter(|result| result.status == StatusName::Done);
            return Ok(match said {
                Some(result) => ProbeReply::Lacks(lacking(&result.stdout.tail, needs)),
                None => ProbeReply::None(format!(
                    "could not be asked: {}",
                    result
                        .and_then(|result| result.failure.as_ref())
                        .map_or("the question was cancelled", |failure| &failure.message)
                )),
            });
        }
    }
    let seconds = PATIENCE.as_secs();
    Ok(ProbeReply::None(format!(
        "did not answer within {seconds} s"
    )))
}

fn question(node: &str, place: &str, env: &[(String, String)], needs: &[Requirement]) -> JobDraft {
    let quote = if node.contains('\'') { '"' } else { '\'' };
    let here = format!("name == {quote}{node}{quote}");
    // No placeholders: braces are meant.
    let literal = |text: &str| text.replace('{', "{{").replace('}', "}}");
    let mut command: Vec<String> = ["sh", "-c", SHELL, "doctor", PYTHON].map(literal).into();
    command.extend(needs.iter().map(|need| literal(&word(need))));
    let env = env.iter().filter(|(_, value)| !value.contains(['{', '}']));
    let work = WorkSpec {
        command,
        env: env.cloned().collect(),
        resources: Resources::default(),
        priority: PRIORITY,
        timeout_ms: Some(PATIENCE.as_millis() as u64),
        ..WorkSpec::named("doctor")
    };
    JobDraft {
        place: match place {
            "" => here,
            place => format!("({place}) and {here}"),
        },
        retries: 0,
        speculate: false,
        ..JobDraft::new(work)
    }
}

/// A need as the script above has it.
fn word(need: &Requirement) -> String {
    match need {
        Requirement::Program(name) => format!("program:{name}"),
        Requirement::Python(version) => format!("python:{version}"),
        Requirement::Module { python, module } => format!("module:{python}:{module}"),
        Requirement::Package { python, package } => format!("package:{python}:{package}"),
    }
}

fn lacking(said: &str, needs: &[Requirement]) -> BTreeSet<Requirement> {
    let lacks: BTreeSet<&str> = said
        .lines()
        .filter_map(|line| line.strip_prefix("lacks "))
        .collect();
    let lacking = needs.iter().filter(|need| lacks.contains(&*word(need)));
    lacking.cloned().collect()
}
