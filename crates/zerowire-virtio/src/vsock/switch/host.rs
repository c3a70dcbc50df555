//! Host programs connect, and their sockets have news.

use std::cmp::Reverse;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use rustix::net::{RecvFlags, SocketFlags};

use super::connect::offer;
use super::fate::apply;
use super::mapped::program_left;
use super::{Event, Io, Rest, map_clients};
use crate::vsock::doors::{Handshake, MAX_HANDSHAKES};
use crate::vsock::packet::Kind;
use crate::vsock::protocol::{ANSWER_PATIENCE, Fate};
use crate::vsock::table::SlotKey;
use crate::vsock::vm::GroupVm;

/// The word that a host program begins with.
const COMMAND: &str = "CONNECT";

/// The longest line that a host program may begin with: "CONNECT 4294967295\n" and some room.
const MAX_LINE: usize = 32;

/// Programs that are accepted at a socket in a turn. One takes as long as hundreds of KiB of
/// payload, for which others wait.
pub(super) const MAX_ACCEPTS: usize = 4;

/// A connection's socket has news.
pub(super) fn socket_event(vm: &mut GroupVm, place: SlotKey, flags: EventFlags, rest: &mut Rest<'_>) {
    let slot = place.slot;
    let Some(c) = vm.connections.at(place) else { return };
    let Some(news) = c.heard(flags) else { return };
    // A socket says with the next write that nobody reads it; windows don't.
    if news.closed {
        program_left(vm, slot, rest);
    }
    let Some(mut at) = vm.current(slot) else { return };
    at.mark_ready();
    let flushed = if news.goes_on { at.flush_held(rest.io) } else { Fate::Stays };
    let told = if news.goes_on || news.credit { at.tell_credit(&rest.io.watch) } else { Fate::Stays };
    apply(vm, slot, flushed.or(told), rest);
}

/// Host programs connect at a socket of a VM. Those that are too many for now are accepted in its
/// next turns.
pub(super) fn called(vm: &mut GroupVm, kind: Kind, io: &mut Io) {
    let more = accept(vm, kind, io);
    vm.doors.listening.iter_mut().filter(|l| l.kind == kind).for_each(|l| l.called = more);
}

/// Accepts some more of the host programs that connect to a VM. Returns whether others may wait.
pub(super) fn take_callers(vm: &mut GroupVm, io: &mut Io) -> bool {
    for i in 0..vm.doors.listening.len() {
        let l = &vm.doors.listening[i];
        if l.called {
            called(vm, l.kind, io);
        }
    }
    if vm.doors.map_listening.called {
        map_clients::called(vm, io);
    }
    vm.listeners().any(|l| l.called)
}

/// Accepts programs at one socket. Returns whether more may wait.
fn accept(vm: &mut GroupVm, kind: Kind, io: &mut Io) -> bool {
    for _ in 0..MAX_ACCEPTS {
        let Some(l) = vm.doors.listening.iter().find(|l| l.kind == kind) else { return false };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match rustix::net::accept_with(&l.socket, flags) {
            // Without a driver nobody can answer: the program sees its socket closed.
            Ok(_) if !vm.is_running() => vm.counters.refused.add(1),
            Ok(socket) => greet(vm, kind, socket, io),
            Err(rustix::io::Errno::AGAIN) => return false,
            Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
            Err(e) => {
                // Out of descriptors, most likely: the ones that wait are looked at again with the
                // deadlines.
                tracing::error!("{}: accept failed: {e}; see 'ulimit -n'", vm.id.name);
                io.timers.look_after(std::time::Duration::from_secs(1));
                return false;
            }
        }
    }
    true
}

