//! A VM's control thread: listens for its front end and serves one after another.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use zerowire_vhost_user::{Connection, WireError};

use super::device::Device;
use super::listen::Listener;
use super::session::{Session, SessionError};

/// How long a server waits for its threads to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Stack of a control thread, bytes. Untouched pages cost nothing.
const STACK_BYTES: usize = 256 * 1024;

/// What a VM's control thread shares with whoever stops it or asks for statistics.
#[derive(Debug)]
pub(super) struct Control {
    pub name: String,
    pub connected: AtomicBool,
    pub connections: AtomicU64,
    pub connection_errors: AtomicU64,
    pub acked_features: AtomicU64,
    pub protocol_features: AtomicU64,
    pub status: AtomicU64,
    stop: AtomicBool,
    wake: Waker,
}

/// Wakes a control thread.
#[derive(Clone, Debug)]
pub(super) struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes the thread look for something new ([`Device::attend`]).
    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Control {
    pub(super) fn new(name: String) -> io::Result<Self> {
        Ok(Self {
            name,
            connected: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            connection_errors: AtomicU64::new(0),
            acked_features: AtomicU64::new(0),
            protocol_features: AtomicU64::new(0),
            status: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            wake: Waker(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)),
        })
    }

    /// Makes the thread look for something new ([`Device::attend`]).
    pub(super) fn wake(&self) {
        self.wake.wake();
    }

    /// What wakes the thread.
    pub(super) fn waker(&self) -> Waker {
        self.wake.clone()
    }

    fn drain_wake(&self) {
        let mut n = [0u8; 8];
        let _ = rustix::io::read(&self.wake.0, &mut n);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// A VM as its control thread sees it.
pub(super) trait Backing: Send + Sync + 'static {
    fn control(&self) -> &Control;

    /// Keeps the text of an error for the statistics.
    fn set_error(&self, text: String);

    /// The device for a new connection.
    fn device(&self) -> Box<dyn Device + '_>;
}

/// A VM with its running control thread.
pub(super) struct Served<B> {
    pub vm: Arc<B>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl<B: Backing> Served<B> {
    pub(super) fn spawn(vm: Arc<B>, listener: Listener) -> io::Result<Self> {
        let for_thread = vm.clone();
        let thread = std::thread::Builder::new()
            .name(format!("{}-ctl", vm.control().name))
            .stack_size(STACK_BYTES)
            .spawn(move || control(&*for_thread, listener))?;
        Ok(Self { vm, thread: Some(thread) })
    }

    /// Whether a connection is there or may still come.
    pub(super) fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }
}

/// Ends control threads, each with its connection.
pub(super) fn stop_all<'a, B: Backing>(served: impl Iterator<Item = &'a mut Served<B>>) {
    let served: Vec<_> = served.collect();
    for s in &served {
        let control = s.vm.control();
        control.stop.store(true, Ordering::Release);
        control.wake();
    }
    let start = Instant::now();
    for s in served {
        let Some(thread) = s.thread.take() else { continue };
        // A front end can hold up its own VM's threads (a descriptor that blocks), not the end of the process.
        while !thread.is_finished() && start.elapsed() < STOP_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            let _ = thread.join();
        } else {
            tracing::error!("{}: its threads did not stop within {STOP_PATIENCE:?}", s.vm.control().name);
        }
    }
}

/// The control thread: one front end after another.
fn control(vm: &dyn Backing, mut listener: Listener) {
    let control = vm.control();
    while !control.stopped() {
        match listener.accept() {
            Ok(Some(stream)) => {
                control.connections.fetch_add(1, Ordering::Relaxed);
                control.connected.store(true, Ordering::Relaxed);
                tracing::info!("{}: front end connected", control.name);
                match stream.set_nonblocking(true) {
                    Ok(()) => serve(vm, Connection::new(stream)),
                    Err(e) => tracing::error!("{}: {e}", control.name),
                }
                control.connected.store(false, Ordering::Relaxed);
                if !listener.is_lasting() {
                    return;
                }
                continue;
            }
            Ok(None) => {}
            Err(e) => {
                // Out of descriptors, most likely: try again a little later.
                tracing::error!("{}: accept failed: {e}", control.name);
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        let Some(fd) = listener.poll_fd() else { return };
        let mut fds =
            [PollFd::from_borrowed_fd(fd, PollFlags::IN), PollFd::new(&control.wake.0, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        control.drain_wake();
    }
}

/// Serves one connection until it ends, whatever the reason.
fn serve(vm: &dyn Backing, mut connection: Connection) {
    let control = vm.control();
    let mut session = Session::new(vm);
    let end = loop {
        if control.stopped() {
            break Ok("server stops");
        }
        session.attend();
        match connection.recv() {
            Ok(Some(message)) => {
                if let Err(e) = session.handle(&mut connection, message) {
                    break Err(e);
                }
            }
            Ok(None) => break Ok("front end left"),
            Err(WireError::WouldBlock) => {
                let stream = connection.stream().as_fd();
                let mut fds = [
                    PollFd::from_borrowed_fd(stream, PollFlags::IN),
                    PollFd::new(&control.wake.0, PollFlags::IN),
                ];
                let _ = poll(&mut fds, None);
                control.drain_wake();
            }
            Err(e) => break Err(SessionError::Wire(e)),
        }
    };
    drop(session);
    match end {
        Ok(why) => tracing::info!("{}: connection ended: {why}", control.name),
        Err(e) => {
            vm.set_error(e.to_string());
            control.connection_errors.fetch_add(1, Ordering::Release);
            tracing::error!("{}: connection ended: {e}", control.name);
        }
    }
}

/// CPU time of all threads of this process, seconds.
pub(super) fn process_cpu_seconds() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}
