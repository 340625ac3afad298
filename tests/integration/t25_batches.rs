//! Handlers of several messages at once.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::RetentionPolicy::{Limits, WorkQueue};
use futures_util::future::BoxFuture;
use jetring::{
    Batch, BatchFailure, BatchHandler, BatchScope, BatchSettings, Delivery, Error, Failure, Group, Partition, Settings,
};

use crate::support::journal::End;
use crate::support::members::{Recorder, succeed};
use crate::support::{Kind, Setup, World};

const KEYS: [&str; 6] = ["k0", "k1", "k2", "k3", "k4", "k5"];
const SCOPES: [BatchScope; 2] = [BatchScope::Key, BatchScope::Partition];

type BatchWork = Arc<dyn Fn(Batch) -> BoxFuture<'static, Result<(), BatchFailure>> + Send + Sync>;

fn batch_work<F>(work: impl Fn(Batch) -> F + Send + Sync + 'static) -> BatchWork
where
    F: Future<Output = Result<(), BatchFailure>> + Send + 'static,
{
    Arc::new(move |batch| Box::pin(work(batch)))
}

fn all_succeed() -> BatchWork {
    batch_work(|_| async { Ok(()) })
}

/// Sequence and attempt of every message of a batch.
type Made = Vec<(u64, u32)>;

/// A handler that keeps what its batches were made of, and writes each message into the journal: the first one for as long as the
/// batch takes, the others when they are known to be done or failed.
struct BatchRecorder {
    recorder: Recorder,
    scope: BatchScope,
    work: BatchWork,
    made: Arc<Mutex<Vec<Made>>>,
    /// Partitions that have a batch of this scope.
    busy: Mutex<BTreeSet<Partition>>,
}

impl BatchHandler for BatchRecorder {
    async fn handle(&self, batch: Batch) -> Result<(), BatchFailure> {
        let (partition, deliveries) = (batch.partition(), batch.deliveries().to_vec());
        let key = deliveries[0].key();
        for delivery in &deliveries {
            assert_eq!(
                (delivery.partition(), delivery.fencing_token()),
                (partition, batch.fencing_token())
            );
            assert!(self.scope == BatchScope::Partition || delivery.key() == key);
        }
        let alone = self.scope == BatchScope::Key || self.busy.lock().unwrap().insert(partition);
        assert!(alone, "{partition} has two batches");
        let made = |delivery: &Delivery| (delivery.stream_sequence(), delivery.attempt());
        self.made.lock().unwrap().push(deliveries.iter().map(made).collect());
        let mut first = Some(self.recorder.begin(&deliveries[0]));
        let result = Leaves(self, partition).run((self.work)(batch)).await;
        let finished = match &result {
            Ok(()) => deliveries.len(),
            Err(failure) => failure.index(),
        };
        for (index, delivery) in deliveries.iter().enumerate().take(finished + 1) {
            let mut ending = first.take().unwrap_or_else(|| self.recorder.begin(delivery));
            ending.end = if index < finished { End::Done } else { End::Failed };
        }
        result
    }
}

/// Frees the partition when its batch has ended, whatever its end is.
struct Leaves<'a>(&'a BatchRecorder, Partition);

impl Leaves<'_> {
    async fn run<T>(self, work: impl Future<Output = T>) -> T {
        work.await
    }
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.busy.lock().unwrap().remove(&self.1);
    }
}

fn batches(scope: BatchScope, max_messages: usize, max_wait: Duration) -> BatchSettings {
    BatchSettings {
        scope,
        max_messages: NonZeroUsize::new(max_messages).unwrap(),
        max_wait,
    }
}

