//! Connections begin.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::Switch;
use crate::vsock::connection::{Connection, End, MappedEnd, Windowing};
use crate::vsock::credit::FromGuest;
use crate::vsock::mapped::AskedFor;
use crate::vsock::packet::{HOST_CID, Header, Kind};
use crate::vsock::protocol::{ANSWER_PATIENCE, Protocol};
use crate::vsock::socket;
use crate::vsock::table::Key;

/// How soon a host program whose backlog is full is tried again.
pub(super) const DIAL_AGAIN: Duration = Duration::from_millis(5);

/// Whether a failed connect says that no program serves the path with sockets of this type.
fn is_nobody(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ECONNREFUSED | libc::EPROTOTYPE))
}

impl Switch {
    /// The guest asks for a connection.
    pub(super) fn requested(&mut self, v: usize, h: &Header, kind: Kind) {
        let key = Key { port: h.src_port, peer_cid: h.dst_cid, peer_port: h.dst_port };
        let from = FromGuest::new(self.vms[v].limits.buffer_bytes);
        let protocol = Protocol::asked(from, h.buf_alloc, h.fwd_cnt);
        let Some(protocol) = protocol.filter(|_| self.vms[v].has_place(key.peer_cid)) else {
            return self.turn_down(v, h);
        };
        let mut connection = Connection::new(key, kind, protocol);
        if key.peer_cid != HOST_CID {
            return self.requested_of_sibling(v, h, connection);
        }
        connection.end = End::Dialing;
        let slot = self.vms[v].insert(connection).slot;
        self.dial(v, slot, true);
    }

    /// Nobody takes what the guest asks for.
    pub(super) fn turn_down(&mut self, v: usize, h: &Header) {
        self.vms[v].counters.refused.add(1);
        self.refuse(v, h);
    }

    /// Connects to the host program that serves the port. Returns false where its backlog is full.
    pub(super) fn dial(&mut self, v: usize, slot: u32, first: bool) -> bool {
        let vm = &mut self.vms[v];
        let Some(c) = vm.connections.get(slot) else { return true };
        let (port, kind) = (c.key.peer_port, c.kind);
        let path = vm.doors.path_of(port);
        let outcome = match vm.doors.may_dial(&path).and_then(|()| socket::connect(&path, kind)) {
            Ok(socket) => self.attach(v, slot, self.host_end(v, socket)),
            // Programs at the path come first, also those that are busy. Without one the port is
            // that of a program at `UDS.map`.
            Err(e) => match self.map_client_for(v, port, kind).filter(|_| is_nobody(&e)) {
                Some(client) => self.attach_mapped(v, slot, client),
                None => Err(e),
            },
        };
        let vm = &mut self.vms[v];
        match outcome {
            Ok(()) => {
                if let Some(c) = vm.connections.get(slot) {
                    c.protocol.accepted();
                }
                Self::count_opened(vm, slot);
                vm.mark_ready(slot);
            }
            // The program's backlog is full (net/unix/af_unix.c, unix_stream_connect).
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if first && let Some(c) = vm.connections.get(slot) {
                    c.protocol.wait_for_answer(self.io.timers.now());
                }
                self.io.timers.look_after(DIAL_AGAIN);
                return false;
            }
            Err(e) => {
                tracing::debug!(
                    "{}: the guest's connection to port {port} is refused: {}: {e}",
                    vm.id.name,
                    path.display()
                );
                self.refuse_asked(v, slot);
            }
        }
        true
    }

    /// What the guest asked for can't be had.
    pub(super) fn refuse_asked(&mut self, v: usize, slot: u32) {
        let vm = &mut self.vms[v];
        vm.counters.refused.add(1);
        if let Some(c) = vm.connections.get(slot) {
            c.end = End::Gone;
        }
        self.reset(v, slot);
    }

    /// A host program asks for a connection to the guest.
    pub(super) fn offer(&mut self, v: usize, kind: Kind, port: u32, socket: OwnedFd) {
        self.offer_with(v, kind, port, socket, None);
    }

    /// As [`Self::offer`], for a program that may have asked for a mapped connection.
    pub(super) fn offer_with(
        &mut self,
        v: usize,
        kind: Kind,
        port: u32,
        socket: OwnedFd,
        asked: Option<Box<AskedFor>>,
    ) {
        let vm = &self.vms[v];
        if !vm.has_place(HOST_CID) || !vm.is_running() || !vm.takes(kind) {
            self.vms[v].counters.refused.add(1);
            return;
        }
        let key = self.vms[v].connections.host_port(port);
        let buffer = self.vms[v].limits.buffer_bytes;
        let credit = asked.as_ref().map_or(buffer, |asked| asked.options.credit);
        let protocol = Protocol::offered(FromGuest::new(credit), self.io.timers.now());
        let slot = self.vms[v].insert(Connection::new(key, kind, protocol)).slot;
        let end = match asked {
            Some(asked) => End::Mapped(MappedEnd::new(socket, Windowing::Asked(asked))),
            None => self.host_end(v, socket),
        };
        if let Err(e) = self.attach(v, slot, end) {
            tracing::error!("{}: a host program's socket can't be watched: {e}", self.vms[v].id.name);
            self.vms[v].counters.refused.add(1);
            return self.remove(v, slot);
        }
        self.io.timers.look_after(ANSWER_PATIENCE);
        self.vms[v].mark_ready(slot);
    }

    /// The guest accepted an offer.
    pub(super) fn accepted(&mut self, v: usize, slot: u32) {
        let vm = &mut self.vms[v];
        let Some(c) = vm.connections.get(slot) else { return };
        if let End::Sibling { vm: other, place } = c.end {
            Self::count_opened(vm, slot);
            let other = &mut self.vms[other];
            if let Some(c) = other.connections.at(place) {
                c.protocol.accepted();
                Self::count_opened(other, place.slot);
                other.mark_ready(place.slot);
            }
            return;
        }
        let welcome = match c.mapped().and_then(|mapped| mapped.take_asked()) {
            Some(asked) => self.welcome_mapped(v, slot, *asked),
            None => Self::welcome(vm, slot),
        };
        let vm = &mut self.vms[v];
        match welcome {
            Ok(()) => {
                Self::count_opened(vm, slot);
                vm.mark_ready(slot);
            }
            // The program did not wait for the answer.
            Err(_) => self.abort(v, slot),
        }
    }
}
