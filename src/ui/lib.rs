//! The web page of a cluster: a server for browsers on this machine, or on others by TLS, which
//! serves the page's files and asks the node's local API for what the page shows. It decides
//! nothing, keeps nothing on disk but its certificate, and reaches the node only through the API's
//! client. The page has no build step and asks nobody but this server.
//!
//! | file | owns |
//! |---|---|
//! | `server` | the routes, serving until told to stop |
//! | `door` | where browsers reach the page, and by which names |
//! | `tls` | the certificate of a page that other machines open, and its connections |
//! | `guard` | who may open the page: tokens, the cookie, `Host`, `Origin`; what browsers are told |
//! | `pass` | which requests are passed on to the API, and what comes back |
//! | `live` | asking for what changes once for all open pages, and telling them |
//! | `changes` | how a list differs from the one before |
//! | `share` | one question for all pages that ask the same |
//! | `token` | the token with which Prometheus reads the page's numbers |
//! | `files` | the page's own files, in `page/` |

mod changes;
mod door;
mod files;
mod guard;
mod live;
mod pass;
mod server;
mod share;
#[cfg(test)]
mod tests;
mod tls;
mod token;

pub use door::PageDoor;
pub use server::{PageError, PageServer, PageSettings};
pub use tls::{CertificateError, PageCertificate};
pub use token::metrics_token;
