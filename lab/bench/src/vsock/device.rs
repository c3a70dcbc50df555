//! The back end as one of the variants that are compared: a process `PROGRAM vsock` a credit.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use zerowire_guest::vsock::{ConnId, HOST_CID};

use super::case::{SocketKind, VsockCase};
use super::compare::{VsockBench, VsockSample};
use super::guest::{Setup, VsockGuest};
use super::host::{self, HostCpu, Walk, Work};
use crate::backend::BackendProcess;
use crate::case::Direction;
use crate::cpu::Placement;
use crate::experiment::{Ledger, Turn, Variant, since};
use crate::guest::STALL_LIMIT;
use crate::programs::NamedProgram;

/// How long a back end may take to go to sleep after its work.
pub const SETTLE_LIMIT: Duration = Duration::from_millis(60);
/// The port of both sides.
pub const PORT: u32 = 5000;

/// How back end and guest are run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceKind {
    /// Name in tables.
    pub name: String,
    /// Further arguments of `PROGRAM vsock`.
    pub args: Vec<String>,
    /// Whether the guest sleeps until an interrupt; else it polls.
    pub guest_sleeps: bool,
    /// Bytes of the guest's receive buffers.
    pub rx_buffer_len: u32,
    /// Where the host's program runs.
    pub host_cpu: HostCpu,
}

impl DeviceKind {
    /// The same of another program, whose name stands in place of `zerowire`.
    pub fn of(&self, program: &NamedProgram) -> Self {
        let args = [&program.args[..], &self.args].concat();
        Self { name: self.name.replacen("zerowire", &program.name, 1), args, ..self.clone() }
    }
}

/// Back ends with one VM each.
pub struct DeviceVariant {
    kind: DeviceKind,
    placement: Placement,
    /// By credit.
    backends: Vec<(u32, BackendProcess)>,
    ready: Option<ReadyDevice>,
    before: Ledger,
}

struct ReadyDevice {
    case: VsockCase,
    /// Place in `backends`.
    backend: usize,
    guest: VsockGuest,
    conn: ConnId,
    stream: UnixStream,
    /// The host program's buffer.
    buffer: Vec<u8>,
    /// Bytes that the guest has received since the connection began.
    received: u64,
}

impl DeviceVariant {
    /// Starts a back end for each credit.
    pub fn start(program: &Path, kind: DeviceKind, credits: &[u32], placement: &Placement) -> Result<Self> {
        let mut backends = Vec::new();
        for &credit in credits {
            let mut args = vec!["--buffer".to_owned(), credit.to_string()];
            args.extend(kind.args.iter().cloned());
            backends.push((credit, BackendProcess::start_vsock(program, &args, &[""], placement)?));
        }
        Ok(Self::of(kind, backends, placement))
    }

    /// Back ends that run already, each with the credit that it gives.
    pub fn of(kind: DeviceKind, backends: Vec<(u32, BackendProcess)>, placement: &Placement) -> Self {
        Self { kind, placement: placement.clone(), backends, ready: None, before: Ledger::new() }
    }

    fn measure(&mut self, case: &VsockCase, bytes: usize, check: bool) -> Result<VsockSample> {
        let ready = match self.ready.as_mut() {
            Some(ready) if ready.case == *case => ready,
            _ => bail!("{} was not prepared for {case}", self.kind.name),
        };
        let backend = &self.backends[ready.backend].1;
        let clock = backend.clock()?;
        let seat = || self.kind.host_cpu.pin(&self.placement);
        let slept = backend.sleeps()?;
        let (before, _) = clock.settled(SETTLE_LIMIT)?;
        let begin = Instant::now();
        let work = match case.direction {
            Direction::Transmit => ready.transmit(bytes, check, seat)?,
            Direction::Receive => ready.receive(bytes, check, seat)?,
        };
        let (after, _) = clock.settled(SETTLE_LIMIT)?;
        let slept = backend.sleeps()? - slept;
        Ok(VsockSample::new(after - before, work.cpu, work.end - begin, bytes).with_sleeps(slept))
    }
}

