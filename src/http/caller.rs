//! Who asks, and what of others' they may touch. The kernel says who is at the other end of the
//! socket (SO_PEERCRED), so nobody can pass for another user.
//!
//! A node is for whoever may open its socket: each submits jobs and looks at what there is. To end,
//! remove or retry a job, and to read what it was given or wrote, takes its own user; to drain,
//! pause or stop the node, to say who belongs to the cluster and to keep secrets, its owner. Root,
//! the user that runs the node, and the group `api.admins` may do all of that.

use super::{error::ApiError, state::Shared};
use axum::http::StatusCode;
use nodectl_ports::accounts;
use nodectl_types::{Answer, Author, JobId, Query, author::UNKNOWN};
use tokio::net::UnixStream;

/// Whoever is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Caller {
    pub user: String,
    pub uid: Option<u32>,
    /// May touch what is others'.
    pub rules: bool,
}

/// Who may touch what is others'.
#[derive(Clone, Debug)]
pub struct UserAccess {
    /// Who runs the node.
    owner: Caller,
    /// A group of users that may do as the owner.
    admins: Option<String>,
    /// In tests, who everybody is.
    #[cfg(test)]
    always: Option<Caller>,
}

impl UserAccess {
    #[cfg(test)]
    pub fn always(caller: Caller) -> Self {
        Self {
            always: Some(caller),
            ..Self::new(None)
        }
    }

    /// Asks the system who runs this process: not from the runtime's threads.
    pub fn new(admins: Option<String>) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let owner = Caller {
            user: name_of(uid),
            uid: Some(uid),
            rules: true,
        };
        Self {
            owner,
            admins,
            #[cfg(test)]
            always: None,
        }
    }

    pub async fn caller(&self, stream: &UnixStream) -> Caller {
        #[cfg(test)]
        if let Some(caller) = &self.always {
            return caller.clone();
        }
        let Ok(peer) = stream.peer_cred() else {
            return Caller {
                user: UNKNOWN.into(),
                uid: None,
                rules: false,
            };
        };
        if self.owner.uid == Some(peer.uid()) {
            return self.owner.clone();
        }
        let (uid, gid, admins) = (peer.uid(), peer.gid(), self.admins.clone());
        let asked =
            tokio::task::spawn_blocking(move || identify(uid, gid, admins.as_deref())).await;
        asked.unwrap_or(Caller {
            user: UNKNOWN.into(),
            uid: Some(uid),
            rules: false,
        })
    }
}

fn identify(uid: u32, gid: u32, admins: Option<&str>) -> Caller {
    let user = name_of(uid);
    let is_admin = || {
        let group = admins.and_then(accounts::group_id);
        group.is_some_and(|group| accounts::is_member(&user, gid, group))
    };
    let rules = uid == 0 || is_admin();
    Caller {
        user,
        uid: Some(uid),
        rules,
    }
}

/// As sudo writes it where the account has no name.
fn name_of(uid: u32) -> String {
    accounts::user_name(uid)
        .filter(|name| nodectl_types::text::is_name(name))
        .unwrap_or_else(|| format!("#{uid}"))
}

impl Caller {
    pub fn author(&self, node: &str) -> Author {
        Author {
            user: self.user.clone(),
            uid: self.uid,
            node: node.into(),
        }
    }

    /// Whether they may do to the node what is its owner's. `doing` is such as `drain a node`.
    pub(super) fn owns_node(&self, shared: &Shared, doing: &str) -> Result<(), ApiError> {
        if self.rules {
            return Ok(());
        }
        let error = format!(
            "{} may not {doing} at node {}",
            self.user, shared.api.facts.name
        );
        Err(ApiError::new(StatusCode::FORBIDDEN, error).hint(RULERS))
    }

    /// Whether they may do to a job what is its user's. `doing` is such as `cancel`.
    pub(super) async fn owns_job(
        &self,
        shared: &Shared,
        job: JobId,
        doing: &str,
    ) -> Result<(), ApiError> {
        if self.rules {
            return Ok(());
        }
        let Answer::Jobs(heads) = shared.ask(Query::Jobs).await? else {
            return Err(ApiError::unexpected("the list of jobs"));
        };
        // Of one that nobody knows the answer says so.
        let Some(head) = heads.iter().find(|head| head.job == job) else {
            return Ok(());
        };
        if head.author.is(&self.user) {
            return Ok(());
        }
        let error = format!(
            "{} may not {doing} job {job}, which is {}'s",
            self.user, head.author
        );
        Err(ApiError::new(StatusCode::FORBIDDEN, error).hint(RULERS))
    }
}

const RULERS: &str = "root may, the user who runs the node, and members of the group that the node's setting api.admins names";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_admins_may_do_as_the_owner() {
        assert!(identify(0, 0, None).rules);
        let nobody = identify(u32::MAX - 7, u32::MAX - 7, None);
        assert_eq!((nobody.user.as_str(), nobody.rules), ("#4294967288", false));
        let Some(group) = accounts::group_id("root") else {
            return;
        };
        assert!(
            identify(u32::MAX - 7, group, Some("root")).rules,
            "by the group of the process"
        );
        assert!(!identify(u32::MAX - 7, u32::MAX - 7, Some("no such group")).rules);
    }
}
