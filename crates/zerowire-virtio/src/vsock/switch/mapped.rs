//! Mapped receive: windows that are filled, published and taken back.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use zerowire::ledger::CopyReason;
use zerowire_wire::mapped::{MAX_REGIONS, MapOptions, MapReply};

use super::to_host::Lendable;
use super::{Event, Switch};
use crate::memory::ReadOnlyRegion;
use crate::vsock::connection::{End, MappedEnd, Piece, Windowing};
use crate::vsock::credit::FromGuest;
use crate::vsock::held::Held;
use crate::vsock::mapped::{
    AskedFor, Direct, Lent, MapClaim, MapClient, ProgramFiles, Stage, Windows, region_files, region_table,
    send_connection, send_reply,
};
use crate::vsock::packet::Kind;
use crate::vsock::protocol::Shut;
use crate::vsock::table::Place;

/// Windows that their program has not got yet.
struct Made {
    windows: Box<Windows>,
    files: ProgramFiles,
    regions: Vec<ReadOnlyRegion>,
    reply: MapReply,
}

impl Switch {
    /// Copies payload into the windows of a mapped connection; what they have no room for waits.
    pub(super) fn fill_windows(&mut self, v: usize, slot: u32, piece: Piece<'_>, loan: &mut Lendable) {
        let Piece { parts, bytes, end, .. } = piece;
        let vm = &mut self.vms[v];
        let Some(c) = vm.connections.get(slot) else { return };
        let kind = c.kind;
        let End::Mapped(mapped) = &mut c.end else { return };
        let Windowing::Live(windows) = &mut mapped.windows else { return };
        let size = vm.rings.transmit_size();
        let may_lend = vm.loans.may_lend(loan.chain, size);
        if windows.is_direct() && mapped.held.is_none() && may_lend && {
            let now = *loan.at.get_or_insert_with(|| self.io.timers.now());
            windows.lend(&vm.rings.memory, parts, loan.chain, end, now)
        } {
            vm.loans.lend(loan.chain);
            loan.lent = true;
            vm.lists.lenders.push(slot);
            vm.counters.transmit.zero_copied_frames.add(1);
            vm.counters.transmit.zero_copied_bytes.add(bytes as u64);
            c.protocol.from.forward(bytes as u32);
            vm.lists.filled.push(slot);
            return self.tell_credit(v, slot);
        }
        let reason = if windows.is_direct() { CopyReason::Held } else { CopyReason::Window };
        let done = if mapped.held.is_none() { windows.push(parts, 0, bytes, end) } else { 0 };
        if windows.has_lost_end() {
            return self.abort(v, slot);
        }
        vm.counters.transmit.copied(reason, done as u64);
        mapped.credit.took(done);
        let rest = bytes - done;
        if rest > 0 || (bytes == 0 && mapped.held.is_some()) {
            let held = Held::at(&mut mapped.held);
            held.push(parts, done, rest);
            if kind == Kind::SeqPacket {
                held.mark(rest as u32, end);
            }
            vm.counters.transmit.copied(CopyReason::Held, rest as u64);
            self.flush_windows(v, slot);
        }
        self.vms[v].lists.filled.push(slot);
        self.tell_credit(v, slot);
    }

    /// Copies what waits into the windows, as far as there is room.
    pub(super) fn flush_windows(&mut self, v: usize, slot: u32) {
        let Some(c) = self.connection(v, slot) else { return };
        let kind = c.kind;
        let End::Mapped(mapped) = &mut c.end else { return };
        let (Some(held), Some(windows)) = (&mut mapped.held, mapped.windows.live()) else { return };
        let mut took = 0;
        while !held.is_empty() {
            let (n, end) = match kind {
                Kind::Stream => (held.len(), None),
                Kind::SeqPacket => match held.message() {
                    Some((n, flags)) => (n as usize, Some(flags)),
                    None => break,
                },
            };
            let done = windows.push_held(held, n, end);
            held.consume(done);
            took += done;
            if done < n && !windows.wait_for_room() {
                break;
            }
        }
        windows.tell();
        Held::settle(&mut mapped.held);
        mapped.credit.took(took);
        self.settle(v, slot);
    }

    /// At the end of a turn: publishes what is due.
    pub(super) fn settle_windows(&mut self, v: usize) {
        while let Some(slot) = self.vms[v].lists.filled.pop() {
            if let Some(windows) = self.connection(v, slot).and_then(|c| c.windows()) {
                while windows.settle() {}
                windows.tell();
                if windows.keeps_back() {
                    self.vms[v].mark_quiet(slot);
                }
            }
        }
    }

    /// A program released a window, and this side had asked to hear of it.
    pub fn released(&mut self, v: usize, place: Place) {
        let slot = place.slot;
        let Some(c) = self.vms[v].connections.at(place) else { return };
        if let Some(windows) = c.windows() {
            windows.told_of_release();
            if windows.are_read_no_more() {
                self.program_reads_no_more(v, slot);
            }
        }
        self.flush_windows(v, slot);
        self.vms[v].lists.filled.push(slot);
        self.settle_windows(v);
        self.settle(v, slot);
        self.tell_credit(v, slot);
    }

