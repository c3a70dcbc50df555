//! One connection with a front end: the vhost-user state machine.
//!
//! Two kinds of failure. A message that breaks the protocol (wrong size, wrong descriptors, out of order, a ring that does
//! not exist) ends the connection: nothing that follows it can be trusted. A request that is well-formed and can't be
//! carried out (memory that can't be mapped) is answered with an error if the front end asked for an answer, and ends the
//! connection if it did not, since it would go on as if all were well. Either way rings stop and all that the connection
//! held is closed.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use thiserror::Error;
use zerowire_vhost_user::{Connection, Message, Request, WireError, features as f, protocol as p};

use super::command::{Command, Direction, RingStart};
use super::metadata::{MetadataDetour, Service};
use super::vm::VmContext;
use super::worker::{WorkerHandle, WorkerSetup};
use crate::memory::{GuestMemory, MAX_REGIONS, RegionConfig};
use crate::net::features::{header_len, offered, toward_guest};
use crate::ring::RingAddresses;

/// The protocol features that are implemented. BACKEND_REQ is there for QEMU, which wants it of every back end that
/// offers ACCESS_PLATFORM; nothing is sent on that channel.
pub(super) const PROTOCOL_FEATURES: u64 =
    p::MQ | p::REPLY_ACK | p::MTU | p::BACKEND_REQ | p::RESET_DEVICE | p::CONFIGURE_MEM_SLOTS | p::STATUS;

/// Why a message was not carried out.
#[derive(Debug, Error)]
pub(super) enum SessionError {
    /// The message breaks the protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The message breaks the protocol in what it means.
    #[error("{request}: {text}")]
    Protocol { request: &'static str, text: String },
    /// The request is sound and can't be carried out.
    #[error("{request}: {text}")]
    Refused { request: &'static str, text: String },
}

/// What the front end has told of a ring.
#[derive(Debug, Default)]
struct Ring {
    size: u16,
    addresses: Option<RingAddresses>,
    base: u16,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
    enabled: bool,
    /// Disabled by SET_VRING_ENABLE.
    discards: bool,
    started: bool,
}

/// The state of one connection.
pub(super) struct Session<'a> {
    vm: &'a VmContext,
    acked: u64,
    protocol: u64,
    memory: Arc<GuestMemory>,
    rings: Vec<Ring>,
    workers: Vec<Option<WorkerHandle>>,
    forwarded: Arc<AtomicUsize>,
    mtu: Option<usize>,
    status: u64,
    /// The channel for requests to the front end; held open, never written.
    backend_channel: Option<OwnedFd>,
}

impl<'a> Session<'a> {
    pub(super) fn new(vm: &'a VmContext) -> Self {
        let pairs = vm.tap.pairs();
        Self {
            vm,
            acked: 0,
            protocol: 0,
            memory: Arc::default(),
            rings: (0..2 * pairs).map(|_| Ring::default()).collect(),
            workers: (0..pairs).map(|_| None).collect(),
            forwarded: Arc::default(),
            mtu: None,
            status: 0,
            backend_channel: None,
        }
    }

    fn offered(&self) -> u64 {
        offered(self.vm.tap.offloads(), self.vm.tap.pairs())
    }

    /// Gives the metadata service a new tree.
    pub(super) fn set_tree(&self, tree: &Arc<zerowire_metadata::MetadataTree>) {
        if let Some(Some(w)) = self.workers.first() {
            w.commands.send(Command::Tree(tree.clone()));
        }
    }

    /// Carries out one message and answers it. An error ends the connection.
    pub(super) fn handle(
        &mut self,
        connection: &mut Connection,
        mut message: Message,
    ) -> Result<(), SessionError> {
        if message.is_reply() {
            let text = "a reply, where a request was due".to_owned();
            return Err(SessionError::Protocol { request: "message", text });
        }
        let request = message.request()?;
        let outcome = self.carry_out(request, &mut message);
        let acknowledge = self.protocol & p::REPLY_ACK != 0 && message.wants_reply();
        match outcome {
            Ok(Answer::Bytes(body)) => Ok(connection.send_reply(&message, &body, &[])?),
            Ok(Answer::None) if acknowledge => {
                Ok(connection.send_reply(&message, &0u64.to_le_bytes(), &[])?)
            }
            Ok(Answer::None) => Ok(()),
            Err(SessionError::Refused { request, text }) if acknowledge => {
                tracing::error!("{}: {request} refused: {text}", self.vm.name);
                self.vm.shared.set_error(format!("{request}: {text}"));
                Ok(connection.send_reply(&message, &1u64.to_le_bytes(), &[])?)
            }
            Err(e) => Err(e),
        }
    }

