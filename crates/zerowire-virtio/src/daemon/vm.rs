//! The VMs of a server: a control thread each.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use thiserror::Error;
use zerowire_metadata::{MetadataTree, TokenPolicy};
use zerowire_vhost_user::{Connection, WireError};

use super::listen::{Endpoint, ListenError, Listener};
use super::metadata::MetadataSource;
use super::session::{Session, SessionError};
use super::stats::{ServerStats, Shared, VmStats};
use crate::io::Engine;
use crate::net::Policy;
use crate::port::{Tap, TapError, TapSpec};

/// VMs that one process serves at most: each takes a few descriptors and threads.
pub const MAX_VMS: usize = 256;

/// How long a server waits for its threads to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Stack of a control thread, bytes. Untouched pages cost nothing.
const STACK_BYTES: usize = 256 * 1024;

/// One VM.
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// A name for the log and the statistics.
    pub name: String,
    /// Where its front end connects.
    pub endpoint: Endpoint,
    /// Its port.
    pub port: TapSpec,
    /// Its metadata.
    pub metadata: Option<MetadataSource>,
    /// Scatter or copy.
    pub policy: Policy,
    /// io_uring or system calls.
    pub engine: Engine,
}

/// Why a server can't start. The text is what the user reads.
#[derive(Debug, Error)]
pub enum ServerError {
    /// Too many VMs, or none.
    #[error("{0} VMs: one process serves 1 to {MAX_VMS}")]
    Count(usize),
    /// Two VMs with one name.
    #[error("two VMs are named '{0}': names must differ")]
    Name(String),
    /// The port can't be had.
    #[error("VM {vm}: {source}")]
    Port {
        /// The VM.
        vm: String,
        /// What is wrong.
        source: TapError,
    },
    /// The socket can't be had.
    #[error("VM {vm}: {source}")]
    Listen {
        /// The VM.
        vm: String,
        /// What is wrong.
        source: ListenError,
    },
    /// The metadata can't be read.
    #[error("VM {vm}: {text}")]
    Metadata {
        /// The VM.
        vm: String,
        /// What is wrong.
        text: String,
    },
    /// A thread or an eventfd can't be had.
    #[error("VM {vm}: {source}; see 'ulimit -u' and 'ulimit -n'")]
    Resources {
        /// The VM.
        vm: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What the threads of a VM know of it.
pub(super) struct VmContext {
    pub name: String,
    pub tap: Tap,
    pub policy: Policy,
    pub engine: Engine,
    pub shared: Arc<Shared>,
    source: Option<MetadataSource>,
    tree: Mutex<Option<Arc<MetadataTree>>>,
    new_tree: AtomicBool,
    stop: AtomicBool,
    wake: OwnedFd,
}

impl VmContext {
    /// The metadata to serve.
    pub(super) fn metadata(&self) -> Option<(Arc<MetadataTree>, TokenPolicy)> {
        let tree = self.tree.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some((tree, self.source.as_ref()?.tokens))
    }

    fn reload(&self) -> Result<(), String> {
        let Some(source) = &self.source else { return Ok(()) };
        // A file that can't be read leaves the old tree in place.
        let tree = source.load()?;
        *self.tree.lock().unwrap_or_else(PoisonError::into_inner) = Some(tree);
        self.new_tree.store(true, Ordering::Release);
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn drain_wake(&self) {
        let mut n = [0u8; 8];
        let _ = rustix::io::read(&self.wake, &mut n);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

struct Vm {
    context: Arc<VmContext>,
    socket: String,
    port: String,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A running server. Dropping it stops it: rings stop, sockets are removed, taps that it made go.
pub struct Server {
    vms: Vec<Vm>,
    start: Instant,
}

impl Server {
    /// Opens all ports and sockets and starts to listen. On an error nothing is left behind.
    pub fn start(configs: Vec<VmConfig>) -> Result<Self, ServerError> {
        if !(1..=MAX_VMS).contains(&configs.len()) {
            return Err(ServerError::Count(configs.len()));
        }
        for (i, c) in configs.iter().enumerate() {
            if configs[..i].iter().any(|d| d.name == c.name) {
                return Err(ServerError::Name(c.name.clone()));
            }
        }
        let mut server = Self { vms: Vec::new(), start: Instant::now() };
        for config in configs {
            server.vms.push(Vm::start(config)?);
        }
        Ok(server)
    }

    /// What was moved so far.
    pub fn stats(&self) -> ServerStats {
        ServerStats {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: self.start.elapsed().as_secs_f64(),
            cpu_seconds: process_cpu_seconds(),
            vms: self
                .vms
                .iter()
                .map(|v| VmStats::new(&v.context.name, v.socket.clone(), &v.port, &v.context.shared))
                .collect(),
        }
    }

    /// Reads all metadata files again. A file that can't be read leaves the old metadata in place; the texts say so.
    pub fn reload_metadata(&self) -> Vec<String> {
        self.vms
            .iter()
            .filter_map(|v| v.context.reload().err().map(|e| format!("VM {}: {e}", v.context.name)))
            .collect()
    }

    /// Whether a connection is there or may still come.
    pub fn is_alive(&self) -> bool {
        self.vms.iter().any(|v| v.thread.as_ref().is_some_and(|t| !t.is_finished()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for vm in &self.vms {
            vm.context.stop.store(true, Ordering::Release);
            vm.context.wake();
        }
        let start = Instant::now();
        for vm in &mut self.vms {
            let Some(thread) = vm.thread.take() else { continue };
            // A front end can hold up its own VM's threads (a descriptor that blocks), not the end of the process.
            while !thread.is_finished() && start.elapsed() < STOP_PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                let _ = thread.join();
            } else {
                tracing::error!("{}: its threads did not stop within {STOP_PATIENCE:?}", vm.context.name);
            }
        }
    }
}

impl Vm {
    fn start(config: VmConfig) -> Result<Self, ServerError> {
        let VmConfig { name, endpoint, port, metadata, policy, engine } = config;
        let vm = name.clone();
        let tree = match &metadata {
            Some(source) => {
                Some(source.load().map_err(|text| ServerError::Metadata { vm: vm.clone(), text })?)
            }
            None => None,
        };
        let tap = Tap::open(&port).map_err(|source| ServerError::Port { vm: vm.clone(), source })?;
        // The socket comes last: who sees it finds everything else in place.
        let listener =
            Listener::new(&endpoint).map_err(|source| ServerError::Listen { vm: vm.clone(), source })?;
        let resources = |source| ServerError::Resources { vm: vm.clone(), source };
        let wake =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| resources(e.into()))?;
        let context = Arc::new(VmContext {
            shared: Shared::new(tap.pairs()),
            name: name.clone(),
            tap,
            policy,
            engine,
            source: metadata,
            tree: Mutex::new(tree),
            new_tree: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            wake,
        });
        let port = format!("tap:{},queues={}", port.name, port.queues);
        let for_thread = context.clone();
        let thread = std::thread::Builder::new()
            .name(format!("{name}-ctl"))
            .stack_size(STACK_BYTES)
            .spawn(move || control(&for_thread, listener))
            .map_err(resources)?;
        Ok(Self { context, socket: endpoint.to_string(), port, thread: Some(thread) })
    }
}

/// The control thread: one front end after another.
fn control(vm: &VmContext, mut listener: Listener) {
    while !vm.stopped() {
        match listener.accept() {
            Ok(Some(stream)) => {
                vm.shared.connections.fetch_add(1, Ordering::Relaxed);
                vm.shared.connected.store(true, Ordering::Relaxed);
                tracing::info!("{}: front end connected", vm.name);
                if let Err(e) = stream.set_nonblocking(true) {
                    tracing::error!("{}: {e}", vm.name);
                    continue;
                }
                serve(vm, Connection::new(stream));
                vm.shared.connected.store(false, Ordering::Relaxed);
                if !listener.is_lasting() {
                    return;
                }
                continue;
            }
            Ok(None) => {}
            Err(e) => {
                // Out of descriptors, most likely: try again a little later.
                tracing::error!("{}: accept failed: {e}", vm.name);
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
        let Some(fd) = listener.poll_fd() else { return };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN), PollFd::new(&vm.wake, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        vm.drain_wake();
    }
}

/// Serves one connection until it ends, whatever the reason.
fn serve(vm: &VmContext, mut connection: Connection) {
    let mut session = Session::new(vm);
    let end = loop {
        if vm.stopped() {
            break Ok("server stops");
        }
        if vm.new_tree.swap(false, Ordering::AcqRel)
            && let Some((tree, _)) = vm.metadata()
        {
            session.set_tree(&tree);
        }
        match connection.recv() {
            Ok(Some(message)) => {
                if let Err(e) = session.handle(&mut connection, message) {
                    break Err(e);
                }
            }
            Ok(None) => break Ok("front end left"),
            Err(WireError::WouldBlock) => {
                let stream = connection.stream().as_fd();
                let mut fds =
                    [PollFd::from_borrowed_fd(stream, PollFlags::IN), PollFd::new(&vm.wake, PollFlags::IN)];
                let _ = poll(&mut fds, None);
                vm.drain_wake();
            }
            Err(e) => break Err(SessionError::Wire(e)),
        }
    };
    drop(session);
    match end {
        Ok(why) => tracing::info!("{}: connection ended: {why}", vm.name),
        Err(e) => {
            vm.shared.set_error(e.to_string());
            vm.shared.connection_errors.fetch_add(1, Ordering::Release);
            tracing::error!("{}: connection ended: {e}", vm.name);
        }
    }
}

fn process_cpu_seconds() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}
