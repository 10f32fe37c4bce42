//! What frames there are: an enum for each direction of each protocol. Several share a number where
//! the same message goes on, as from a pool's client to a worker.

use std::fmt::Debug;

/// The kinds of frames that are sent in one direction of one protocol.
pub trait FrameKind: Copy + Eq + Debug + Send + Sync + 'static {
    /// All of them, with their names as the documentation has them.
    const ALL: &'static [(&'static str, Self)];

    /// The byte that stands for the kind.
    fn number(self) -> u8;

    fn of(number: u8) -> Option<Self> {
        let all = Self::ALL.iter().map(|(_, kind)| *kind);
        all.into_iter().find(|kind| kind.number() == number)
    }
}

macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident { $($variant:ident, $text:literal = $number:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name {
            $(#[doc = concat!("`", $text, "`")] $variant = $number,)*
        }

        impl FrameKind for $name {
            const ALL: &'static [(&'static str, Self)] = &[$(($text, Self::$variant),)*];

            fn number(self) -> u8 {
                self as u8
            }
        }
    };
}

kinds! {
    /// From a node, or a pool, to a worker's process.
    ToWorker {
        Init, "INIT" = 1;
        Update, "UPDATE" = 2;
        Run, "RUN" = 3;
        Exit, "EXIT" = 4;
        Release, "RELEASE" = 37;
    }
}

kinds! {
    /// From a worker's process to its node; from there to a pool.
    FromWorker {
        Hello, "HELLO" = 16;
        Ready, "READY" = 17;
        InitFailed, "INIT_FAILED" = 18;
        Done, "DONE" = 19;
        Failed, "FAILED" = 20;
        UpdateFailed, "UPDATE_FAILED" = 21;
        Ended, "ENDED" = 22;
    }
}

kinds! {
    /// From a pool's client to the node that hosts the pool.
    FromClient {
        Init, "INIT" = 1;
        Update, "UPDATE" = 2;
        Run, "RUN" = 3;
        Open, "OPEN" = 32;
        Snapshot, "SNAPSHOT" = 33;
        Cancel, "CANCEL" = 34;
        Close, "CLOSE" = 35;
        Near, "NEAR" = 36;
        Release, "RELEASE" = 37;
    }
}

kinds! {
    /// From the node that hosts a pool to the pool's client.
    ToClient {
        Done, "DONE" = 19;
        Failed, "FAILED" = 20;
        UpdateFailed, "UPDATE_FAILED" = 21;
        Opened, "OPENED" = 48;
        Status, "STATUS" = 49;
        Send, "SEND" = 50;
        Lost, "LOST" = 51;
        Error, "ERROR" = 52;
        Started, "STARTED" = 81;
    }
}

kinds! {
    /// From a worker that trains with others to its node's parameter servers. `ALONE` comes in the
    /// place of `REGISTER` from one that trains alone.
    FromTrainer {
        Ready, "READY" = 17;
        Close, "CLOSE" = 35;
        Register, "REGISTER" = 64;
        Push, "PUSH" = 65;
        Clock, "CLOCK" = 66;
        Pull, "PULL" = 67;
        Barrier, "BARRIER" = 68;
        Share, "SHARE" = 69;
        Wait, "WAIT" = 70;
        Finish, "FINISH" = 71;
        Alone, "ALONE" = 72;
        Keep, "KEEP" = 73;
        Samples, "SAMPLES" = 74;
    }
}

kinds! {
    /// From parameter servers to a worker of their node.
    ToTrainer {
        Status, "STATUS" = 49;
        Error, "ERROR" = 52;
        Share, "SHARE" = 69;
        Wait, "WAIT" = 70;
        Registered, "REGISTERED" = 80;
        Started, "STARTED" = 81;
        Released, "RELEASED" = 82;
        Moved, "MOVED" = 83;
        Pulled, "PULLED" = 84;
        Passed, "PASSED" = 85;
        Over, "OVER" = 86;
        Finished, "FINISHED" = 87;
        Kept, "KEPT" = 89;
    }
}

kinds! {
    /// From a worker that trains alone to its node, after `ALONE`.
    FromAlone {
        Close, "CLOSE" = 35;
        Wait, "WAIT" = 70;
        Keep, "KEEP" = 73;
    }
}

kinds! {
    /// From a node to a worker that trains alone.
    ToAlone {
        Status, "STATUS" = 49;
        Error, "ERROR" = 52;
        Found, "FOUND" = 88;
        Kept, "KEPT" = 89;
    }
}