fn greet(vm: &mut GroupVm, kind: Kind, socket: OwnedFd, io: &mut Io) {
    let i = match vm.doors.handshakes.iter().position(Option::is_none) {
        Some(i) => i,
        None if vm.doors.handshakes.len() < MAX_HANDSHAKES => {
            vm.doors.handshakes.push(None);
            vm.doors.handshakes.len() - 1
        }
        None => {
            vm.counters.bad_handshakes.add(1);
            gives_way(vm.doors.handshakes.iter().map(|h| h.as_ref().map(|h| (h.user, h.deadline))))
        }
    };
    let place = SlotKey { slot: i as u32, tenant: vm.doors.next_tenant() };
    if io.watch.add(&socket, Event::Handshake { vm: vm.id.index, place }).is_err() {
        return;
    }
    let deadline = io.timers.now() + ANSWER_PATIENCE;
    let user = rustix::net::sockopt::socket_peercred(&socket).map_or(u32::MAX, |c| c.uid.as_raw());
    vm.doors.handshakes[i] = Some(Handshake { socket, kind, deadline, user, tenant: place.tenant });
    io.timers.look_after(ANSWER_PATIENCE);
    // Most have written their line already; the event comes all the same.
    handshake(vm, place, io);
}

/// A host program has said something.
pub(super) fn handshake(vm: &mut GroupVm, place: SlotKey, io: &mut Io) {
    let Some(entry) = vm.doors.handshakes.get_mut(place.slot as usize) else { return };
    let Some(h) = entry.as_ref().filter(|h| h.tenant == place.tenant) else { return };
    match read_line(h) {
        HostLine::NotYet => {}
        HostLine::Connect(port) => {
            let Some(h) = entry.take() else { return };
            io.watch.forget(&h.socket);
            offer(vm, h.kind, port, h.socket, None, io);
        }
        HostLine::Bad(why) => {
            // Who sees the end finds it counted.
            vm.counters.bad_handshakes.add(1);
            *entry = None;
            tracing::debug!("{}: a host program was turned away: {why}", vm.id.name);
        }
    }
}

/// Which of the programs that have not said where to gives way to a new one: the oldest of the user
/// who has most of them. So idle ones of one user push out no other user's.
fn gives_way(waiting: impl Iterator<Item = Option<(u32, Instant)>> + Clone) -> usize {
    let users = waiting.clone().flatten().map(|(user, _)| user);
    // Mostly all are one user's: they are counted once.
    let mut last = (0, 0);
    let mut of = |user| {
        if last.1 == 0 || last.0 != user {
            last = (user, users.clone().filter(|u| *u == user).count());
        }
        last.1
    };
    let key = |(_, h): &(usize, Option<(u32, Instant)>)| h.map(|(user, at)| (Reverse(of(user)), at));
    waiting.clone().enumerate().min_by_key(key).map_or(0, |(i, _)| i)
}

/// What a host program said.
enum HostLine {
    NotYet,
    Connect(u32),
    Bad(&'static str),
}

/// Takes the line "CONNECT port", and nothing behind it: the rest is the connection's.
fn read_line(h: &Handshake) -> HostLine {
    let mut buffer = [0u8; MAX_LINE];
    let n = match rustix::net::recv(&h.socket, &mut buffer[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => return HostLine::Bad("it closed before its line was complete"),
        Ok((n, _)) => n.min(MAX_LINE),
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
    match rustix::net::recv(&h.socket, &mut line[..=end], RecvFlags::DONTWAIT) {
        Ok((n, _)) if n == end + 1 => HostLine::Connect(port),
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

    #[test]
    fn idle_programs_of_one_user_push_out_no_other_users() {
        let now = Instant::now();
        let at = |user: u32, ms: u64| Some((user, now + std::time::Duration::from_millis(ms)));
        assert_eq!(gives_way([at(1, 5), at(2, 9), at(2, 8), at(2, 7)].into_iter()), 3);
        assert_eq!(
            gives_way([at(1, 5), at(1, 4), at(2, 1), at(2, 2)].into_iter()),
            2,
            "the oldest of equals"
        );
        assert_eq!(gives_way([at(1, 5), at(1, 4), at(2, 1)].into_iter()), 1);
    }
}
