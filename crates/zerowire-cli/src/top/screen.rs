//! The terminal while something is drawn on it: raw mode, and the alternate screen.
//!
//! However the program ends, the terminal gets back what it had: [`Screen`] does that when it is
//! dropped, and a panic hook before the panic is reported.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Mutex, Once};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use zerowire_cli::lock;

use super::canvas::Canvas;

/// The alternate screen, without a cursor, empty (xterm, DEC private modes).
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
/// Back to the screen before.
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";
/// What a terminal has that does not tell its size.
const DEFAULT_SIZE: (usize, usize) = (80, 24);

/// The settings of the terminal before, while it has others.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal, for as long as this lives. There is one at a time.
#[derive(Debug)]
pub struct Screen {
    /// Rows as they stand there.
    shown: Vec<String>,
}

impl Screen {
    /// Takes the terminal of standard input and output.
    pub fn open() -> Result<Self> {
        restore_on_panic();
        let settings = tcgetattr(io::stdin()).context("the terminal's settings can't be read")?;
        let mut raw = settings.clone();
        raw.make_raw();
        *lock(&BEFORE) = Some(settings);
        let screen = Self { shown: Vec::new() };
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw).context("the terminal can't be set")?;
        write(ENTER).context("the terminal can't be written to")?;
        Ok(screen)
    }

    /// Columns and rows.
    pub fn size() -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => DEFAULT_SIZE,
        }
    }

    /// Shows a picture: writes the rows that differ from those that stand there.
    pub fn draw(&mut self, canvas: &Canvas) -> Result<()> {
        let rows: Vec<_> = (0..canvas.rows()).map(|row| canvas.row(row)).collect();
        write(&changes(&self.shown, &rows)).context("the terminal can't be written to")?;
        self.shown = rows;
        Ok(())
    }

    /// The terminal has another size, and may have moved what stood there: all of it is drawn anew.
    pub fn forget(&mut self) {
        self.shown.clear();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// What makes rows `new` of rows `old`. Without old ones the terminal may show anything.
fn changes(old: &[String], new: &[String]) -> String {
    let mut out = String::new();
    if old.is_empty() {
        out.push_str("\x1b[0m\x1b[2J");
    }
    for (n, row) in new.iter().enumerate() {
        if old.get(n) != Some(row) {
            // A row is as wide as the terminal: it leaves nothing behind it.
            out.push_str(&format!("\x1b[{};1H{row}", n + 1));
        }
    }
    out
}

fn restore() {
    // The terminal may be gone.
    if let Some(settings) = lock(&BEFORE).take() {
        let _ = write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &settings);
    }
}

/// A panic of any thread gives the terminal back, so that its message can be read.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
    });
}

/// Not through `std`, whose buffer would keep a part.
fn write(text: &str) -> io::Result<()> {
    let mut left = text.as_bytes();
    while !left.is_empty() {
        match rustix::io::write(io::stdout(), left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => left = &left[n..],
            Err(Errno::INTR) => {}
            // Another program that has the terminal, too, may have set it so.
            Err(Errno::AGAIN) => {
                let stdout = io::stdout();
                let _ = poll(&mut [PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::OUT)], None);
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_that_changed_are_written() {
        let rows = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let (old, new) = (rows(&["a", "b", "c"]), rows(&["a", "x", "c"]));
        assert_eq!(changes(&old, &new), "\x1b[2;1Hx");
        assert_eq!(changes(&old, &old), "");
        assert_eq!(changes(&[], &rows(&["a", "b"])), "\x1b[0m\x1b[2J\x1b[1;1Ha\x1b[2;1Hb");
        assert_eq!(changes(&rows(&["a"]), &rows(&["a", "b"])), "\x1b[2;1Hb");
    }
}
