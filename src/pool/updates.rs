//! The updates so far, and how far each worker has got: which frames of which spool are still to be
//! sent to it.

use super::{outbox::PoolOutbox, spool::Spool};
use bytes::Bytes;
use nodectl_wire::frames::{FromClient, HEADER_BYTES, Header, ToWorker};
use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A snapshot, except for the first of them, and the updates after it.
struct Segment {
    spool: Arc<Spool>,
    /// Where the updates begin.
    start: u64,
    /// Where the last whole update ends.
    end: u64,
}

/// How far a worker has got. The default is nowhere.
#[derive(Clone, Copy, Default)]
pub struct UpdateCursor(Option<(u64, u64)>);

pub struct Updates {
    directory: PathBuf,
    segments: VecDeque<Segment>,
    /// Segments that no worker needs any more.
    dropped: u64,
    /// A snapshot of which the end has not come.
    snapshot: Option<Arc<Spool>>,
}

impl Updates {
    pub fn new(directory: &Path) -> Self {
        let first = Segment {
            spool: Spool::new(directory),
            start: 0,
            end: 0,
        };
        Self {
            directory: directory.to_path_buf(),
            segments: [first].into(),
            dropped: 0,
            snapshot: None,
        }
    }

    /// Takes a frame of an update. They come one after the other.
    pub async fn update(&mut self, frame: Bytes, is_last: bool) -> io::Result<()> {
        let segment = self.segments.back_mut().expect("there is always one");
        segment.spool.append(&frame).await?;
        if is_last {
            segment.end = segment.spool.bytes();
        }
        Ok(())
    }

    /// Takes a frame of a snapshot: for those who join after it, the update that stands for all
    /// before.
    pub async fn snapshot(&mut self, header: Header<FromClient>, frame: Bytes) -> io::Result<()> {
        let directory = &self.directory;
        let spool = self
            .snapshot
            .get_or_insert_with(|| Spool::new(directory))
            .clone();
        let update = Header {
            kind: ToWorker::Update,
            flags: header.flags,
            length: header.length,
            id: header.id,
        };
        spool
            .append(&[&update.encode()[..], &frame[HEADER_BYTES..]].concat())
            .await?;
        if !header.has_more() {
            let start = spool.bytes();
            self.segments.push_back(Segment {
                spool,
                start,
                end: start,
            });
            self.snapshot = None;
        }
        Ok(())
    }

    /// Gives a worker what it lacks.
    pub fn feed(&self, cursor: &mut UpdateCursor, outbox: &PoolOutbox) {
        let newest = self.dropped + self.segments.len() as u64 - 1;
        let (first, mut offset) = cursor.0.unwrap_or((newest, 0));
        for number in first..=newest {
            let segment = &self.segments[(number - self.dropped) as usize];
            if number > first {
                offset = segment.start;
            }
            outbox.spooled(&segment.spool, offset..segment.end);
            offset = segment.end;
        }
        cursor.0 = Some((newest, offset));
    }

    /// Drops what lies behind the last worker.
    pub fn trim<'a>(&mut self, cursors: impl Iterator<Item = &'a UpdateCursor>) {
        let newest = self.dropped + self.segments.len() as u64 - 1;
        let needed = cursors
            .filter_map(|cursor| Some(cursor.0?.0))
            .min()
            .unwrap_or(newest);
        while self.dropped < needed {
            self.segments.pop_front();
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::{PoolReader, frames};
    use nodectl_wire::frames::{FrameKind, encode};

    fn frame(kind: impl FrameKind, number: u64) -> Bytes {
        let mut bytes = Vec::new();
        encode(kind, number, b"x", &mut bytes);
        bytes.into()
    }

    /// The numbers that a worker with this cursor gets now.
    async fn fed(updates: &Updates, cursor: &mut UpdateCursor) -> Vec<u64> {
        let outbox = PoolOutbox::default();
        updates.feed(cursor, &outbox);
        outbox.finish();
        let mut bytes = Vec::new();
        outbox.write_to(&mut bytes).await.unwrap();
        let mut reader = PoolReader::<_, ToWorker>::new(&bytes[..]);
        let mut numbers = Vec::new();
        while let Some(batch) = reader.batch().await.unwrap() {
            numbers.extend(frames::<ToWorker>(batch).map(|frame| {
                assert_eq!(frame.header.kind, ToWorker::Update);
                frame.header.id
            }));
        }
        numbers
    }

    #[tokio::test]
    async fn each_worker_gets_each_update_once_and_a_late_one_begins_with_the_snapshot() {
        let directory = tempfile::tempdir().unwrap();
        let mut updates = Updates::new(directory.path());
        let [mut early, mut slow, mut late] = [(); 3].map(|()| UpdateCursor::default());
        assert_eq!(fed(&updates, &mut early).await, [0u64; 0]);
        updates
            .update(frame(ToWorker::Update, 1), true)
            .await
            .unwrap();
        assert_eq!(fed(&updates, &mut early).await, [1]);
        assert_eq!(fed(&updates, &mut slow).await, [1]);
        updates
            .update(frame(ToWorker::Update, 2), true)
            .await
            .unwrap();
        assert_eq!(fed(&updates, &mut early).await, [2]);
        let snapshot = frame(FromClient::Snapshot, 2);
        let header = frames::<FromClient>(snapshot.clone())
            .next()
            .unwrap()
            .header;
        updates.snapshot(header, snapshot).await.unwrap();
        updates
            .update(frame(ToWorker::Update, 3), true)
            .await
            .unwrap();
        updates.trim([&early, &slow, &late].into_iter());
        assert_eq!(fed(&updates, &mut early).await, [3]);
        assert_eq!(
            fed(&updates, &mut slow).await,
            [2, 3],
            "the snapshot says nothing new to it"
        );
        assert_eq!(
            fed(&updates, &mut late).await,
            [2, 3],
            "the snapshot, and what came after"
        );
        assert_eq!(fed(&updates, &mut late).await, [0u64; 0]);
        updates.trim([&early, &slow, &late].into_iter());
        assert_eq!(updates.segments.len(), 1);
        assert_eq!(fed(&updates, &mut UpdateCursor::default()).await, [2, 3]);
    }
}
