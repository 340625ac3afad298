//! The `testing` feature's cluster: it replicates, bears the loss of one server, and comes back from the loss of all.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail by panicking, as the tests do"
)]

use std::time::{Duration, Instant};

use async_nats::jetstream::{self, Context, stream};
use jetring::testing::{NatsCluster, NatsServer};

/// Much longer than anything here takes on a busy machine: every wait ends on an event.
const DEADLINE: Duration = Duration::from_secs(60);

async fn replicated_stream(cluster: &NatsCluster) -> Context {
    let context = jetstream::new(cluster.connect().await.unwrap());
    let config = stream::Config {
        name: "KEPT".to_owned(),
        subjects: vec!["kept.>".to_owned()],
        num_replicas: cluster.size(),
        ..Default::default()
    };
    context.create_stream(config).await.unwrap();
    context
}

/// Stores a message, however often the stream changes its leader meanwhile.
async fn store(context: &Context, id: &str) {
    let end = Instant::now() + DEADLINE;
    loop {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Nats-Msg-Id", id);
        let sent = context
            .publish_with_headers("kept.a", headers, "x".into())
            .await
            .unwrap();
        match sent.await {
            Ok(_) => return,
            Err(error) => assert!(Instant::now() < end, "not stored: {error}"),
        }
    }
}

async fn stored(context: &Context) -> u64 {
    let end = Instant::now() + DEADLINE;
    loop {
        match context.get_stream("KEPT").await {
            Ok(mut stream) => return stream.info().await.unwrap().state.messages,
            Err(error) => assert!(Instant::now() < end, "no answer: {error}"),
        }
    }
}

#[tokio::test]
async fn a_cluster_bears_the_loss_of_one_server_and_takes_it_back() {
    let mut cluster = NatsCluster::start(3).await.unwrap();
    assert_eq!(cluster.url().split(',').count(), 3);
    let context = replicated_stream(&cluster).await;
    let mut stream = context.get_stream("KEPT").await.unwrap();
    let placed = stream.info().await.unwrap().cluster.clone().unwrap();
    assert_eq!(placed.replicas.len(), 2);
    store(&context, "0").await;
    let leader = placed.leader.unwrap();
    let index = cluster
        .servers()
        .iter()
        .position(|server| server.name() == Some(leader.as_str()))
        .unwrap();
    let (url, pid) = (
        cluster.servers()[index].url().to_owned(),
        cluster.servers()[index].pid(),
    );
    cluster.server_mut(index).kill().unwrap();
    store(&context, "without it").await;
    cluster.server_mut(index).restart().await.unwrap();
    let server = &cluster.servers()[index];
    assert_eq!(server.url(), url);
    assert_ne!(server.pid(), pid);
    store(&context, "with it").await;
    assert_eq!(stored(&context).await, 3);
}

#[tokio::test]
async fn a_cluster_comes_back_from_the_loss_of_all() {
    let mut cluster = NatsCluster::start(3).await.unwrap();
    let context = replicated_stream(&cluster).await;
    store(&context, "0").await;
    for index in 0..3 {
        cluster.server_mut(index).kill().unwrap();
    }
    cluster.restart_stopped().await.unwrap();
    assert_eq!(stored(&context).await, 1);
    store(&context, "1").await;
    assert_eq!(stored(&context).await, 2);
}

#[tokio::test]
async fn choices_hold_for_every_server_and_a_kept_store_serves_the_next_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let builder = NatsServer::builder()
        .name("kept")
        .store_dir(folder.path())
        .config("max_payload: 4KB");
    let cluster = builder.clone().start_cluster(3).await.unwrap();
    for (index, server) in cluster.servers().iter().enumerate() {
        assert_eq!(server.name(), Some(format!("kept-{index}").as_str()));
        let info = server.connect().await.unwrap().server_info();
        assert_eq!((info.server_name, info.max_payload), (format!("kept-{index}"), 4096));
    }
    store(&replicated_stream(&cluster).await, "0").await;
    drop(cluster);
    let cluster = builder.start_cluster(3).await.unwrap();
    assert_eq!(stored(&jetstream::new(cluster.connect().await.unwrap())).await, 1);
}

#[tokio::test]
async fn a_cluster_of_one_is_a_server() {
    let cluster = NatsCluster::start(1).await.unwrap();
    let context = replicated_stream(&cluster).await;
    store(&context, "0").await;
    assert_eq!(stored(&context).await, 1);
}
