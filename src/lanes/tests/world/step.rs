//! What can happen in the small world.

/// What happens next. Numbers choose among what there is.
#[derive(Debug, Clone)]
pub(in crate::lanes::tests) enum Step {
    /// Messages are stored, of one key.
    Store {
        place: u8,
        key: u8,
        messages: u8,
    },
    /// The server answers pull requests.
    Serve {
        place: u8,
        messages: u8,
    },
    /// Deliveries arrive.
    Arrive {
        place: u8,
        messages: u8,
    },
    /// A delivery is lost on the way.
    Lose {
        place: u8,
    },
    /// `ack_wait` has passed for an unacked message.
    Redeliver {
        place: u8,
        which: u8,
    },
    PullExpires {
        place: u8,
    },
    /// The connection is lost and comes back.
    Reconnect {
        member: u8,
    },
    Reopen {
        place: u8,
    },
    Dispatch {
        member: u8,
    },
    End {
        which: u8,
        /// So many messages of a batch are done.
        finished: u8,
        outcome: Ending,
    },
    Letter {
        which: u8,
        stored: bool,
    },
    /// A spilled message is read.
    Read {
        which: u8,
    },
    /// A message is deleted from the stream.
    Purge {
        which: u8,
    },
    /// A consumer delivers nothing any more.
    Stick {
        place: u8,
    },
    /// Acks do not reach the server, or do again.
    LoseAcks {
        lost: bool,
    },
    /// The server answers how far a consumer is.
    Inspect {
        member: u8,
    },
    Tick {
        millis: u16,
    },
    Checkpoint {
        partition: u8,
    },
    /// What a run waits for is recorded.
    Record {
        which: u8,
    },
    Stop {
        partition: u8,
    },
    Cancel {
        partition: u8,
    },
    /// Ownership is lost, and the partition goes to a member; the same one at once, another when the old handlers have ended.
    Fence {
        partition: u8,
        to: u8,
    },
    Crash {
        member: u8,
    },
}

#[derive(Debug, Clone, Copy)]
pub(in crate::lanes::tests) enum Ending {
    Success,
    Retry,
    Reject,
    Cancelled,
}
