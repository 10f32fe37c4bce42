//! What changes, told to all open pages. Each thing that some page shows is asked for by one task,
//! which lives as long as a page shows it; pages are told when an answer differs from the one
//! before. So twenty pages cost the node what one costs.

use super::{
    changes::changes,
    pass::{self, PassKind},
    server::UiState,
};
use axum::{
    extract::{RawQuery, State},
    http::{Method, StatusCode},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use nodectl_http::Client;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, OnceLock},
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
/// A part of a log.
const PART_BYTES: usize = 1 << 20;
/// How many things all pages together may follow, and one page.
const MOST_TOPICS: usize = 128;
const MOST_TOPICS_OF_A_PAGE: usize = 40;

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

/// The newest answer to a question.
struct NewestAnswer {
    /// Counts from 1.
    version: u64,
    status: u16,
    body: Value,
    /// All of it, as pages are told: JSON in one line.
    whole: OnceLock<Arc<str>>,
    /// How it differs from the version before, where that can be said.
    change: Option<Arc<str>>,
}

impl NewestAnswer {
    fn whole(&self, path: &str) -> Arc<str> {
        let made = || {
            let (status, body) = (self.status, &self.body);
            json!({ "path": path, "status": status, "body": body }).to_string()
        };
        Arc::clone(self.whole.get_or_init(|| made().into()))
    }
}

type Topic = watch::Sender<Option<Arc<NewestAnswer>>>;
type Follower = watch::Receiver<Option<Arc<NewestAnswer>>>;

/// What is followed now.
pub struct LiveHub {
    client: Client,
    topics: Mutex<BTreeMap<String, Topic>>,
}

impl LiveHub {
    pub fn new(client: Client) -> Arc<Self> {
        Arc::new(Self {
            client,
            topics: Mutex::default(),
        })
    }

    /// Follows a path of the API, with all others who do; none if too much is followed already.
    fn follow(self: &Arc<Self>, path: &str) -> Option<Follower> {
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
    async fn look(self: Arc<Self>, path: String, sender: Topic) {
        loop {
            let begin = Instant::now();
            let (status, body) = ask(&self.client, &path).await;
            tell(&sender, &path, status, body);
            sleep(LOOK_EVERY.max(begin.elapsed() * SHARE)).await;
            let mut topics = self.topics.lock().expect("no holder panics");
            // Under the lock under which others join.
            if sender.receiver_count() == 0 {
                topics.remove(&path);
                return;
            }
        }
    }

    #[cfg(test)]
    pub fn followed(&self) -> usize {
        self.topics.lock().expect("no holder panics").len()
    }
}

/// Wakes the pages if it differs from what they were told last.
fn tell(sender: &Topic, path: &str, status: u16, body: Value) {
    sender.send_if_modified(|last| {
        let before = last.as_deref();
        if before.is_some_and(|before| before.status == status && before.body == body) {
            return false;
        }
        let alike = before.filter(|before| before.status == status);
        let change = alike.and_then(|before| changes(&before.body, &body));
        let told = |change: Value| json!({ "path": path, "status": status, "change": change });
        *last = Some(Arc::new(NewestAnswer {
            version: before.map_or(0, |before| before.version) + 1,
            status,
            body,
            whole: OnceLock::new(),
            change: change.map(|change| told(change).to_string().into()),
        }));
        true
    });
}

/// A path's answer: its status, 502 where nobody answers, and its JSON.
async fn ask(client: &Client, path: &str) -> (u16, Value) {
    let (status, bytes) = ask_bytes(client, path).await;
    match serde_json::from_slice(&bytes) {
        Ok(body) => (status.as_u16(), body),
        Err(error) => (502, json!({ "error": error.to_string() })),
    }
}

/// The same as bytes; a problem's are JSON.
pub async fn ask_bytes(client: &Client, path: &str) -> (StatusCode, Bytes) {
    answered(async {
        let (status, body) = asked(client, path).await?;
        let body = Limited::new(body, ANSWER_BYTES).collect().await;
        let bytes = body.map_err(|error| error.to_string())?.to_bytes();
        Ok((status, bytes))
    })
    .await
}

/// The first bytes of a path's answer, `PART_BYTES` and a frame at most.
pub async fn ask_part(client: &Client, path: &str) -> (StatusCode, Bytes) {
    answered(async {
        let (status, mut body) = asked(client, path).await?;
        let mut bytes = BytesMut::new();
        while bytes.len() < PART_BYTES
            && let Some(frame) = body.frame().await
        {
            let frame = frame.map_err(|error| error.to_string())?;
            bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
        Ok((status, bytes.freeze()))
    })
    .await
}

async fn asked(client: &Client, path: &str) -> Result<(StatusCode, Incoming), String> {
    let answer = client.forward(Method::GET, path, None).await;
    let answer = answer.map_err(|error| error.to_string())?;
    Ok((answer.status(), answer.into_body()))
}

/// An answer, or that there was none in time.
async fn answered(
    asking: impl Future<Output = Result<(StatusCode, Bytes), String>>,
) -> (StatusCode, Bytes) {
    let why = match timeout(ANSWER_TIMEOUT, asking).await {
        Ok(Ok(answer)) => return answer,
        Ok(Err(why)) => why,
        Err(_) => "the node does not answer".into(),
    };
    let problem = json!({ "error": why }).to_string();
    (StatusCode::BAD_GATEWAY, problem.into())
}

/// `GET /live?p=PATH&p=PATH`: an event with each path's answer, and another when that changes.
pub async fn live(State(shared): State<Arc<UiState>>, RawQuery(query): RawQuery) -> Response {
    let paths: Vec<String> = query
        .iter()
        .flat_map(|query| query.split('&'))
        .filter_map(|part| decoded(part.strip_prefix("p=")?))
        .collect();
    let is_followed = |path: &String| {
        let bare = path.split('?').next().unwrap_or_default();
        pass::readable(bare) == Some(PassKind::Json)
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
    let streams = receivers
        .into_iter()
        .zip(paths)
        .map(|(mut follower, path)| {
            // The first answer is news, however long ago it came.
            follower.mark_changed();
            let reader = TopicReader {
                follower,
                path,
                version: 0,
                _place: Arc::clone(&place),
            };
            news(reader).boxed()
        });
    Sse::new(stream::select_all(streams))
        .keep_alive(KeepAlive::default())
        .into_response()
}

/// One page's way through the answers to one question.
struct TopicReader {
    follower: Follower,
    path: String,
    /// What it was told last.
    version: u64,
    _place: Arc<Slot>,
}

impl TopicReader {
    async fn next(&mut self) -> Option<Arc<str>> {
        loop {
            self.follower.changed().await.ok()?;
            let told = self.follower.borrow_and_update().clone();
            let Some(told) = told else { continue };
            // What differs from a version that this page was not told is of no use to it.
            let follows = self.version > 0 && told.version == self.version + 1;
            self.version = told.version;
            let change = told.change.clone().filter(|_| follows);
            return Some(change.unwrap_or_else(|| told.whole(&self.path)));
        }
    }
}

fn news(reader: TopicReader) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(reader, |mut reader| async move {
        let told = reader.next().await?;
        Some((Ok(Event::default().data(told)), reader))
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
