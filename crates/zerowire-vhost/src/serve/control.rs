//! A VM's control thread: listens for its front end and serves one after another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use zerowire_vhost_user::{MessageSocket, WireError};

use super::admission::Admission;
use super::device::Device;
use super::listen::Listener;
use super::pace::{Pace, Progress};
use crate::session::{Session, SessionError};

/// How long a server waits for its threads to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Stack of a control thread, bytes. Untouched pages cost nothing.
const STACK_BYTES: usize = 256 * 1024;

/// What a VM's control thread shares with whoever stops it or asks for statistics.
#[derive(Debug)]
pub struct Control {
    /// The VM's name.
    pub name: String,
    /// Whether a front end is connected.
    pub connected: AtomicBool,
    /// Connections so far.
    pub connections: AtomicU64,
    /// Connections that ended by a protocol error.
    pub connection_errors: AtomicU64,
    /// Features that the guest acknowledged.
    pub acked_features: AtomicU64,
    /// vhost-user protocol features that the front end acknowledged.
    pub protocol_features: AtomicU64,
    /// Device status as the front end last set it (virtio 1.3 §2.1).
    pub status: AtomicU64,
    stop: AtomicBool,
    /// Its front end is the last one.
    draining: AtomicBool,
    wake: Waker,
}

/// Wakes a control thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes the thread look for something new ([`Device::attend`]).
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Control {
    /// Of a VM that has no control thread yet.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(name: String) -> io::Result<Self> {
        Ok(Self {
            name,
            connected: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            connection_errors: AtomicU64::new(0),
            acked_features: AtomicU64::new(0),
            protocol_features: AtomicU64::new(0),
            status: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            wake: Waker(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)),
        })
    }

    /// Makes the thread look for something new ([`Device::attend`]).
    pub fn wake(&self) {
        self.wake.wake();
    }

    /// What wakes the thread.
    pub fn waker(&self) -> Waker {
        self.wake.clone()
    }

    fn drain_wake(&self) {
        let mut n = [0u8; 8];
        let _ = rustix::io::read(&self.wake.0, &mut n);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The thread takes no new front end, and ends when the present one has left.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether a front end is connected.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Whether [`Self::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}

/// A VM as its control thread sees it.
pub trait Backing: Send + Sync + 'static {
    /// What its control thread shares.
    fn control(&self) -> &Control;

    /// Keeps the text of an error for the statistics.
    fn set_error(&self, text: String);

    /// The device for a new connection.
    fn device(&self) -> Box<dyn Device + '_>;

    /// The control thread ends; its socket is gone.
    fn ended(self: Arc<Self>) {}
}

/// A VM with its running control thread.
pub struct Served<B> {
    /// The VM.
    pub vm: Arc<B>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl<B: Backing> Served<B> {
    /// Serves one front end after another, all of them if nobody decides who is let in.
    pub fn spawn(vm: Arc<B>, listener: Listener, link: Option<Box<dyn Admission>>) -> io::Result<Self> {
        let for_thread = vm.clone();
        let thread = std::thread::Builder::new()
            .name(format!("{}-ctl", vm.control().name))
            .stack_size(STACK_BYTES)
            .spawn(move || {
                control(&*for_thread, listener, link);
                for_thread.ended();
            })?;
        Ok(Self { vm, thread: Some(thread) })
    }

    /// Whether a connection is there or may still come.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    /// Ends the control thread with its connection. False: it did not end in time, and
    /// [`Self::stop`] can be called again. A front end can hold up its own VM's threads (a
    /// descriptor that blocks), not the end of the process.
    pub fn stop(&mut self) -> bool {
        self.ask_to_stop();
        self.wait(Instant::now())
    }

    fn ask_to_stop(&self) {
        let control = self.vm.control();
        control.stop.store(true, Ordering::Release);
        control.wake();
    }

    fn wait(&mut self, since: Instant) -> bool {
        while self.is_alive() && since.elapsed() < STOP_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.is_alive() {
            tracing::error!("{}: its threads did not stop within {STOP_PATIENCE:?}", self.vm.control().name);
            return false;
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        true
    }
}

/// Ends control threads, each with its connection.
pub fn stop_all<'a, B: Backing>(served: impl Iterator<Item = &'a mut Served<B>>) {
    let served: Vec<_> = served.collect();
    served.iter().for_each(|s| s.ask_to_stop());
    let start = Instant::now();
    for s in served {
        s.wait(start);
    }
}

/// How long to wait before a retry of what the system refused.
const RETRY: Duration = Duration::from_millis(500);

/// The control thread: one front end after another.
fn control(vm: &dyn Backing, mut listener: Listener, mut link: Option<Box<dyn Admission>>) {
    let control = vm.control();
    let _lines = tracing::error_span!("vm", name = control.name).entered();
    let mut refused = None;
    let mut pace = Pace::default();
    // No front end is accepted before.
    let mut not_before: Option<Instant> = None;
    while !control.stopped() && !control.is_draining() {
        let mut patience = None;
        if let Some(link) = &mut link {
            link.look();
            patience = link.due(false);
            if !link.admits() {
                listener.shut();
            } else if let Err(e) = listener.reopen() {
                let text = e.to_string();
                if refused.as_ref() != Some(&text) {
                    tracing::error!("{}: {text}; tried again", control.name);
                    vm.set_error(text.clone());
                    refused = Some(text);
                }
                patience = Some(RETRY);
            } else {
                refused = None;
            }
        }
        let wait = not_before.map(|at| at.saturating_duration_since(Instant::now()));
        if let Some(wait) = wait.filter(|w| !w.is_zero()) {
            sleep(control, None, link.as_deref(), Some(patience.map_or(wait, |p: Duration| p.min(wait))));
            continue;
        }
        match listener.accept() {
            Ok(Some(stream)) => {
                take_front_end(vm, stream, &mut listener, link.as_deref_mut(), &mut pace);
                if !listener.is_lasting() {
                    return;
                }
                let ended = Instant::now();
                not_before = Some(ended + pace.ended(ended));
                if pace.begins_to_wait() {
                    tracing::warn!(
                        "{}: front ends connect and leave without a pause: the next ones wait, longer and longer",
                        control.name
                    );
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
        if listener.poll_fd().is_none() && !listener.is_lasting() {
            return;
        }
        sleep(control, listener.poll_fd(), link.as_deref(), patience);
    }
}

/// Serves a front end that has connected.
fn take_front_end(
    vm: &dyn Backing,
    stream: UnixStream,
    listener: &mut Listener,
    link: Option<&mut (dyn Admission + 'static)>,
    pace: &mut Pace,
) {
    let control = vm.control();
    control.connections.fetch_add(1, Ordering::Relaxed);
    control.connected.store(true, Ordering::Relaxed);
    tracing::info!("{}: front end connected", control.name);
    match stream.set_nonblocking(true) {
        Ok(()) => serve(vm, MessageSocket::new(stream), listener, link, pace),
        Err(e) => tracing::error!("{}: {e}", control.name),
    }
    control.connected.store(false, Ordering::Relaxed);
}

/// Sleeps until the descriptor is readable, or there is something else to look at.
fn sleep(
    control: &Control,
    fd: Option<BorrowedFd<'_>>,
    link: Option<&dyn Admission>,
    patience: Option<Duration>,
) {
    let links = link.map(Admission::wakers).unwrap_or_default();
    let mut fds: Vec<_> = [control.wake.0.as_fd()]
        .into_iter()
        .chain(fd)
        .chain(links)
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    // A little later rather than a little sooner, and once more.
    let patience = patience.and_then(|p| (p + Duration::from_millis(1)).try_into().ok());
    let _ = poll(&mut fds, patience.as_ref());
    control.drain_wake();
}

/// Time for a front end that connected by the socket to send its first message. All of them begin
/// at once; one that does not keeps the VM from its own front end.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);

/// Why a connection ends that its front end has not ended. A VM that is drained lets no other one
/// in.
fn end_of(
    control: &Control,
    listener: &mut Listener,
    link: Option<&mut (dyn Admission + 'static)>,
    connection: &MessageSocket,
) -> Option<&'static str> {
    if control.stopped() {
        return Some("server stops");
    }
    if control.is_draining() {
        listener.close();
    }
    let link = link?;
    link.look();
    link.ends().then(|| link.turn_away(connection.stream()))
}

/// Serves one connection until it ends, whatever the reason.
fn serve(
    vm: &dyn Backing,
    mut connection: MessageSocket,
    listener: &mut Listener,
    mut link: Option<&mut (dyn Admission + 'static)>,
    pace: &mut Pace,
) {
    let control = vm.control();
    // A connection that was handed over may wait for its front end to be started.
    let mut first = listener.is_lasting().then(|| Instant::now() + FIRST_MESSAGE);
    let mut session = Session::new(vm);
    if let Some(link) = &mut link {
        link.connected();
    }
    let mut progress = Progress::default();
    let end = loop {
        if let Some(why) = end_of(control, listener, link.as_deref_mut(), &connection) {
            break Ok(why);
        }
        session.attend();
        match connection.recv() {
            Ok(Some(message)) => {
                first = None;
                if let Err(e) = session.handle(&mut connection, message) {
                    break Err(e);
                }
            }
            Ok(None) => {
                progress = session.progress();
                break Ok("front end left");
            }
            Err(WireError::WouldBlock) => {
                let link = link.as_deref();
                let left = first.map(|at| at.saturating_duration_since(Instant::now()));
                if left == Some(Duration::ZERO) {
                    let text = format!("no message within {FIRST_MESSAGE:?} of its connection");
                    break Err(SessionError::Protocol { request: "front end", text });
                }
                let patience = [link.and_then(|l| l.due(true)), left].into_iter().flatten().min();
                sleep(control, Some(connection.stream().as_fd()), link, patience);
            }
            Err(e) => break Err(SessionError::Wire(e)),
        }
    };
    let queues = pace.wants_queues(progress).then(|| session.queues());
    drop(session);
    match end {
        Ok(why) => tracing::info!("{}: connection ended: {why}", control.name),
        Err(e) => {
            vm.set_error(e.to_string());
            control.connection_errors.fetch_add(1, Ordering::Release);
            tracing::error!("{}: connection ended: {e}", control.name);
        }
    }
    if let Some(queues) = queues {
        let text = format!("front ends leave when they are told that there are {queues}");
        tracing::warn!("{}: {text}", control.name);
        vm.set_error(text);
    }
}

/// CPU time of all threads of this process, seconds.
pub fn process_cpu_seconds() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}
