//! The `testing` feature's child processes: they are told to end, killed, frozen and thawed, and end with their value.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail by panicking, as the tests do"
)]

use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use jetring::testing::{Process, ProcessBuilder};

const DEADLINE: Duration = Duration::from_secs(30);

fn shell(text: &str) -> ProcessBuilder {
    Process::builder("sh").args(["-c", text]).stdout(Stdio::piped())
}

fn output(process: &mut Process) -> impl Iterator<Item = String> + use<> {
    BufReader::new(process.take_stdout().unwrap())
        .lines()
        .map(Result::unwrap)
}

#[tokio::test]
async fn the_pid_is_the_programs_own() {
    let mut process = shell("echo $$ \"$GREETING\" \"$0\"; exit 7")
        .arg("with a space")
        .env("GREETING", "hello")
        .spawn()
        .unwrap();
    let line = output(&mut process).next().unwrap();
    assert_eq!(line, format!("{} hello with a space", process.pid()));
    let status = process.wait(DEADLINE).await.unwrap();
    assert_eq!(status.code(), Some(7));
    assert_eq!(process.try_wait().unwrap(), Some(status));
    assert_eq!(process.freeze().unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn signals_reach_the_program() {
    let mut process = shell("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done")
        .spawn()
        .unwrap();
    let mut lines = output(&mut process);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let early = process.wait(Duration::from_millis(1)).await;
    assert_eq!(early.unwrap_err().kind(), ErrorKind::TimedOut);
    process.freeze().unwrap();
    process.thaw().unwrap();
    process.freeze().unwrap();
    // Asking a frozen one to end thaws it.
    process.terminate().unwrap();
    assert_eq!(lines.next().as_deref(), Some("bye"));
    assert!(process.wait(DEADLINE).await.unwrap().success());
}

#[cfg(target_os = "linux")]
#[test]
fn a_frozen_process_is_stopped_when_the_call_returns() {
    let mut process = shell("while :; do :; done").spawn().unwrap();
    for _ in 0..20 {
        process.freeze().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
        assert!(stat.rsplit(") ").next().unwrap().starts_with('T'), "{stat}");
        process.thaw().unwrap();
    }
}

#[test]
fn a_dropped_process_is_killed_even_when_frozen() {
    let mut process = Process::builder("sleep").arg("300").spawn().unwrap();
    let pid = process.pid();
    process.freeze().unwrap();
    drop(process);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn a_killed_process_says_so() {
    let mut process = Process::builder("sleep").arg("300").spawn().unwrap();
    let status = process.kill().unwrap();
    assert_eq!(status.signal(), Some(9));
    assert_eq!(process.kill().unwrap(), status);
}

#[test]
fn a_missing_program_is_an_error() {
    let error = Process::builder("/nowhere/program").spawn().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("/nowhere/program"));
}
