//! What the bucket and the stream say, read as any other program would.

use std::collections::BTreeMap;

use async_nats::jetstream::kv::Store;
use futures_util::TryStreamExt;
use jetring::ids::Revision;
use jetring::lanes::{Death, Marks};
use jetring::names::ConsumerName;
use jetring::records::{AssignmentRecord, ClaimRecord, ClaimState, Keys, MemberRecord, ProgressRecord, decode};
use jetring::{FencingToken, MemberId, Partition};
use serde::de::DeserializeOwned;

use super::World;

/// A claim with its fencing token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) record: ClaimRecord,
    pub(crate) token: FencingToken,
}

impl Claim {
    pub(crate) fn is_held(&self) -> bool {
        self.record.state == ClaimState::Held
    }
}

impl World {
    pub(crate) fn keys(&self) -> Keys {
        Keys::new(self.setup.group().name())
    }

    /// The bucket; `None` before the first member has joined.
    pub(crate) async fn bucket(&self) -> Option<Store> {
        self.jetstream.get_key_value(&self.setup.name).await.ok()
    }

    async fn record<T: DeserializeOwned>(&self, bucket: &Store, key: &str) -> Option<(T, Revision)> {
        let subject = format!("{}{key}", bucket.prefix);
        let message = bucket.stream.get_last_raw_message_by_subject(&subject).await.ok()?;
        let record = decode(key, &message.payload).ok()?;
        Some((record, Revision(message.sequence)))
    }

    pub(crate) async fn assignment(&self) -> Option<AssignmentRecord> {
        let bucket = self.bucket().await?;
        let found = self.record(&bucket, &self.keys().assignment()).await;
        found.map(|(record, _)| record)
    }

    /// The record of a member, with its revision.
    pub(crate) async fn member(&self, id: &str) -> Option<(MemberRecord, Revision)> {
        let bucket = self.bucket().await?;
        self.record(&bucket, &self.keys().member(&MemberId::new(id).unwrap()))
            .await
    }

    pub(crate) async fn claims(&self) -> BTreeMap<Partition, Claim> {
        let mut claims = BTreeMap::new();
        let Some(bucket) = self.bucket().await else {
            return claims;
        };
        let created = bucket.stream.cached_info().created;
        let created = std::time::SystemTime::from(created)
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let created = u64::try_from(created.as_nanos()).unwrap();
        for index in 0..u16::try_from(self.setup.partitions).unwrap() {
            let partition = Partition(index);
            let key = self.keys().claim(partition);
            if let Some((record, revision)) = self.record::<ClaimRecord>(&bucket, &key).await {
                let token = record.token_at(revision, created);
                claims.insert(partition, Claim { record, token });
            }
        }
        claims
    }

    /// What the progress records say of every filter.
    pub(crate) async fn marks(&self) -> Vec<Marks> {
        let mut marks = Vec::new();
        let Some(bucket) = self.bucket().await else {
            return marks;
        };
        for index in 0..u16::try_from(self.setup.partitions).unwrap() {
            let key = self.keys().progress(Partition(index));
            if let Some((record, _)) = self.record::<ProgressRecord>(&bucket, &key).await {
                marks.extend(record.filters.into_values());
            }
        }
        marks
    }

    /// The highest sequence that any progress record holds as finished, in a floor or in a range.
    pub(crate) async fn highest_saved(&self) -> u64 {
        let marks = self.marks().await;
        marks.iter().map(Marks::highest).max().unwrap_or(0)
    }

    /// The deaths of unfinished messages in the progress records.
    pub(crate) async fn deaths(&self) -> BTreeMap<u64, Vec<Death>> {
        let marks = self.marks().await.into_iter();
        marks.flat_map(|marks| marks.deaths).collect()
    }

    /// The fencing token of every partition.
    pub(crate) async fn tokens(&self) -> BTreeMap<Partition, FencingToken> {
        let claims = self.claims().await.into_iter();
        claims.map(|(partition, claim)| (partition, claim.token)).collect()
    }

    /// The group's consumers on the stream, with when each was created.
    pub(crate) async fn consumers(&self) -> BTreeMap<ConsumerName, String> {
        let stream = self.jetstream.get_stream_no_info(&self.setup.name).await.unwrap();
        let infos: Vec<_> = stream.consumers().try_collect().await.unwrap();
        let ours = infos.into_iter().filter_map(|info| {
            let name = ConsumerName::parse(&info.name)?;
            Some((name, info.created.to_string()))
        });
        ours.collect()
    }

    /// The name of a partition's consumer, where there is exactly one.
    pub(crate) async fn consumer_of(&self, partition: Partition) -> ConsumerName {
        let consumers = self.consumers().await;
        let mut found = consumers.into_keys().filter(|name| name.partition == partition);
        let name = found.next().unwrap();
        assert_eq!(found.next(), None);
        name
    }
}
