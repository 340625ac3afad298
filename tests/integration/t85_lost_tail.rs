//! A stream that comes back without its newest messages, as after a power failure, and has stored others before anybody looks.

use std::path::Path;
use std::time::Duration;

use async_nats::jetstream::{self, stream::Config};
use jetring::testing::NatsServer;
use jetring::{Delivery, Group, Member, Settings, Token};
use tokio::sync::mpsc;

async fn join(client: &async_nats::Client) -> (Member, mpsc::UnboundedReceiver<String>) {
    let (sender, handled) = mpsc::unbounded_channel();
    let settings = Settings {
        session_timeout: Duration::from_secs(3),
        ..Settings::default()
    };
    let group = Group::new("g", "ORDERS", Token::of("orders.*").unwrap()).unwrap();
    let handler = move |delivery: Delivery| {
        let sender = sender.clone();
        async move {
            sender
                .send(String::from_utf8(delivery.payload().to_vec()).unwrap())
                .ok();
            Ok(())
        }
    };
    let member = group
        .with_settings(settings)
        .unwrap()
        .join(client, "a", handler)
        .await
        .unwrap();
    (member, handled)
}

async fn publish(client: &async_nats::Client, numbers: impl IntoIterator<Item = u32>) {
    let context = jetstream::new(client.clone());
    for number in numbers {
        let published = context.publish("orders.k", number.to_string().into()).await.unwrap();
        published.await.unwrap();
    }
}

async fn take(handled: &mut mpsc::UnboundedReceiver<String>, count: usize) -> Vec<String> {
    let mut taken = Vec::new();
    for _ in 0..count {
        let next = tokio::time::timeout(Duration::from_secs(30), handled.recv()).await;
        taken.push(next.expect("nothing more is handled").unwrap());
    }
    taken
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}

#[tokio::test]
async fn what_a_stream_has_stored_in_place_of_what_it_lost_is_handled() {
    let mut server = NatsServer::builder().own().start().await.unwrap();
    let client = server.connect().await.unwrap();
    let config = Config {
        name: "ORDERS".to_owned(),
        subjects: vec!["orders.*".to_owned()],
        ..Config::default()
    };
    jetstream::new(client.clone()).create_stream(config).await.unwrap();
    let (member, mut handled) = join(&client).await;
    publish(&client, 1..=4).await;
    take(&mut handled, 4).await;
    member.leave().await.unwrap();

    // What is stored now is what comes back.
    let folder = server.store_dir().unwrap().join("jetstream/$G/streams/ORDERS");
    let kept = tempfile::tempdir().unwrap();
    server.stop().await.unwrap();
    copy(&folder, kept.path());
    server.restart().await.unwrap();

    // Enough that the first younger one has to be searched for.
    let client = server.connect().await.unwrap();
    let (member, mut handled) = join(&client).await;
    publish(&client, 5..=20).await;
    let taken = take(&mut handled, 16).await;
    assert_eq!(taken.first().map(String::as_str), Some("5"), "nothing is repeated");
    member.leave().await.unwrap();

    server.stop().await.unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    copy(kept.path(), &folder);
    server.restart().await.unwrap();
    let client = server.connect().await.unwrap();
    publish(&client, 101..=118).await;
    let (member, mut handled) = join(&client).await;
    let wanted: Vec<String> = (101..=118).map(|number: u32| number.to_string()).collect();
    assert_eq!(take(&mut handled, 18).await, wanted);
    member.leave().await.unwrap();
}
