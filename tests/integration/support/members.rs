//! The members of a world: in this process, each with a connection of its own, and in processes of their own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::Client;
use futures_util::future::BoxFuture;
use jetring::{Delivery, Error, Failure, Group, Handler, Member, MemberPhase, Partition, Status};

use super::journal::{End, Journal, Life, Start, What};
use super::process::{MemberProcess, Spec};
use super::{World, eventually};

/// What a handler does.
pub(crate) type Work = Arc<dyn Fn(Delivery) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync>;

/// Work that takes no time and succeeds.
pub(crate) fn succeed() -> Work {
    work(|_| async { Ok(()) })
}

/// Any work.
pub(crate) fn work<F>(work: impl Fn(Delivery) -> F + Send + Sync + 'static) -> Work
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    Arc::new(move |delivery| Box::pin(work(delivery)))
}

/// The members that run.
#[derive(Default)]
pub(crate) struct Members {
    pub(crate) here: BTreeMap<String, Member>,
    pub(crate) processes: BTreeMap<String, MemberProcess>,
}

/// Writes the start and the end of every handler into the journal.
pub(crate) struct Recorder {
    journal: Arc<Journal>,
    life: Life,
    work: Work,
    runs: AtomicU64,
}

impl Recorder {
    pub(crate) fn new(journal: Arc<Journal>, life: Life, work: Work) -> Self {
        Self {
            journal,
            life,
            work,
            runs: AtomicU64::new(0),
        }
    }

    /// The group, with a listener that writes changes into the journal.
    pub(crate) fn listen(&self, group: Group) -> Group {
        let (journal, life) = (self.journal.clone(), self.life.clone());
        group.on_change(move |change| journal.write(&life, What::Changed(format!("{change:?}"))))
    }
}

impl Recorder {
    /// Writes the start; the end is written when what it gives is dropped.
    pub(crate) fn begin(&self, delivery: &Delivery) -> Ending<'_> {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let start = Start {
            run,
            key: delivery.key().to_owned(),
            subject: delivery.subject().to_owned(),
            sequence: delivery.stream_sequence(),
            partition: delivery.partition().0,
            token: delivery.fencing_token().0,
            attempt: delivery.attempt(),
            body: String::from_utf8_lossy(delivery.payload()).into_owned(),
        };
        self.journal.write(&self.life, What::Started(start));
        Ending {
            recorder: self,
            run,
            end: End::Dropped,
        }
    }
}

impl Handler for Recorder {
    async fn handle(&self, delivery: Delivery) -> Result<(), Failure> {
        let mut ending = self.begin(&delivery);
        let result = (self.work)(delivery).await;
        ending.end = if result.is_ok() { End::Done } else { End::Failed };
        result
    }
}

/// Writes the end of a handler, whatever it is.
pub(crate) struct Ending<'a> {
    recorder: &'a Recorder,
    run: u64,
    pub(crate) end: End,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let (run, end) = (self.run, self.end);
        self.recorder
            .journal
            .write(&self.recorder.life, What::Ended { run, end });
    }
}

impl World {
    /// A member in this process joins.
    pub(crate) async fn join(&mut self, id: &str) {
        self.try_join(id).await.unwrap();
    }

    pub(crate) async fn try_join(&mut self, id: &str) -> Result<(), Error> {
        let client = async_nats::connect(&self.url).await.unwrap();
        self.try_join_through(id, &client).await
    }

    /// Joins over a given connection, for one that a test disturbs.
    pub(crate) async fn try_join_through(&mut self, id: &str, client: &Client) -> Result<(), Error> {
        let group = self.setup.group();
        self.try_join_group(id, client, group).await
    }

    /// Joins a group described by the test.
    pub(crate) async fn try_join_group(&mut self, id: &str, client: &Client, group: Group) -> Result<(), Error> {
        let recorder = Recorder::new(self.journal.clone(), self.new_life(id), self.work.clone());
        let member = recorder.listen(group).join(client, id, recorder).await?;
        self.members.here.insert(id.to_owned(), member);
        Ok(())
    }