/// Says that a thread has ended, however it did.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl ReadyDevice {
    /// `seat` moves the host's program to its CPU.
    fn transmit(&mut self, bytes: usize, check: bool, seat: impl Fn() -> Result<()> + Sync) -> Result<Work> {
        let Self { case, guest, conn, stream, buffer, .. } = self;
        let lens = (case.write_len, bytes);
        let ended = AtomicBool::new(false);
        let program = || {
            let _ending = Ending(&ended);
            seat()?;
            host::sink(stream, buffer, &mut Walk::of(case.socket), lens, false, check)
        };
        let (work, ()) = host::beside(program, || {
            guest.send(*conn, case.write_len, bytes, || ended.load(Ordering::Acquire))
        })?;
        if check && work.sum != self.guest.pool_sum(bytes as u64)? {
            bail!("{bytes} bytes arrived and are not those that were sent");
        }
        Ok(work)
    }

    /// As [`ReadyDevice::transmit`].
    fn receive(&mut self, bytes: usize, check: bool, seat: impl Fn() -> Result<()> + Sync) -> Result<Work> {
        let Self { case, guest, conn, stream, buffer, received, .. } = self;
        let lens = (case.write_len, bytes);
        guest.count(*conn, check)?;
        *received += bytes as u64;
        let until = *received;
        let program = || {
            seat()?;
            host::source(stream, buffer, &mut Walk::of(case.socket), lens, false, check)
        };
        let (work, end) = host::beside(program, || guest.receive(*conn, until).map(|()| Instant::now()))?;
        let drained = guest.stack().drained(*conn);
        if check && work.sum != drained.sum {
            bail!("{bytes} bytes arrived and are not those that were sent");
        }
        let messages = until / case.write_len as u64;
        if case.socket == SocketKind::Seqpacket && drained.messages != messages {
            bail!("{} messages arrived where {messages} were sent", drained.messages);
        }
        Ok(Work { end, ..work })
    }
}

impl Variant<VsockBench> for DeviceVariant {
    fn name(&self) -> &str {
        &self.kind.name
    }

    fn prepare(&mut self, case: &VsockCase) -> Result<()> {
        // The guest before goes first: the back end serves one front end a socket.
        self.ready = None;
        let place = self.backends.iter().position(|(credit, _)| *credit == case.credit);
        let place =
            place.with_context(|| format!("no back end was started with a credit of {}", case.credit))?;
        let backend = &self.backends[place].1;
        let set = case.set_bytes();
        let transmit = case.direction == Direction::Transmit;
        let setup = Setup {
            pool_bytes: if transmit { set } else { 0 },
            rx_buffers: if transmit { 0 } else { set.div_ceil(self.kind.rx_buffer_len as usize) },
            rx_buffer_len: self.kind.rx_buffer_len,
            credit: case.credit,
            sleeps: self.kind.guest_sleeps,
        };
        let mut guest = VsockGuest::connect(&backend.socket(0), &setup)?;
        let (conn, stream) = match case.direction {
            Direction::Transmit => accept_from(&mut guest, backend, case.socket)?,
            Direction::Receive => connect_to(&mut guest, backend, case.socket)?,
        };
        host::make_room(&stream, case.socket, case.write_len)?;
        let buffer = (0..case.write_len).map(|at| (at ^ at >> 8) as u8).collect();
        self.before = backend.ledger(case.direction)?;
        self.ready =
            Some(ReadyDevice { case: *case, backend: place, guest, conn, stream, buffer, received: 0 });
        Ok(())
    }

    fn run(&mut self, case: &VsockCase, bytes: usize, turn: Turn) -> Result<VsockSample> {
        let check = turn == Turn::WarmUp;
        let outcome = self.measure(case, bytes, check);
        let place = self.ready.as_ref().map_or(0, |ready| ready.backend);
        self.backends[place].1.with_last_words(outcome)
    }

    fn ledger(&mut self) -> Result<Ledger> {
        let Some(ready) = self.ready.as_ref() else {
            return Ok(Ledger::new());
        };
        let ledger = self.backends[ready.backend].1.ledger(ready.case.direction)?;
        Ok(since(ledger, &self.before))
    }
}

/// The guest connects to a host program that listens.
pub fn accept_from(
    guest: &mut VsockGuest,
    backend: &BackendProcess,
    socket: SocketKind,
) -> Result<(ConnId, UnixStream)> {
    let listener = host::listen(&host::port_path(&backend.host_end(0), PORT), socket)?;
    let conn = guest.open(HOST_CID, PORT, socket.guest())?;
    // The back end has connected before it granted the guest's request.
    listener.set_nonblocking(true)?;
    let (stream, _) = listener.accept().context("the back end granted a connection that it didn't make")?;
    stream.set_nonblocking(false)?;
    host::patient(&stream)?;
    Ok((conn, stream))
}

/// A host program connects to the guest, which listens.
pub fn connect_to(
    guest: &mut VsockGuest,
    backend: &BackendProcess,
    socket: SocketKind,
) -> Result<(ConnId, UnixStream)> {
    guest.stack().listen(PORT, socket.guest());
    let stream = host::connect(&backend.host_end(0), PORT, socket)?;
    let conn = guest.stack().accept_wait(PORT, STALL_LIMIT).context("the host's CONNECT brings nothing")?;
    host::read_ok(&stream, socket)?;
    Ok((conn, stream))
}
