//! Mapped receive: programs that ask for it, and windows that are filled, published and taken back.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use zerowire::ledger::CopyReason;
use zerowire::recv::layout::{MapOp, MapOptions, Reply, Request};

use super::host::MAX_ACCEPTS;
use super::{ANSWER_PATIENCE, Event, Switch, watch};
use crate::memory::Segment;
use crate::vsock::credit::Incoming;
use crate::vsock::held::Held;
use crate::vsock::mapped::{
    AskedFor, Direct, MapClient, Stage, Windows, receive_request, region_files, region_table, send_bytes,
    send_reply,
};
use crate::vsock::packet::{Kind, SHUT_RECEIVE};
use crate::vsock::table::{End, Place};
use crate::vsock::vm::MAX_HANDSHAKES;

/// Programs that listen for mapped connections, and those that are about to ask, of a VM.
const MAX_CLIENTS: usize = 2 * MAX_HANDSHAKES;

/// The most credit that a program may ask for, bytes.
const MAX_CREDIT: u32 = 16 << 20;

impl Switch {
    /// Copies payload into the windows of a mapped connection; what they have no room for waits.
    pub(super) fn fill_windows(
        &mut self,
        v: usize,
        slot: u32,
        parts: &[Segment],
        bytes: usize,
        end: Option<u32>,
    ) {
        let vm = &mut self.vms[v];
        let Some(c) = vm.connections.get(slot) else { return };
        let kind = c.kind;
        let End::Host(host) = &mut c.end else { return };
        let Some(windows) = &mut host.windows else { return };
        // At most half of the ring is lent.
        let most = vm.tx.as_ref().map_or(0, |t| usize::from(t.ring.size()) / 2);
        if windows.is_direct()
            && host.held.is_none()
            && vm.lent < most
            && windows.lend(&vm.memory, parts, self.head, end)
        {
            vm.lent += 1;
            self.lent.push(self.head);
            if !vm.lenders.contains(&slot) {
                vm.lenders.push(slot);
            }
            vm.counters.transmit.zero_copied_frames.add(1);
            vm.counters.transmit.zero_copied_bytes.add(bytes as u64);
            c.incoming.forward(bytes as u32);
            self.filled.push(slot);
            return self.tell_credit(v, slot);
        }
        let reason = if windows.is_direct() { CopyReason::Held } else { CopyReason::Window };
        let done = if host.held.is_none() { windows.push(parts, 0, bytes, end) } else { 0 };
        if windows.has_lost_end() {
            return self.abort(v, slot);
        }
        vm.counters.transmit.copied(reason, done as u64);
        host.in_socket += done as u32;
        let rest = bytes - done;
        if rest > 0 || (bytes == 0 && host.held.is_some()) {
            let held = host.held.get_or_insert_with(|| Box::new(Held::default()));
            held.push(parts, done, rest);
            if kind == Kind::SeqPacket {
                held.mark(rest as u32, end);
            }
            vm.counters.transmit.copied(CopyReason::Held, rest as u64);
            self.flush_windows(v, slot);
        }
        if self.filled.last() != Some(&slot) {
            self.filled.push(slot);
        }
        self.tell_credit(v, slot);
    }

    /// Copies what waits into the windows, as far as there is room.
    pub(super) fn flush_windows(&mut self, v: usize, slot: u32) {
        let Some(c) = self.connection(v, slot) else { return };
        let kind = c.kind;
        let End::Host(host) = &mut c.end else { return };
        let (Some(held), Some(windows)) = (&mut host.held, &mut host.windows) else { return };
        while !held.is_empty() {
            let (n, end) = match kind {
                Kind::Stream => (held.len(), None),
                Kind::SeqPacket => match held.message() {
                    Some((n, flags)) => (n as usize, Some(flags)),
                    None => break,
                },
            };
            let (a, b) = held.first(n);
            let mut done = windows.push_bytes(a, if b.is_empty() { end } else { None });
            if done == a.len() && !b.is_empty() {
                done += windows.push_bytes(b, end);
            }
            held.consume(done);
            host.in_socket += done as u32;
            if done < n && !windows.wait_for_room() {
                break;
            }
        }
        if held.is_empty() {
            host.held = None;
        }
        self.settle(v, slot);
    }

