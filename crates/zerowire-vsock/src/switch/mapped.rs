//! Mapped receive: windows that are filled, published and taken back.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::net::{AddressFamily, SocketFlags};
use zerowire::ledger::CopyReason;
use zerowire_vhost::memory::ReadOnlyRegion;
use zerowire_wire::mapped::{MAX_REGIONS, MapOptions, MapReply};

use super::connect::attach;
use super::current::Current;
use super::fate::{apply, settle};
use super::to_host::Lendable;
use super::{Event, Io, Rest, Watch};
use crate::connection::{End, MappedEnd, Piece, Windowing};
use crate::credit::FromGuest;
use crate::held::Held;
use crate::loans::Loans;
use crate::mapped::{
    AskedFor, CROWDED, Direct, MapClaim, MapClient, ProgramFiles, Stage, Windows, is_crowded, region_files,
    region_table, send_connection, send_reply,
};
use crate::packet::Kind;
use crate::protocol::{Fate, Shut};
use crate::rings::VmRings;
use crate::socket::socket_type;
use crate::table::SlotKey;
use crate::vm::GroupVm;

/// Windows that their program has not got yet.
struct Made {
    windows: Box<Windows>,
    files: ProgramFiles,
    regions: Vec<ReadOnlyRegion>,
    reply: MapReply,
}

/// Copies payload into the windows of a mapped connection; what they have no room for waits.
pub(super) fn fill_windows(
    at: &mut Current<'_>,
    piece: Piece<'_>,
    loan: &mut Lendable,
    rings: &VmRings,
    loans: &mut Loans,
    io: &mut Io,
) -> Fate {
    let Piece { parts, bytes, end, .. } = piece;
    let counters = &at.counters.transmit;
    let End::Mapped(mapped) = &mut at.c.end else { return Fate::Stays };
    let Windowing::Live(windows) = &mut mapped.windows else { return Fate::Stays };
    let may_lend = loans.may_lend(loan.chain, rings.transmit_size());
    if windows.direct.is_some() && mapped.held.is_none() && may_lend && {
        let now = *loan.at.get_or_insert_with(|| io.timers.now());
        windows.lend(&rings.memory, parts, loan.chain, end, now)
    } {
        loans.lend(loan.chain);
        loan.lent = true;
        at.lists.lenders.push(at.place.slot);
        counters.zero_copied_frames.add(1);
        counters.zero_copied_bytes.add(bytes as u64);
        at.c.protocol.from.forward(bytes as u32);
        at.lists.filled.push(at.place.slot);
        return at.tell_credit(&io.watch);
    }
    let reason = if windows.direct.is_some() { CopyReason::Held } else { CopyReason::Window };
    let done = if mapped.held.is_none() { windows.push(parts, 0, bytes, end) } else { 0 };
    if windows.has_lost_end() {
        return Fate::Broken;
    }
    counters.copied(reason, done as u64);
    mapped.credit.took(done);
    let rest = bytes - done;
    let waits = rest > 0 || (bytes == 0 && mapped.held.is_some());
    if waits {
        let held = Held::at(&mut mapped.held);
        held.push(parts, done, rest);
        if at.c.kind == Kind::SeqPacket {
            held.mark(rest as u32, end);
        }
        counters.copied(CopyReason::Held, rest as u64);
    }
    let flushed = if waits { at.flush_held(io) } else { Fate::Stays };
    at.lists.filled.push(at.place.slot);
    flushed.or(at.tell_credit(&io.watch))
}

/// At the end of a turn: publishes what is due.
pub(super) fn settle_windows(vm: &mut GroupVm) {
    while let Some(slot) = vm.lists.filled.pop() {
        if let Some(windows) = vm.connections.get(slot).and_then(|c| c.windows()) {
            while windows.settle() {}
            windows.tell();
            if windows.keeps_back() {
                vm.lists.quiet.push(slot);
            }
        }
    }
}

/// A program released a window, and this side had asked to hear of it.
pub(super) fn released(vm: &mut GroupVm, place: SlotKey, rest: &mut Rest<'_>) {
    let Some(mut at) = vm.current_at(place) else { return };
    if let Some(windows) = at.c.windows() {
        windows.told_of_release();
        if windows.are_read_no_more() && at.c.program_reads_no_more() {
            at.mark_ready();
        }
    }
    let flushed = at.flush_held(rest.io);
    at.lists.filled.push(place.slot);
    apply(vm, place.slot, flushed, rest);
    settle_windows(vm);
    settle(vm, place.slot, rest);
    let Some(mut at) = vm.current_at(place) else { return };
    let fate = at.tell_credit(&rest.io.watch);
    apply(vm, place.slot, fate, rest);
}

