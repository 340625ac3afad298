//! What is shown while it happens: plain lines, and on a terminal one status line below them that is drawn anew.

use std::io::{self, IsTerminal, Write};

use crate::clock;

/// How often the status is a line of its own where it cannot be drawn anew.
const STATUS_LINE_EVERY: u64 = 1_000_000_000;

/// Writes to the output of the live view. That it cannot be written, for example because nobody reads it any more, does not
/// disturb the run: the verdict and the exit status tell how it went.
pub(crate) struct Screen {
    out: Box<dyn Write + Send>,
    json: bool,
    terminal: bool,
    began: u64,
    status_at: u64,
    /// What stands in the status line now; empty if there is none.
    shown: String,
}

impl Screen {
    /// Stdout, or stderr if stdout is for the JSON object alone.
    pub(crate) fn new(json: bool) -> Self {
        let out: Box<dyn Write + Send> = if json {
            Box::new(io::stderr())
        } else {
            Box::new(io::stdout())
        };
        let terminal = if json {
            io::stderr().is_terminal()
        } else {
            io::stdout().is_terminal()
        };
        Self {
            out,
            json,
            terminal,
            began: clock::now(),
            status_at: 0,
            shown: String::new(),
        }
    }

    /// Shows a line with the time of the run.
    pub(crate) fn line(&mut self, text: &str) {
        self.line_at(clock::now(), text);
    }

    /// Shows a line about something that happened at `at`.
    pub(crate) fn line_at(&mut self, at: u64, text: &str) {
        let time = clock::seconds(at.saturating_sub(self.began));
        self.plain(&format!("{time:6.1}s  {text}"));
    }

    /// Shows a line as it is.
    pub(crate) fn plain(&mut self, text: &str) {
        self.clear_status();
        let _ = writeln!(self.out, "{text}");
        let _ = self.out.flush();
    }

    /// Whether the status would be shown now: on a terminal always.
    pub(crate) fn wants_status(&self, now: u64) -> bool {
        self.terminal || now.saturating_sub(self.status_at) >= STATUS_LINE_EVERY
    }

    /// Shows how things stand.
    pub(crate) fn status(&mut self, now: u64, text: &str) {
        if !self.terminal {
            self.status_at = now;
            self.line_at(now, text);
            return;
        }
        let time = clock::seconds(now.saturating_sub(self.began));
        // Without the line end the next line takes its place. Lines that would wrap could not be cleared.
        let line = format!("{time:6.0}s  {text}");
        let line: String = line.chars().take(terminal_width(self.json)).collect();
        if line != self.shown {
            self.clear_status();
            let _ = write!(self.out, "{line}");
            let _ = self.out.flush();
            self.shown = line;
        }
    }

    /// Removes the status line.
    pub(crate) fn clear_status(&mut self) {
        if !self.shown.is_empty() {
            let _ = write!(self.out, "\r\x1b[2K");
            self.shown.clear();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.clear_status();
        let _ = self.out.flush();
    }
}

/// One column less than there are, so that nothing wraps.
fn terminal_width(json: bool) -> usize {
    let size = match json {
        true => rustix::termios::tcgetwinsize(io::stderr()),
        false => rustix::termios::tcgetwinsize(io::stdout()),
    };
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    // Some terminals do not tell.
    (if columns == 0 { 80 } else { columns }) - 1
}