/// A member joins; what its batches are made of.
async fn join_group(
    world: &mut World,
    id: &str,
    group: Group,
    batches: BatchSettings,
    work: BatchWork,
) -> Arc<Mutex<Vec<Made>>> {
    let client = async_nats::connect(&world.url).await.unwrap();
    let made = Arc::default();
    let handler = BatchRecorder {
        recorder: Recorder::new(world.journal.clone(), world.new_life(id), succeed()),
        scope: batches.scope,
        work,
        made: Arc::clone(&made),
        busy: Mutex::default(),
    };
    let group = handler.recorder.listen(group);
    let member = group.join_batched(&client, id, batches, handler).await.unwrap();
    world.members.here.insert(id.to_owned(), member);
    made
}

async fn join(world: &mut World, id: &str, batches: BatchSettings, work: BatchWork) -> Arc<Mutex<Vec<Made>>> {
    let group = world.setup.group();
    join_group(world, id, group, batches, work).await
}

async fn one_partition() -> World {
    World::start(Setup {
        partitions: 1,
        ..Setup::new(Kind::Transformed, Limits)
    })
    .await
}

#[tokio::test]
async fn batches_are_consecutive_and_full_where_there_is_a_backlog() {
    for (scope, retention) in [
        (BatchScope::Key, Limits),
        (BatchScope::Partition, Limits),
        (BatchScope::Key, WorkQueue),
        (BatchScope::Partition, WorkQueue),
    ] {
        let mut world = World::start(Setup {
            partitions: 2,
            ..Setup::new(Kind::Transformed, retention)
        })
        .await;
        world.publish_round(&KEYS, 30).await;
        // Long enough for the backlog to come in on a busy machine.
        let batches = batches(scope, 10, Duration::from_millis(700));
        let made = join(&mut world, "a", batches, all_succeed()).await;
        world.await_handled().await;
        world.verdict().exactly_once();
        let made = made.lock().unwrap().clone();
        assert!(
            made.iter()
                .all(|batch| (1..=10).contains(&batch.len()) && batch.is_sorted())
        );
        // 180 messages; the last batch of each key or partition may be short.
        let full = made.iter().filter(|batch| batch.len() == 10).count();
        assert!(full >= 15, "{scope:?}: {made:?}");
        if retention == WorkQueue {
            world.all_acked().await;
        }
    }
}

#[tokio::test]
async fn a_batch_that_is_not_full_starts_when_its_first_message_has_waited() {
    for scope in SCOPES {
        let mut world = one_partition().await;
        let max_wait = Duration::from_millis(400);
        let made = join(&mut world, "a", batches(scope, 10, max_wait), all_succeed()).await;
        world.wait_settled(&["a"]).await;
        let begun = Instant::now();
        world.publish_round(&["x"], 3).await;
        world.await_handled().await;
        assert!(begun.elapsed() >= max_wait, "{:?}", begun.elapsed());
        assert_eq!(made.lock().unwrap().len(), 1, "{scope:?}");
        world.verdict().exactly_once();
    }
}