/// Takes chains back whose windows were released. Returns whether there were any.
pub(super) fn reclaim(vm: &mut GroupVm, rest: &mut Rest<'_>) -> bool {
    if !vm.loans.any() {
        return false;
    }
    let mut back = std::mem::take(&mut rest.io.scratch.back);
    let mut any = false;
    for _ in 0..vm.lists.lenders.len() {
        let Some(slot) = vm.lists.lenders.pop() else { break };
        let windows = vm.connections.get(slot).and_then(|c| c.windows());
        let lends = windows.is_some_and(|w| {
            w.take_back(&mut back);
            w.lends()
        });
        any |= !back.is_empty();
        vm.rings.give_back(&mut vm.loans, &mut back);
        if lends {
            vm.lists.lenders.push(slot);
        } else {
            settle(vm, slot, rest);
        }
    }
    rest.io.scratch.back = back;
    any
}

/// All chains go back at once: the ring stops.
pub(crate) fn take_back_all(vm: &mut GroupVm) {
    while let Some(slot) = vm.lists.lenders.pop() {
        let windows = vm.connections.get(slot).and_then(|c| c.windows());
        let mut chains = Vec::new();
        if let Some(direct) = windows.and_then(|w| w.direct.as_mut()) {
            direct.take_all(&mut chains);
        }
        vm.rings.give_back(&mut vm.loans, &mut chains);
    }
}

/// Before sleeping: asks programs that hold chains to say when they release them. Those that are
/// not `impatient`, and leave the guest most of its ring, say it when they have released all.
/// Returns whether some are back.
pub(crate) fn wait_for_chains(vm: &mut GroupVm, impatient: bool) -> bool {
    let many = vm.rings.tx.is_some() && vm.loans.are_many(vm.rings.transmit_size());
    let mut back = false;
    for slot in vm.lists.lenders.iter() {
        let windows = vm.connections.get(slot).and_then(|c| c.windows());
        back |= windows.is_some_and(|w| w.wait_for_chains(many || impatient));
    }
    back
}

/// The guest accepted: the program gets its windows.
pub(super) fn welcome(vm: &mut GroupVm, slot: u32, mut asked: AskedFor, watch: &Watch) -> io::Result<()> {
    let (Some(control), Some(theirs), Some(claim)) =
        (asked.control.take(), asked.theirs.take(), asked.claim.take())
    else {
        return Ok(());
    };
    let made = make_windows(vm, slot, asked.options, claim, watch).inspect_err(|e| {
        let text =
            format!("windows can't be had: {e}; see 'ulimit -n' and the memory limit of zerowire vsock");
        let _ = send_reply(&control, &MapReply::error(libc::ENOMEM as u16, text), &[]);
    })?;
    made.hand_over(vm, slot, &control, &theirs, watch).inspect_err(|e| {
        if is_crowded(e) {
            vm.counters.refused.add(1);
            vm.refuse_map(CROWDED, Instant::now());
            let text = "too many descriptors are under way in sockets ('ulimit -n'): connect again";
            let _ = send_reply(&control, &MapReply::error(libc::EAGAIN as u16, text), &[]);
            return;
        }
        vm.counters.bad_handshakes.add(1);
        tracing::debug!("{}: a program did not wait for its mapped connection: {e}", vm.id.name);
    })
}

/// A program that listens could not be given a connection: it listens no more.
fn lost_listener(vm: &mut GroupVm, client: usize, e: &io::Error) {
    if let Some(MapClient { stage: Stage::Listening { port, .. }, .. }) = vm.doors.map_clients[client].take()
    {
        vm.counters.bad_handshakes.add(1);
        tracing::warn!(
            "{}: the program with mapped receive on port {port} does not take its connections: {e}; it listens no more",
            vm.id.name
        );
    }
}

/// The program of a mapped connection has closed it: what it holds goes back, and nothing is filled
/// any more.
pub(super) fn program_left(vm: &mut GroupVm, slot: u32, rest: &mut Rest<'_>) {
    let Some(c) = vm.connections.get(slot) else { return };
    let Some(mapped) = c.mapped() else { return };
    let Some(mut windows) = mapped.take_windows() else { return };
    mapped.held = None;
    // It may have shut both directions and still read what was published.
    windows.end();
    c.protocol.far_ends(Shut::RECEIVE);
    let_go(&mut vm.rings, &mut vm.loans, windows, &rest.io.watch);
    settle(vm, slot, rest);
}

/// Windows go: no more news of them, for the program may hold their descriptor open for longer, and
/// the guest has its chains again.
pub(super) fn let_go(rings: &mut VmRings, loans: &mut Loans, mut windows: Box<Windows>, watch: &Watch) {
    watch.forget(&windows.released);
    let mut chains = Vec::new();
    if let Some(direct) = &mut windows.direct {
        direct.take_all(&mut chains);
    }
    rings.give_back(loans, &mut chains);
}

