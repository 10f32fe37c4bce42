//! Who belongs to the cluster: `ban`, `unban`, `admit`, `admission`, `invite`, `secret rotate`,
//! `secret show`.

use super::{
    addresses,
    args::{AdmissionMode, ClusterSecret, RotateArgs},
    exit::{CliError, Exit, print},
    output::short_id,
    secret,
};
use nodectl_app as app;
use nodectl_app::settings::Settings;
use nodectl_http::Client;
use nodectl_launch::state::Launches;
use nodectl_ports::say::tell;
use nodectl_types::{roster::SecretText, text};
use nodectl_wire::api::{Membership, MembershipRequest, RotationView};
use std::time::Duration;
use tokio::time::Instant;
use zeroize::Zeroizing;

/// How long nodes that are there may take to keep a new secret, before those that have not are
/// listed.
const CHANGING: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub async fn ban(client: &Client, node: &str) -> Result<Exit, CliError> {
    let now = client
        .decide(&MembershipRequest::Ban { node: node.into() })
        .await?;
    tell!(
        "{} is banned: its key is refused by all nodes",
        last(&now, node)
    );
    tell!(
        "hint: whoever runs it still has the secret: `nodectl secret rotate` makes that secret useless"
    );
    Ok(Exit::Done)
}

pub async fn unban(client: &Client, node: &str) -> Result<Exit, CliError> {
    client
        .decide(&MembershipRequest::Unban { node: node.into() })
        .await?;
    tell!("{} is not banned any more", text::one_line(node));
    Ok(Exit::Done)
}

pub async fn admit(client: &Client, node: &str) -> Result<Exit, CliError> {
    let now = client
        .decide(&MembershipRequest::Admit { node: node.into() })
        .await?;
    tell!("{} is admitted", last(&now, node));
    Ok(Exit::Done)
}

pub async fn admission(client: &Client, mode: AdmissionMode) -> Result<Exit, CliError> {
    let approve = mode == AdmissionMode::Approve;
    client
        .decide(&MembershipRequest::Admission { approve })
        .await?;
    match approve {
        true => tell!(
            "new nodes now wait until a member types `nodectl admit NODE`; all nodes that are here are members"
        ),
        false => tell!("every node with the secret is a member, unless it is banned"),
    }
    Ok(Exit::Done)
}

/// The node as it is called, with its id.
fn last(now: &Membership, reference: &str) -> String {
    let meant = now
        .nodes
        .iter()
        .filter(|node| node.name == reference || node.id.starts_with(reference));
    meant.max_by_key(|node| node.at_ms).map_or_else(
        || text::one_line(reference).to_string(),
        |node| format!("{} ({})", text::one_line(&node.name), short_id(&node.id)),
    )
}

/// What goes before a command that is typed on another machine, so that it means this cluster.
pub fn in_cluster(name: &str) -> String {
    match name {
        "default" => String::new(),
        name => format!("NODECTL_CLUSTER__NAME={name} "),
    }
}

pub async fn invite(client: &Client, settings: &Settings, qr: bool) -> Result<Exit, CliError> {
    let node = client.node().await?;
    let code = client.invite().await?.code;
    let cluster = in_cluster(&settings.cluster.name);
    let addr = addresses::reachable(&node.addrs).next();
    let mut text = format!(
        "on the machine that is to join, within ten minutes:\n  {cluster}nodectl join --invite\n  {code}\n",
    );
    if let Some(addr) = addr {
        text += &format!("from another network, add: --peer {addr}\n");
    }
    if qr {
        let peer = addr.map_or(String::new(), |addr| format!(" --peer {addr}"));
        text += &qr_code(&format!("{cluster}nodectl join --invite {code}{peer}"));
    }
    print(&text)?;
    Ok(Exit::Done)
}

/// A text as a picture of half blocks, dark on light whatever colours the terminal has. Empty for
/// one that no code can hold.
fn qr_code(text: &str) -> String {
    use qrcode::{QrCode, render::unicode::Dense1x2};
    QrCode::new(text).map_or(String::new(), |code| {
        // Terminals are dark mostly: what is drawn is the light part.
        let picture = code
            .render::<Dense1x2>()
            .dark_color(Dense1x2::Light)
            .light_color(Dense1x2::Dark)
            .build();
        format!("\n{picture}\n")
    })
}

/// Says that no secret is kept in the data directory, and who has it.
async fn no_secret(client: &Client, settings: &Settings) -> String {
    let own = settings.node.data_dir.display().to_string();
    let node = client.node().await.ok().map(|node| node.data_dir);
    let hint = match node.filter(|place| *place != own) {
        Some(place) => format!(
            "the node that runs here is another user's (in {}), who has it; a service's is in \
             /etc/nodectl/secret, for root to read",
            text::one_line(&place)
        ),
        None => "it is where `join` was given it: in a file, or in NODECTL_SECRET".into(),
    };
    format!("no secret is kept in {own}\nhint: {hint}")
}