    /// Gives the guest its chains back, and leaves the list empty.
    fn give_back(&mut self, v: usize, chains: &mut Vec<Lent>) {
        let vm = &mut self.vms[v];
        for chain in chains.drain(..) {
            vm.loans.end(chain);
            match vm.rings.tx.as_mut() {
                Some(tx) if tx.is_sound() => tx.ring.push_used(chain.head, 0),
                // Its memory is gone for the moment.
                Some(tx) if tx.is_unmapped() => vm.loans.owed.push(chain.head),
                _ => {}
            }
        }
    }

    /// Takes chains back whose windows were released. Returns whether there were any.
    pub fn reclaim(&mut self, v: usize) -> bool {
        if !self.vms[v].loans.any() {
            return false;
        }
        let mut back = std::mem::take(&mut self.io.scratch.back);
        let mut any = false;
        for _ in 0..self.vms[v].lists.lenders.len() {
            let Some(slot) = self.vms[v].lists.lenders.pop() else { break };
            let windows = self.connection(v, slot).and_then(|c| c.windows());
            let lends = windows.is_some_and(|w| {
                w.take_back(&mut back);
                w.lends()
            });
            any |= !back.is_empty();
            self.give_back(v, &mut back);
            if lends {
                self.vms[v].lists.lenders.push(slot);
            } else {
                self.settle(v, slot);
            }
        }
        self.io.scratch.back = back;
        any
    }

    /// All chains go back at once: the ring stops.
    pub fn take_back_all(&mut self, v: usize) {
        while let Some(slot) = self.vms[v].lists.lenders.pop() {
            let windows = self.connection(v, slot).and_then(|c| c.windows());
            let mut chains = Vec::new();
            if let Some(direct) = windows.and_then(|w| w.direct()) {
                direct.take_all(&mut chains);
            }
            self.give_back(v, &mut chains);
        }
    }

    /// Before sleeping: asks programs that hold chains to say when they release them. Those that are not `impatient`, and
    /// leave the guest most of its ring, say it when they have released all. Returns whether some are back.
    pub fn wait_for_chains(&mut self, v: usize, impatient: bool) -> bool {
        let vm = &mut self.vms[v];
        let many = vm.rings.tx.is_some() && vm.loans.are_many(vm.rings.transmit_size());
        let mut back = false;
        for slot in vm.lists.lenders.iter() {
            let windows = vm.connections.get(slot).and_then(|c| c.windows());
            back |= windows.is_some_and(|w| w.wait_for_chains(many || impatient));
        }
        back
    }

    /// The guest accepted: the program gets its windows.
    pub(super) fn welcome_mapped(&mut self, v: usize, slot: u32, mut asked: AskedFor) -> io::Result<()> {
        let (Some(control), Some(theirs), Some(claim)) =
            (asked.control.take(), asked.theirs.take(), asked.claim.take())
        else {
            return Ok(());
        };
        let made = self.make_windows(v, slot, asked.options, claim).inspect_err(|e| {
            let text =
                format!("windows can't be had: {e}; see 'ulimit -n' and the memory limit of zerowire vsock");
            let _ = send_reply(&control, &MapReply::error(libc::ENOMEM as u16, text), &[]);
        })?;
        self.hand_over(v, slot, made, &control, &theirs).inspect_err(|e| {
            let vm = &self.vms[v];
            vm.counters.bad_handshakes.add(1);
            tracing::debug!("{}: a program did not wait for its mapped connection: {e}", vm.id.name);
        })
    }

    /// A program that listens could not be given a connection: it listens no more.
    fn lost_listener(&mut self, v: usize, client: usize, e: &io::Error) {
        let vm = &mut self.vms[v];
        if let Some(MapClient { stage: Stage::Listening { port, .. }, .. }) =
            vm.doors.map_clients[client].take()
        {
            vm.counters.bad_handshakes.add(1);
            tracing::warn!(
                "{}: the program with mapped receive on port {port} does not take its connections: {e}; it listens no more",
                vm.id.name
            );
        }
    }

    /// The program of a mapped connection has ended its receiving. What it has not got goes; the
    /// windows that it has stay its own, and the end is marked behind them.
    fn program_reads_no_more(&mut self, v: usize, slot: u32) {
        let Some(c) = self.connection(v, slot) else { return };
        if c.protocol.far().receives_no_more() {
            return;
        }
        c.protocol.far_ends(Shut::RECEIVE);
        c.drop_held_for_program();
        if let Some(windows) = c.windows() {
            windows.end();
        }
        self.vms[v].mark_ready(slot);
    }

    /// The program of a mapped connection has closed it: what it holds goes back, and nothing is filled any more.
    pub(super) fn program_left(&mut self, v: usize, slot: u32) {
        let Some(c) = self.connection(v, slot) else { return };
        let Some(mapped) = c.mapped() else { return };
        let Some(mut windows) = mapped.take_windows() else { return };
        mapped.held = None;
        // It may have shut both directions and still read what was published.
        windows.end();
        c.protocol.far_ends(Shut::RECEIVE);
        self.let_go(v, windows);
        self.settle(v, slot);
    }

