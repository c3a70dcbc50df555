//! The vsock part: streams between the guest and programs of the host, both ways.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use zerowire_guest::vsock::{
    ConnId, ConnState, HOST_CID, Received, SHUTDOWN_BOTH, SHUTDOWN_SEND, SocketType, StackOptions,
    VsockDriver, VsockOptions, VsockStack,
};
use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};
use zerowire_vmtest::vsock::{VsockKind, host};

use super::backend::SoftBackend;
use super::host::{check_pattern, give, pattern_at, take};
use super::{CID, check, summary};
use crate::story::Story;
use crate::story::ledger::{self, Way};

/// The guest's RAM.
const MEMORY_BYTES: usize = 64 << 20;

/// Where the host's program listens, and where the guest's does.
const HOST_PORT: u32 = 5000;
const GUEST_PORT: u32 = 5001;

/// The demonstration has failed when nothing moved for this long.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest sleep, so that a stop is noticed.
const NAP: Duration = Duration::from_millis(5);

/// Tells the part; returns its place in the summary.
pub(super) fn tell(story: &mut Story, bytes: u64, stop: &Arc<AtomicBool>) -> Result<Value> {
    story.step("vsock: start the device and connect the guest");
    let mut backend = SoftBackend::vsock()?;
    let mut guest =
        SoftVsockGuest::connect(backend.socket(), Arc::clone(stop)).map_err(|e| backend.explain(e))?;
    story.say(format!("$ {}", backend.command_line()));
    let vm = backend.statistics()?["vms"][0].take();
    let path = vm["path"].as_str().unwrap_or_default().to_owned();
    story.say(format!("the guest has CID {CID} and reaches the host's unix sockets as CID {HOST_CID}"));
    story.say(format!("path: {path}"));

    let mut transfers = Vec::new();
    let mut cpu = Vec::new();
    for way in Way::BOTH {
        story.step(&format!("vsock, {}: {} MiB, every byte compared", way.name(), bytes >> 20));
        let before = backend.statistics()?;
        let took = transfer(&mut guest, &backend.uds(), story, way, bytes)?;
        let after = backend.statistics()?;
        let seconds =
            ledger::cpu_seconds_a_gigabyte(&before, &after, way).context("no bytes were counted")?;
        cpu.push((way, seconds));
        transfers.push(summary(way, bytes, took, seconds));
    }

    story.step("The ledger: what zerowire vsock did with the bytes");
    drop(guest);
    // A guest that has left has no connections any more.
    let left = Instant::now() + PATIENCE;
    while backend.statistics()?["vms"][0]["connected"] == true && Instant::now() < left {
        std::thread::sleep(NAP);
    }
    let last = backend.stop()?;
    let vm = &last["vms"][0];
    story.say(ledger::table_of("zerowire vsock", "packets", vm, &cpu));
    check("vsock", vm)?;
    Ok(json!({ "path": path, "transfers": transfers, "statistics": last }))
}

fn transfer(guest: &mut SoftVsockGuest, uds: &Path, story: &Story, way: Way, bytes: u64) -> Result<Duration> {
    let mut progress = story.progress(bytes);
    let (moved, at_host) = match way {
        Way::FromGuest => {
            let host = listen(uds)?;
            (guest.send(HOST_PORT, bytes, |done| progress.set(done))?, join(host)?)
        }
        Way::ToGuest => {
            guest.stack.listen(GUEST_PORT, SocketType::Stream);
            let host = connect(uds.to_owned(), bytes)?;
            (guest.receive(GUEST_PORT, |done| progress.set(done))?, join(host)?)
        }
    };
    ensure!(
        moved == bytes && at_host == bytes,
        "{moved} bytes at the guest and {at_host} at the host, of {bytes}"
    );
    Ok(progress.finish(bytes))
}

type Host = JoinHandle<Result<u64>>;

fn join(host: Host) -> Result<u64> {
    host.join().map_err(|_| anyhow!("the host's thread panicked; its message is above"))?
}

/// A program of the host on which the guest's connection arrives, and that takes all it sends.
fn listen(uds: &Path) -> Result<Host> {
    let listener = host::Listener::new(uds, HOST_PORT, VsockKind::Stream)?;
    start(move || take(UnixStream::from(listener.accept()?)))
}

