//! A stream that comes back from an older copy, with fewer messages than were finished: what is stored then is new, although its
//! sequences are not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_nats::jetstream::stream::RetentionPolicy::{self, Interest, Limits, WorkQueue};
use jetring::Delivery;
use jetring::testing::{NatsServer, ServerVersion};
use tokio::sync::mpsc;

use crate::support::{DEADLINE, Kind, Proxy, Setup, World, eventually};

const KEYS: [&str; 6] = ["k0", "k1", "k2", "k3", "k4", "k5"];

/// A group on a server of its own whose stream can be put back to where it was.
struct Restored {
    world: World,
    proxy: Proxy,
    sender: mpsc::UnboundedSender<String>,
    handled: mpsc::UnboundedReceiver<String>,
    round: usize,
}

impl Restored {
    async fn new(kind: Kind, retention: RetentionPolicy) -> Self {
        let world = World::start_on_own_server(Setup {
            // Longer than two restarts take.
            session_timeout: Duration::from_secs(15),
            ..Setup::new(kind, retention)
        })
        .await;
        let proxy = Proxy::to(&world.url).await.unwrap();
        let (sender, handled) = mpsc::unbounded_channel();
        Self {
            world,
            proxy,
            sender,
            handled,
            round: 0,
        }
    }

    async fn join(&self) -> jetring::Member {
        let sender = self.sender.clone();
        let handler = move |delivery: Delivery| {
            sender
                .send(String::from_utf8_lossy(delivery.payload()).into_owned())
                .unwrap();
            async { Ok(()) }
        };
        let client = self.proxy.connect().await.unwrap();
        let mut member = self.world.setup.group().join(&client, "a", handler).await.unwrap();
        // An interest stream keeps nothing for consumers that are still to come.
        member.wait_until(jetring::Status::is_settled).await.unwrap();
        member
    }

    /// Publishes one message of every key, `rounds` times.
    async fn publish(&mut self, rounds: usize) -> Vec<String> {
        let mut published = Vec::new();
        for _ in 0..rounds {
            self.round += 1;
            for key in KEYS {
                let text = format!("{key} {}", self.round);
                let (subject, body) = (self.world.setup.subject(key), text.clone().into());
                // The client may not have noticed yet that the server is back.
                eventually("a message is stored", async || {
                    let sent = self
                        .world
                        .jetstream
                        .publish(subject.clone(), bytes::Bytes::clone(&body))
                        .await;
                    sent.map_err(|error| error.to_string())?
                        .await
                        .map_err(|error| error.to_string())
                })
                .await;
                published.push(text);
            }
        }
        published
    }

    /// Waits until exactly these are handled, and of every key in this order.
    async fn await_handled(&mut self, published: &[String]) {
        let mut handled = Vec::new();
        while handled.len() < published.len() {
            match tokio::time::timeout(DEADLINE, self.handled.recv()).await {
                Ok(text) => handled.push(text.unwrap()),
                Err(_) => break,
            }
        }
        for key in KEYS {
            let of_key = |texts: &[String]| -> Vec<String> {
                let prefix = format!("{key} ");
                texts.iter().filter(|text| text.starts_with(&prefix)).cloned().collect()
            };
            assert_eq!(of_key(&handled), of_key(published));
        }
        assert!(self.handled.try_recv().is_err(), "nothing else is handled");
    }

    /// Where the server keeps the messages of the stream.
    fn stream_folder(&mut self) -> PathBuf {
        let name = self.world.setup.name.clone();
        let store = self.world.server().store_dir().unwrap();
        let account = store.join("jetstream").join("$G");
        account.join("streams").join(name).join("msgs")
    }

    /// Keeps a copy of the stream as it is now.
    async fn back_up(&mut self) -> tempfile::TempDir {
        let copy = tempfile::tempdir().unwrap();
        let folder = self.stream_folder();
        self.world.server().stop().await.unwrap();
        copy_files(&folder, copy.path());
        self.world.server().restart().await.unwrap();
        copy
    }

    /// Puts the stream back to what the copy holds. No member can reach the server before the proxy is opened again.
    async fn put_back(&mut self, copy: &Path) {
        let folder = self.stream_folder();
        self.proxy.cut().await;
        self.world.server().stop().await.unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::create_dir(&folder).unwrap();
        copy_files(copy, &folder);
        self.world.server().restart().await.unwrap();
    }

    async fn last_sequence(&self) -> u64 {
        eventually("the stream says how far it is", async || {
            let stream = self.world.jetstream.get_stream(&self.world.setup.name).await;
            stream
                .map(|stream| stream.cached_info().state.last_sequence)
                .map_err(|error| error.to_string())
        })
        .await
    }
}

fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Before 2.14 a server that is left with consumers further than their interest stream drops what is published up to there by itself:
/// they have acked those sequences.
fn drops_by_itself(server: &NatsServer, retention: RetentionPolicy) -> bool {
    retention == Interest && server.version() < ServerVersion::new(2, 14, 0)
}

/// The stream loses ten rounds and gets `rounds` others before any member looks.
async fn restored(kind: Kind, retention: RetentionPolicy, rounds: usize, alive: bool) {
    let mut test = Restored::new(kind, retention).await;
    if drops_by_itself(test.world.server(), retention) {
        return;
    }
    let mut member = Some(test.join().await);
    let published = test.publish(3).await;
    test.await_handled(&published).await;
    let copy = test.back_up().await;
    let published = test.publish(10).await;
    test.await_handled(&published).await;
    let finished = test.last_sequence().await;
    if !alive {
        member.take().unwrap().leave().await.unwrap();
    }
    test.put_back(copy.path()).await;
    assert!(test.last_sequence().await < finished, "it is shorter");
    let published = test.publish(rounds).await;
    test.proxy.set(crate::support::proxy::Link::Open);
    if !alive {
        member = Some(test.join().await);
    }
    test.await_handled(&published).await;
    // And it goes on.
    let published = test.publish(2).await;
    test.await_handled(&published).await;
    member.unwrap().leave().await.unwrap();
}

const KINDS: [(Kind, RetentionPolicy); 4] = [
    (Kind::Transformed, Limits),
    (Kind::Transformed, WorkQueue),
    (Kind::Transformed, Interest),
    (Kind::Token, Limits),
];

#[tokio::test]
async fn a_member_that_joins_a_stream_that_came_back_shorter_handles_what_is_new() {
    for (kind, retention) in KINDS {
        restored(kind, retention, 4, false).await;
    }
}

#[tokio::test]
async fn a_member_that_joins_a_stream_that_came_back_shorter_and_has_grown_since_handles_what_is_new() {
    for (kind, retention) in KINDS {
        restored(kind, retention, 14, false).await;
    }
}

#[tokio::test]
async fn a_member_whose_stream_came_back_shorter_handles_what_is_new() {
    for (kind, retention) in KINDS {
        restored(kind, retention, 4, true).await;
    }
}

#[tokio::test]
async fn a_member_whose_stream_came_back_shorter_and_has_grown_since_handles_what_is_new() {
    for (kind, retention) in KINDS {
        restored(kind, retention, 14, true).await;
    }
}
