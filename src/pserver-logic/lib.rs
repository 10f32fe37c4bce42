//! What the parameter servers of one training job decide, as one of its nodes sees it: which node
//! keeps which block, when an update counts, what a reader may see, what happens when somebody
//! dies. Pure: no IO, no clock, no randomness. The crate `pserver` carries out what is decided
//! here. No bytes pass through: effects name them. Start reading at `group`.
//!
//! | file | owns |
//! |---|---|
//! | `io` | what goes in and comes out |
//! | `blocks` | tensors in an arena, cut into blocks |
//! | `placement` | which nodes keep a block |
//! | `group` | the state of one node; who leads, when the view has to change |
//! | `epochs` | which views there are, as far as this node knows |
//! | `peers` | who is connected, who is gone |
//! | `lead` | the leader: a view's proposal, a clock's commit, barriers |
//! | `view` | a member's side of a change of the view |
//! | `moving` | blocks on their way to a new home while training goes on |
//! | `server` | blocks that this node keeps: contributions, replication, what readers get |
//! | `updates` | where updates count one by one or are merged: their order, when they count |
//! | `valid` | whether what another node says can be |
//! | `search` | which members take part: who is called, lost, gone; whether workers are still to come |
//! | `pace` | from when on a worker is late |
//! | `shares` | how large a part of the samples each worker has, by its measured pace |
//! | `local` | this node's workers: what they pushed and wait for |
//! | `checkpoint` | the parameters of one clock, gathered while training goes on; going on from what was kept |
//!
//! **The view.** All nodes of the job that are connected with each other work in one view: nodes,
//! workers, an epoch. Whenever a node or a worker comes or goes, or a connection breaks, the leader
//! proposes a new one: nodes promise to heed no older epoch and say what they hold, the leader
//! works out in what state to go on and which of them keep which blocks, all install that, all
//! confirm it, and all go on:
//!
//! ```text
//! something counts in view e  ⇒  each node of e has confirmed e, and e's leader has had all go on
//! a node confirms e           ⇒  it heeds no later view yet
//! ```
//!
//! So the next view goes on from e if some node here has confirmed e; but not if another node of e
//! here has not, nor if e's leader here has had nobody go on. Then nothing has counted in e, or
//! will, and what nodes have that were not part of e is as good as what the others have.
//!
//! Of those who are there, the leader is whoever proposed the newest epoch that any has promised
//! to heed, else the highest-ranked node. Where two think so for a moment, the higher epoch wins:
//! a view has one leader, since its epoch names it. That is Viewstamped Replication's view change
//! (Oki and Liskov, 1988) without its quorum: instead of a majority, the new view must have every
//! block as the last view left it.
//!
//! **Synchronous modes.** A block's primary takes a clock's gradients, sums them when all workers'
//! are there, and keeps the sum on the replicas too, all before `Ready`; the leader's `Commit`
//! makes it count. Let V be the last view's nodes that are left:
//!
//! ```text
//! clock c was committed      ⇒  for each block some v ∈ V has applied c or holds its sum     (while one node at a time is lost)
//! each block's sum of c or its effect is in V  ⇒  it is safe to commit c: all sums are of the same workers, those of the view
//! ```
//!
//! So the leader of the next view voids the sums of c unless all who keep a block have its sum: no
//! reader saw c then. Either way all who keep a block have the same, and whoever is lost next is
//! one of several.
//!
//! **Nodes given up.** Let a node f of the last view be known to be gone, by proof or by a person's
//! word:
//!
//! ```text
//! the epochs proposed from then on > those that f may have proposed meanwhile      (by the next multiple of `group::ALONE`)
//! ```
//!
//! So if f was only cut off, what it comes back with is older than the others' view, and does not
//! count.
//!
//! A machine that refuses connections is no proof, since a wall does so in a living node's stead,
//! on both sides of it. But no wall ends a connection as the kernel of a process does that is
//! killed:
//!
//! ```text
//! f is proven to be gone      ⇔  its kernel closed its connection unannounced, and refuses new ones
//! ```
//!
//! **Sides of a cut.** Let N be the nodes of the last view, and S ⊆ N those that are here and
//! remember what they did since it began:
//!
//! ```text
//! S goes on      ⇒  |S| > |N| / 2, or |S| = |N| / 2 and S has the first of N, or
//!                   nobody of N is away, neither here nor known to be gone, and
//!                   each of N \ S ended with the leader, or no member is away that may train
//! f ended with l ⇔  f's kernel closed its connection with l, and f had said last: l has confirmed f's last view,
//!                   and was asked to be a part of the view that f heeds
//! ```
//!
//! So two sides that go on from one view share a node, which tells of it. Nodes that are gone, or
//! have lost their memory, count for nobody: they may have gone on with those that are away, of
//! this view or not.
//!
//! **Moves.** A view puts a block on nodes that have it, so nothing is brought before it goes on
//! (but at first, and from a checkpoint). Where another node shall keep it, the primary p sends
//! that newcomer n what the block is, and every update u from then on:
//!
//! ```text
//! n has settled      ⇒  u counts only if n has it      (and until then only if n lacks fewer than 8)
//! n says that it holds the block, in a later view  ⇒  n has settled
//! ```
//!
//! So a newcomer that counts as a holder has all that counts, as a replica has, and the arguments
//! above hold with it. The last view of a move begins when all have settled and nothing is under
//! way.
//!
//! **Shares of samples.** Where workers divide a clock's samples, a view says what each one's share
//! is, and only its leader changes that, together with the `Commit` of the clock before the one
//! from which it holds:
//!
//! ```text
//! an update of clock c counts in view e  ⇒  it is of the share that e had at first, or since its last commit of a clock below c
//! ```
//!
//! So all updates of a clock are of the same shares, and each sample counts once. The next view may
//! have others: an update of a worker whose share differs is void then.
//!
//! **Asynchronous modes.** A block's primary puts updates in an order, and lets them count when all
//! replicas have applied them. The next view takes each block from whoever applied most, and the
//! primary catches up with the updates that it has sent. Updates are told apart by (worker, clock,
//! block), so that one which is pushed again counts once.

pub mod blocks;
mod checkpoint;
mod epochs;
pub mod group;
mod io;
mod lead;
mod local;
mod moving;
pub mod pace;
mod peers;
pub mod placement;
pub mod search;
mod server;
mod shares;
#[cfg(test)]
mod tests;
mod updates;
mod valid;
mod view;

pub use blocks::{ArenaLayout, LayoutError};
pub use group::{Group, GroupConfig};
pub use io::{
    ByteTarget, CheckpointEffect, Effect, Gradient, GroupInput, KeptCheckpoint, Notice, Others,
    Part, Payload, Share,
};