/// Makes windows for a connection.
fn make_windows(
    vm: &mut GroupVm,
    slot: u32,
    options: MapOptions,
    claim: MapClaim,
    watch: &Watch,
) -> io::Result<Made> {
    let Some((at, rings, _)) = vm.parts(slot) else { return Err(io::ErrorKind::NotFound.into()) };
    let (mut windows, files) = Windows::new(options, at.c.kind)?;
    windows.claim = Some(claim);
    let mut regions = if options.direct { rings.memory.read_only()? } else { Vec::new() };
    // A message has room for `MAX_REGIONS` descriptors. Payload that lies elsewhere is copied.
    regions.sort_unstable_by_key(|r| std::cmp::Reverse(r.len));
    regions.truncate(MAX_REGIONS);
    watch.add(&windows.released, Event::Released { vm: at.id.index, place: at.place })?;
    let reply = MapReply {
        status: 0,
        host_port: at.c.key.peer_port,
        guest_port: at.c.key.port,
        options,
        regions: regions.len() as u16,
        text: String::new(),
    };
    if options.direct {
        let direct = Direct::new(&regions, options.windows, vm.doors.map_policy.hold);
        windows.direct = Some(direct);
    }
    Ok(Made { windows: Box::new(windows), files, regions, reply })
}

impl Made {
    /// Hands windows over to their program. Errors are those of [`send_connection`].
    fn hand_over(
        self,
        vm: &mut GroupVm,
        slot: u32,
        control: &OwnedFd,
        theirs: &OwnedFd,
        watch: &Watch,
    ) -> io::Result<()> {
        let Self { windows, files, regions, reply } = self;
        let mut descriptors = vec![
            files.headers.as_fd(),
            files.data.as_fd(),
            files.ready.as_fd(),
            files.released.as_fd(),
            theirs.as_fd(),
        ];
        descriptors.extend(region_files(&regions).map(AsFd::as_fd));
        if let Err(e) = send_connection(control, &reply, &descriptors, &region_table(&regions)) {
            watch.forget(&windows.released);
            return Err(e);
        }
        if let Some(mapped) = vm.connections.get(slot).and_then(|c| c.mapped()) {
            mapped.windows = Windowing::Live(windows);
        }
        Ok(())
    }
}

/// This side's socket, to which the program can't send descriptors, and the program's.
pub(super) fn pair(kind: Kind) -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = socket_type(kind);
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    zerowire_sys::socket::refuse_descriptors(&ours)?;
    let flags = rustix::fs::fcntl_getfl(&ours)?;
    rustix::fs::fcntl_setfl(&ours, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok((ours, theirs))
}

/// The guest connects to a port whose program takes payload in windows.
pub(super) fn attach_mapped(vm: &mut GroupVm, slot: u32, client: usize, io: &Io) -> io::Result<()> {
    let Some(MapClient { socket, stage: Stage::Listening { kind, options, .. }, .. }) =
        vm.doors.map_clients.get(client).and_then(Option::as_ref)
    else {
        return Err(io::ErrorKind::ConnectionRefused.into());
    };
    let (kind, options, control) = (*kind, *options, socket.try_clone()?);
    let claim = vm.claim_map(&options).map_err(|text| {
        vm.refuse_map(&text, io.timers.now());
        io::Error::other(text)
    })?;
    let (ours, theirs) = pair(kind)?;
    attach(vm, slot, End::Mapped(MappedEnd::new(ours, Windowing::Without)), &io.watch)?;
    if let Some(c) = vm.connections.get(slot) {
        c.protocol.from = FromGuest::new(options.credit);
    }
    let given = match make_windows(vm, slot, options, claim, &io.watch) {
        Ok(made) => made.hand_over(vm, slot, &control, &theirs, &io.watch).map_err(|e| {
            // A program that does not take its connections fills its control socket: tried again,
            // as a full backlog is.
            if is_crowded(&e) {
                vm.delay_map(CROWDED, io.timers.now());
                return io::ErrorKind::WouldBlock.into();
            }
            if e.kind() != io::ErrorKind::WouldBlock {
                lost_listener(vm, client, &e);
            }
            e
        }),
        Err(e) => {
            vm.refuse_map(&format!("windows can't be had: {e}; see 'ulimit -n'"), io.timers.now());
            Err(io::Error::other(e))
        }
    };
    if given.is_err()
        && let Some(c) = vm.connections.get(slot)
    {
        c.end = End::Dialing;
    }
    given
}
