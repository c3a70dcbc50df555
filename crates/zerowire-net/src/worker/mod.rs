//! The thread of one queue pair: both directions, one event loop.
//!
//! The loop is [`TurnLoop`]'s; a turn moves a batch each way.

mod commands;
mod limits;
mod port_events;
mod report;
mod side;
mod states;
mod waking;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use zerowire_capture::CaptureInterface;
use zerowire_vhost::host::mailbox::mailbox;
use zerowire_vhost::host::turns::{Armed, TurnLoop, Turns, Woke, Worked};
use zerowire_vhost::host::{RingClient, RingState, RingThread, refuse_all};
use zerowire_vhost::memory::GuestMemory;
use zerowire_vhost::serve::{VisitLog, Waker};

use crate::guard::FrameGuard;
use crate::metadata::MetadataDetour;
use crate::port::PortPath;
use crate::receive::{Inlet, ReceiveContext, RxPort, SETTLE_AFTER};
use crate::stats::Shared;
use crate::transmit::{Detour, TransmitContext};
use crate::{Receive, Transmit};
pub(crate) use commands::{WorkerCapture, WorkerCommand};
use limits::PairLimits;
use port_events::PortEvents;
use report::Report;
pub(crate) use side::Direction;
use side::Side;
use states::{PortWatch, RxWait};
use waking::TRIM_AFTER;

const TAG_WAKE: u64 = 0;
const TAG_PORT: u64 = 1;
const TAG_TRANSMIT: u64 = 2;
const TAG_RECEIVE: u64 = 3;
const TAG_EVENTS: u64 = 4;

/// After work a worker looks at its rings this many times more before it sleeps, one to two
/// microseconds. So a driver on another CPU that is about to add a buffer finds it awake. Waking up
/// costs more than ten microseconds.
pub(crate) const LINGER: u32 = 32;

/// Events taken at once.
const EVENTS: usize = 8;

/// Stack of a worker, bytes. Untouched pages cost nothing.
const STACK_BYTES: usize = 256 * 1024;

/// What a worker is made of.
pub(crate) struct WorkerSetup {
    pub name: String,
    pub pair: usize,
    pub memory: Arc<GuestMemory>,
    pub shared: Arc<Shared>,
    pub detour: Option<MetadataDetour>,
    pub guard: Option<Arc<FrameGuard>>,
    pub forwarded: Arc<AtomicUsize>,
    pub control: Waker,
    pub log: VisitLog,
    pub capture: Option<CaptureInterface>,
}

/// A running worker. Dropping it ends the thread and waits for it.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    pub rings: RingClient<WorkerCommand>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl WorkerHandle {
    /// Starts a worker on the path that `make` makes, on the worker's own thread.
    pub(crate) fn spawn<P: PortPath>(
        setup: WorkerSetup,
        make: impl FnOnce() -> io::Result<P> + Send + 'static,
    ) -> io::Result<Self> {
        let (commands, queue, wake) = mailbox()?;
        let name = format!("{}-q{}", setup.name, setup.pair);
        let thread = std::thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(move || {
            let _lines = tracing::error_span!("vm", name = setup.name).entered();
            let pair = setup.pair;
            let shared = setup.shared.clone();
            match Worker::new(setup, make, &wake) {
                Ok(mut worker) => TurnLoop::new(queue, wake, EVENTS).run(&mut worker),
                Err(e) => {
                    shared.set_error(format!("queue pair {pair}: {e}"));
                    tracing::error!("queue pair {pair} can't be served: {e}");
                    refuse_all(&queue, &e.to_string());
                }
            }
        })?;
        Ok(Self { rings: RingClient::new(commands, 0), thread: Some(thread) })
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.rings.quit();
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

struct Worker<P: PortPath> {
    // Rings hold pointers into the memory: they go first.
    transmit: Option<Transmit<P::Outlet>>,
    receive: Option<Receive<P::Inlet>>,
    memory: Arc<GuestMemory>,
    path: P,
    report: Report,
    detour: Option<MetadataDetour>,
    guard: Option<Arc<FrameGuard>>,
    forwarded: Arc<AtomicUsize>,
    control: Waker,
    events: PortEvents,
    life: Life,
    rx: RxWait,
    /// Where frames go as well.
    capture: Option<CaptureInterface>,
    limits: PairLimits,
    /// No burst has touched memory that could be let go of.
    trimmed: bool,
}

/// Whether a worker serves its rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Serving,
    /// Rings have let go of the memory, and wait for what comes in its place.
    Released,
}

