//! A gate in a handler's way: closed at first, and opened once.

use tokio::sync::watch;

/// Cheap to clone; every clone is the same gate.
#[derive(Debug, Clone)]
pub(crate) struct Gate(watch::Sender<bool>);

impl Gate {
    pub(crate) fn closed() -> Self {
        Self(watch::Sender::new(false))
    }

    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    /// Waits until it is open.
    pub(crate) async fn pass(&self) {
        // The sender lives in `self`, so this ends only when the gate is open.
        self.0.subscribe().wait_for(|open| *open).await.unwrap();
    }
}