    /// At the end of a turn: publishes what is due.
    pub(super) fn settle_windows(&mut self, v: usize) {
        while let Some(slot) = self.filled.pop() {
            if let Some(windows) = self.connection(v, slot).and_then(|c| c.host()?.windows.as_mut()) {
                while windows.settle() {}
            }
        }
    }

    /// A program released a window, and this side had asked to hear of it.
    pub fn released(&mut self, v: usize, place: Place) {
        let slot = place.slot;
        if self.vms[v].connections.at(place).is_none() {
            return;
        }
        self.flush_windows(v, slot);
        self.filled.push(slot);
        self.settle_windows(v);
        self.settle(v, slot);
        self.tell_credit(v, slot);
    }

    /// Gives the guest its chains back.
    fn give_back(&mut self, v: usize, heads: &[u16]) {
        if heads.is_empty() {
            return;
        }
        let vm = &mut self.vms[v];
        vm.lent = vm.lent.saturating_sub(heads.len());
        match vm.tx.as_mut() {
            Some(tx) if !tx.broken => heads.iter().for_each(|head| tx.ring.push_used(*head, 0)),
            // Its memory is gone for the moment.
            Some(tx) if tx.unmapped => vm.owed.extend(heads),
            _ => {}
        }
    }

    /// Takes chains back whose windows were released. Returns whether there were any.
    pub fn reclaim(&mut self, v: usize) -> bool {
        if self.vms[v].lent == 0 {
            return false;
        }
        let mut heads = Vec::new();
        let lenders = std::mem::take(&mut self.vms[v].lenders);
        for slot in &lenders {
            let windows = self.connection(v, *slot).and_then(|c| c.host()?.windows.as_mut());
            let Some(windows) = windows else { continue };
            windows.take_back(&mut heads);
            if windows.lends() {
                self.vms[v].lenders.push(*slot);
            }
        }
        self.give_back(v, &heads);
        for slot in lenders {
            if !self.vms[v].lenders.contains(&slot) {
                self.settle(v, slot);
            }
        }
        !heads.is_empty()
    }

    /// All chains go back at once: the ring stops.
    pub fn take_back_all(&mut self, v: usize) {
        let mut heads = Vec::new();
        for slot in std::mem::take(&mut self.vms[v].lenders) {
            let windows = self.connection(v, slot).and_then(|c| c.host()?.windows.as_mut());
            if let Some(direct) = windows.and_then(|w| w.direct()) {
                direct.take_all(&mut heads);
            }
        }
        self.give_back(v, &heads);
    }

    /// Before sleeping: asks programs that hold chains to say when they release them. Returns whether some are back.
    pub fn wait_for_chains(&mut self, v: usize) -> bool {
        let lenders = std::mem::take(&mut self.vms[v].lenders);
        let mut back = false;
        for slot in &lenders {
            let windows = self.connection(v, *slot).and_then(|c| c.host()?.windows.as_ref());
            back |= windows.is_some_and(|w| w.wait_for_chains());
        }
        self.vms[v].lenders = lenders;
        back
    }

    /// Programs connect to the control socket.
    pub fn accept_map(&mut self, v: usize) {
        for _ in 0..MAX_ACCEPTS {
            let vm = &mut self.vms[v];
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match rustix::net::accept_with(&vm.map_listening.socket, flags) {
                Ok(socket) => self.greet_map(v, socket),
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
                Err(e) => {
                    tracing::error!("{}: accept failed: {e}; see 'ulimit -n'", vm.name);
                    self.look_at_deadlines(std::time::Duration::from_secs(1));
                    return;
                }
            }
        }
        self.look_at_deadlines(std::time::Duration::ZERO);
    }