    /// A member leaves, in this process or in its own.
    pub(crate) async fn leave(&mut self, id: &str) {
        match self.members.here.remove(id) {
            Some(member) => member.leave().await.unwrap(),
            None => self.members.processes.remove(id).unwrap().leave().await,
        }
    }

    /// A member in a process of its own joins. It is not waited for.
    pub(crate) fn spawn(&mut self, id: &str) {
        self.spawn_with(id, |_| ());
    }

    pub(crate) fn spawn_with(&mut self, id: &str, adapt: impl FnOnce(&mut Spec)) {
        let mut spec = Spec {
            setup: self.setup.clone(),
            url: self.url.clone(),
            life: self.new_life(id),
            journal: self.journal.path().to_owned(),
            held_key: None,
            gate: self.folder.path().join(format!("gate-{id}")),
            pace: Duration::ZERO,
            dies_after: Duration::ZERO,
        };
        adapt(&mut spec);
        let process = MemberProcess::spawn(spec);
        self.members.processes.insert(id.to_owned(), process);
    }

    /// Kills a member's process.
    pub(crate) fn kill(&mut self, id: &str) {
        let mut process = self.members.processes.remove(id).unwrap();
        process.kill();
        self.journal.write(process.life(), What::Died);
    }

    /// What a supervisor does: starts a member's process again if it has ended by itself. Whether it had.
    pub(crate) fn restart_dead(&mut self, id: &str, adapt: impl FnOnce(&mut Spec)) -> bool {
        let over = self.process(id).is_over();
        if over {
            self.kill(id);
            self.spawn_with(id, adapt);
        }
        over
    }

    pub(crate) fn process(&mut self, id: &str) -> &mut MemberProcess {
        self.members.processes.get_mut(id).unwrap()
    }

    pub(crate) fn status(&self, id: &str) -> Status {
        self.members.here[id].status()
    }

    /// Waits until the partitions are shared by exactly these members, and each serves its own.
    pub(crate) async fn wait_settled(&self, ids: &[&str]) {
        eventually(&format!("{ids:?} share the partitions"), async || {
            let claims = self.claims().await;
            let Some(assignment) = self.assignment().await else {
                return Err(("no assignment".to_owned(), Vec::new()));
            };
            let mut planned: Vec<&str> = assignment.members.iter().map(|share| share.id.as_str()).collect();
            planned.sort_unstable();
            let mut wanted = ids.to_vec();
            wanted.sort_unstable();
            if planned != wanted {
                return Err((format!("the plan is for {planned:?}"), Vec::new()));
            }
            for index in 0..u16::try_from(self.setup.partitions).unwrap() {
                let partition = Partition(index);
                let owner = assignment.owner(partition);
                let held = claims.get(&partition).filter(|claim| claim.is_held());
                if owner != held.map(|claim| &claim.record.owner) {
                    return Err((format!("{partition} is {owner:?}'s: {held:?}"), Vec::new()));
                }
            }
            let unsettled = ids.iter().filter_map(|id| self.members.here.get(*id)).find(|member| {
                let status = member.status();
                !status.is_settled() || status.phase != MemberPhase::Active
            });
            match unsettled {
                None => Ok(()),
                Some(member) => Err((
                    format!("{:?}", member.status()),
                    self.journal.changes(member.id().as_str()),
                )),
            }
        })
        .await;
    }

    /// The partitions that `id` owns according to the claims.
    pub(crate) async fn owned_by(&self, id: &str) -> Vec<Partition> {
        let claims = self.claims().await.into_iter();
        claims
            .filter(|(_, claim)| claim.is_held() && claim.record.owner.as_str() == id)
            .map(|(partition, _)| partition)
            .collect()
    }
}
