//! `nodectl top`: the cluster on a terminal, again and again. Speaks to the local API only.
//!
//! | file | owns |
//! |---|---|
//! | `picture` | what is shown, and asking the node for it |
//! | `rows` | what is in the tables; pure |
//! | `view` | which screen, and what keys do; pure |
//! | `draw` | a view of a picture as characters; pure |

mod draw;
mod picture;
mod rows;
#[cfg(test)]
mod tests;
mod view;

use super::{
    args::TopArgs,
    exit::{CliError, Exit, print},
};
use nodectl_http::Client;
use picture::{TopAsker, TopPicture, TopWanted};
use ratatui::crossterm::{
    event::{DisableMouseCapture, EnableMouseCapture, Event, KeyEventKind, MouseEventKind},
    execute,
};
use ratatui::{DefaultTerminal, Terminal, backend::TestBackend};
use std::{
    io::{self, IsTerminal},
    time::Duration,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    time::timeout,
};
use view::{Action, Screen, TopView};

/// Between two looks at the node.
const PERIOD: Duration = Duration::from_secs(2);
/// Rows of the mouse's wheel.
const WHEEL: isize = 3;
/// Keys that are read ahead.
const KEYS: usize = 64;

pub async fn top(client: Client, args: TopArgs) -> Result<Exit, CliError> {
    if args.once {
        return once(client).await;
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let why = "`top` needs a terminal\nhint: `nodectl top --once` prints the picture once";
        return Err(CliError::Usage(why.into()));
    }
    // Where nobody answers at all there is nothing to show.
    client.node().await?;
    let mut terminal = open()?;
    let shown = show(&mut terminal, client).await;
    close();
    shown.map_err(|source| CliError::File {
        doing: "drawing on the terminal".into(),
        source,
    })?;
    Ok(Exit::Done)
}

async fn once(client: Client) -> Result<Exit, CliError> {
    client.node().await?;
    let mut asker = TopAsker::new(client);
    let picture = asker.look(&TopWanted::Loads).await;
    print(&snapshot(picture))?;
    Ok(Exit::Done)
}

/// Cluster and jobs as text.
fn snapshot(picture: &TopPicture) -> String {
    let mut view = TopView::new(false);
    let nodes = page(&view, picture, picture.nodes.len());
    view.places[0].screen = Screen::Jobs;
    let jobs = page(&view, picture, picture.jobs.len());
    let without_title = jobs.lines().skip(1).map(|line| format!("{line}\n"));
    nodes + "\n" + &without_title.collect::<String>()
}

/// A screen with so many rows, without its last line: that is for those who have keys.
fn page(view: &TopView, picture: &TopPicture, rows: usize) -> String {
    let height = u16::try_from(rows)
        .unwrap_or(u16::MAX - 3)
        .min(u16::MAX - 3)
        + 3;
    let Ok(mut terminal) = Terminal::new(TestBackend::new(draw::LEAST.0 + 20, height));
    let Ok(_) = terminal.draw(|frame| draw::body(frame, frame.area(), view, picture));
    let buffer = terminal.backend().buffer();
    let lines = buffer.content.chunks(usize::from(buffer.area.width));
    let text = |cells: &[ratatui::buffer::Cell]| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_string() + "\n"
    };
    lines.take(usize::from(height) - 1).map(text).collect()
}

fn open() -> Result<DefaultTerminal, CliError> {
    // Puts the terminal back also where this program panics.
    let opened = ratatui::try_init().and_then(|terminal| {
        execute!(io::stdout(), EnableMouseCapture)?;
        Ok(terminal)
    });
    opened.map_err(|source| {
        close();
        CliError::File {
            doing: "taking the terminal over".into(),
            source,
        }
    })
}

/// A terminal that has gone needs nothing put back.
fn close() {
    let _ = execute!(io::stdout(), DisableMouseCapture);
    ratatui::restore();
}

/// Draws until somebody ends it. Asking is beside: keys are answered while the node is slow.
async fn show(terminal: &mut DefaultTerminal, client: Client) -> io::Result<()> {
    let mut view = TopView::new(wants_colour());
    let mut keys = read_keys()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let (wanted, asked) = watch::channel(view.wanted());
    let (seen, mut pictures) = watch::channel(TopPicture::default());
    let asking = tokio::spawn(ask(TopAsker::new(client), asked, seen));
    loop {
        let picture = pictures.borrow_and_update().clone();
        terminal.draw(|frame| draw::draw(frame, &view, &picture))?;
        let event = tokio::select! {
            event = keys.recv() => event,
            _ = pictures.changed() => continue,
            _ = terminate.recv() => None,
            _ = hang_up.recv() => None,
        };
        let action = match event {
            Some(event) => take(&mut view, event, &picture),
            None => Action::Quit,
        };
        match action {
            Action::Quit => break,
            Action::Draw => {}
            Action::Ask => drop(wanted.send_replace(view.wanted())),
        }
    }
    asking.abort();
    Ok(())
}

fn take(view: &mut TopView, event: Event, picture: &TopPicture) -> Action {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => return view.key(key, picture),
        Event::Mouse(mouse) => match mouse.kind {
            MouseEventKind::ScrollUp => view.step(-WHEEL, picture),
            MouseEventKind::ScrollDown => view.step(WHEEL, picture),
            _ => {}
        },
        _ => {}
    }
    Action::Draw
}

/// Looks every so often, and at once when something else is wanted.
async fn ask(
    mut asker: TopAsker,
    mut asked: watch::Receiver<TopWanted>,
    seen: watch::Sender<TopPicture>,
) {
    loop {
        let wanted = asked.borrow_and_update().clone();
        let picture = asker.look(&wanted).await;
        if *asked.borrow() == wanted {
            seen.send_replace(picture.clone());
        }
        if let Ok(Err(_)) = timeout(PERIOD, asked.changed()).await {
            return;
        }
    }
}

/// On a thread of its own, which the program's end ends: reading blocks.
fn read_keys() -> io::Result<mpsc::Receiver<Event>> {
    let (sender, receiver) = mpsc::channel(KEYS);
    std::thread::Builder::new()
        .name("keys".into())
        .spawn(move || {
            while let Ok(event) = ratatui::crossterm::event::read() {
                if sender.blocking_send(event).is_err() {
                    return;
                }
            }
        })?;
    Ok(receiver)
}

fn wants_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