    fn greet_map(&mut self, v: usize, socket: OwnedFd) {
        let vm = &mut self.vms[v];
        let user = rustix::net::sockopt::socket_peercred(&socket).map(|c| c.uid.as_raw());
        let own = rustix::process::geteuid().as_raw();
        let allowed = user.is_ok_and(|u| u == 0 || u == own || vm.map_policy.allow.contains(&u));
        if !allowed {
            let user = user.map_or_else(|e| e.to_string(), |u| u.to_string());
            let text = format!(
                "user {user} may not map receive buffers: start zerowire vsock with --map-allow {user}"
            );
            let _ = send_reply(&socket, &Reply::error(libc::EPERM as u16, text), &[]);
            vm.counters.bad_handshakes.add(1);
            return;
        }
        let i = match vm.map_clients.iter().position(Option::is_none) {
            Some(i) => i,
            None if vm.map_clients.len() < MAX_CLIENTS => {
                vm.map_clients.push(None);
                vm.map_clients.len() - 1
            }
            None => {
                let text = format!("{MAX_CLIENTS} programs listen or are about to ask: try again later");
                let _ = send_reply(&socket, &Reply::error(libc::EAGAIN as u16, text), &[]);
                vm.counters.bad_handshakes.add(1);
                return;
            }
        };
        vm.tenants = (vm.tenants + 1) & 0xff_ffff;
        let place = Place { slot: i as u32, tenant: vm.tenants };
        if watch(&self.epoll, &socket, Event::MapClient { vm: v, place }).is_err() {
            return;
        }
        let stage = Stage::Asking { deadline: Instant::now() + ANSWER_PATIENCE };
        vm.map_clients[i] = Some(MapClient { socket, stage, tenant: place.tenant });
        self.look_at_deadlines(ANSWER_PATIENCE);
        self.map_client(v, place);
    }

    /// A program at the control socket has said something, or hung up.
    pub fn map_client(&mut self, v: usize, place: Place) {
        let vm = &mut self.vms[v];
        let Some(entry) = vm.map_clients.get_mut(place.slot as usize) else { return };
        let Some(client) = entry.as_ref().filter(|c| c.tenant == place.tenant) else { return };
        let request = match receive_request(&client.socket) {
            Ok(None) => return,
            Ok(Some(r)) if matches!(client.stage, Stage::Asking { .. }) => self.check_request(v, r),
            Ok(Some(_)) => Err((libc::EINVAL, "a second request on one socket: open another one".to_owned())),
            Err(text) => Err((libc::EINVAL, text)),
        };
        let vm = &mut self.vms[v];
        let Some(client) = vm.map_clients[place.slot as usize].take() else { return };
        match request {
            Ok(r) if r.op == MapOp::Connect => {
                let _ = rustix::event::epoll::delete(&self.epoll, &client.socket);
                self.offer_mapped(v, r, client.socket);
            }
            Ok(r) => {
                let kind = Kind::new(r.kind).unwrap_or(Kind::Stream);
                let agreed = Reply {
                    status: 0,
                    host_port: r.port,
                    guest_port: 0,
                    options: r.options,
                    regions: 0,
                    text: String::new(),
                };
                if send_reply(&client.socket, &agreed, &[]).is_ok() {
                    let stage = Stage::Listening { port: r.port, kind, options: r.options };
                    vm.map_clients[place.slot as usize] = Some(MapClient { stage, ..client });
                }
            }
            Err((errno, text)) => {
                // Whoever has left is not answered.
                if !text.is_empty() {
                    vm.counters.bad_handshakes.add(1);
                    let _ = send_reply(&client.socket, &Reply::error(errno as u16, text), &[]);
                }
            }
        }
    }

