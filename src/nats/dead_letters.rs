//! Dead letters on the wire: what is stored, under which subject, with which headers, and getting it back.

use async_nats::HeaderMap;
use async_nats::header::HeaderValue;
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::RawMessageErrorKind;
use bytes::Bytes;

use crate::dead_letters::{DeadLetter, Origin, header};
use crate::error::Error;
use crate::handler::Message;

use super::bucket::chain;
use super::{NO_MESSAGE, Nats, no_answer, refused, unix_nanos};

/// Headers that the server acts on. They must not act again on a copy, so they are kept under another name.
const SERVER_HEADERS: &str = "Nats-";

/// How much of an error text is kept when a dead letter is too large otherwise.
const SHORT_ERROR: usize = 64;

/// How much is kept otherwise.
const LONG_ERROR: usize = 2048;

impl Nats {
    /// Stores a dead letter, confirmed, and de-duplicated by its origin.
    pub(crate) async fn store_dead_letter(
        &self,
        prefix: &str,
        stream: &str,
        origin: &Origin,
        message: &Message,
    ) -> Result<(), Error> {
        let what = || format!("storing the dead letter of message {} in {stream}", origin.sequence);
        let subject = format!("{prefix}.{}", message.subject);
        let mut last = None;
        for detail in [Detail::Full, Detail::Short, Detail::Least] {
            let publish = PublishMessage::build()
                .payload(message.payload.clone())
                .headers(headers(origin, message, detail))
                .expected_stream(stream);
            let sent = match self.context.send_publish(subject.clone(), publish).await {
                Ok(answer) => answer.await,
                Err(error) => Err(error),
            };
            match sent {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => last = Some(error),
                Err(error) => return Err(no_answer(what(), chain(&error))),
            }
        }
        let reason = last.map(|error| chain(&error)).unwrap_or_default();
        Err(refused(
            what(),
            format!("it does not fit even with short headers: {reason}"),
        ))
    }

    /// Reads the dead letter at `sequence` of its own stream; `None` if it is not there.
    pub(crate) async fn read_dead_letter(
        &self,
        prefix: &str,
        stream: &str,
        sequence: u64,
    ) -> Result<Option<DeadLetter>, Error> {
        let handle = self.dead_letter_stream(stream).await?;
        match handle.get_raw_message(sequence).await {
            Ok(message) => Ok(self.own_letter(prefix, &message)),
            Err(error) => match error.kind() {
                RawMessageErrorKind::NoMessageFound => Ok(None),
                RawMessageErrorKind::JetStream(inner) if inner.error_code().0 == NO_MESSAGE => Ok(None),
                _ => Err(no_answer(format!("reading the dead letter {sequence}"), chain(&error))),
            },
        }
    }

    /// The first dead letter of the group at or after `sequence`. Others may keep theirs, or anything else, under the same prefix.
    pub(crate) async fn next_dead_letter(
        &self,
        prefix: &str,
        stream: &str,
        mut sequence: u64,
    ) -> Result<Option<DeadLetter>, Error> {
        let handle = self.dead_letter_stream(stream).await?;
        loop {
            let next = handle
                .raw_message_builder()
                .sequence(sequence)
                .next_by_subject(format!("{prefix}.>"))
                .send()
                .await;
            let message = match next {
                Ok(message) => message,
                Err(error) => match error.kind() {
                    RawMessageErrorKind::NoMessageFound => return Ok(None),
                    RawMessageErrorKind::JetStream(inner) if inner.error_code().0 == NO_MESSAGE => return Ok(None),
                    _ => {
                        let what = format!("looking for dead letters after {sequence}");
                        return Err(no_answer(what, chain(&error)));
                    }
                },
            };
            if let Some(letter) = self.own_letter(prefix, &message) {
                return Ok(Some(letter));
            }
            sequence = message.sequence + 1;
        }
    }

    /// Reads a dead letter of this group. One that does not tell its group, because it would not have fitted, is anybody's.
    fn own_letter(&self, prefix: &str, message: &StreamMessage) -> Option<DeadLetter> {
        let letter = read(prefix, message)?;
        let group = letter.origin.group.as_str();
        (group.is_empty() || group == line(self.group.as_str(), usize::MAX).as_str()).then_some(letter)
    }

    /// Publishes a dead letter to its original subject again, confirmed.
    pub(crate) async fn replay_dead_letter(&self, stream: &str, letter: &DeadLetter) -> Result<(), Error> {
        let mut headers = letter.headers.clone();
        // Tried twice it is stored once. The time tells it from one that a younger stream stored under the same sequence.
        headers.insert(
            "Nats-Msg-Id",
            format!("jetring-replay:{stream}:{}:{}", letter.sequence, letter.stored).as_str(),
        );
        headers.insert(header::REPLAYED, letter.origin.sequence.to_string().as_str());
        let publish = PublishMessage::build().payload(letter.payload.clone()).headers(headers);
        let what = || format!("replaying the dead letter {}", letter.sequence);
        let subject = letter.origin.subject.clone();
        let answer = self.context.send_publish(subject, publish).await;
        let answer = answer.map_err(|error| no_answer(what(), chain(&error)))?;
        answer.await.map_err(|error| no_answer(what(), chain(&error)))?;
        Ok(())
    }

