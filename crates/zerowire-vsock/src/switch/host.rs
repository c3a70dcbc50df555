//! Host programs connect, and their sockets have news.

use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::net::SocketFlags;

use super::connect::offer;
use super::fate::apply;
use super::mapped::program_left;
use super::{Event, Io, Rest, map_clients};
use crate::doors::{Door, Handshake, HostLine, read_line};
use crate::packet::Kind;
use crate::protocol::{ANSWER_PATIENCE, Fate};
use crate::table::SlotKey;
use crate::vm::GroupVm;

/// Programs that are accepted at a socket in a turn. One takes as long as hundreds of KiB of
/// payload, for which others wait.
const MAX_ACCEPTS: usize = 4;

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
pub(super) fn called(vm: &mut GroupVm, door: Door, io: &mut Io) {
    let more = accept(vm, door, io);
    vm.doors.listening.iter_mut().filter(|l| l.door == door).for_each(|l| l.called = more);
}

/// Accepts some more of the host programs that connect to a VM. Returns whether others may wait.
pub(super) fn take_callers(vm: &mut GroupVm, io: &mut Io) -> bool {
    for i in 0..vm.doors.listening.len() {
        let l = &vm.doors.listening[i];
        if l.called {
            called(vm, l.door, io);
        }
    }
    vm.doors.listening.iter().any(|l| l.called)
}

/// Accepts programs at one socket. Returns whether more may wait.
fn accept(vm: &mut GroupVm, door: Door, io: &mut Io) -> bool {
    if vm.doors.await_session {
        return false;
    }
    for _ in 0..MAX_ACCEPTS {
        let Some(l) = vm.doors.listening.iter().find(|l| l.door == door) else { return false };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match rustix::net::accept_with(&l.socket, flags) {
            Ok(socket) if door == Door::Mapped => map_clients::greet(vm, socket, io),
            // Without a driver nobody can answer: the program sees its socket closed.
            Ok(_) if !vm.is_running() => vm.counters.refused.add(1),
            Ok(socket) => greet(vm, door.kind(), socket, io),
            Err(rustix::io::Errno::AGAIN) => return false,
            Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
            Err(e) => {
                // Out of descriptors, most likely: the timer of deadlines retries those that wait.
                tracing::error!("{}: accept failed: {e}; see 'ulimit -n'", vm.id.name);
                io.timers.look_after(std::time::Duration::from_secs(1));
                return false;
            }
        }
    }
    true
}

fn greet(vm: &mut GroupVm, kind: Kind, socket: OwnedFd, io: &mut Io) {
    let (i, gives_way) = vm.doors.place_of_handshake();
    if gives_way {
        vm.counters.bad_handshakes.add(1);
    }
    let place = SlotKey { slot: i as u32, tenant: vm.doors.next_tenant() };
    if io.watch.add(&socket, Event::Handshake { vm: vm.id.index, place }).is_err() {
        return;
    }
    let deadline = io.timers.now() + ANSWER_PATIENCE;
    let user = zerowire_sys::socket::peer_owner(&socket).map_or(u32::MAX, |(user, _)| user);
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