    /// Whether a request can be granted, with what is granted.
    fn check_request(&self, v: usize, mut r: Request) -> Result<Request, (i32, String)> {
        let vm = &self.vms[v];
        let most = vm.map_policy.max_bytes;
        if r.options.total_len() > most {
            let text = format!(
                "{} bytes of windows are more than the {most} of --map-max: take fewer or smaller windows",
                r.options.total_len()
            );
            return Err((libc::EINVAL, text));
        }
        if r.options.credit > MAX_CREDIT {
            return Err((libc::EINVAL, format!("credit: {} is more than {MAX_CREDIT}", r.options.credit)));
        }
        if r.options.credit == 0 {
            r.options.credit = vm.limits.buffer_bytes;
        }
        if r.options.direct && !vm.map_policy.share_guest_memory {
            let text = "direct windows: zerowire vsock was started without --share-guest-memory".to_owned();
            return Err((libc::EPERM, text));
        }
        let kind = Kind::new(r.kind);
        let taken = |c: &MapClient| matches!(c.stage, Stage::Listening { port, kind: k, .. } if port == r.port && Some(k) == kind);
        if r.op == MapOp::Listen && vm.map_clients.iter().flatten().any(taken) {
            return Err((libc::EADDRINUSE, format!("port {}: another program listens there", r.port)));
        }
        Ok(r)
    }

