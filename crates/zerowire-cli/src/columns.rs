//! Text in the columns of a terminal.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

/// Columns of text that goes to no terminal, or to one that doesn't tell its width.
pub const PLAIN_WIDTH: usize = 80;
/// Longer lines read badly, however wide the terminal is.
const MAX_WIDTH: usize = 110;
/// How much further than its first line the rest of a broken line is indented.
const STEP: usize = 2;
/// Fewer columns than this are not filled: the line gets longer than the terminal instead.
const MIN_COLUMNS: usize = 20;

/// `text` broken at spaces so that each line, indented by `indent` but for the first, has at most
/// `width` columns. A word that is longer stays whole. The first line is taken to start at column
/// `indent` too.
pub fn hang(text: &str, indent: usize, width: usize) -> String {
    let room = width.saturating_sub(indent).max(MIN_COLUMNS);
    let mut out = String::with_capacity(text.len() + 16);
    let mut used = 0;
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if used > 0 && used + 1 + len > room {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            used = 0;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += len;
    }
    out
}

/// `text` with each line that has more than `width` columns broken at spaces, its rest by [`hang`].
/// Other lines stay as they are.
pub fn fit(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for line in text.split_inclusive('\n') {
        let words = line.trim_end();
        if words.chars().count() <= width {
            out.push_str(line);
            continue;
        }
        let indent = words.len() - words.trim_start().len();
        // What fits of the first line stays as it is: it may be a label and what stands behind it.
        let fits = words.char_indices().take(width + 1).filter(|(at, c)| *c == ' ' && *at > indent);
        let (first, rest) = words.split_at(fits.last().map_or(0, |(at, _)| at));
        if first.is_empty() {
            out.push_str(&words[..indent]);
            out.push_str(&hang(words, indent + STEP, width));
        } else {
            out.push_str(first.trim_end());
            out.push('\n');
            out.push_str(&" ".repeat(indent + STEP));
            out.push_str(&hang(rest, indent + STEP, width));
        }
        out.push_str(&line[words.len()..]);
    }
    out
}

/// Writes lines as [`fit`] has them.
#[derive(Debug)]
pub struct Fitting<W: Write> {
    to: W,
    width: usize,
    /// What has come of the line that is not whole yet.
    line: Vec<u8>,
}

impl<W: Write> Fitting<W> {
    /// Lines for `to`, which has `width` columns.
    pub fn new(to: W, width: usize) -> Self {
        Self { to, width, line: Vec::new() }
    }

    fn pass_on(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        self.to.write_all(fit(&String::from_utf8_lossy(&line), self.width).as_bytes())
    }
}

impl<W: Write> Write for Fitting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.pass_on()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pass_on()?;
        self.to.flush()
    }
}

impl<W: Write> Drop for Fitting<W> {
    fn drop(&mut self) {
        // A caller that wants errors flushes.
        let _ = self.flush();
    }
}

/// Columns of standard output, or standard error.
pub fn width(stream: &(impl IsTerminal + AsFd)) -> usize {
    let is_terminal = stream.is_terminal();
    let told = is_terminal.then(|| rustix::termios::tcgetwinsize(stream).ok()).flatten();
    match told.map_or(0, |size| usize::from(size.ws_col)) {
        0 => PLAIN_WIDTH,
        columns => columns.min(MAX_WIDTH),
    }
}

#[cfg(test)]
mod tests;
