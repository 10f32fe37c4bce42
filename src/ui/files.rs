//! The page's own files. They are part of the program: nothing is read from disk, and a path that
//! is not in the table does not exist.

use bytes::Bytes;

/// A file of the page.
#[derive(Clone, Copy, Debug)]
pub struct PageFile {
    /// Below the root, as browsers ask for it.
    pub path: &'static str,
    pub kind: &'static str,
    bytes: &'static [u8],
}

impl PageFile {
    pub fn body(&self) -> Bytes {
        Bytes::from_static(self.bytes)
    }
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

macro_rules! files {
    ($($path:literal: $kind:expr),* $(,)?) => {
        &[$(PageFile {
            path: concat!("/", $path),
            kind: $kind,
            bytes: include_bytes!(concat!("page/", $path)),
        }),*]
    };
}

pub const FILES: &[PageFile] = files! {
    "index.html": HTML,
    "icon.svg": PICTURE,
    "tokens.css": CSS,
    "page.css": CSS,
    "main.js": SCRIPT,
    "live.js": SCRIPT,
    "dom.js": SCRIPT,
    "format.js": SCRIPT,
    "table.js": SCRIPT,
    "charts.js": SCRIPT,
    "stream.js": SCRIPT,
    "results.js": SCRIPT,
    "actions.js": SCRIPT,
    "views/cluster.js": SCRIPT,
    "views/jobs.js": SCRIPT,
    "views/job.js": SCRIPT,
    "views/results.js": SCRIPT,
    "views/task.js": SCRIPT,
    "views/training.js": SCRIPT,
    "views/integration.js": SCRIPT,
    "views/launches.js": SCRIPT,
    "views/why.js": SCRIPT,
    "views/pools.js": SCRIPT,
    "views/events.js": SCRIPT,
    "uplot/uPlot.iife.min.js": SCRIPT,
    "uplot/uPlot.min.css": CSS,
};

/// The file at this path; the root is the page itself.
pub fn find(path: &str) -> Option<&'static PageFile> {
    let path = if path == "/" { "/index.html" } else { path };
    FILES.iter().find(|file| file.path == path)
}