impl<P: PortPath> Worker<P> {
    fn new(setup: WorkerSetup, make: impl FnOnce() -> io::Result<P>, wake: &OwnedFd) -> io::Result<Self> {
        let events = PortEvents::new(setup.pair, wake)?;
        let path = make()?;
        events.add(path.port())?;
        let mut worker = Self {
            transmit: None,
            receive: None,
            memory: Arc::default(),
            path,
            report: Report::new(setup.pair, setup.shared),
            detour: setup.detour,
            guard: setup.guard,
            forwarded: setup.forwarded,
            control: setup.control,
            events,
            life: Life::Serving,
            rx: RxWait::new(),
            capture: setup.capture,
            limits: PairLimits::default(),
            trimmed: true,
        };
        worker.set_memory(0, setup.memory);
        Ok(worker)
    }

    /// Sends a batch. Returns whether there was anything to send.
    #[inline]
    fn transmit(&mut self) -> bool {
        let limiter = &self.report.limiters().transmit;
        let Some(side) = self.transmit.as_mut().filter(|s| s.host().is_drained()) else {
            self.limits.transmit.end(limiter);
            return false;
        };
        let counters = &self.report.counters().transmit;
        let result = if side.host().state == RingState::Enabled {
            self.limits.begin_transmit(limiter, side);
            let detour = self.detour.as_mut().map(|d| d as &mut dyn Detour);
            let guard = self.guard.as_deref().filter(|guard| guard.checks_transmit());
            let mut cx = TransmitContext { memory: &self.memory, counters, detour, guard };
            let result = side.run(self.path.queue(), &mut cx);
            self.limits.end_transmit(limiter, side);
            result
        } else {
            self.limits.transmit.end(limiter);
            side.discard(self.path.queue(), counters)
        };
        match result {
            Ok(turn) => {
                if turn.notify && side.host().call() {
                    counters.calls.add(1);
                }
                turn.chains > 0
            }
            Err(e) => {
                side.host().call();
                side.fail(&mut self.path, counters);
                self.report.ring_broke(&e);
                false
            }
        }
    }

    /// Receives a batch. Returns whether frames came.
    #[inline]
    fn receive(&mut self, woke: Woke) -> bool {
        let limiter = &self.report.limiters().receive;
        if !self.events.port.is_ready() && !self.rx.has_frame() {
            self.limits.receive.end(limiter);
            return false;
        }
        // Without a new buffer nothing has changed for a guest that is short of them, but for time
        // that has passed.
        let retry = woke == Woke::ByTime || self.rx.is_due(Instant::now);
        let Some(side) = self.receive.as_mut().filter(|s| s.host().is_active()) else {
            self.limits.receive.end(limiter);
            return false;
        };
        if self.rx.is_short()
            && !retry
            && !P::Inlet::POSTS_AHEAD
            && matches!(side.host_mut().ring.available(), Ok(0))
        {
            self.limits.receive.end(limiter);
            return false;
        }
        let counters = &self.report.counters().receive;
        if !self.limits.begin_receive(limiter, side, counters) {
            return false;
        }
        match side.run(self.path.queue(), &ReceiveContext { memory: &self.memory, counters }) {
            Ok(r) => {
                self.limits.end_receive(limiter, side.header_len(), counters);
                let look_at = || Instant::now() + SETTLE_AFTER;
                self.rx.ran(r.buffers.are_short(), r.buffers.are_awaited(), look_at);
                if r.turn.notify && side.host().call() {
                    counters.calls.add(1);
                }
                if r.port == RxPort::Gone {
                    self.events.port = PortWatch::Gone;
                } else if r.port == RxPort::Empty && self.events.port.set_empty() {
                    self.events.ask(self.path.port());
                }
                r.turn.chains > 0
            }
            Err(e) => {
                side.host().call();
                side.fail(&mut self.path, counters);
                self.report.ring_broke(&e);
                false
            }
        }
    }