#[tokio::test]
async fn what_fails_in_a_batch_holds_its_key_and_repeats_nothing_before_it() {
    for scope in SCOPES {
        let mut world = one_partition().await;
        for key in ["x", "y"].repeat(4) {
            world.publish(key).await;
        }
        let sequences: Vec<u64> = world.published().iter().map(|message| message.sequence).collect();
        // The second message of x.
        let bad = sequences[2];
        let work = batch_work(move |batch| async move {
            for (index, delivery) in batch.into_iter().enumerate() {
                if delivery.stream_sequence() == bad && delivery.attempt() < 3 {
                    return Err(BatchFailure::at(index, Failure::retry("not yet")));
                }
            }
            Ok(())
        });
        let made = join(&mut world, "a", batches(scope, 8, Duration::from_millis(50)), work).await;
        world.await_handled().await;
        world.verdict().exactly_once();
        let made = made.lock().unwrap().concat();
        for sequence in sequences {
            let attempts: Vec<u32> = made.iter().filter(|one| one.0 == sequence).map(|one| one.1).collect();
            if sequence == bad {
                assert_eq!(attempts, [1, 2, 3], "{scope:?}");
            } else {
                assert!(attempts.iter().all(|&attempt| attempt == 1), "{scope:?}: {made:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_panic_and_a_handler_that_takes_too_long_fail_the_whole_batch() {
    for scope in SCOPES {
        for panics in [true, false] {
            let mut world = one_partition().await;
            world.publish_round(&["x"], 5).await;
            let settings = Settings {
                handler_timeout: Some(Duration::from_millis(200)),
                ..world.setup.settings()
            };
            let group = world.setup.group().with_settings(settings).unwrap();
            let work = batch_work(move |batch| async move {
                match batch.deliveries()[0].attempt() {
                    1 if panics => panic!("first attempt"),
                    1 => std::future::pending().await,
                    _ => Ok(()),
                }
            });
            let batches = batches(scope, 5, Duration::from_secs(1));
            let made = join_group(&mut world, "a", group, batches, work).await;
            world.await_handled().await;
            world.verdict().exactly_once();
            let attempts: Vec<Vec<u32>> = made
                .lock()
                .unwrap()
                .iter()
                .map(|batch| batch.iter().map(|one| one.1).collect())
                .collect();
            assert_eq!(attempts, [[1; 5], [2, 1, 1, 1, 1]], "{scope:?}");
        }
    }
}

#[tokio::test]
async fn batches_change_hands_without_loss_or_repetition() {
    for scope in SCOPES {
        let mut world = World::start(Setup::new(Kind::Transformed, Limits)).await;
        let work = batch_work(|_| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(())
        });
        let batches = batches(scope, 8, Duration::from_millis(10));
        join(&mut world, "a", batches, work.clone()).await;
        let publisher = world.keep_publishing(&KEYS);
        join(&mut world, "b", batches, work.clone()).await;
        world.wait_settled(&["a", "b"]).await;
        join(&mut world, "c", batches, work).await;
        world.wait_settled(&["a", "b", "c"]).await;
        world.leave("a").await;
        world.wait_settled(&["b", "c"]).await;
        publisher.stop().await;
        world.await_handled().await;
        world.verdict().exactly_once();
    }
}

#[tokio::test]
async fn the_next_owner_gets_only_what_a_cancelled_batch_has_not_done() {
    for scope in SCOPES {
        let mut world = World::start(Setup {
            partitions: 1,
            drain_timeout: Duration::from_millis(100),
            ..Setup::new(Kind::Transformed, Limits)
        })
        .await;
        world.publish_round(&["x"], 6).await;
        let begun = Arc::new(AtomicBool::new(false));
        let begins = begun.clone();
        let half = batch_work(move |batch| {
            begins.store(true, Ordering::Release);
            async move {
                batch.cancellation().cancelled().await;
                Err(BatchFailure::at(4, Failure::retry("told to end")))
            }
        });
        let batches = batches(scope, 6, Duration::from_secs(1));
        join(&mut world, "a", batches, half).await;
        crate::support::eventually("the batch begins", async || {
            begun.load(Ordering::Acquire).then_some(()).ok_or(())
        })
        .await;
        world.leave("a").await;
        let made = join(&mut world, "b", batches, all_succeed()).await;
        world.await_handled().await;
        world.verdict().exactly_once();
        let last: Vec<u64> = world.published()[4..].iter().map(|message| message.sequence).collect();
        assert_eq!(*made.lock().unwrap(), [[(last[0], 1), (last[1], 1)]]);
    }
}

#[tokio::test]
async fn a_batch_larger_than_the_room_is_refused() {
    let world = one_partition().await;
    let most = world.setup.max_held_per_partition;
    let batches = batches(BatchScope::Key, most + 1, Duration::ZERO);
    let handler = |_: Batch| async { Ok(()) };
    let group = world.setup.group();
    let joined = group.join_batched(&world.client, "a", batches, handler);
    let refused = joined.await.unwrap_err();
    assert!(
        matches!(&refused, Error::Settings(error) if error.field == "batch.max_messages"),
        "{refused:?}"
    );
}
