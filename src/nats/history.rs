//! Whether the stream still holds what is finished, or other messages in its place.

use std::future::Future;

use async_nats::jetstream::stream::{RawMessageErrorKind, Stream};

use crate::engine::Fault;
use crate::lanes::{Filter, Mark};

use super::bucket::chain;
use super::{NO_MESSAGE, Nats, unix_nanos};

/// More reads than any search takes: two halvings of all sequences, and what goes before them.
pub(crate) const MOST_READS: u32 = 3 * u64::BITS;

impl Nats {
    /// The lowest sequence at or below `finished` under which the stream holds a message of the filter that is newer than it, or will
    /// hold one, because the stream ends there. `None`: it is the stream that the mark is about.
    ///
    /// Usually one read: the message at the mark is there and as old as it was. Otherwise, as when it was removed since, the filter's
    /// messages up to the mark are searched by their time. Every read has its own time: on a far server many take longer than one may.
    pub(crate) async fn find_replaced(&self, filter: &Filter, finished: Mark) -> Result<Option<u64>, Fault> {
        let stream = self.stream_handle().await.map_err(|error| Fault(error.to_string()))?;
        let read = |sequence| self.within(first_message(&stream, filter, sequence));
        let at_mark = read(finished.sequence).await?;
        if at_mark.is_some_and(|found| found.sequence == finished.sequence && found.time <= finished.time) {
            return Ok(None);
        }
        // Asked before the search: what is stored meanwhile lies behind this end.
        let info = async { stream.get_info().await.map_err(|error| Fault(chain(&error))) };
        let state = self.within(info).await?.state;
        let end = state.last_sequence + 1;
        let newer = first_newer(finished, state.first_sequence, end, read).await?;
        Ok(newer.or((end <= finished.sequence).then_some(end)))
    }

    async fn within<T>(&self, request: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let limit = self.request_timeout;
        let no_answer = |_| Err(Fault(format!("nothing came within {limit:?}")));
        tokio::time::timeout(limit, request).await.unwrap_or_else(no_answer)
    }
}

/// The first message from `first` to the mark, and before `end`, that is newer than the mark. `read` finds the first message at or
/// behind a sequence.
///
/// Nearly always there is none, and the message next below the mark says so: it is looked for from the mark downwards, in steps that
/// double, and not among all that the stream has.
async fn first_newer<R: Future<Output = Result<Option<Mark>, Fault>>>(
    finished: Mark,
    first: u64,
    end: u64,
    read: impl Fn(u64) -> R,
) -> Result<Option<u64>, Fault> {
    // From `high` on all is known; below `low` nothing is newer.
    let (mut low, mut high) = (first, end.min(finished.sequence.saturating_add(1)));
    let mut newer = None;
    let mut step = 1_u64;
    while low < high {
        let probe = high.saturating_sub(step).max(low);
        step = step.saturating_mul(2);
        match read(probe).await? {
            Some(found) if found.sequence < high && found.time <= finished.time => {
                low = found.sequence + 1;
                break;
            }
            found => {
                newer = found.map(|found| found.sequence).filter(|&at| at < high).or(newer);
                high = probe;
            }
        }
    }
    // The first step finds out whether anything is left between.
    let mut middle = low;
    while low < high {
        match read(middle).await? {
            Some(found) if found.sequence < high && found.time <= finished.time => low = found.sequence + 1,
            found => {
                newer = found.map(|found| found.sequence).filter(|&at| at < high).or(newer);
                high = middle;
            }
        }
        middle = low + high.saturating_sub(low) / 2;
    }
    Ok(newer)
}

/// The first message of a filter at or behind a sequence.
async fn first_message(stream: &Stream<()>, filter: &Filter, sequence: u64) -> Result<Option<Mark>, Fault> {
    match stream.get_first_raw_message_by_subject(filter.as_str(), sequence).await {
        Ok(message) => Ok(Some(Mark {
            sequence: message.sequence,
            time: unix_nanos(message.time),
        })),
        Err(error) => match error.kind() {
            RawMessageErrorKind::NoMessageFound => Ok(None),
            RawMessageErrorKind::JetStream(inner) if inner.error_code().0 == NO_MESSAGE => Ok(None),
            _ => Err(Fault(format!(
                "reading the first message of {filter} from {sequence} on: {}",
                chain(&error)
            ))),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Searches the messages of a filter, given as sequence and time; the result, and how many reads it took.
    fn search(messages: &BTreeMap<u64, u64>, finished: Mark, first: u64, end: u64) -> (Option<u64>, u32) {
        let reads = Cell::new(0);
        let read = |sequence| {
            reads.set(reads.get() + 1);
            let found = messages.range(sequence..).next();
            std::future::ready(Ok(found.map(|(&sequence, &time)| Mark { sequence, time })))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let newer = runtime.block_on(first_newer(finished, first, end, read)).unwrap();
        (newer, reads.get())
    }

    #[test]
    fn few_reads_tell_that_nothing_took_the_place_of_a_message_that_is_gone() {
        let sequence = 1 << 60;
        let finished = Mark { sequence, time: 900 };
        // Every 64th is of the filter; the one at the mark was removed.
        let near = (1..100).map(|back| (sequence - back * 64, 900 - back));
        let far = (14..60).map(|power| (sequence - (1 << power), 100));
        let messages: BTreeMap<u64, u64> = far.chain(near).collect();
        let (newer, reads) = search(&messages, finished, 1, sequence + 1000);
        assert_eq!(newer, None);
        assert!(reads <= 16, "{reads}");
        // All of them were.
        let (newer, reads) = search(&BTreeMap::new(), finished, sequence - 500, sequence + 1000);
        assert_eq!(newer, None);
        assert!(reads <= 16, "{reads}");
    }

    #[test]
    fn a_clock_that_went_back_long_before_the_mark_is_no_loss() {
        let messages = BTreeMap::from([(10, 2000), (11, 2001), (500, 850), (900, 890)]);
        let finished = Mark {
            sequence: 1000,
            time: 900,
        };
        assert_eq!(search(&messages, finished, 1, 2000).0, None);
    }

    proptest! {
        #[test]
        fn the_first_newer_message_is_found(
            sequences in proptest::collection::btree_set(1_u64..400, 0..60),
            (at, first, end) in (1_u64..400, 1_u64..50, 1_u64..500),
            since in 1_u64..400,
        ) {
            // Stored in order of time; what is newer than the mark begins at `since`.
            let finished = Mark { sequence: at, time: 1000 };
            let stored = sequences.into_iter().filter(|&sequence| sequence >= first && sequence < end);
            let time = |sequence| if sequence < since { 500 + sequence } else { 1500 + sequence };
            let messages: BTreeMap<u64, u64> = stored.map(|sequence| (sequence, time(sequence))).collect();
            let expected = messages.range(since..).map(|(&sequence, _)| sequence).find(|&sequence| sequence <= at);
            prop_assert_eq!(search(&messages, finished, first, end).0, expected);
        }
    }
}
