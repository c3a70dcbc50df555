//! The line "CONNECT port" that a host program begins with.

use rustix::net::RecvFlags;

use super::Handshake;
use crate::packet::Kind;
use crate::socket::receive_bytes;

/// The word that a host program begins with.
const COMMAND: &str = "CONNECT";

/// The longest line that a host program may begin with: "CONNECT 4294967295\n" and some room.
const MAX_LINE: usize = 32;

/// What a host program said.
pub(crate) enum HostLine {
    /// No whole line yet.
    NotYet,
    /// It connects to this port of the guest.
    Connect(u32),
    /// No such line, for this reason.
    Bad(&'static str),
}

/// Takes the line "CONNECT port", and nothing behind it: the rest is the connection's.
pub(crate) fn read_line(h: &Handshake) -> HostLine {
    let mut buffer = [0u8; MAX_LINE];
    let n = match receive_bytes(&h.socket, &mut buffer, RecvFlags::PEEK) {
        Ok(0) => return HostLine::Bad("it closed before its line was complete"),
        Ok(n) => n,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return HostLine::NotYet,
        Err(_) => return HostLine::Bad("its socket failed"),
    };
    let Some(end) = buffer[..n].iter().position(|b| *b == b'\n') else {
        return match (n == MAX_LINE, h.kind) {
            (true, _) => HostLine::Bad("its first line is longer than 32 bytes"),
            (false, Kind::SeqPacket) => HostLine::Bad("its first message is no line"),
            (false, Kind::Stream) if !may_connect(&buffer[..n]) => HostLine::Bad("not CONNECT"),
            (false, Kind::Stream) => HostLine::NotYet,
        };
    };
    let Some(port) = port_of(&buffer[..end]) else { return HostLine::Bad("not CONNECT and a port") };
    let mut line = [0u8; MAX_LINE];
    // Of a message the rest goes with it.
    match receive_bytes(&h.socket, &mut line[..=end], RecvFlags::empty()) {
        Ok(n) if n == end + 1 => HostLine::Connect(port),
        _ => HostLine::Bad("its socket failed"),
    }
}

/// Whether a line that is not complete may become one.
fn may_connect(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    let (word, rest) = line.split_at(line.len().min(COMMAND.len()));
    COMMAND.as_bytes()[..word.len()].eq_ignore_ascii_case(word)
        && rest.first().is_none_or(u8::is_ascii_whitespace)
}

/// The port of a line "CONNECT port", in letters of any case and with any white space, as other
/// devices take it.
fn port_of(line: &[u8]) -> Option<u32> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let command = words.next()?;
    let port = words.next()?.parse().ok()?;
    let sound = command.eq_ignore_ascii_case(COMMAND) && words.next().is_none() && port != u32::MAX;
    sound.then_some(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_any_case_and_white_space_name_a_port() {
        for line in ["CONNECT 9", "connect 9", "Connect  9\r", " cOnNeCt\t9 ", "connect 009"] {
            assert_eq!(port_of(line.as_bytes()), Some(9), "{line:?}");
            for n in 0..=line.len() {
                assert!(may_connect(&line.as_bytes()[..n]), "{:?}", &line[..n]);
            }
        }
        for line in
            ["", "CONNECT", "CONNECT9", "CONNECT x", "CONNECT 9 9", "CONNECT -1", "CONNECT 4294967295", "9"]
        {
            assert_eq!(port_of(line.as_bytes()), None, "{line:?}");
        }
        for line in ["x", "CON NECT", "CONNECTX", "GET / HTTP/1.1"] {
            assert!(!may_connect(line.as_bytes()), "{line:?}");
        }
        assert_eq!(port_of(b"CONNECT \xff"), None);
    }
}
