//! Watches the run as it goes: takes in the records and the assignments, and shows what is new.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jetring::ids::MemberId;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::Fault;
use crate::assignment::{self, Seen};
use crate::checks::name;
use crate::clock;
use crate::fleet::{Fleet, State};
use crate::journal::{MemberChange, Record};
use crate::publisher::Publisher;
use crate::screen::Screen;
use crate::stage::Stage;

/// How often it looks.
const LOOK: Duration = Duration::from_millis(50);

/// With more partitions the owners are not listed one by one.
const LISTED_PARTITIONS: usize = 128;

/// What is known so far.
pub(crate) struct Observer<'a> {
    /// The members.
    pub(crate) fleet: Fleet,
    /// The assignments so far.
    pub(crate) assignments: Vec<Seen>,
    publisher: Arc<Publisher>,
    screen: &'a mut Screen,
    incoming: mpsc::UnboundedReceiver<Seen>,
    watcher: AbortHandle,
    handled: Handled,
    rates: Rates,
    /// Whether the end of the last change of owners was shown.
    settled_shown: bool,
}

/// Which messages were handled: so far all up to a number of each key, and some above.
#[derive(Default)]
struct Handled {
    /// How many records of each member are counted.
    read: BTreeMap<usize, usize>,
    /// The key and the number of each handler that runs.
    running: HashMap<(usize, u64), (String, u64)>,
    messages: HashMap<String, BTreeSet<u64>>,
    count: u64,
}

/// The numbers at the last status.
#[derive(Default)]
struct Rates {
    at: u64,
    published: u64,
    finished: BTreeMap<usize, u64>,
    text: String,
}

impl<'a> Observer<'a> {
    /// Begins to watch.
    pub(crate) fn new(stage: &Stage, fleet: Fleet, publisher: Arc<Publisher>, screen: &'a mut Screen) -> Self {
        let (sender, incoming) = mpsc::unbounded_channel();
        let watcher = tokio::spawn(assignment::watch(stage.client.clone(), stage.spec.clone(), sender)).abort_handle();
        Self {
            fleet,
            assignments: Vec::new(),
            publisher,
            screen,
            incoming,
            watcher,
            handled: Handled::default(),
            rates: Rates::default(),
            settled_shown: true,
        }
    }

    /// Shows a line.
    pub(crate) fn say(&mut self, text: &str) {
        self.screen.line(text);
    }

    /// How many messages are published.
    pub(crate) fn published(&self) -> u64 {
        self.publisher.confirmed()
    }

    /// The assignment in force.
    pub(crate) fn newest_assignment(&self) -> Option<Seen> {
        self.assignments.last().cloned()
    }

    /// How many members the assignment in force was planned for.
    pub(crate) fn planned_members(&self) -> usize {
        self.assignments.last().map_or(0, |seen| seen.members.len())
    }

    /// Whether every partition is served by the member that the assignment names.
    pub(crate) fn is_settled(&self) -> bool {
        let Some(newest) = self.assignments.last() else {
            return false;
        };
        (0..).zip(&newest.owners).all(|(partition, owner)| {
            let owner = self.fleet.lives().iter().find(|life| Some(&life.id) == owner.as_ref());
            owner.is_some_and(|life| life.state != State::Frozen && life.serving.contains(&partition))
        })
    }

    /// Whether everything that is published is handled.
    pub(crate) fn is_drained(&self) -> bool {
        self.handled.count >= self.published()
    }

    /// Begins to show rates: there is traffic from now on.
    pub(crate) fn count_rates(&mut self) {
        self.rates.at = clock::now();
    }

    /// Watches for a time.
    pub(crate) async fn watch_for(&mut self, time: Duration) -> Result<(), Fault> {
        self.watch_until(time, |_| false).await.map(drop)
    }

    /// Watches until something is so, but not longer than a time. Returns whether it is.
    pub(crate) async fn watch_until(
        &mut self,
        time: Duration,
        condition: impl Fn(&Self) -> bool,
    ) -> Result<bool, Fault> {
        let deadline = Instant::now() + time;
        loop {
            self.look()?;
            if condition(self) {
                return Ok(true);
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(false);
            }
            tokio::time::sleep(LOOK.min(deadline - now)).await;
        }
    }

    fn look(&mut self) -> Result<(), Fault> {
        for (number, event) in self.fleet.read()? {
            if let Some(text) = describe(number, &event.what) {
                self.screen.line_at(event.at, &text);
            }
        }
        self.handled.count(&self.fleet);
        while let Ok(seen) = self.incoming.try_recv() {
            self.show_assignment(&seen);
            self.assignments.push(seen);
            self.settled_shown = false;
        }
        if !self.settled_shown && self.is_settled() {
            self.report_settled();
        }
        self.show_status();
        Ok(())
    }

