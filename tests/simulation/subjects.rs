//! What subjects, filters, consumers and acks are called here.

use jetring::ids::{GroupName, Partition};
use jetring::lanes::{Delivered, Filter};
use jetring::names::ConsumerName;

use crate::member::{Input, Of};
use crate::stream::Delivery;

pub(crate) fn group() -> GroupName {
    GroupName::new("g").unwrap()
}

pub(crate) fn subject(partition: Partition, key: u64) -> String {
    format!("t.{partition}.{key}")
}

/// The filter of the consumer that a message is for.
pub(crate) fn filter_of(partition: Partition, key: u64, by_key: bool) -> String {
    if by_key {
        subject(partition, key)
    } else {
        format!("t.{partition}.>")
    }
}

/// The partition and the key in a subject.
pub(crate) fn partition_of(subject: &str) -> (Partition, u64) {
    let mut tokens = subject.split('.').skip(1).map(|token| token.parse().unwrap());
    (Partition(tokens.next().unwrap() as u16), tokens.next().unwrap())
}

pub(crate) fn name_of((partition, filter, epoch): &Of) -> ConsumerName {
    ConsumerName::new(&group(), *partition, filter, *epoch)
}

/// A delivery as a member gets it.
pub(crate) fn delivered(name: &ConsumerName, delivery: &Delivery, by_key: bool) -> Input {
    let stored = &delivery.stored;
    let (partition, key) = partition_of(&stored.subject);
    let filter = Filter::new(filter_of(partition, key, by_key));
    let delivered = Delivered {
        stream_sequence: delivery.sequence,
        read_sequence: delivery.sequence,
        consumer_sequence: delivery.consumer_sequence,
        time: stored.time,
        key: key.to_string().into(),
        reply: format!("{name} {}", delivery.sequence).into(),
        bytes: 1,
        message: stored.id,
    };
    Input::Delivered((name.partition, filter, name.epoch), delivered)
}

pub(crate) fn parse(reply: &str) -> Option<(ConsumerName, u64)> {
    let (name, sequence) = reply.split_once(' ')?;
    Some((ConsumerName::parse(name)?, sequence.parse().ok()?))
}
