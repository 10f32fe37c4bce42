//! The program that this node runs, and another in its place: brought from the member that wants
//! it, checked, put where the old one is; then the node leaves, and whoever started it here starts
//! the new one in the same process (`NodeEnd::Restart`). The old program is kept beside the new
//! one.

mod install;
mod whole;

pub use install::try_program;
use install::{Installation, architecture};
use nodectl_pool::Pools;
use nodectl_ports::{
    Audit, BlobFetcher, Blobs, NodeHandle, OwnProgram, PoolService,
    bare::{own_path, own_program},
    wall_ms,
};
use nodectl_types::{Answer, BlobHash, NodeId, ProgramHere, Query, QueryError, Replacement};
use nodectl_wire::api::{AuditLine, AuditName};
use std::{
    fs::File,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::runtime::Handle;
pub use whole::damage;

/// Why a node has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEnd {
    /// Somebody, or something, wanted it to.
    Left,
    /// To come back with this program: whoever runs the node executes it.
    Restart(PathBuf),
}

/// What a node needs to replace its program.
pub(super) struct Means {
    pub name: String,
    pub handle: NodeHandle,
    pub blobs: Arc<dyn Blobs>,
    pub fetcher: Arc<dyn BlobFetcher>,
    pub pools: Arc<Pools>,
    pub audit: Arc<dyn Audit>,
    /// `node.upgrade_by_members`.
    pub by_members: bool,
    /// A node inside of a command: that ends with its jobs, and nobody would start it again.
    pub solo: bool,
}

pub(super) struct NodeProgram {
    means: Means,
    runtime: Handle,
    /// Where the program's file is, or was when it was started.
    path: PathBuf,
    known: Mutex<KnownProgram>,
}

#[derive(Default)]
struct KnownProgram {
    hash: Option<BlobHash>,
    is_hashing: bool,
    replacement: Replacement,
}

impl NodeProgram {
    /// Called inside the runtime that runs the node.
    pub fn new(means: Means) -> Arc<Self> {
        Arc::new(Self {
            means,
            runtime: Handle::current(),
            path: own_path().unwrap_or_default(),
            known: Mutex::default(),
        })
    }

    /// Why this node has left.
    pub fn end(&self) -> NodeEnd {
        match self.known().replacement {
            Replacement::Restarting => NodeEnd::Restart(self.path.clone()),
            Replacement::None | Replacement::Preparing | Replacement::Failed(_) => NodeEnd::Left,
        }
    }

    fn known(&self) -> MutexGuard<'_, KnownProgram> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn here(self: &Arc<Self>) -> ProgramHere {
        let mut known = self.known();
        if known.hash.is_none() && !std::mem::replace(&mut known.is_hashing, true) {
            let this = self.clone();
            self.runtime.spawn_blocking(move || {
                let hash = File::open(own_program()).and_then(install::hash);
                let mut known = this.known();
                known.is_hashing = false;
                match hash {
                    Ok(hash) => known.hash = Some(hash),
                    Err(error) => tracing::warn!("this node's program cannot be read: {error}"),
                }
            });
        }
        ProgramHere {
            hash: known.hash,
            version: env!("CARGO_PKG_VERSION").into(),
            architecture: architecture(),
            path: self.path.to_string_lossy().into_owned(),
            by_members: self.means.by_members,
            replacement: known.replacement.clone(),
        }
    }

    fn begin(self: &Arc<Self>, program: BlobHash, by: Option<NodeId>) -> Result<(), QueryError> {
        let this = self.clone();
        if let Err(refused) = self.permit(by) {
            let why = refused.to_string();
            self.runtime
                .spawn(async move { this.note(program, by, Some(why)).await });
            return Err(refused);
        }
        let mut known = self.known();
        match known.replacement {
            Replacement::Preparing | Replacement::Restarting => return Ok(()),
            Replacement::None | Replacement::Failed(_) => {}
        }
        known.replacement = Replacement::Preparing;
        self.runtime.spawn(async move {
            let installed = this.install(program, by).await;
            this.note(program, by, installed.as_ref().err().cloned())
                .await;
            match installed {
                Ok(()) => this.make_room().await,
                Err(why) => {
                    tracing::warn!("the program was not replaced: {why}");
                    this.known().replacement = Replacement::Failed(why);
                }
            }
        });
        Ok(())
    }

    /// Whether the program may be replaced at all, and by whoever wants it.
    fn permit(&self, by: Option<NodeId>) -> Result<(), QueryError> {
        let name = &self.means.name;
        if self.means.solo {
            let why = format!("{name} is the node of a command, and ends with it");
            return Err(QueryError::Refused(why));
        }
        if by.is_some() && !self.means.by_members {
            return Err(QueryError::Denied(format!(
                "{name}: its owner lets no other member replace its program (node.upgrade_by_members)"
            )));
        }
        Ok(())
    }

    /// Brings the program here, and puts it where the old one is.
    async fn install(&self, program: BlobHash, by: Option<NodeId>) -> Result<(), String> {
        if let Some(member) = by {
            tracing::info!("{} wants this node to run another program", member.short());
            let fetched = self.means.fetcher.fetch(program, vec![member]).await;
            fetched.map_err(|why| format!("it could not be brought here: {why}"))?;
        }
        let installation = Installation {
            path: self.path.clone(),
            program,
            blobs: self.means.blobs.clone(),
        };
        let installed = tokio::task::spawn_blocking(move || installation.run()).await;
        let kept = installed.map_err(|error| error.to_string())??;
        tracing::info!(
            "{} is another program now; the one before is {}",
            self.path.display(),
            kept.display()
        );
        Ok(())
    }

    /// Leaves, so that the new program can come.
    async fn make_room(&self) {
        self.known().replacement = Replacement::Restarting;
        self.means.pools.close().await;
        self.means.handle.leave().await;
    }

    /// Says in this node's audit log what came of it; the node at which it was wanted has a line of
    /// its own.
    async fn note(&self, program: BlobHash, by: Option<NodeId>, refused: Option<String>) {
        let wanted_at = match by {
            Some(member) => self.name_of(member).await,
            None => self.means.name.clone(),
        };
        let line = AuditLine {
            at_ms: wall_ms(),
            user: format!("node {wanted_at}"),
            uid: None,
            node: self.means.name.clone(),
            what: AuditName::Replace,
            about: Some(format!("{} {program}", self.path.display())),
            refused,
        };
        let audit = self.means.audit.clone();
        let _ = tokio::task::spawn_blocking(move || audit.note(line)).await;
    }

    async fn name_of(&self, member: NodeId) -> String {
        let lines = match self.means.handle.ask(Query::Nodes).await {
            Ok(Answer::Nodes(lines)) => lines,
            _ => Vec::new(),
        };
        let line = lines.into_iter().find(|line| line.info.id == member);
        line.map_or_else(|| member.short(), |line| line.info.name)
    }
}

impl OwnProgram for NodeProgram {
    fn look(
        self: Arc<Self>,
        replace: Option<BlobHash>,
        by: Option<NodeId>,
    ) -> Result<ProgramHere, QueryError> {
        if let Some(program) = replace {
            self.begin(program, by)?;
        }
        Ok(self.here())
    }
}