    /// The path has another descriptor.
    #[cold]
    fn watch_new_port(&mut self) {
        self.events.renew(self.path.port(), self.path.events());
        self.report.path(|| self.path.describe());
    }

    /// Lets the metadata service answer. Returns whether it gave the guest anything.
    fn pump_metadata(&mut self) -> bool {
        let Some(MetadataDetour::Service(service)) = &mut self.detour else { return false };
        if !service.is_active() {
            return false;
        }
        let Some(side) = self.receive.as_mut().filter(|s| s.host().is_active()) else { return false };
        let counters = &self.report.counters().receive;
        let cx = ReceiveContext { memory: &self.memory, counters };
        let mut error = None;
        let mut given = false;
        service.pump(|frame| match side.inject(frame, &cx) {
            Ok(room) => {
                given |= room;
                room
            }
            Err(e) => {
                error = Some(e);
                false
            }
        });
        if let Some(e) = error {
            side.fail(&mut self.path, counters);
            self.report.ring_broke(&e);
            return false;
        }
        if given && side.host_mut().ring.publish() && side.host().call() {
            counters.calls.add(1);
        }
        given
    }
}

impl<P: PortPath> Turns for Worker<P> {
    const LINGER: u32 = LINGER;
    const TURNS_UNASKED: u32 = 16;
    const LOOKS_UNASKED: Option<u32> = None;
    const WAKE: u64 = TAG_WAKE;

    fn label(&self) -> String {
        format!("queue pair {}: ", self.report.pair)
    }

    #[inline]
    fn is_released(&self) -> bool {
        self.life == Life::Released
    }

    #[inline]
    fn turn(&mut self, woke: Woke) -> Worked {
        let sent = self.transmit();
        self.report.served(Direction::Transmit);
        if sent && P::Inlet::POSTS_AHEAD && self.events.sent() {
            self.events.take_out(self.path.port());
        }
        let mut busy = sent;
        // Sending may have opened the port, or the turn before; the receive side asks for its next
        // event.
        if self.path.renewed() {
            self.watch_new_port();
        }
        self.events.port.begin_turn();
        busy |= self.receive(woke);
        if self.detour.is_some() {
            busy |= self.pump_metadata();
        }
        self.report.served(Direction::Receive);
        if self.path.attention() {
            self.control.wake();
        }
        if !busy {
            return Worked::Idle;
        }
        self.trimmed = false;
        Worked::Busy {
            // Where buffers were posted ahead no driver is waited for, and the kernel may bring
            // frames on this very CPU.
            lingers: sent || self.rx.is_short() || !P::Inlet::POSTS_AHEAD,
            // While the port has frames, each turn looks at both directions: only commands can
            // wait.
            knows_events: self.events.port.is_ready(),
        }
    }

    fn arm(&mut self) -> Armed {
        if self.arm_rings() { Armed::Blocked } else { Armed::Rest(self.idle_time()) }
    }

    fn waits(&mut self, mut limit: Option<Duration>) -> Option<Duration> {
        // Receiving, and the checks before a sleep, may have opened the port, too.
        if self.path.renewed() {
            self.watch_new_port();
            limit = Some(Duration::ZERO);
        }
        if self.path.attention() {
            self.control.wake();
        }
        if self.path.changed() {
            self.report.path(|| self.path.describe());
        }
        limit
    }

    fn sleeps(&mut self) {
        self.events.put_in(self.path.port());
    }

    fn is_kick(token: u64) -> bool {
        matches!(token, TAG_TRANSMIT | TAG_RECEIVE)
    }

    fn kicked(&mut self, at: Instant) {
        self.report.woke = Some(at);
    }

    fn event(&mut self, token: u64, _flags: epoll::EventFlags) -> bool {
        self.take_event(token);
        true
    }

    fn slept(&mut self, limit: Option<Duration>) -> bool {
        if limit.is_none_or(|t| t >= TRIM_AFTER) {
            self.trim();
        }
        self.rx.slept();
        false
    }
}
