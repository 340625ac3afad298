//! Whether the stream still holds what is finished, or other messages in its place.

use async_nats::jetstream::stream::{RawMessageErrorKind, Stream};

use crate::engine::Fault;
use crate::lanes::{Filter, Mark};

use super::bucket::chain;
use super::{NO_MESSAGE, Nats, unix_nanos};

impl Nats {
    /// The lowest sequence at or below `finished` under which the stream holds a message of the filter that is newer than it, or will
    /// hold one, because the stream ends there. `None`: it is the stream that the mark is about.
    ///
    /// Usually one read: the message at the mark is there and as old as it was. Otherwise, as when it was removed since, the filter's
    /// messages up to the mark are searched by their time, which takes a read per halving.
    pub(crate) async fn find_replaced(&self, filter: &Filter, finished: Mark) -> Result<Option<u64>, Fault> {
        let stream = self.stream_handle().await.map_err(|error| Fault(error.to_string()))?;
        let at_mark = first_message(&stream, filter, finished.sequence).await?;
        if at_mark.is_some_and(|found| found.sequence == finished.sequence && found.time <= finished.time) {
            return Ok(None);
        }
        // Asked before the search: what is stored meanwhile lies behind this end.
        let info = stream.get_info().await.map_err(|error| Fault(chain(&error)))?;
        let end = info.state.last_sequence + 1;
        let mut replaced = (end <= finished.sequence).then_some(end);
        // What is newer than the mark is in `low..high`. The first step finds out whether there is anything at all.
        let (mut low, mut high) = (1, finished.sequence + 1);
        let mut middle = low;
        while low < high {
            match first_message(&stream, filter, middle).await? {
                Some(found) if found.sequence < high && found.time > finished.time => {
                    replaced = Some(replaced.map_or(found.sequence, |end| end.min(found.sequence)));
                    high = middle;
                }
                Some(found) if found.sequence < high => low = found.sequence + 1,
                _ => high = middle,
            }
            middle = low + high.saturating_sub(low) / 2;
        }
        Ok(replaced)
    }
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
