//! The files that a job's tasks are given: whoever takes a new job brings them from the node that
//! submitted it, and gives the job up if they do not come.

use super::Coordinator;
use crate::{core::Core, lattice::Lattice};
use nodectl_types::NodeId;

/// How often they are asked for again.
const TRIES: u32 = 5;

/// The job's files are being brought here, while there is a ticket.
#[derive(Debug, Default)]
pub(super) struct InputFetch {
    ticket: Option<u64>,
    tries: u32,
}

/// What came of fetching a job's files.
pub enum Inputs {
    /// The ticket was of something else.
    Others,
    /// The files are here, or are asked for once more.
    Expected,
    Missing,
}

impl Coordinator {
    /// Brings them here, if there are any.
    pub(super) fn fetch_inputs(&mut self, core: &mut Core, submitter: NodeId) {
        let job = self.job;
        let inputs = self.spec.work.inputs;
        self.inputs.ticket = inputs.map(|manifest| core.fetch_tree(job, manifest, vec![submitter]));
    }

    /// The job's files are on their way here. If they do not come, the claim is given up: nothing
    /// counts before that is settled.
    pub fn awaits_inputs(&self) -> bool {
        self.inputs.ticket.is_some()
    }

    /// The job's files are here, or cannot be had from the node that submitted it: then it cannot
    /// be coordinated here.
    pub fn inputs_fetched(
        &mut self,
        core: &mut Core,
        lattice: &mut Lattice,
        (ticket, result): (u64, &Result<(), String>),
    ) -> Inputs {
        if self.inputs.ticket != Some(ticket) {
            return Inputs::Others;
        }
        self.inputs.ticket = None;
        if result.is_ok() {
            self.settle_all(core, lattice);
            return Inputs::Expected;
        }
        let submitter = self.head(core).submitter;
        if self.inputs.tries >= TRIES || !core.members.is_alive(submitter) {
            return Inputs::Missing;
        }
        self.inputs.tries += 1;
        self.fetch_inputs(core, submitter);
        Inputs::Expected
    }
}
