//! What changes, told to all open pages. Each thing that some page shows is asked for by one task,
//! which lives as long as a page shows it; pages are told when an answer differs from the one
//! before. So twenty pages cost the node what one costs.

use super::{
    pass::{self, PassKind},
    server::Shared,
};
use axum::{
    extract::{RawQuery, State},
    http::{Method, StatusCode},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Limited};
use nodectl_http::Client;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep, timeout},
};

/// Between two looks at the same thing.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// At most one part in so many of the time goes into looking.
const SHARE: u32 = 5;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
const ANSWER_BYTES: usize = 16 << 20;
/// How many things all pages together may follow, and one page.
const MOST_TOPICS: usize = 128;
const MOST_TOPICS_OF_A_PAGE: usize = 40;
/// What the server itself knows.
pub const CHRONICLE: &str = "/page/events";

/// Places, of which there are so many.
#[derive(Clone)]
pub struct Slots(Arc<Semaphore>);

/// One of them, until it is dropped.
pub struct Slot {
    _permit: OwnedSemaphorePermit,
}

impl Slots {
    pub fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count)))
    }

    pub fn take(&self) -> Option<Slot> {
        let permit = Arc::clone(&self.0).try_acquire_owned().ok()?;
        Some(Slot { _permit: permit })
    }
}

/// The newest answer to a question: JSON in one line, as pages are told it.
type Told = Arc<str>;

/// What is followed now.
pub struct Hub {
    client: Client,
    topics: Mutex<BTreeMap<String, watch::Sender<Option<Told>>>>,
}

impl Hub {
    pub fn new(client: Client) -> Arc<Self> {
        Arc::new(Self {
            client,
            topics: Mutex::default(),
        })
    }

    /// Follows a path of the API, with all others who do; none if too much is followed already.
    fn follow(self: &Arc<Self>, path: &str) -> Option<watch::Receiver<Option<Told>>> {
        let mut topics = self.topics.lock().expect("no holder panics");
        if let Some(sender) = topics.get(path) {
            return Some(sender.subscribe());
        }
        if topics.len() >= MOST_TOPICS {
            return None;
        }
        let (sender, receiver) = watch::channel(None);
        topics.insert(path.to_string(), sender.clone());
        tokio::spawn(Arc::clone(self).look(path.to_string(), sender));
        Some(receiver)
    }

    /// Asks again and again until nobody listens.
    async fn look(self: Arc<Self>, path: String, sender: watch::Sender<Option<Told>>) {
        loop {
            let begin = Instant::now();
            let (status, body) = ask(&self.client, &path).await;
            tell(&sender, &path, status, &body);
            sleep(LOOK_EVERY.max(begin.elapsed() * SHARE)).await;
            let mut topics = self.topics.lock().expect("no holder panics");
            // Under the lock under which others join.
            if sender.receiver_count() == 0 {
                topics.remove(&path);
                return;
            }
        }
    }

    /// Tells what the server itself knows, for as long as it runs.
    pub fn publish(&self, path: &str, body: &Value) {
        let mut topics = self.topics.lock().expect("no holder panics");
        let sender = topics
            .entry(path.to_string())
            .or_insert_with(|| watch::channel(None).0);
        tell(sender, path, 200, body);
    }

    #[cfg(test)]
    pub fn followed(&self) -> usize {
        self.topics.lock().expect("no holder panics").len()
    }
}

/// Wakes the pages if it differs from what they were told last.
fn tell(sender: &watch::Sender<Option<Told>>, path: &str, status: u16, body: &Value) {
    let told = json!({ "path": path, "status": status, "body": body }).to_string();
    sender.send_if_modified(|last| {
        let is_news = last.as_deref() != Some(&told);
        if is_news {
            *last = Some(told.into());
        }
        is_news
    });
}

/// A path's answer: its status, 502 where nobody answers, and its JSON.
pub async fn ask(client: &Client, path: &str) -> (u16, Value) {
    let asking = async {
        let answer = client.forward(Method::GET, path, None).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES)
            .collect()
            .await;
        let bytes = body.map_err(|error| error.to_string())?.to_bytes();
        let body = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        Ok::<_, String>((status, body))
    };
    match timeout(ANSWER_TIMEOUT, asking).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(why)) => (502, json!({ "error": why })),
        Err(_) => (502, json!({ "error": "the node does not answer" })),
    }
}

/// `GET /live?p=PATH&p=PATH`: an event with each path's answer, and another when that changes.
pub async fn live(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    let paths: Vec<String> = query
        .iter()
        .flat_map(|query| query.split('&'))
        .filter_map(|part| decoded(part.strip_prefix("p=")?))
        .collect();
    let is_followed = |path: &String| {
        let bare = path.split('?').next().unwrap_or_default();
        path == CHRONICLE
            || pass::readable(bare) == Some(PassKind::Json)
            || (pass::readable(bare) == Some(PassKind::JsonPage) && bare.ends_with("/tasks"))
    };
    if paths.is_empty() || paths.len() > MOST_TOPICS_OF_A_PAGE || !paths.iter().all(is_followed) {
        return pass::problem(StatusCode::BAD_REQUEST, "the page cannot follow this");
    }
    let Some(place) = shared.streams.take() else {
        return pass::crowded();
    };
    let receivers: Option<Vec<_>> = paths.iter().map(|path| shared.hub.follow(path)).collect();
    let Some(receivers) = receivers else {
        return pass::crowded();
    };
    let place = Arc::new(place);
    let streams = receivers.into_iter().map(|mut receiver| {
        // The first answer is news, however long ago it came.
        receiver.mark_changed();
        news(receiver, Arc::clone(&place)).boxed()
    });
    Sse::new(stream::select_all(streams))
        .keep_alive(KeepAlive::default())
        .into_response()
}

fn news(
    receiver: watch::Receiver<Option<Told>>,
    place: Arc<Slot>,
) -> impl stream::Stream<Item = Result<Event, Infallible>> {
    stream::unfold((receiver, place), |(mut receiver, place)| async move {
        loop {
            receiver.changed().await.ok()?;
            let told = receiver.borrow_and_update().clone();
            if let Some(told) = told {
                return Some((Ok(Event::default().data(told)), (receiver, place)));
            }
        }
    })
}

/// What `encodeURIComponent` made of a path; none if it is not that.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    let path = String::from_utf8(bytes).ok()?;
    path.bytes()
        .all(|byte| byte.is_ascii_graphic())
        .then_some(path)
}
