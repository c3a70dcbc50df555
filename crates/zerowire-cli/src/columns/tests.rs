use super::*;

#[test]
fn only_long_lines_are_broken_and_their_rest_is_indented_further() {
    let text = "a   table\n  path: one two three four five six\nend";
    assert_eq!(fit(text, 24), "a   table\n  path: one two three\n    four five six\nend");
    assert_eq!(fit("  ring     one two three", 20), "  ring     one two\n    three");
    for width in [24, 30, 80] {
        assert!(fit(text, width).lines().all(|line| line.chars().count() <= width));
    }
}

#[test]
fn lines_that_come_in_pieces_are_broken_when_they_are_whole() {
    let mut out = Vec::new();
    let mut fitting = Fitting::new(&mut out, 24);
    for piece in ["one two thr", "ee four five six\nä", " b\nend"] {
        fitting.write_all(piece.as_bytes()).expect("written");
    }
    drop(fitting);
    assert_eq!(String::from_utf8_lossy(&out), "one two three four five\n  six\nä b\nend");
}

#[test]
fn lines_are_broken_at_spaces_and_indented() {
    let text = hang("one two three four five six seven", 4, 24);
    assert_eq!(text, "one two three four\n    five six seven");
    assert!(text.lines().all(|l| l.len() <= 24));
}

#[test]
fn long_words_and_narrow_terminals_do_not_loop() {
    assert_eq!(hang("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa b", 2, 10), "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n  b");
    assert_eq!(hang("", 2, 10), "");
    assert_eq!(hang("a b", 50, 10), "a b");
}

#[test]
fn columns_are_characters() {
    assert_eq!(hang("ÄÄÄÄÄÄÄÄÄÄ ÖÖÖÖÖÖÖÖÖ", 0, 20), "ÄÄÄÄÄÄÄÄÄÄ ÖÖÖÖÖÖÖÖÖ");
}
