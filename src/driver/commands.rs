//! Carrying out the engine's requests: each in a task of its own, each answered exactly once, each within its time.

use std::future::Future;
use std::time::Duration;

use crate::batch::BatchHandler;
use crate::engine::{Command, Event, Refusal, Reply, Ticket, WatchScope};
use crate::nats::history::MOST_READS;
use crate::nats::records::Records;
use crate::records::Keys;

use super::{Driver, Input};

impl<H: BatchHandler> Driver<H> {
    /// Starts one request.
    pub(super) fn request(&mut self, command: Command) {
        if let Command::Prepare(ticket) = command {
            return self.prepare(ticket);
        }
        let Some(records) = self.records.clone() else {
            // The engine prepares before it asks for anything else.
            tracing::error!(?command, "a request before the group was prepared");
            return;
        };
        let nats = self.parts.nats.clone();
        let consumers = self.parts.consumers;
        let heartbeat = self.heartbeat_time();
        let usual = self.parts.settings.request_timeout;
        match command {
            Command::ReadMember(ticket, id) => self.answer_within(ticket, heartbeat, true, async move {
                Reply::Member(records.read_member(&id).await)
            }),
            Command::WriteMember(ticket, id, record, expected) => {
                self.answer_within(ticket, heartbeat, true, async move {
                    Reply::Written(records.write_member(&id, &record, expected).await)
                });
            }
            Command::PurgeMember(ticket, id, expected) => self.answer_within(ticket, heartbeat, true, async move {
                Reply::Written(records.purge_member(&id, expected).await)
            }),
            Command::ReadGroup(ticket) => {
                self.answer_within(
                    ticket,
                    usual,
                    false,
                    async move { Reply::Group(records.read_group().await) },
                )
            }
            Command::ReadAssignment(ticket) => self.answer_within(ticket, usual, false, async move {
                Reply::Assignment(records.read_assignment().await)
            }),
            Command::WriteAssignment(ticket, record, expected) => {
                self.answer_within(ticket, usual, false, async move {
                    Reply::Written(records.write_assignment(&record, expected).await)
                });
            }
            Command::ReadClaim(ticket, partition) => self.answer_within(ticket, usual, false, async move {
                Reply::Claim(records.read_claim(partition).await)
            }),
            Command::ReadClaims(ticket) => self.answer_within(ticket, usual, false, async move {
                Reply::Claims(records.read_claims().await)
            }),
            Command::WriteClaim(ticket, partition, record, expected) => {
                self.answer_within(ticket, usual, false, async move {
                    Reply::Written(records.write_claim(partition, &record, expected).await)
                });
            }
            Command::ReadProgress(ticket, partition) => self.answer_within(ticket, usual, false, async move {
                Reply::Progress(records.read_progress(partition).await)
            }),
            Command::WriteProgress(ticket, partition, record, expected) => {
                self.answer_within(ticket, usual, false, async move {
                    Reply::Written(records.write_progress(partition, &record, expected).await)
                });
            }
            Command::Survey(ticket) => {
                self.answer_within(ticket, usual, false, async move { Reply::Survey(nats.survey().await) });
            }
            Command::FindReplaced(ticket, filter, mark) => {
                // Every read of it is bounded by itself.
                let limit = usual.saturating_mul(MOST_READS);
                self.answer_within(ticket, limit, false, async move {
                    Reply::Replaced(nats.find_replaced(&filter, mark).await)
                });
            }
            Command::InspectConsumer(ticket, name) => self.answer_within(ticket, usual, false, async move {
                Reply::Consumer(nats.inspect_consumer(&name).await)
            }),
            Command::CreateConsumer(ticket, spec) => self.answer_within(ticket, usual, false, async move {
                Reply::Created(nats.create_consumer(&spec, consumers).await)
            }),
            Command::DeleteConsumer(ticket, name) => self.answer_within(ticket, usual, false, async move {
                Reply::Deleted(nats.delete_consumer(&name).await)
            }),
            other => tracing::error!(command = ?other, "not a request"),
        }
    }

    /// A heartbeat that takes longer than this is given up, so that there is time for another one within the lease.
    fn heartbeat_time(&self) -> Duration {
        let interval = self.parts.settings.heartbeat_interval();
        self.parts.settings.request_timeout.min(interval)
    }

    /// Runs `request` and hands its answer to the engine. What takes too long is answered as not answered. An urgent one does
    /// not wait for others.
    fn answer_within(
        &mut self,
        ticket: Ticket,
        limit: Duration,
        urgent: bool,
        request: impl Future<Output = Reply> + Send + 'static,
    ) where
        Reply: Send,
    {
        let (sender, permits) = (self.sender.clone(), self.requests.clone());
        self.background.spawn(async move {
            let _permit = if urgent { None } else { permits.acquire().await.ok() };
            let answer = match tokio::time::timeout(limit, request).await {
                Ok(reply) => Event::Done(ticket, reply),
                Err(_) => Event::Unanswered(ticket),
            };
            sender.send(Input::Event(answer)).ok();
        });
        // Finished tasks are let go of.
        while self.background.try_join_next().is_some() {}
    }

    fn prepare(&mut self, ticket: Ticket) {
        let (nats, sender) = (self.parts.nats.clone(), self.sender.clone());
        let settings = self.parts.settings.clone();
        let start_sequence = Some(self.parts.start_sequence);
        self.background.spawn(async move {
            let result = match nats.prepare(&settings, start_sequence).await {
                Ok(ready) => {
                    let records = Records::new(ready.bucket, Keys::new(&nats.group));
                    sender.send(Input::Opened(Box::new(records))).ok();
                    Ok(ready.prepared)
                }
                Err(error) if error.is_retryable() => Err(Refusal::Retry(error.to_string())),
                Err(error) => Err(Refusal::Final(error.to_string())),
            };
            let answer = Event::Done(ticket, Reply::Prepared(result));
            sender.send(Input::Event(answer)).ok();
        });
    }

    /// Starts the watch, in place of a former one.
    pub(super) fn start_watch(&mut self, scope: WatchScope) {
        let Some(records) = self.records.clone() else {
            return;
        };
        let sender = self.sender.clone();
        let task = self.background.spawn(async move {
            let on_seen = |seen| {
                sender.send(Input::Event(Event::Seen(seen))).ok();
            };
            records.watch(&scope, on_seen).await;
        });
        if let Some(former) = self.watch.replace(task) {
            former.abort();
        }
    }
}
