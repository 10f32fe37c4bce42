//! News on their way: each goes out a bounded number of times, on the back of other packets or in
//! rounds of their own. What was told least goes first; the newer of two things said of a member
//! takes the other's place.

use nodectl_types::{NodeId, membership::News};
use std::collections::BTreeMap;

/// Whom it is about; suspicions of different members are told side by side.
type NewsKey = (NodeId, Option<NodeId>);

#[derive(Debug, Default)]
pub struct NewsQueue {
    /// By how often it was told, then by age.
    waiting: BTreeMap<(u32, u64), News>,
    places: BTreeMap<NewsKey, (u32, u64)>,
    count: u64,
}

impl NewsQueue {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn push(&mut self, news: News) {
        let key = key(&news);
        if key.1.is_none() {
            let of_it = self
                .places
                .range((key.0, None)..)
                .map(|(key, _)| *key)
                .take_while(|(node, _)| *node == key.0);
            of_it
                .collect::<Vec<_>>()
                .iter()
                .for_each(|key| self.remove(key));
        } else {
            self.remove(&key);
        }
        self.insert(key, 0, news);
    }

    /// Up to so many; each is forgotten when it was taken `times`.
    pub fn take(&mut self, most: usize, times: u32) -> Vec<News> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(((told, _), news)) = self.waiting.pop_first()
        {
            taken.push((told, news));
        }
        for (told, news) in &taken {
            let key = key(news);
            self.places.remove(&key);
            if told + 1 < times {
                self.insert(key, told + 1, news.clone());
            }
        }
        taken.into_iter().map(|(_, news)| news).collect()
    }

    fn insert(&mut self, key: NewsKey, told: u32, news: News) {
        self.count += 1;
        self.places.insert(key, (told, self.count));
        self.waiting.insert((told, self.count), news);
    }

    fn remove(&mut self, key: &NewsKey) {
        if let Some(place) = self.places.remove(key) {
            self.waiting.remove(&place);
        }
    }
}

fn key(news: &News) -> NewsKey {
    match news {
        News::Suspect { node, by, .. } => (*node, Some(*by)),
        News::Alive { node, .. } | News::Down { node, .. } => (*node, None),
    }
}