    fn carry_out(&mut self, request: Request, message: &mut Message) -> Result<Answer, SessionError> {
        if !takes_descriptors(request) {
            message.no_fds()?;
        }
        match request {
            Request::GetFeatures => return Ok(Answer::u64(self.offered())),
            Request::SetFeatures => self.set_features(message.u64()?)?,
            Request::GetProtocolFeatures => return Ok(Answer::u64(PROTOCOL_FEATURES)),
            Request::SetProtocolFeatures => self.set_protocol_features(message.u64()?)?,
            Request::SetOwner | Request::ResetOwner => message.empty()?,
            Request::GetQueueNum => return Ok(Answer::u64(self.rings.len() as u64)),
            Request::SetMemTable => self.set_mem_table(message)?,
            Request::GetMaxMemSlots => return Ok(Answer::u64(MAX_REGIONS as u64)),
            Request::AddMemReg => self.add_mem_reg(message)?,
            Request::RemMemReg => self.rem_mem_reg(message)?,
            Request::SetVringNum => self.set_vring_num(message)?,
            Request::SetVringAddr => self.set_vring_addr(message)?,
            Request::SetVringBase => self.set_vring_base(message)?,
            Request::GetVringBase => return self.get_vring_base(message),
            Request::SetVringKick => self.set_vring_kick(message)?,
            Request::SetVringCall => self.set_vring_call(message)?,
            Request::SetVringErr => self.set_vring_err(message)?,
            Request::SetVringEnable => self.set_vring_enable(message)?,
            Request::NetSetMtu => self.set_mtu(message.u64()?)?,
            Request::SetBackendReqFd => self.backend_channel = Some(message.take_fd()?),
            Request::ResetDevice => {
                message.empty()?;
                self.reset_device();
            }
            Request::SetStatus => self.set_status(message.u64()?),
            Request::GetStatus => return Ok(Answer::u64(self.status)),
            other => {
                return Err(protocol(other, "not offered by this back end".to_owned()));
            }
        }
        Ok(Answer::None)
    }

    fn any_started(&self) -> Option<usize> {
        self.rings.iter().position(|r| r.started)
    }

    fn set_features(&mut self, bits: u64) -> Result<(), SessionError> {
        let request = Request::SetFeatures;
        let unknown = bits & !self.offered();
        if unknown != 0 {
            return Err(protocol(
                request,
                format!("features {} were not offered", f::names(unknown).join(", ")),
            ));
        }
        if bits == self.acked {
            return Ok(());
        }
        if let Some(i) = self.any_started() {
            return Err(protocol(request, format!("features changed to {bits:#x} while queue {i} runs")));
        }
        self.acked = bits;
        self.vm.shared.acked_features.store(bits, Ordering::Relaxed);
        // Without the bit there is no SET_VRING_ENABLE: rings are enabled from the start (vhost-user, "Ring states").
        // With it they keep their state: QEMU enables the rings of a device with one queue pair before it sets features.
        if bits & f::VHOST_USER_PROTOCOL_FEATURES == 0 {
            self.rings.iter_mut().for_each(|r| r.enabled = true);
        }
        let tap = |e: crate::port::TapError| refused(request, e.to_string());
        self.vm.tap.set_offloads(toward_guest(bits)).map_err(tap)?;
        self.vm.tap.set_header_len(header_len(bits)).map_err(tap)
    }

    fn set_protocol_features(&mut self, bits: u64) -> Result<(), SessionError> {
        let unknown = bits & !PROTOCOL_FEATURES;
        if unknown != 0 {
            let text = format!("protocol features {unknown:#x} were not offered");
            return Err(protocol(Request::SetProtocolFeatures, text));
        }
        self.protocol = bits;
        self.vm.shared.protocol_features.store(bits, Ordering::Relaxed);
        Ok(())
    }

    fn set_mem_table(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let regions = message
            .memory_table()?
            .into_iter()
            .map(|(r, file)| RegionConfig {
                guest_addr: r.guest_addr,
                len: r.size,
                user_addr: r.user_addr,
                offset: r.mmap_offset,
                file,
            })
            .collect();
        let memory = GuestMemory::new(regions).map_err(|e| refused(Request::SetMemTable, e.to_string()))?;
        self.replace_memory(memory);
        Ok(())
    }

