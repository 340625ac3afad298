//! What happens to messages that fail: retries that keep the order of their key, a key that parks, dead letters, and their replay.
//!
//! `cargo run --example poison_and_retry` runs it on a server of its own (or on `NATS_URL`). It tells what it does, checks
//! that everything it shows is so, and exits with status 1 if something is not, or 2 if it could not be run.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::jetstream;
use jetring::testing::NatsServer;
use jetring::{DeadLetterSettings, Delivery, Failure, Group, Member, RetryPolicy, Settings, Transformed};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// How long anything that is waited for may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// How many orders every customer places.
const ORDERS: usize = 20;

/// The customers. What goes wrong with whom is in [`Shop::handle`].
const CUSTOMERS: [&str; 6] = ["anna", "ben", "blink", "broken", "flaky", "zoe"];

/// The service: it books orders, and some of them make trouble.
#[derive(Debug, Default)]
struct Shop {
    /// The orders booked, by customer, in the order in which they were booked.
    booked: Mutex<BTreeMap<String, Vec<usize>>>,
    /// How often each (customer, order) was tried.
    tried: Mutex<BTreeMap<(String, usize), u32>>,
    /// Until when the dependency of customer `blink` is away.
    away_until: Mutex<Option<Instant>>,
    /// Whether the bug that no order of `broken` and `flaky` numbered 7 survives is mended.
    mended: AtomicBool,
}

impl Shop {
    async fn handle(&self, order: Delivery) -> std::result::Result<(), Failure> {
        let customer = order.key().to_owned();
        let number: usize = std::str::from_utf8(order.payload())?.parse()?;
        *lock(&self.tried).entry((customer.clone(), number)).or_default() += 1;
        let mended = self.mended.load(Ordering::Relaxed);
        match (customer.as_str(), number) {
            ("blink", 5) => {
                let until = *lock(&self.away_until).get_or_insert(Instant::now() + Duration::from_millis(500));
                if Instant::now() < until {
                    return Err(Failure::retry("the payment service is away"));
                }
            }
            ("broken", 7) if !mended => return Err(Failure::reject("the order has no address")),
            ("flaky", 7) if !mended => return Err(Failure::retry("the ledger refuses the order")),
            _ => {}
        }
        lock(&self.booked).entry(customer).or_default().push(number);
        Ok(())
    }

    fn booked(&self, customer: &str) -> Vec<usize> {
        lock(&self.booked).get(customer).cloned().unwrap_or_default()
    }

