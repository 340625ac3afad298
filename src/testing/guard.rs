//! A child process that cannot outlive its parent, even when the parent is killed with SIGKILL.
//!
//! Rust drops nothing in a process that is killed, and the ways of the system to tie a child to its parent need unsafe code. So
//! each child gets a *watchdog*, a tiny shell that reads a pipe whose write end only this process holds:
//!
//! ```text
//! this process --- write end of the pipe ---> watchdog: reads the child's pid, then reads on until the pipe closes
//!       |                                                 = this process is gone: kill -9 <pid>
//!       +--------- sh: tells the watchdog its own pid, then becomes the child by exec (same pid)
//! ```
//!
//! The child names its own pid before it becomes the program, so there is no moment in which it runs unwatched. Both are direct
//! children of this process: their pids stay theirs until they are waited for here, so a signal never hits a stranger. The
//! standard library opens its pipes close-on-exec, so no other child of this process keeps the write end open. Both live in a
//! process group of their own: Ctrl-C in a terminal reaches the test or the demo, which then ends its children in its own order.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// How often a waiting method looks. A wait ends on the process's end, never on this time.
const POLL: Duration = Duration::from_millis(5);

/// Reads the pid, waits for the pipe to close, kills, and removes the folder that was named, if any.
const WATCHDOG: &str = r#"
read -r pid || exit 0
read -r never
kill -9 "$pid"
[ -z "$1" ] || { sleep 1; rm -rf -- "$1"; }
"#;

/// Names the own pid to the watchdog through descriptor 0, which is the write end of its pipe, and becomes the program.
const BECOME: &str = r#"echo "$$" >&0 && exec "$0" "$@" </dev/null"#;

/// What to start.
#[derive(Debug)]
pub(super) struct Spec<'a> {
    /// The program, a path or a name on `PATH`.
    pub(super) program: &'a Path,
    /// Its arguments.
    pub(super) arguments: &'a [OsString],
    /// Variables to set (`Some`) or to remove (`None`).
    pub(super) variables: &'a [(OsString, Option<OsString>)],
    /// Where its output goes.
    pub(super) stdout: Stdio,
    /// Where its errors go.
    pub(super) stderr: Stdio,
    /// A temporary folder of the child that the watchdog removes if this process cannot.
    pub(super) scratch: Option<&'a Path>,
}

/// A running child and its watchdog. Dropping it kills both and waits for them.
#[derive(Debug)]
pub(super) struct GuardedChild {
    child: Child,
    watchdog: Child,
    /// The write end of the watchdog's pipe: closed by the system when this process ends, however it ends.
    _alive: ChildStdin,
}

impl GuardedChild {
    pub(super) fn spawn(spec: Spec<'_>) -> io::Result<Self> {
        if spec.program.components().count() > 1 && !spec.program.exists() {
            // The shell would only tell on the child's stderr.
            let message = format!("there is no {}", spec.program.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        let mut watchdog = Command::new("/bin/sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .args(spec.scratch)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let started = Self::spawn_watched(spec, &mut watchdog);
        match started {
            Ok((child, alive)) => Ok(Self {
                child,
                watchdog,
                _alive: alive,
            }),
            Err(error) => {
                end_watchdog(&mut watchdog);
                Err(error)
            }
        }
    }

    fn spawn_watched(spec: Spec<'_>, watchdog: &mut Child) -> io::Result<(Child, ChildStdin)> {
        let alive = watchdog
            .stdin
            .take()
            .ok_or_else(|| io::Error::other("the watchdog has no pipe"))?;
        let told_by_child: OwnedFd = alive.as_fd().try_clone_to_owned()?;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", BECOME])
            .arg(spec.program)
            .args(spec.arguments)
            .stdin(Stdio::from(told_by_child))
            .stdout(spec.stdout)
            .stderr(spec.stderr)
            .process_group(0);
        for (name, value) in spec.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // `command` is dropped here and with it this process's copy of the child's write end.
        let child = command.spawn()?;
        Ok((child, alive))
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    pub(super) fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Signals the child itself. After it was waited for its pid may be another's, so nothing is sent then.
    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.try_wait()?.is_some() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the process has ended"));
        }
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    pub(super) fn terminate(&mut self) -> io::Result<()> {
        self.signal(Signal::TERM)?;
        // A stopped process acts on the signal only when it goes on. One that has ended by now needs no second signal.
        let _ = self.signal(Signal::CONT);
        Ok(())
    }

    /// Stops the child and returns when it *is* stopped: the signal alone is only a request.
    pub(super) fn freeze(&mut self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        let either = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), either)?;
        Ok(())
    }

    pub(super) fn thaw(&mut self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// How the child ended, or `None` while it runs.
    pub(super) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        if status.is_some() {
            // The pid may become another's from now on, so nobody may remember it.
            end_watchdog(&mut self.watchdog);
        }
        Ok(status)
    }

    /// Kills the child with SIGKILL and waits for it.
    pub(super) fn kill(&mut self) -> io::Result<ExitStatus> {
        // The system refuses the signal only when the child has ended already.
        let _ = self.child.kill();
        // Between the signal and the wait the pid is still the child's, so the watchdog can end without a gap.
        end_watchdog(&mut self.watchdog);
        self.child.wait()
    }

    /// Waits for the end of the child. `None`: it still runs at the deadline.
    pub(super) async fn wait(&mut self, deadline: Duration) -> io::Result<Option<ExitStatus>> {
        let end = Instant::now() + deadline;
        loop {
            let status = self.try_wait()?;
            if status.is_some() || Instant::now() >= end {
                return Ok(status);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// As [`Self::wait`], for a drop.
    pub(super) fn wait_blocking(&mut self, deadline: Duration) -> io::Result<Option<ExitStatus>> {
        let end = Instant::now() + deadline;
        loop {
            let status = self.try_wait()?;
            if status.is_some() || Instant::now() >= end {
                return Ok(status);
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for GuardedChild {
    fn drop(&mut self) {
        // Nothing can be done about an error here, and there is none: both are this process's own children.
        let _ = self.kill();
    }
}

/// Ends the watchdog without its doing anything. Repeating it is harmless: [`Child`] remembers that it has ended.
fn end_watchdog(watchdog: &mut Child) {
    let _ = watchdog.kill();
    let _ = watchdog.wait();
}
