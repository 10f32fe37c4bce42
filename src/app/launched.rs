//! What was launched from this machine, as `nodectl up` writes it down.

use nodectl_launch::{
    node::LAUNCH_LABEL,
    state::{Launches, StartedLaunch, StartedProcess, What},
};
use nodectl_ports::LaunchBook;
use nodectl_types::NodeInfo;
use nodectl_wire::api::{LaunchKind, LaunchView};
use std::io;

/// The launches of a data directory.
pub struct LaunchRecords(pub Launches);

impl LaunchBook for LaunchRecords {
    fn launches(&self) -> io::Result<Vec<LaunchView>> {
        let started = self.0.list().map_err(io::Error::other)?;
        started
            .into_iter()
            .map(|launch| self.view(launch))
            .collect()
    }

    fn is_of(&self, node: &NodeInfo, launch: &str) -> bool {
        node.labels.get(LAUNCH_LABEL).is_some_and(|id| id == launch)
    }
}

impl LaunchRecords {
    fn view(&self, launch: StartedLaunch) -> io::Result<LaunchView> {
        let looks = self.0.looks(&launch.id).map_err(io::Error::other)?;
        Ok(LaunchView {
            kind: match launch.what {
                What::Hosts { .. } => LaunchKind::Hosts,
                What::Slurm { .. } => LaunchKind::Slurm,
                What::Condor { .. } => LaunchKind::Condor,
            },
            id: launch.id,
            source: launch.source,
            started_ms: launch.started_ms,
            is_tended: launch.launcher.as_ref().map(StartedProcess::is_alive),
            // Whoever knows the members says.
            running: 0,
            node_hours: 0.0,
            looks,
        })
    }
}
