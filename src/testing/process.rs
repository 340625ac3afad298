//! A child process that a test can kill, freeze and thaw: most often the test's or the demo's own executable, run again.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::{ChildStderr, ChildStdout, ExitStatus, Stdio};
use std::time::Duration;

use super::guard::{GuardedChild, Spec};

/// A child process that ends with this value, and with the process that started it, however that one ends.
///
/// It is its own process group, so Ctrl-C in a terminal does not reach it, and its stdin is empty.
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// use std::time::Duration;
/// use jetring::testing::Process;
///
/// let mut member = Process::current_exe()?.arg("--member").env("MEMBER_ID", "a").spawn()?;
/// member.freeze()?; // as a long pause of a virtual machine
/// member.thaw()?;
/// member.terminate()?; // SIGTERM: a graceful end
/// let status = member.wait(Duration::from_secs(10)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Process {
    child: GuardedChild,
}

/// What to start as a [`Process`].
#[derive(Debug)]
#[must_use = "nothing runs before `spawn`"]
pub struct ProcessBuilder {
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, Option<OsString>)>,
    stdout: Stdio,
    stderr: Stdio,
}

impl Process {
    /// A process of `program`, a path or a name on `PATH`.
    pub fn builder(program: impl Into<PathBuf>) -> ProcessBuilder {
        ProcessBuilder {
            program: program.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            stdout: Stdio::inherit(),
            stderr: Stdio::inherit(),
        }
    }

    /// A process of the executable that is running now.
    ///
    /// # Errors
    /// When the system does not tell which one that is.
    pub fn current_exe() -> io::Result<ProcessBuilder> {
        Ok(Self::builder(env::current_exe()?))
    }

    /// The process id. It may be another's once the end of this process was seen.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// The output, if it was [`Stdio::piped`] and not taken before. Convert it with `tokio::process::ChildStdout::from_std` to
    /// read it without blocking.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.take_stdout()
    }

    /// The errors, as [`Process::take_stdout`].
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.take_stderr()
    }

    /// Asks the process to end (SIGTERM). A frozen one is thawed, as it could not do so otherwise.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when it has ended.
    pub fn terminate(&mut self) -> io::Result<()> {
        self.child.terminate()
    }

    /// Kills the process (SIGKILL) and waits for its end. Harmless when it has ended.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()
    }

    /// Stops the process (SIGSTOP) and returns when it has stopped: it does nothing until [`Process::thaw`].
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when it has ended.
    pub fn freeze(&mut self) -> io::Result<()> {
        self.child.freeze()
    }

    /// Lets a frozen process go on (SIGCONT). Harmless when it is not frozen.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when it has ended.
    pub fn thaw(&mut self) -> io::Result<()> {
        self.child.thaw()
    }

    /// How the process ended, or `None` while it runs.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for the end of the process, however it comes. The process is left as it is when the time is over.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] when it still runs after `deadline`.
    ///
    /// # Panics
    /// Outside of a tokio runtime with a timer.
    pub async fn wait(&mut self, deadline: Duration) -> io::Result<ExitStatus> {
        self.child.wait(deadline).await?.ok_or_else(|| {
            let message = format!("process {} still runs after {deadline:?}", self.child.pid());
            io::Error::new(io::ErrorKind::TimedOut, message)
        })
    }
}

impl ProcessBuilder {
    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned());
        self.arguments.extend(arguments);
        self
    }

    /// Sets a variable of its environment; the others are those of this process. The name has to be one that a shell accepts
    /// (letters, digits and underscores).
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let value = Some(value.as_ref().to_owned());
        self.variables.push((name.as_ref().to_owned(), value));
        self
    }

    /// Removes a variable from its environment.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.as_ref().to_owned(), None));
        self
    }

    /// Where its output goes: by default where that of this process goes.
    pub fn stdout(mut self, stdout: impl Into<Stdio>) -> Self {
        self.stdout = stdout.into();
        self
    }

    /// Where its errors go: by default where those of this process go.
    pub fn stderr(mut self, stderr: impl Into<Stdio>) -> Self {
        self.stderr = stderr.into();
        self
    }

    /// Starts the process.
    ///
    /// # Errors
    /// When the program's path does not exist or the system cannot start a process. A bare name that is not on `PATH` is seen
    /// only by the process ending with status 127.
    pub fn spawn(self) -> io::Result<Process> {
        let child = GuardedChild::spawn(Spec {
            program: &self.program,
            arguments: &self.arguments,
            variables: &self.variables,
            stdout: self.stdout,
            stderr: self.stderr,
            scratch: None,
        })?;
        Ok(Process { child })
    }
}
