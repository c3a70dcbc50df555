//! Keys of a terminal in raw mode, out of the bytes that it sends.

/// A key that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopKey {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    /// Ctrl-C.
    Interrupt,
    Char(char),
}

const ESC: u8 = 0x1b;
/// Ctrl-C in raw mode.
const ETX: u8 = 0x03;
/// Bytes of a sequence at most; a longer one is none.
const SEQUENCE_BYTES: usize = 32;

/// Takes the keys out of `bytes`. What may be the beginning of a key stays, unless `is_all` says
/// that nothing follows it: then ESC alone is the key Escape.
pub fn take(bytes: &mut Vec<u8>, is_all: bool) -> Vec<TopKey> {
    let mut keys = Vec::new();
    let mut at = 0;
    while let Some(first) = bytes.get(at) {
        let (key, len) = match *first {
            ESC => match escaped(&bytes[at + 1..]) {
                Some((key, len)) => (key, len + 1),
                None if is_all => (Some(TopKey::Escape), bytes.len() - at),
                None => break,
            },
            ETX => (Some(TopKey::Interrupt), 1),
            b'\r' | b'\n' => (Some(TopKey::Enter), 1),
            b @ b' '..=b'~' => (Some(TopKey::Char(b.into())), 1),
            _ => (None, 1),
        };
        keys.extend(key);
        at += len;
    }
    bytes.drain(..at);
    keys
}

/// What stands behind ESC: the key, if it is a known one, and its length. None if more may come.
fn escaped(rest: &[u8]) -> Option<(Option<TopKey>, usize)> {
    let (kind, sequence) = rest.split_first()?;
    match kind {
        b'O' => sequence.first().map(|last| (letter(*last), 2)),
        b'[' => {
            let end = sequence.iter().position(|b| (b'@'..=b'~').contains(b));
            match end {
                Some(end) => Some((control(&sequence[..end], sequence[end]), end + 2)),
                None if sequence.len() > SEQUENCE_BYTES => Some((None, rest.len())),
                None => None,
            }
        }
        // The key Escape, and another one behind it.
        _ => Some((Some(TopKey::Escape), 0)),
    }
}

fn control(parameters: &[u8], last: u8) -> Option<TopKey> {
    match (parameters, last) {
        (b"1" | b"7", b'~') => Some(TopKey::Home),
        (b"4" | b"8", b'~') => Some(TopKey::End),
        (b"5", b'~') => Some(TopKey::PageUp),
        (b"6", b'~') => Some(TopKey::PageDown),
        (b"", last) => letter(last),
        _ => None,
    }
}

fn letter(last: u8) -> Option<TopKey> {
    match last {
        b'A' => Some(TopKey::Up),
        b'B' => Some(TopKey::Down),
        b'H' => Some(TopKey::Home),
        b'F' => Some(TopKey::End),
        b'M' => Some(TopKey::Enter),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Vec<TopKey> {
        let mut bytes = bytes.to_vec();
        let keys = take(&mut bytes, true);
        assert!(bytes.is_empty(), "all is taken");
        keys
    }

    #[test]
    fn keys_are_those_that_terminals_send() {
        use TopKey::{Char, Down, End, Enter, Escape, Home, Interrupt, PageDown, PageUp, Up};
        for (bytes, keys) in [
            (&b"q"[..], &[Char('q')][..]),
            (b"\x1b[A\x1bOB", &[Up, Down]),
            (b"\x1b[5~\x1b[6~", &[PageUp, PageDown]),
            (b"\x1b[H\x1b[F\x1b[1~\x1b[4~\x1bOH", &[Home, End, Home, End, Home]),
            (b"\r\x03", &[Enter, Interrupt]),
            (b"\x1b", &[Escape]),
            (b"\x1bq", &[Escape, Char('q')]),
            (b"\x1b\x1b[A", &[Escape, Up]),
            // Not known: passed over as a whole.
            (b"\x1b[1;5A\x1b[15~x", &[Char('x')]),
            ("ä\x7f\0".as_bytes(), &[]),
        ] {
            assert_eq!(all(bytes), keys, "{bytes:?}");
        }
    }

    #[test]
    fn the_beginning_of_a_key_waits_for_its_end() {
        let mut bytes = b"j\x1b[".to_vec();
        assert_eq!(take(&mut bytes, false), [TopKey::Char('j')]);
        assert_eq!(bytes, b"\x1b[");
        bytes.push(b'B');
        assert_eq!(take(&mut bytes, false), [TopKey::Down]);
        assert!(bytes.is_empty());
        // What never ends is dropped.
        let mut bytes = [b"\x1b[".to_vec(), vec![b'1'; 100]].concat();
        assert_eq!(take(&mut bytes, false), []);
        assert!(bytes.is_empty());
    }
}