    fn add_mem_reg(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let r = message.single_region()?;
        let region = RegionConfig {
            guest_addr: r.guest_addr,
            len: r.size,
            user_addr: r.user_addr,
            offset: r.mmap_offset,
            file: message.take_fd()?,
        };
        let memory =
            self.memory.with_region(region).map_err(|e| refused(Request::AddMemReg, e.to_string()))?;
        self.replace_memory(memory);
        Ok(())
    }

    fn rem_mem_reg(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let r = message.single_region()?;
        // Some front ends send the region's descriptor along; it has no use.
        drop(message.take_fds());
        let memory = self
            .memory
            .without_region(r.guest_addr, r.user_addr, r.size)
            .map_err(|e| refused(Request::RemMemReg, e.to_string()))?;
        self.replace_memory(memory);
        Ok(())
    }

    /// All workers have the new memory when this returns, and the old one is unmapped.
    fn replace_memory(&mut self, memory: GuestMemory) {
        self.memory = Arc::new(memory);
        for w in self.workers.iter().flatten() {
            wait(|reply| w.commands.send(Command::Memory { memory: self.memory.clone(), reply }));
        }
    }

    fn ring(&mut self, request: Request, index: usize) -> Result<&mut Ring, SessionError> {
        let count = self.rings.len();
        self.rings.get_mut(index).ok_or_else(|| {
            protocol(
                request,
                format!("queue {index} of {count}: give --port tap:NAME,queues=N as many queue pairs as the VMM uses"),
            )
        })
    }

    fn set_vring_num(&mut self, message: &Message) -> Result<(), SessionError> {
        let state = message.vring_state()?;
        let ring = self.ring(Request::SetVringNum, state.index as usize)?;
        let size = u16::try_from(state.num).ok().filter(|n| n.is_power_of_two() && *n <= 32768);
        match size {
            None => Err(protocol(
                Request::SetVringNum,
                format!(
                    "queue {}: size {} is not a power of two up to 32768 (virtio 1.3 §2.7)",
                    state.index, state.num
                ),
            )),
            Some(n) if ring.started && n != ring.size => Err(protocol(
                Request::SetVringNum,
                format!("queue {}: size changed from {} to {n} while it runs", state.index, ring.size),
            )),
            Some(n) => {
                ring.size = n;
                Ok(())
            }
        }
    }

    fn set_vring_addr(&mut self, message: &Message) -> Result<(), SessionError> {
        let a = message.vring_addr()?;
        let ring = self.ring(Request::SetVringAddr, a.index as usize)?;
        let addresses = RingAddresses { desc: a.desc, avail: a.avail, used: a.used };
        // A front end may send the same again, with another log flag.
        if ring.started && ring.addresses != Some(addresses) {
            let text = format!("queue {}: addresses changed while it runs", a.index);
            return Err(protocol(Request::SetVringAddr, text));
        }
        ring.addresses = Some(addresses);
        Ok(())
    }

    fn set_vring_base(&mut self, message: &Message) -> Result<(), SessionError> {
        let state = message.vring_state()?;
        let ring = self.ring(Request::SetVringBase, state.index as usize)?;
        let base = u16::try_from(state.num).map_err(|_| {
            protocol(
                Request::SetVringBase,
                format!("queue {}: base {} is more than 65535", state.index, state.num),
            )
        })?;
        if ring.started {
            let text = format!("queue {}: base set while it runs", state.index);
            return Err(protocol(Request::SetVringBase, text));
        }
        ring.base = base;
        Ok(())
    }

    /// Stops the ring and answers where it has to go on.
    fn get_vring_base(&mut self, message: &Message) -> Result<Answer, SessionError> {
        let state = message.vring_state()?;
        let index = state.index as usize;
        self.ring(Request::GetVringBase, index)?;
        let base = self.stop_ring(index);
        let mut body = state.index.to_le_bytes().to_vec();
        body.extend_from_slice(&u32::from(base).to_le_bytes());
        Ok(Answer::Bytes(body))
    }

    fn stop_ring(&mut self, index: usize) -> u16 {
        let worker = self.workers.get(index / 2).and_then(Option::as_ref);
        let Some(ring) = self.rings.get_mut(index) else { return 0 };
        if ring.started {
            ring.started = false;
            let direction = Direction::of(index);
            if let Some(Some(base)) =
                worker.and_then(|w| wait(|reply| w.commands.send(Command::Stop { direction, reply })))
            {
                ring.base = base;
            }
        }
        ring.base
    }

