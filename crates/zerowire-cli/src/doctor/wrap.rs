//! Text in columns.

/// Fewer columns than this are not filled: the line gets longer than the terminal instead.
const MIN_COLUMNS: usize = 20;

/// `text` broken at spaces so that each line, indented by `indent` but for the first, has at most `width` columns.
/// A word that is longer stays whole. The first line is taken to start at column `indent` too.
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

#[cfg(test)]
mod tests {
    use super::*;

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