    /// Deletes one dead letter. Returns whether it was there.
    pub(crate) async fn delete_dead_letter(&self, stream: &str, sequence: u64) -> Result<bool, Error> {
        let handle = self.dead_letter_stream(stream).await?;
        match handle.delete_message(sequence).await {
            Ok(deleted) => Ok(deleted),
            Err(error) if chain(&error).contains("no message found") => Ok(false),
            Err(error) => Err(no_answer(format!("deleting the dead letter {sequence}"), chain(&error))),
        }
    }

    async fn dead_letter_stream(&self, stream: &str) -> Result<async_nats::jetstream::stream::Stream<()>, Error> {
        let found = self.context.get_stream_no_info(stream).await;
        found.map_err(|error| no_answer(format!("opening the stream {stream}"), chain(&error)))
    }
}

/// How much is told about the origin: less when the message would not fit otherwise.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    /// Everything.
    Full,
    /// A short error, and no copies of the headers that the server acted on.
    Short,
    /// What is needed to replay it.
    Least,
}

fn headers(origin: &Origin, message: &Message, detail: Detail) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, values) in message.headers.iter() {
        let text: &str = name.as_ref();
        for value in values {
            if !text.starts_with(SERVER_HEADERS) {
                headers.append(text, value.clone());
            } else if detail == Detail::Full {
                headers.append(format!("{}{text}", header::KEPT).as_str(), value.clone());
            }
        }
    }
    // The time tells it from one that a younger stream stored under the same sequence.
    let (stream, sequence, published) = (&origin.stream, origin.sequence, origin.published);
    let id = format!("jetring:{}:{stream}:{sequence}:{published}", origin.group);
    headers.insert("Nats-Msg-Id", line(&id, usize::MAX));
    headers.insert(header::SUBJECT, line(&message.subject, usize::MAX));
    headers.insert(header::STREAM, origin.stream.as_str());
    headers.insert(header::SEQUENCE, origin.sequence.to_string().as_str());
    headers.insert(header::KEY, line(&origin.key, usize::MAX));
    if detail == Detail::Least {
        return headers;
    }
    headers.insert(header::GROUP, line(origin.group.as_str(), usize::MAX));
    headers.insert(header::MEMBER, line(&origin.member, usize::MAX));
    headers.insert(header::PARTITION, origin.partition.to_string().as_str());
    headers.insert(header::TOKEN, origin.token.to_string().as_str());
    headers.insert(header::ATTEMPTS, origin.attempts.to_string().as_str());
    headers.insert(header::PUBLISHED, origin.published.to_string().as_str());
    headers.insert(header::FAILED, origin.failed.to_string().as_str());
    let limit = if detail == Detail::Full {
        LONG_ERROR
    } else {
        SHORT_ERROR
    };
    headers.insert(header::ERROR, line(&origin.error, limit));
    headers
}

/// Text as a header value: one line, not longer than `limit` bytes.
fn line(text: &str, limit: usize) -> HeaderValue {
    let mut line = String::with_capacity(text.len().min(limit));
    for c in text.chars() {
        let c = if c.is_control() { ' ' } else { c };
        if line.len() + c.len_utf8() > limit {
            break;
        }
        line.push(c);
    }
    HeaderValue::from(line.as_str())
}

/// Reads a stored dead letter; `None` for a message that is none.
fn read(prefix: &str, message: &StreamMessage) -> Option<DeadLetter> {
    let own = |name: &str| message.headers.get(name).map(|value| value.as_str().to_owned());
    let number = |name: &str| own(name).and_then(|text| text.parse::<u64>().ok());
    let subject = message.subject.strip_prefix(prefix)?.strip_prefix('.')?.to_owned();
    let mut headers = HeaderMap::new();
    for (name, values) in message.headers.iter() {
        let text: &str = name.as_ref();
        if !text.starts_with(header::PREFIX) && !text.starts_with(SERVER_HEADERS) {
            values.iter().for_each(|value| headers.append(text, value.clone()));
        }
    }
    Some(DeadLetter {
        sequence: message.sequence,
        stored: unix_nanos(message.time),
        payload: Bytes::clone(&message.payload),
        headers,
        origin: Origin {
            subject,
            stream: own(header::STREAM)?,
            sequence: number(header::SEQUENCE)?,
            key: own(header::KEY).unwrap_or_default(),
            group: own(header::GROUP).unwrap_or_default(),
            member: own(header::MEMBER).unwrap_or_default(),
            partition: number(header::PARTITION).unwrap_or_default(),
            token: number(header::TOKEN).unwrap_or_default(),
            attempts: number(header::ATTEMPTS).unwrap_or_default(),
            published: number(header::PUBLISHED).unwrap_or_default(),
            failed: number(header::FAILED).unwrap_or_default(),
            error: own(header::ERROR).unwrap_or_default(),
        },
    })
}

#[cfg(test)]
#[path = "dead_letter_tests.rs"]
mod tests;