    fn set_vring_kick(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let request = Request::SetVringKick;
        let v = message.vring_fd()?;
        self.ring(request, v.index)?;
        let Some(kick) = v.fd else {
            return Err(refused(
                request,
                format!(
                    "queue {}: no kick descriptor, so that the ring would have to be polled: not supported",
                    v.index
                ),
            ));
        };
        let direction = Direction::of(v.index);
        if self.rings[v.index].started {
            if let Some(Some(w)) = self.workers.get(v.index / 2) {
                w.commands.send(Command::Kick { direction, fd: kick });
            }
            return Ok(());
        }
        let ring = &mut self.rings[v.index];
        let Some(addresses) = ring.addresses else {
            return Err(protocol(request, format!("queue {}: started without SET_VRING_ADDR", v.index)));
        };
        if ring.size == 0 {
            return Err(protocol(request, format!("queue {}: started without SET_VRING_NUM", v.index)));
        }
        let start = RingStart {
            queue: v.index as u16,
            size: ring.size,
            addresses,
            base: ring.base,
            acked: self.acked,
            enabled: ring.enabled,
            discards: ring.discards,
            mtu: self.mtu.unwrap_or_else(|| self.vm.tap.mtu()).max(self.vm.tap.mtu()),
            kick,
            call: duplicate(&ring.call),
            err: duplicate(&ring.err),
        };
        let worker = self.worker(v.index / 2).map_err(|e| refused(request, e.to_string()))?;
        let ring = Box::new(start);
        let result = wait(|reply| worker.commands.send(Command::Start { direction, ring, reply }));
        match result {
            Some(Ok(())) => {
                self.rings[v.index].started = true;
                Ok(())
            }
            Some(Err(text)) => Err(refused(request, text)),
            None => Err(refused(request, format!("queue {}: its thread has ended", v.index))),
        }
    }

    /// The worker of a queue pair; started with its first ring.
    fn worker(&mut self, pair: usize) -> io::Result<&WorkerHandle> {
        // The service runs in the first pair's worker, so that one comes first.
        if pair > 0 && self.workers[0].is_none() {
            self.start_worker(0)?;
        }
        if self.workers[pair].is_none() {
            self.start_worker(pair)?;
        }
        self.workers[pair].as_ref().ok_or_else(|| io::Error::other("no worker"))
    }

    fn start_worker(&mut self, pair: usize) -> io::Result<()> {
        let detour = match (&self.vm.metadata(), pair) {
            (None, _) => None,
            (Some((tree, tokens)), 0) => {
                let service = Service::new(tree.clone(), *tokens).map_err(io::Error::other)?;
                Some(MetadataDetour::Service(Box::new(service)))
            }
            (Some(_), _) => self.workers[0]
                .as_ref()
                .map(|w| MetadataDetour::Forward { to: w.commands.clone(), pending: self.forwarded.clone() }),
        };
        let worker = WorkerHandle::spawn(WorkerSetup {
            name: self.vm.name.clone(),
            pair,
            port_queue: self.vm.tap.queue(pair)?,
            engine: self.vm.engine,
            policy: self.vm.policy,
            memory: self.memory.clone(),
            shared: self.vm.shared.clone(),
            detour,
            forwarded: self.forwarded.clone(),
        })?;
        self.workers[pair] = Some(worker);
        Ok(())
    }

    fn set_vring_call(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let v = message.vring_fd()?;
        let ring = self.ring(Request::SetVringCall, v.index)?;
        check_notifier(Request::SetVringCall, v.index, &v.fd)?;
        ring.call = v.fd;
        if ring.started {
            let fd = duplicate(&ring.call);
            self.tell(v.index, |direction| Command::Call { direction, fd });
        }
        Ok(())
    }

    fn set_vring_err(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let v = message.vring_fd()?;
        let ring = self.ring(Request::SetVringErr, v.index)?;
        check_notifier(Request::SetVringErr, v.index, &v.fd)?;
        ring.err = v.fd;
        if ring.started {
            let fd = duplicate(&ring.err);
            self.tell(v.index, |direction| Command::Err { direction, fd });
        }
        Ok(())
    }

    fn tell(&self, index: usize, command: impl FnOnce(Direction) -> Command) {
        if let Some(Some(w)) = self.workers.get(index / 2) {
            w.commands.send(command(Direction::of(index)));
        }
    }