    fn tried(&self, customer: &str, number: usize) -> u32 {
        lock(&self.tried)
            .get(&(customer.to_owned(), number))
            .copied()
            .unwrap_or(0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was claimed, and whether it was so.
#[derive(Debug, Default)]
struct Checks {
    failed: usize,
}

impl Checks {
    fn check(&mut self, claim: &str, holds: bool) {
        println!("  {} {claim}", if holds { "ok  " } else { "FAIL" });
        self.failed += usize::from(!holds);
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match shown().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Shows everything; whether all of it was so.
async fn shown() -> Result<bool> {
    let server = NatsServer::start().await?;
    let client = server.connect().await?;
    let name = format!("poison-and-retry-{}", std::process::id());
    let prefix = format!("dead-{}", std::process::id());
    let topic = format!("orders-{}", std::process::id());
    let settings = Settings {
        retry: RetryPolicy {
            initial: Duration::from_millis(20),
            max: Duration::from_millis(200),
            max_attempts: None,
        },
        bucket: name.clone(),
        ..Settings::default()
    };
    let partitioning = Transformed::of(&format!("{topic}.*"), 8)?;
    let group = Group::new("shop", name.as_str(), partitioning)?.with_settings(settings.clone())?;
    group.provision(&client, jetstream::stream::Config::default()).await?;
    publish(&client, &topic).await?;

    let mut checks = Checks::default();
    let shop = Arc::new(Shop::default());
    retries_and_a_parked_key(&group, &client, &shop, &mut checks).await?;

    // From now on there is a place for what is given up, and five attempts are enough.
    let retry = RetryPolicy {
        max_attempts: NonZeroU32::new(5),
        ..settings.retry.clone()
    };
    let dead = format!("{name}-dead");
    let dead_letters = Some(DeadLetterSettings::new(dead.as_str(), prefix));
    let settings = Settings {
        retry,
        dead_letters,
        ..settings
    };
    let group = group.with_settings(settings)?;
    dead_letters_and_replay(&group, &client, &shop, &mut checks).await?;

    let jetstream = jetstream::new(client.clone());
    for stream in [&name, &dead] {
        jetstream.delete_stream(stream).await?;
    }
    jetstream.delete_key_value(&name).await?;
    if checks.failed > 0 {
        println!("\nFAILED: {} of the claims above do not hold", checks.failed);
    } else {
        println!("\nOK: nothing was lost, nothing was booked twice, and every customer's orders kept their order");
    }
    Ok(checks.failed == 0)
}

/// Publishes every customer's orders, numbered, in turn.
async fn publish(client: &async_nats::Client, topic: &str) -> Result<()> {
    let jetstream = jetstream::new(client.clone());
    for number in 0..ORDERS {
        for customer in CUSTOMERS {
            let stored = jetstream.publish(format!("{topic}.{customer}"), number.to_string().into());
            stored.await?.await?;
        }
    }
    println!("published {ORDERS} orders of each of {} customers", CUSTOMERS.len());
    Ok(())
}

async fn join(group: &Group, client: &async_nats::Client, shop: &Arc<Shop>) -> Result<Member> {
    let shop = shop.clone();
    let handler = move |order: Delivery| {
        let shop = shop.clone();
        async move { shop.handle(order).await }
    };
    Ok(group.join(client, "shop-1", handler).await?)
}

/// The orders that a customer has had booked when everything up to but not including `next` was.
fn up_to(next: usize) -> Vec<usize> {
    (0..next).collect()
}

/// Waits until `done`, looking whenever the member has something new to show.
async fn wait_until(
    member: &mut Member,
    what: &str,
    done: impl Fn(&jetring::Status) -> bool,
) -> Result<jetring::Status> {
    match tokio::time::timeout(DEADLINE, member.wait_until(done)).await {
        Ok(status) => Ok(status?),
        Err(_) => Err(format!("{what}: not so after {DEADLINE:?}").into()),
    }
}

async fn retries_and_a_parked_key(
    group: &Group,
    client: &async_nats::Client,
    shop: &Arc<Shop>,
    checks: &mut Checks,
) -> Result<()> {
    println!("\nA dependency blinks, one order can never be booked, and there is no place for dead letters:");
    let mut member = join(group, client, shop).await?;
    let others = ["anna", "ben", "blink", "zoe"];
    let status = wait_until(&mut member, "the others are done and a key is parked", |status| {
        let parked = status
            .lanes
            .partitions
            .iter()
            .any(|partition| !partition.parked.is_empty());
        parked && others.iter().all(|customer| shop.booked(customer).len() == ORDERS)
    })
    .await?;
    for customer in ["anna", "ben", "zoe"] {
        checks.check(
            &format!("{customer} had every order booked, in order"),
            shop.booked(customer) == up_to(ORDERS),
        );
    }
    let tried = shop.tried("blink", 5);
    checks.check(
        &format!("blink's order 5 was tried again until its dependency was back ({tried} times)"),
        tried > 1,
    );
    checks.check(
        "and blink's later orders waited for it",
        shop.booked("blink") == up_to(ORDERS),
    );
    let parked: BTreeSet<&str> = status
        .lanes
        .partitions
        .iter()
        .flat_map(|partition| partition.parked.iter().map(|parked| &*parked.key))
        .collect();
    checks.check(
        "the key that is parked is named by the status: broken",
        parked == BTreeSet::from(["broken"]),
    );
    checks.check(
        "broken has what came before order 7, and nothing after it",
        shop.booked("broken") == up_to(7),
    );
    checks.check(
        "flaky's order 7 is tried again and again, and its later ones wait",
        shop.booked("flaky") == up_to(7),
    );
    member.leave().await?;
    Ok(())
}

async fn dead_letters_and_replay(
    group: &Group,
    client: &async_nats::Client,
    shop: &Arc<Shop>,
    checks: &mut Checks,
) -> Result<()> {
    println!("\nThe service starts again, with a stream for dead letters and five attempts at most:");
    let letters = group
        .dead_letters(client)
        .ok_or("the settings name a place for dead letters")?;
    let mut member = join(group, client, shop).await?;
    wait_until(&mut member, "broken and flaky go on", |_| {
        ["broken", "flaky"]
            .iter()
            .all(|customer| shop.booked(customer).len() == ORDERS - 1)
    })
    .await?;
    let mut without_seven = up_to(ORDERS);
    without_seven.remove(7);
    for customer in ["broken", "flaky"] {
        checks.check(
            &format!("{customer} goes on after order 7, in order"),
            shop.booked(customer) == without_seven,
        );
    }
    let stored = letters.list(1, usize::MAX).await?;
    for letter in &stored {
        println!(
            "       dead letter {}: {} #{}, {} attempts: {}",
            letter.sequence, letter.origin.subject, letter.origin.sequence, letter.origin.attempts, letter.origin.error
        );
    }
    let keys: BTreeSet<&str> = stored.iter().map(|letter| letter.origin.key.as_str()).collect();
    checks.check(
        "both orders are dead letters, once",
        stored.len() == 2 && keys == BTreeSet::from(["broken", "flaky"]),
    );
    let payloads_kept = stored.iter().all(|letter| &letter.payload[..] == b"7");
    checks.check("with their payload, their origin and the reason", payloads_kept);

    println!("\nThe bug is mended, and the dead letters are replayed:");
    shop.mended.store(true, Ordering::Relaxed);
    let replayed = letters.replay_all(None).await?;
    checks.check("both were published again", replayed == 2);
    wait_until(&mut member, "the replayed orders are booked", |_| {
        ["broken", "flaky"]
            .iter()
            .all(|customer| shop.booked(customer).len() == ORDERS)
    })
    .await?;
    let all_once = CUSTOMERS.iter().all(|customer| {
        let mut booked = shop.booked(customer);
        booked.sort_unstable();
        booked == up_to(ORDERS)
    });
    checks.check("every order of every customer is booked exactly once", all_once);
    checks.check(
        "and no dead letter is left",
        letters.list(1, usize::MAX).await?.is_empty(),
    );
    member.leave().await?;
    Ok(())
}