    fn pair(kind: Kind) -> io::Result<(OwnedFd, OwnedFd)> {
        let kind = match kind {
            Kind::Stream => SocketType::STREAM,
            Kind::SeqPacket => SocketType::SEQPACKET,
        };
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        let flags = rustix::fs::fcntl_getfl(&ours)?;
        rustix::fs::fcntl_setfl(&ours, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok((ours, theirs))
    }

    /// A program asks for a mapped connection to the guest.
    fn offer_mapped(&mut self, v: usize, r: Request, control: OwnedFd) {
        let kind = Kind::new(r.kind).unwrap_or(Kind::Stream);
        match Self::pair(kind) {
            Ok((ours, theirs)) => {
                let asked = AskedFor {
                    control: Some(control),
                    options: r.options,
                    timed_out: false,
                    theirs: Some(theirs),
                };
                self.offer_with(v, kind, r.port, ours, Some(Box::new(asked)));
            }
            Err(e) => {
                let text = format!("no socket can be had: {e}; see 'ulimit -n'");
                let _ = send_reply(&control, &Reply::error(libc::ENFILE as u16, text), &[]);
            }
        }
    }

    /// The guest accepted: the program gets its windows.
    pub(super) fn welcome_mapped(&mut self, v: usize, slot: u32, mut asked: AskedFor) -> io::Result<()> {
        let (Some(control), Some(theirs)) = (asked.control.take(), asked.theirs.take()) else {
            return Ok(());
        };
        self.give_windows(v, slot, asked.options, &control, &theirs).inspect_err(|e| {
            let text =
                format!("windows can't be had: {e}; see 'ulimit -n' and the memory limit of zerowire vsock");
            let _ = send_reply(&control, &Reply::error(libc::ENOMEM as u16, text), &[]);
        })
    }

    /// The program of a mapped connection has closed it: what it holds goes back, and nothing is filled any more.
    pub(super) fn program_left(&mut self, v: usize, slot: u32) {
        let Some(c) = self.connection(v, slot) else { return };
        let Some(host) = c.host() else { return };
        let Some(windows) = host.windows.take() else { return };
        host.held = None;
        c.life.far_ends(SHUT_RECEIVE);
        self.let_go(v, windows);
        self.settle(v, slot);
    }

    /// Windows go: no more news of them, and the guest has its chains again.
    pub(super) fn let_go(&mut self, v: usize, mut windows: Box<Windows>) {
        self.forget_released(&windows.released);
        let mut heads = Vec::new();
        if let Some(direct) = windows.direct() {
            direct.take_all(&mut heads);
        }
        self.give_back(v, &heads);
    }

    /// Makes windows for a connection and hands them over.
    fn give_windows(
        &mut self,
        v: usize,
        slot: u32,
        options: MapOptions,
        control: &OwnedFd,
        theirs: &OwnedFd,
    ) -> io::Result<()> {
        let vm = &mut self.vms[v];
        let place = vm.connections.place(slot);
        let Some(c) = vm.connections.get(slot) else { return Ok(()) };
        let (mut windows, files) = Windows::new(options, c.kind)?;
        let regions = if options.direct { vm.memory.read_only()? } else { Vec::new() };
        if options.direct {
            windows.set_direct(Direct::new(&regions, options.windows));
        }
        watch(&self.epoll, &windows.released, Event::Released { vm: v, place })?;
        let reply = Reply {
            status: 0,
            host_port: c.key.peer_port,
            guest_port: c.key.port,
            options,
            regions: regions.len() as u16,
            text: String::new(),
        };
        let mut descriptors = vec![
            files.headers.as_fd(),
            files.data.as_fd(),
            files.ready.as_fd(),
            files.released.as_fd(),
            theirs.as_fd(),
        ];
        descriptors.extend(region_files(&regions).map(AsFd::as_fd));
        let told = send_reply(control, &reply, &descriptors).and_then(|()| match regions.is_empty() {
            true => Ok(()),
            // Whoever has the reply and not this is out of step for good.
            false => send_bytes(control, &region_table(&regions)).map_err(io::Error::other),
        });
        if let Err(e) = told {
            self.forget_released(&windows.released);
            return Err(e);
        }
        if let Some(host) = c.host() {
            host.windows = Some(Box::new(windows));
        }
        Ok(())
    }

    /// No more news of a connection's releases: the program may hold the descriptor open for longer.
    fn forget_released(&self, released: &OwnedFd) {
        let _ = rustix::event::epoll::delete(&self.epoll, released);
    }

    /// The program that takes the guest's connections to a port in windows.
    pub(super) fn map_client_for(&self, v: usize, port: u32, kind: Kind) -> Option<usize> {
        self.vms[v].map_clients.iter().position(|c| {
            c.as_ref().is_some_and(
                |c| matches!(c.stage, Stage::Listening { port: p, kind: k, .. } if (p, k) == (port, kind)),
            )
        })
    }

    /// The guest connects to a port whose program takes payload in windows.
    pub(super) fn attach_mapped(&mut self, v: usize, slot: u32, client: usize) -> io::Result<()> {
        let Some(MapClient { socket, stage: Stage::Listening { kind, options, .. }, .. }) =
            self.vms[v].map_clients.get(client).and_then(Option::as_ref)
        else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let (kind, options, control) = (*kind, *options, socket.try_clone()?);
        let (ours, theirs) = Self::pair(kind)?;
        self.attach(v, slot, ours)?;
        if let Some(c) = self.connection(v, slot) {
            c.incoming = Incoming::new(options.credit);
        }
        // A program that does not take its connections fills its control socket: tried again, as a full backlog is.
        self.give_windows(v, slot, options, &control, &theirs).inspect_err(|e| {
            if e.kind() != io::ErrorKind::WouldBlock {
                self.vms[v].map_clients[client] = None;
            }
            if let Some(c) = self.connection(v, slot) {
                c.end = End::Dialing;
            }
        })
    }

    /// Programs that have not said in time what they want go.
    pub(super) fn scan_map_clients(&mut self, v: usize, now: Instant) -> bool {
        let vm = &mut self.vms[v];
        let mut waiting = false;
        for entry in &mut vm.map_clients {
            let Some(MapClient { stage: Stage::Asking { deadline }, .. }) = entry else { continue };
            if *deadline <= now {
                *entry = None;
                vm.counters.bad_handshakes.add(1);
            } else {
                waiting = true;
            }
        }
        waiting
    }
}