    /// Who is new, who is gone, and what moves.
    fn show_assignment(&mut self, seen: &Seen) {
        let (count, partitions) = (seen.members.len(), seen.owners.len());
        let Some(last) = self.assignments.last() else {
            self.screen.line_at(
                seen.at,
                &format!(
                    "assignment {}: {count} members share {partitions} partitions",
                    seen.generation
                ),
            );
            return;
        };
        let joined = seen.members.iter().filter(|member| !last.members.contains(member));
        let gone = last.members.iter().filter(|member| !seen.members.contains(member));
        let changes: Vec<String> = joined
            .map(|member| format!("{member} joined"))
            .chain(gone.map(|member| self.why_gone(member)))
            .collect();
        let (moved, least) = (last.moves_to(seen), last.least_moves(&seen.members));
        let text = format!(
            "assignment {}: {}, {} -> {count} members, {moved} of {partitions} partitions move (least possible {least})",
            seen.generation,
            changes.join(", "),
            last.members.len(),
        );
        self.screen.line_at(seen.at, &text);
    }

    fn why_gone(&self, member: &MemberId) -> String {
        let state = self
            .fleet
            .lives()
            .iter()
            .find(|life| life.id == *member)
            .map(|life| life.state);
        match state {
            Some(State::Leaving) => format!("{member} leaves"),
            Some(State::Killed | State::Frozen) => format!("{member} was declared dead"),
            Some(State::Running) | None => format!("{member} is gone"),
        }
    }

    /// Says who serves what, once after every change.
    pub(crate) fn report_settled(&mut self) {
        if self.settled_shown {
            return;
        }
        self.settled_shown = true;
        let awake = self.fleet.lives().iter().filter(|life| life.state != State::Frozen);
        let serving = awake.filter(|life| !life.serving.is_empty());
        let counts: Vec<String> = serving
            .map(|life| format!("{} {}", life.id, life.serving.len()))
            .collect();
        let complete = if self.is_settled() {
            "all partitions are served"
        } else {
            "NOT all partitions are served"
        };
        self.screen.line(&format!("{complete}: {}", counts.join(", ")));
        let Some(newest) = self
            .assignments
            .last()
            .filter(|seen| seen.owners.len() <= LISTED_PARTITIONS)
        else {
            return;
        };
        for life in self.fleet.lives() {
            let owned = (0..)
                .zip(&newest.owners)
                .filter(|(_, owner)| owner.as_ref() == Some(&life.id));
            let owned: Vec<String> = owned.map(|(partition, _): (u16, _)| partition.to_string()).collect();
            if !owned.is_empty() {
                self.screen.line(&format!("    {} owns {}", life.id, owned.join(" ")));
            }
        }
    }

    fn show_status(&mut self) {
        let now = clock::now();
        let passed = now.saturating_sub(self.rates.at);
        if self.rates.at == 0 || !self.screen.wants_status(now) {
            return;
        }
        if passed >= clock::nanos(Duration::from_secs(1)) {
            self.rates.text = self.rates(passed);
            self.rates.at = now;
        }
        let waiting = self.published().saturating_sub(self.handled.count);
        if !self.rates.text.is_empty() {
            self.screen
                .status(now, &format!("{}; {waiting} waiting", self.rates.text));
        }
    }

    /// The rates since the last time, per second.
    fn rates(&mut self, passed: u64) -> String {
        let per_second = |count: u64| (count as f64 / clock::seconds(passed)).round();
        let published = self.published();
        let mut text = format!(
            "published {}/s, handled by",
            per_second(published - self.rates.published)
        );
        self.rates.published = published;
        for life in self.fleet.lives() {
            let last = self.rates.finished.insert(life.number, life.finished).unwrap_or(0);
            let rate = per_second(life.finished - last);
            match life.state {
                State::Frozen => text.push_str(&format!(" {}:frozen", life.number)),
                _ if life.ended_at.is_some() => {}
                _ => text.push_str(&format!(" {}:{rate}", life.number)),
            }
        }
        text
    }
}

impl Drop for Observer<'_> {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl Handled {
    fn count(&mut self, fleet: &Fleet) {
        for life in fleet.lives() {
            let read = self.read.entry(life.number).or_default();
            for record in &life.records[*read..] {
                match record {
                    Record::Start(start) => {
                        let message = (start.key.clone(), start.number);
                        self.running.insert((life.number, start.run), message);
                    }
                    Record::End(end) => {
                        let message = self.running.remove(&(life.number, end.run)).filter(|_| end.finished);
                        if let Some((key, number)) = message {
                            let new = self.messages.entry(key).or_default().insert(number);
                            self.count += u64::from(new);
                        }
                    }
                    Record::Member(_) => {}
                }
            }
            *read = life.records.len();
        }
    }
}

/// What is worth a line of what happens to a member.
fn describe(number: usize, change: &MemberChange) -> Option<String> {
    let what = match change {
        MemberChange::Joined => "is in the group".to_owned(),
        MemberChange::Fenced { reason } => {
            format!("has cut itself off ({reason}); it comes back when its old handlers have ended")
        }
        MemberChange::Left => "has left".to_owned(),
        MemberChange::Joining | MemberChange::Serving { .. } | MemberChange::Gone { .. } => return None,
    };
    Some(format!("{} {what}", name(number)))
}