    /// Windows go: no more news of them, and the guest has its chains again.
    pub(super) fn let_go(&mut self, v: usize, mut windows: Box<Windows>) {
        self.forget_released(&windows.released);
        let mut chains = Vec::new();
        if let Some(direct) = windows.direct() {
            direct.take_all(&mut chains);
        }
        self.give_back(v, &mut chains);
    }

    /// Makes windows for a connection.
    fn make_windows(
        &mut self,
        v: usize,
        slot: u32,
        options: MapOptions,
        claim: MapClaim,
    ) -> io::Result<Made> {
        let vm = &mut self.vms[v];
        let place = vm.connections.place(slot);
        let Some(c) = vm.connections.get(slot) else { return Err(io::ErrorKind::NotFound.into()) };
        let (mut windows, files) = Windows::new(options, c.kind)?;
        windows.set_claim(claim);
        let mut regions = if options.direct { vm.rings.memory.read_only()? } else { Vec::new() };
        // A message has room for so many descriptors. Payload that lies elsewhere is copied.
        regions.sort_by_key(|r| std::cmp::Reverse(r.len));
        regions.truncate(MAX_REGIONS);
        if options.direct {
            windows.set_direct(Direct::new(&regions, options.windows, vm.doors.map_policy.hold));
        }
        self.io.watch.add(&windows.released, Event::Released { vm: v, place })?;
        let reply = MapReply {
            status: 0,
            host_port: c.key.peer_port,
            guest_port: c.key.port,
            options,
            regions: regions.len() as u16,
            text: String::new(),
        };
        Ok(Made { windows: Box::new(windows), files, regions, reply })
    }

    /// Hands windows over to their program. WouldBlock is an error before it was told anything.
    fn hand_over(
        &mut self,
        v: usize,
        slot: u32,
        made: Made,
        control: &OwnedFd,
        theirs: &OwnedFd,
    ) -> io::Result<()> {
        let Made { windows, files, regions, reply } = made;
        let mut descriptors = vec![
            files.headers.as_fd(),
            files.data.as_fd(),
            files.ready.as_fd(),
            files.released.as_fd(),
            theirs.as_fd(),
        ];
        descriptors.extend(region_files(&regions).map(AsFd::as_fd));
        if let Err(e) = send_connection(control, &reply, &descriptors, &region_table(&regions)) {
            self.forget_released(&windows.released);
            return Err(e);
        }
        if let Some(mapped) = self.connection(v, slot).and_then(|c| c.mapped()) {
            mapped.windows = Windowing::Live(windows);
        }
        Ok(())
    }

    /// No more news of a connection's releases: the program may hold the descriptor open for longer.
    fn forget_released(&self, released: &OwnedFd) {
        self.io.watch.forget(released);
    }

    pub(super) fn pair(kind: Kind) -> io::Result<(OwnedFd, OwnedFd)> {
        let kind = match kind {
            Kind::Stream => SocketType::STREAM,
            Kind::SeqPacket => SocketType::SEQPACKET,
        };
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        let flags = rustix::fs::fcntl_getfl(&ours)?;
        rustix::fs::fcntl_setfl(&ours, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok((ours, theirs))
    }

    /// The guest connects to a port whose program takes payload in windows.
    pub(super) fn attach_mapped(&mut self, v: usize, slot: u32, client: usize) -> io::Result<()> {
        let Some(MapClient { socket, stage: Stage::Listening { kind, options, .. }, .. }) =
            self.vms[v].doors.map_clients.get(client).and_then(Option::as_ref)
        else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let (kind, options, control) = (*kind, *options, socket.try_clone()?);
        let claim = self.vms[v].claim_map(&options).map_err(|text| {
            let now = self.io.timers.now();
            self.vms[v].refuse_map(&text, now);
            io::Error::other(text)
        })?;
        let (ours, theirs) = Self::pair(kind)?;
        self.attach(v, slot, End::Mapped(MappedEnd::new(ours, Windowing::Without)))?;
        if let Some(c) = self.connection(v, slot) {
            c.protocol.from = FromGuest::new(options.credit);
        }
        let given = match self.make_windows(v, slot, options, claim) {
            Ok(made) => self.hand_over(v, slot, made, &control, &theirs).inspect_err(|e| {
                // A program that does not take its connections fills its control socket: tried again, as a full backlog is.
                if e.kind() != io::ErrorKind::WouldBlock {
                    self.lost_listener(v, client, e);
                }
            }),
            Err(e) => {
                let now = self.io.timers.now();
                self.vms[v].refuse_map(&format!("windows can't be had: {e}; see 'ulimit -n'"), now);
                Err(io::Error::other(e))
            }
        };
        if given.is_err()
            && let Some(c) = self.connection(v, slot)
        {
            c.end = End::Dialing;
        }
        given
    }
}
