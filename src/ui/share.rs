//! One question to the node for all pages that ask the same at about the same time.

use super::live::{ask_bytes, ask_part};
use axum::http::StatusCode;
use bytes::Bytes;
use nodectl_http::Client;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::OnceCell,
    time::{Instant, sleep_until},
};

/// For so long an answer is given to whoever asks the same.
const FRESH: Duration = Duration::from_millis(800);
/// So many answers are kept; more questions are each asked.
const MOST_ANSWERS: usize = 32;

type SharedAnswer = Arc<OnceCell<(StatusCode, Bytes)>>;

/// The answers of the last moment.
pub struct SharedReads {
    client: Client,
    answers: Mutex<BTreeMap<String, SharedAnswer>>,
}

impl SharedReads {
    pub fn new(client: Client) -> Arc<Self> {
        Arc::new(Self {
            client,
            answers: Mutex::default(),
        })
    }

    /// The node's answer to a path, or to whoever asked for it last.
    pub async fn read(self: &Arc<Self>, path: &str) -> (StatusCode, Bytes) {
        let answer = self.shared(path);
        let asked = || ask_bytes(&self.client, path);
        // Should who asked first go away, the next one asks.
        answer.get_or_init(asked).await.clone()
    }

    /// The first bytes of what a path answers, where that may be long.
    pub async fn read_part(self: &Arc<Self>, path: &str) -> (StatusCode, Bytes) {
        let answer = self.shared(path);
        let asked = || ask_part(&self.client, path);
        answer.get_or_init(asked).await.clone()
    }

    fn shared(self: &Arc<Self>, path: &str) -> SharedAnswer {
        let mut answers = self.answers.lock().expect("no holder panics");
        if let Some(answer) = answers.get(path) {
            return Arc::clone(answer);
        }
        let answer = SharedAnswer::default();
        if answers.len() < MOST_ANSWERS {
            answers.insert(path.to_string(), Arc::clone(&answer));
            let (shared, path) = (Arc::clone(self), path.to_string());
            let until = Instant::now() + FRESH;
            tokio::spawn(async move {
                sleep_until(until).await;
                let mut answers = shared.answers.lock().expect("no holder panics");
                answers.remove(&path);
            });
        }
        answer
    }
}