pub async fn secret(
    command: ClusterSecret,
    client: &Client,
    settings: &Settings,
    variable: Option<Zeroizing<String>>,
) -> Result<Exit, CliError> {
    let known = secret::of_this_machine(variable, settings);
    match command {
        ClusterSecret::Show => {
            let secret = known?;
            let Some(secret) = secret else {
                return Err(CliError::Usage(no_secret(client, settings).await));
            };
            print(&format!("{}\n", text::one_line(&secret.text)))?;
            Ok(Exit::Done)
        }
        ClusterSecret::Rotate(args) if args.finish => {
            let now = client.decide(&MembershipRequest::Finish).await?;
            match now.rotation.map(|rotation| names(&rotation)) {
                Some(missing) if !missing.is_empty() => {
                    tell!("the old secret is refused, also from {missing}")
                }
                _ => tell!("the old secret is refused"),
            }
            Ok(Exit::Done)
        }
        ClusterSecret::Rotate(args) => rotate(args, client, settings, known?).await,
    }
}

async fn rotate(
    args: RotateArgs,
    client: &Client,
    settings: &Settings,
    before: Option<secret::ChosenSecret>,
) -> Result<Exit, CliError> {
    let new = match &args.new_secret_file {
        Some(path) => secret::of_file(path, settings)?,
        None => app::generate_secret(),
    };
    let mut now = client
        .decide(&MembershipRequest::Rotate {
            secret: SecretText(new.to_string()),
        })
        .await?;
    let deadline = Instant::now() + CHANGING;
    while now
        .rotation
        .as_ref()
        .is_some_and(|rotation| rotation.under_way)
        && Instant::now() < deadline
    {
        tokio::time::sleep(LOOK_AGAIN).await;
        now = client.membership().await?;
    }
    if let Some(before) = before {
        Launches::below(&settings.node.data_dir).replace_secret(&before.text, &new)?;
    }
    let rotation = now.rotation;
    print(&describe(
        rotation.as_ref(),
        args.new_secret_file.is_none().then_some(new.as_str()),
    ))?;
    Ok(Exit::Done)
}

fn describe(rotation: Option<&RotationView>, shown: Option<&str>) -> String {
    let changed = rotation.map_or(0, |rotation| rotation.changed);
    let nodes = if changed == 1 {
        "1 node has".to_string()
    } else {
        format!("{changed} nodes have")
    };
    let mut text = format!("{nodes} the cluster's new secret");
    text += &shown.map_or_else(
        || "\n".to_string(),
        |secret| format!(":\n  {}\n", text::one_line(secret)),
    );
    let missing = rotation.map(names).unwrap_or_default();
    if missing.is_empty() {
        text += "the old one is refused\n";
    } else {
        text += &format!(
            "not yet: {missing}\n  they may still use the old one, and get the new one when they are back; to end that:\n  nodectl secret \
             rotate --finish\n"
        );
    }
    text + "files and services that give the old one still work in nodes that know of the change; write the new one there\n"
}

fn names(rotation: &RotationView) -> String {
    let named = |node: &nodectl_wire::api::NamedNode| {
        format!("{} ({})", text::one_line(&node.name), short_id(&node.id))
    };
    rotation
        .missing
        .iter()
        .map(named)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Lines below the table of nodes: who waits, who is banned.
pub fn notes(membership: &Membership) -> String {
    let mut text = String::new();
    for node in &membership.waiting {
        let from = node.from.as_ref().map_or_else(
            || "through a member".to_string(),
            |from| format!("from {from}"),
        );
        let id = short_id(&node.id);
        text += &format!("{id} waits to be admitted ({from}): nodectl admit {id}\n");
    }
    for node in membership.nodes.iter().filter(|node| node.banned) {
        text += &format!(
            "{} ({}) is banned\n",
            text::one_line(&node.name),
            short_id(&node.id)
        );
    }
    if let Some(rotation) = membership
        .rotation
        .as_ref()
        .filter(|rotation| rotation.under_way)
    {
        text += &format!(
            "the secret is being changed; not yet: {}\n",
            names(rotation)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_wire::api::{NamedNode, StandingView, WaitingNode};

    #[test]
    fn a_change_says_who_has_not_changed_and_how_to_end_it() {
        let missing = vec![NamedNode {
            id: "0a".repeat(32),
            name: "gamma".into(),
        }];
        let rotation = RotationView {
            number: 1,
            at_ms: 0,
            under_way: true,
            changed: 2,
            missing,
        };
        insta::assert_snapshot!(describe(Some(&rotation), Some("NEW")), @r"
        2 nodes have the cluster's new secret:
          NEW
        not yet: gamma (0a0a0a0a)
          they may still use the old one, and get the new one when they are back; to end that:
          nodectl secret rotate --finish
        files and services that give the old one still work in nodes that know of the change; write the new one there
        ");
        let all = RotationView {
            missing: Vec::new(),
            under_way: false,
            ..rotation
        };
        assert!(describe(Some(&all), None).contains("the old one is refused"));
    }

    #[test]
    fn who_waits_or_is_banned_stands_below_the_nodes() {
        let membership = Membership {
            approve: true,
            nodes: vec![StandingView {
                id: "0b".repeat(32),
                name: "old\u{1b}box".into(),
                banned: true,
                at_ms: 0,
            }],
            waiting: vec![WaitingNode {
                id: "0c".repeat(32),
                from: Some("192.0.2.3".into()),
            }],
            rotation: None,
        };
        let text = notes(&membership);
        assert!(
            text.contains("nodectl admit 0c0c0c0c") && text.contains("(0b0b0b0b) is banned"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'));
    }
}
