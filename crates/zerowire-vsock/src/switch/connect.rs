//! Connections begin.

use std::io;
use std::os::fd::OwnedFd;

use super::fate::{remove, reset};
use super::mapped::{self, attach_mapped};
use super::sibling::requested_of_sibling;
use super::{Event, Io, Rest, Timers, Watch, token};
use crate::connection::{End, HostEnd, MappedEnd, VsockConnection, Windowing};
use crate::connector::Dialled;
use crate::credit::{FromGuest, SOCKET_BYTES, SocketCredit};
use crate::mapped::AskedFor;
use crate::packet::{HOST_CID, Header, Kind};
use crate::protocol::{ANSWER_PATIENCE, Fate, Protocol};
use crate::socket;
use crate::table::{ConnectionKey, SlotKey};
use crate::vm::GroupVm;

/// Whether a failed connect says that no program serves the path with sockets of this type.
fn is_nobody(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ECONNREFUSED | libc::EPROTOTYPE))
}

/// The guest asks for a connection.
pub(super) fn requested(vm: &mut GroupVm, h: &Header, kind: Kind, rest: &mut Rest<'_>) {
    let key = ConnectionKey::of(h);
    let from = FromGuest::new(vm.limits.buffer_bytes);
    let protocol = Protocol::asked(from, h.buf_alloc, h.fwd_cnt);
    let Some(protocol) = protocol.filter(|_| vm.has_place(key.peer_cid)) else { return vm.turn_down(h) };
    let mut connection = VsockConnection::new(key, kind, protocol);
    if key.peer_cid != HOST_CID {
        return requested_of_sibling(vm, h, connection, rest);
    }
    connection.end = End::Dialing;
    let slot = vm.insert(connection).slot;
    dial(vm, slot, true, rest.io);
}

/// Connects to the host program that serves the port. Returns false where its backlog is full.
pub(super) fn dial(vm: &mut GroupVm, slot: u32, first: bool, io: &mut Io) -> bool {
    let Some(c) = vm.connections.get(slot) else { return true };
    let (port, kind) = (c.key.peer_port, c.kind);
    let place = vm.connections.place(slot);
    let number = token::of(Event::Connection { vm: vm.id.index, place });
    match vm.doors.connector.connect(port, kind, place, number) {
        Dialled::Now(outcome) => dialled(vm, slot, first, outcome, io),
        Dialled::Later => {
            if first {
                wait_for_answer(vm, slot, io);
            }
            true
        }
    }
}

/// Patience begins with a host program that can't be connected to yet.
fn wait_for_answer(vm: &mut GroupVm, slot: u32, io: &mut Io) {
    if let Some(c) = vm.connections.get(slot) {
        c.protocol.wait_for_answer(io.timers.now());
        io.timers.look_after(ANSWER_PATIENCE);
    }
}

/// The answer of another process that was asked to connect.
pub(super) fn answered(vm: &mut GroupVm, place: SlotKey, outcome: io::Result<OwnedFd>, io: &mut Io) {
    let was_asked = vm.doors.connector.answered(place);
    // The guest may have given up, or its patience has ended.
    let Some(c) = vm.connections.at(place).filter(|c| was_asked && matches!(c.end, End::Dialing)) else {
        return;
    };
    let (port, kind) = (c.key.peer_port, c.kind);
    let has_room = dialled(vm, place.slot, false, outcome, io);
    vm.doors.connector.set_busy(port, kind, !has_room);
    if !has_room {
        io.timers.dial_again(1);
    }
}

