//! A group in a JetStream domain other than that of the server which its members are connected to.

use std::net::TcpListener;

use async_nats::jetstream::stream::{Config, RetentionPolicy};
use jetring::testing::NatsServer;
use jetring::{Delivery, Group, Settings, Status, Transformed};
use tokio::sync::mpsc;

use crate::support::eventually;

#[tokio::test]
async fn s44_members_at_a_leaf_work_in_the_domain_of_the_hub() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let hub = NatsServer::builder()
        .jetstream_config("domain: hub")
        .config(format!("leafnodes {{ host: 127.0.0.1, port: {port} }}"));
    let hub = hub.start().await.unwrap();
    let leaf = NatsServer::builder().jetstream_config("domain: leaf").config(format!(
        "leafnodes {{ remotes: [ {{ url: \"nats://127.0.0.1:{port}\" }} ] }}"
    ));
    let leaf = leaf.start().await.unwrap();
    let client = async_nats::connect(leaf.url()).await.unwrap();
    let settings = Settings {
        domain: Some("hub".to_owned()),
        ..Settings::default()
    };
    let group = Group::new("g", "S", Transformed::of("t.*", 4).unwrap()).unwrap();
    let group = group.with_settings(settings).unwrap();
    // The leaf may still be on its way to the hub.
    eventually("the hub provisions the stream", async || {
        let template = Config {
            retention: RetentionPolicy::WorkQueue,
            ..Config::default()
        };
        group.provision(&client, template).await
    })
    .await;
    let (handled, mut keys) = mpsc::unbounded_channel();
    let handler = move |delivery: Delivery| {
        handled.send(delivery.key().to_owned()).unwrap();
        async { Ok(()) }
    };
    let mut member = group.join(&client, "a", handler).await.unwrap();
    member.wait_until(Status::is_settled).await.unwrap();
    client.publish("t.k", "x".into()).await.unwrap();
    assert_eq!(keys.recv().await.unwrap(), "k");
    let jetstream = async_nats::jetstream::with_domain(async_nats::connect(hub.url()).await.unwrap(), "hub");
    eventually("it is acked", async || {
        let mut stream = jetstream.get_stream("S").await.unwrap();
        let left = stream.info().await.unwrap().state.messages;
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
    member.leave().await.unwrap();
}
