//! Text in the columns of a terminal.

use std::io::{IsTerminal, Stdout};

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

/// `text` with each line that has more than `width` columns broken by [`hang`]. Other lines stay as
/// they are.
pub fn fit(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for line in text.split_inclusive('\n') {
        let words = line.trim_end();
        if words.chars().count() <= width {
            out.push_str(line);
            continue;
        }
        let indent = words.len() - words.trim_start().len();
        out.push_str(&words[..indent]);
        out.push_str(&hang(words, indent + STEP, width));
        out.push_str(&line[words.len()..]);
    }
    out
}

/// Columns of standard output.
pub fn width(stdout: &Stdout) -> usize {
    let is_terminal = stdout.is_terminal();
    let told = is_terminal.then(|| rustix::termios::tcgetwinsize(stdout).ok()).flatten();
    match told.map_or(0, |size| usize::from(size.ws_col)) {
        0 => PLAIN_WIDTH,
        columns => columns.min(MAX_WIDTH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_lines_are_broken_and_their_rest_is_indented_further() {
        let text = "a   table\n  path: one two three four five six\nend";
        assert_eq!(fit(text, 24), "a   table\n  path: one two three\n    four five six\nend");
        for width in [24, 30, 80] {
            assert!(fit(text, width).lines().all(|line| line.chars().count() <= width));
        }
    }

    #[test]
    fn lines_are_broken_at_spaces_and_indented() {
        let text = hang("one two three four five six seven", 4, 24);
        assert_eq!(text, "one two three four\n    five six seven");
        assert!(text.lines().all(|l| l.len() <= 24));
    }

    #[test]
    fn long_words_and_narrow_terminals_do_not_loop() {
        assert_eq!(
            hang("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa b", 2, 10),
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n  b"
        );
        assert_eq!(hang("", 2, 10), "");
        assert_eq!(hang("a b", 50, 10), "a b");
    }

    #[test]
    fn columns_are_characters() {
        assert_eq!(hang("ÄÄÄÄÄÄÄÄÄÄ ÖÖÖÖÖÖÖÖÖ", 0, 20), "ÄÄÄÄÄÄÄÄÄÄ ÖÖÖÖÖÖÖÖÖ");
    }
}
