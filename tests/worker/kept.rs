//! What nodes keep for calls of pools, and for how long.

use futures::future::{BoxFuture, FutureExt, ready};
use nodectl::{
    ports::{BlobFetcher, Blobs, KeptBlobs, NodeHandle},
    store::Store,
    types::{BlobHash, JobId, NodeId},
    worker::KeptShelf,
};
use std::{io, sync::Arc};

const ONE: JobId = JobId(1);
const OTHER: JobId = JobId(2);

/// Brings one blob from far away.
struct Far(Arc<dyn Blobs>, &'static [u8]);

impl BlobFetcher for Far {
    fn fetch(&self, hash: BlobHash, _: Vec<NodeId>) -> BoxFuture<'static, Result<(), String>> {
        let found = if hash == BlobHash::of(self.1) {
            self.0
                .put_bytes(self.1)
                .map(drop)
                .map_err(|error| error.to_string())
        } else {
            Err("nobody has it".into())
        };
        ready(found).boxed()
    }
}

fn shelf(dir: &tempfile::TempDir) -> (Store, Arc<KeptShelf>) {
    let store = nodectl::store::open(dir.path()).unwrap();
    let far = Arc::new(Far(store.kept(), b"from far away"));
    let (events, _) = tokio::sync::mpsc::channel(1);
    let shelf = KeptShelf::new(store.blobs(), store.kept(), far, NodeHandle::new(events));
    (store, shelf)
}

fn keep(shelf: &KeptShelf, job: JobId, bytes: &[u8]) -> BlobHash {
    let mut writer = shelf.writer().unwrap();
    writer.write(bytes).unwrap();
    shelf.finish(job, writer, None).unwrap()
}

#[tokio::test]
async fn a_result_goes_with_the_last_that_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, shelf) = shelf(&dir);
    let hash = keep(&shelf, ONE, b"equal");
    assert_eq!(keep(&shelf, ONE, b"equal"), hash);
    keep(&shelf, OTHER, b"equal");
    shelf.bring(OTHER, hash, &[]).await.unwrap();
    for (job, results, brought) in [(ONE, 1, 0), (OTHER, 1, 1)] {
        shelf.release(job, &[hash][..results], &[hash][..brought]);
        assert!(store.kept().has(hash), "one result is left");
    }
    // Nobody has what is released twice.
    shelf.release(OTHER, &[hash], &[hash]);
    assert!(store.kept().has(hash));
    shelf.release(ONE, &[hash], &[]);
    assert!(!store.kept().has(hash));
    assert!(shelf.bring(ONE, hash, &[]).await.is_err());
}

#[tokio::test]
async fn all_of_a_pool_goes_with_it_and_nothing_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let (store, shelf) = shelf(&dir);
    let [own, shared] = [&b"own"[..], b"shared"].map(|bytes| keep(&shelf, ONE, bytes));
    keep(&shelf, OTHER, b"shared");
    let lasting = store.blobs().put_bytes(b"own").unwrap();
    shelf.end(ONE);
    assert!(!store.kept().has(own) && store.kept().has(shared));
    assert!(
        store.blobs().has(lasting),
        "a job's file of the same bytes stays"
    );
}

#[tokio::test]
async fn what_is_only_read_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, shelf) = shelf(&dir);
    let hash = BlobHash::of(b"from far away");
    let file = shelf.read(hash, Vec::new()).await.unwrap();
    assert_eq!(io::read_to_string(file).unwrap(), "from far away");
    assert!(!store.kept().has(hash));
    shelf.bring(ONE, hash, &[]).await.unwrap();
    shelf.read(hash, Vec::new()).await.unwrap();
    assert!(store.kept().has(hash), "a call has it");
    shelf.release(ONE, &[], &[hash]);
    assert!(!store.kept().has(hash));
}