/// A program of the host that connects to the guest and sends it `bytes`.
fn connect(uds: PathBuf, bytes: u64) -> Result<Host> {
    start(move || give(UnixStream::from(host::connect_to(&uds, GUEST_PORT, VsockKind::Stream)?.0), bytes))
}

fn start(program: impl FnOnce() -> Result<u64> + Send + 'static) -> Result<Host> {
    Ok(std::thread::Builder::new().name("host".into()).spawn(program)?)
}

/// The guest with its driver and its sockets.
struct SoftVsockGuest {
    stack: VsockStack,
    stop: Arc<AtomicBool>,
    // Keeps the device running.
    _driver: VsockDriver<VhostUser>,
}

impl SoftVsockGuest {
    fn connect(socket: &Path, stop: Arc<AtomicBool>) -> Result<Self> {
        let memory = GuestMemory::new(&[(GuestAddr(0), MEMORY_BYTES)])?;
        let transport = VhostUser::connect(socket, PATIENCE)?;
        let (driver, queues) = VsockDriver::start(transport, &memory, &VsockOptions::default())?;
        ensure!(queues.cid == u64::from(CID), "the device says that the guest's CID is {}", queues.cid);
        let stack = VsockStack::new(queues, StackOptions::default());
        Ok(Self { stack, stop, _driver: driver })
    }

    /// Sends `bytes` bytes of the pattern to the host; returns how many went.
    fn send(&mut self, port: u32, bytes: u64, mut progress: impl FnMut(u64)) -> Result<u64> {
        let conn = self.stack.connect(HOST_CID, port, SocketType::Stream)?;
        self.until("the host's answer", |stack| match stack.state(conn) {
            ConnState::Connecting => Ok(None),
            ConnState::Established => Ok(Some(())),
            other => bail!("the connection to the host's port {port} is {other:?}"),
        })?;
        let mut done = 0;
        while done < bytes {
            done = self.until("credit of the host", |stack| {
                let mut now = done;
                while now < bytes {
                    let rest = pattern_at(now);
                    let len = rest.len().min(usize::try_from(bytes - now).unwrap_or(usize::MAX));
                    match stack.send(conn, &rest[..len])? {
                        0 => break,
                        sent => now += sent as u64,
                    }
                }
                Ok((now > done).then_some(now))
            })?;
            progress(done);
        }
        self.stack.shutdown(conn, SHUTDOWN_SEND)?;
        // The host closes when it has read everything.
        self.close(conn)?;
        Ok(done)
    }

    /// Receives from the host until it closes, and compares; returns how many bytes came.
    fn receive(&mut self, port: u32, mut progress: impl FnMut(u64)) -> Result<u64> {
        let conn = self.until("a connection from the host", |stack| Ok(stack.accept(port)))?;
        let mut done = 0;
        let mut bytes = Vec::new();
        loop {
            let more = self.until("data from the host", |stack| {
                bytes.clear();
                Ok(match stack.recv(conn, &mut bytes)? {
                    Received::Data(_) | Received::Record(_) => Some(true),
                    Received::Empty => None,
                    Received::End => Some(false),
                })
            })?;
            if !more {
                break;
            }
            check_pattern(done, &bytes)?;
            done += bytes.len() as u64;
            progress(done);
        }
        self.close(conn)?;
        Ok(done)
    }

    /// Waits until the other side has closed, and closes too.
    fn close(&mut self, conn: ConnId) -> Result<()> {
        self.until("the end of the connection", |stack| match stack.state(conn) {
            ConnState::Reset => bail!("the connection was reset"),
            ConnState::Established => Ok((stack.peer_shutdown(conn) == SHUTDOWN_BOTH).then_some(())),
            _ => Ok(Some(())),
        })?;
        if self.stack.state(conn) == ConnState::Established {
            self.stack.close(conn)?;
        }
        self.stack.turn(Duration::ZERO)?;
        Ok(())
    }

    /// Runs the guest until `check` returns a value.
    fn until<T>(
        &mut self,
        what: &str,
        mut check: impl FnMut(&mut VsockStack) -> Result<Option<T>>,
    ) -> Result<T> {
        let begin = Instant::now();
        loop {
            if let Some(value) = check(&mut self.stack)? {
                return Ok(value);
            }
            if self.stop.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            if begin.elapsed() > PATIENCE {
                bail!("the guest waited {PATIENCE:?} in vain for {what}");
            }
            self.stack.turn(NAP)?;
        }
    }
}