    fn set_vring_enable(&mut self, message: &Message) -> Result<(), SessionError> {
        let request = Request::SetVringEnable;
        let state = message.vring_state()?;
        let index = state.index as usize;
        let on = match state.num {
            0 => false,
            1 => true,
            n => return Err(protocol(request, format!("queue {index}: {n} is neither 0 nor 1"))),
        };
        let ring = self.ring(request, index)?;
        ring.enabled = on;
        ring.discards = !on;
        if ring.started
            && let Some(Some(w)) = self.workers.get(index / 2)
        {
            let direction = Direction::of(index);
            wait(|reply| w.commands.send(Command::Enable { direction, on, reply }));
        }
        Ok(())
    }

    fn set_mtu(&mut self, mtu: u64) -> Result<(), SessionError> {
        // 68 is the least MTU of IPv4 (RFC 791), 65535 the most that the field takes (virtio 1.3 §5.1.4).
        if !(68..=65535).contains(&mtu) {
            return Err(refused(Request::NetSetMtu, format!("MTU {mtu} is not within 68 to 65535")));
        }
        self.mtu = Some(mtu as usize);
        if let Err(e) = self.vm.tap.raise_mtu(mtu as usize) {
            return Err(refused(Request::NetSetMtu, e.to_string()));
        }
        Ok(())
    }

    fn set_status(&mut self, status: u64) {
        if status == 0 {
            self.stop_all();
        }
        self.status = status & 0xff;
        self.vm.shared.status.store(self.status, Ordering::Relaxed);
    }

    fn stop_all(&mut self) {
        for i in 0..self.rings.len() {
            self.stop_ring(i);
        }
    }

    /// All rings stop and forget what they were told; the memory stays (vhost-user RESET_DEVICE).
    fn reset_device(&mut self) {
        self.stop_all();
        for r in &mut self.rings {
            *r = Ring::default();
        }
        self.workers.iter_mut().for_each(|w| *w = None);
        self.acked = 0;
        self.status = 0;
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.stop_all();
        // The worker that others forward to goes last.
        while self.workers.pop().is_some() {}
        // Frames that wait for this guest are not the next one's.
        self.vm.tap.flush();
    }
}

/// Whether descriptors may come along; how many is the request's own matter.
fn takes_descriptors(request: Request) -> bool {
    matches!(
        request,
        Request::SetMemTable
            | Request::AddMemReg
            | Request::RemMemReg
            | Request::SetVringKick
            | Request::SetVringCall
            | Request::SetVringErr
            | Request::SetBackendReqFd
    )
}

/// What is sent back.
enum Answer {
    None,
    Bytes(Vec<u8>),
}

impl Answer {
    fn u64(value: u64) -> Self {
        Self::Bytes(value.to_le_bytes().to_vec())
    }
}

/// Sends a command that is answered and waits for the answer; None where the worker is gone.
fn wait<T>(send: impl FnOnce(SyncSender<T>) -> bool) -> Option<T> {
    let (reply, answer) = sync_channel(1);
    if !send(reply) {
        return None;
    }
    answer.recv().ok()
}

fn duplicate(fd: &Option<OwnedFd>) -> Option<OwnedFd> {
    fd.as_ref().and_then(|fd| fd.try_clone().ok())
}

/// A descriptor that a worker writes to must neither block it nor keep what is written: only an eventfd will do, in its
/// mode that does not wait. A file, a pipe or a socket has a file type; an eventfd has none (fs/anon_inodes.c).
///
/// Accepted risk: the front end shares the open file and can turn waiting on again. It holds up its own queues then.
fn check_notifier(request: Request, queue: usize, fd: &Option<OwnedFd>) -> Result<(), SessionError> {
    let Some(fd) = fd else { return Ok(()) };
    let failed =
        |e: rustix::io::Errno| refused(request, format!("queue {queue}: its descriptor can't be used: {e}"));
    let mode = rustix::fs::fstat(fd).map_err(failed)?.st_mode;
    if mode & libc::S_IFMT != 0 {
        return Err(protocol(
            request,
            format!("queue {queue}: the descriptor is not an eventfd (file mode {mode:#o})"),
        ));
    }
    let flags = rustix::fs::fcntl_getfl(fd).map_err(failed)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK).map_err(failed)
}

fn protocol(request: Request, text: String) -> SessionError {
    SessionError::Protocol { request: request.name(), text }
}

fn refused(request: Request, text: String) -> SessionError {
    SessionError::Refused { request: request.name(), text }
}