/// What an attempt to connect has come to. Returns false where the program's backlog is full.
fn dialled(vm: &mut GroupVm, slot: u32, first: bool, outcome: io::Result<OwnedFd>, io: &mut Io) -> bool {
    let Some(c) = vm.connections.get(slot) else { return true };
    let (port, kind) = (c.key.peer_port, c.kind);
    let outcome = match outcome {
        Ok(socket) => {
            let end = host_end(vm, socket);
            attach(vm, slot, end, &io.watch)
        }
        // Programs at the path come first, also those that are busy. Without one the port is that
        // of a program at `UDS.map`.
        Err(e) => match vm.doors.map_listener_at(port, kind).filter(|_| is_nobody(&e)) {
            Some(client) => attach_mapped(vm, slot, client, io),
            None => Err(e),
        },
    };
    match outcome {
        Ok(()) => {
            if let Some(mut at) = vm.current(slot) {
                at.c.protocol.accepted();
                at.count_opened();
                at.mark_ready();
            }
        }
        // The program's backlog is full (net/unix/af_unix.c, unix_stream_connect).
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
            if first {
                wait_for_answer(vm, slot, io);
                io.timers.dial_again(1);
            }
            return false;
        }
        Err(e) => {
            tracing::debug!("{}: the guest's connection to port {port} is refused: {e}", vm.id.name);
            refuse_asked(vm, slot, &mut io.timers);
        }
    }
    true
}

/// What the guest asked for can't be had.
pub(super) fn refuse_asked(vm: &mut GroupVm, slot: u32, timers: &mut Timers) {
    vm.counters.refused.add(1);
    let Some(mut at) = vm.current(slot) else { return };
    at.c.end = End::Gone;
    reset(&mut at, timers);
}

/// A host program asks for a connection to the guest, and perhaps for a mapped one.
pub(super) fn offer(
    vm: &mut GroupVm,
    kind: Kind,
    port: u32,
    socket: OwnedFd,
    asked: Option<Box<AskedFor>>,
    io: &mut Io,
) {
    if !vm.has_place(HOST_CID) || !vm.is_running() || !vm.takes(kind) {
        vm.counters.refused.add(1);
        return;
    }
    let key = vm.connections.host_port(port);
    let buffer = vm.limits.buffer_bytes;
    let credit = asked.as_ref().map_or(buffer, |asked| asked.options.credit);
    let protocol = Protocol::offered(FromGuest::new(credit), io.timers.now());
    let slot = vm.insert(VsockConnection::new(key, kind, protocol)).slot;
    let end = match asked {
        Some(asked) => End::Mapped(MappedEnd::new(socket, Windowing::Asked(asked))),
        None => host_end(vm, socket),
    };
    if let Err(e) = attach(vm, slot, end, &io.watch) {
        tracing::error!("{}: a host program's socket can't be watched: {e}", vm.id.name);
        vm.counters.refused.add(1);
        return remove(vm, slot);
    }
    io.timers.look_after(ANSWER_PATIENCE);
    vm.mark_ready(slot);
}

/// The guest accepted an offer.
pub(super) fn accepted(vm: &mut GroupVm, slot: u32, io: &Io) -> Fate {
    let Some(mut at) = vm.current(slot) else { return Fate::Stays };
    if let End::Sibling { .. } = at.c.end {
        at.count_opened();
        return Fate::Stays;
    }
    let welcome = match at.c.mapped().and_then(|mapped| mapped.take_asked()) {
        Some(asked) => mapped::welcome(vm, slot, *asked, &io.watch),
        None => match at.welcome() {
            // It reads nothing any more. What it sent behind its line goes to the guest.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                at.count_opened();
                return at.host_refuses(&e, &io.timers);
            }
            welcome => welcome,
        },
    };
    match welcome {
        Ok(()) => {
            if let Some(mut at) = vm.current(slot) {
                at.count_opened();
                at.mark_ready();
            }
            Fate::Stays
        }
        // The program did not wait for the answer.
        Err(_) => Fate::Broken,
    }
}

/// Gives a connection the end at a host program.
pub(super) fn attach(vm: &mut GroupVm, slot: u32, mut end: End, watch: &Watch) -> io::Result<()> {
    let event = Event::Connection { vm: vm.id.index, place: vm.connections.place(slot) };
    if let Some(inlet) = end.inlet() {
        watch.add(&inlet.socket, event)?;
    }
    if let Some(c) = vm.connections.get(slot) {
        c.end = end;
    }
    Ok(())
}

/// The end at a program with this socket.
fn host_end(vm: &GroupVm, socket: OwnedFd) -> End {
    let buffer = vm.limits.buffer_bytes as usize;
    let room = socket::reserve(&socket, buffer.max(SOCKET_BYTES));
    End::Host(HostEnd::new(socket, SocketCredit::new(room, buffer)))
}
