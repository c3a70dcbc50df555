//! What commands do to a worker.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use zerowire_capture::CaptureInterface;
use zerowire_metadata::MetadataTree;
use zerowire_vhost::host::{At, HostRing, RingSetup, RingThread};
use zerowire_vhost::memory::GuestMemory;

use super::side::{Direction, Side};
use super::{Life, TAG_RECEIVE, TAG_TRANSMIT, Worker};
use crate::FrameGuard;
use crate::capture::FrameCapture;
use crate::metadata::MetadataDetour;
use crate::port::PortPath;
use crate::receive::Inlet;
use crate::{Receive, Transmit};

/// What the device asks of a worker.
#[derive(Debug)]
pub(crate) enum WorkerCommand {
    /// New metadata, for the worker with the service.
    Tree(Arc<MetadataTree>),
    /// A frame for the service, from another worker of the same VM.
    Frame(Vec<u8>),
    /// What the guest may send from now on.
    Guard(Option<Arc<FrameGuard>>),
    /// Frames go there as well from now on, or nowhere else. The second field goes when that is so.
    Capture(Option<Box<WorkerCapture>>, Arc<()>),
}

/// Where the frames of a worker go as well. Its rings are filled as they are made, so the worker
/// makes none while it moves frames.
#[derive(Debug)]
pub(crate) struct WorkerCapture {
    interface: CaptureInterface,
    transmit: FrameCapture,
    receive: FrameCapture,
}

impl WorkerCapture {
    /// For the VM that has this interface.
    pub fn new(interface: &CaptureInterface) -> Box<Self> {
        let side = || FrameCapture::new(interface);
        Box::new(Self { interface: interface.clone(), transmit: side(), receive: side() })
    }
}

impl<P: PortPath> Worker<P> {
    fn set_guard(&mut self, guard: Option<Arc<FrameGuard>>) {
        self.guard = guard;
        self.bound_groups();
    }

    /// Has the receive side keep to the guard's bound.
    fn bound_groups(&mut self) {
        let bound = self.guard.as_ref().and_then(|guard| guard.storm_bound());
        if let Some(side) = &mut self.receive {
            side.bound_groups(bound);
        }
    }

    /// Has frames of both directions go elsewhere as well, or nowhere else.
    fn set_capture(&mut self, capture: Option<Box<WorkerCapture>>) {
        let parts = capture.map(|capture| (capture.interface, (capture.transmit, capture.receive)));
        let (interface, sides) = parts.unzip();
        let (transmit, receive) = sides.unzip();
        if let Some(side) = &mut self.transmit {
            side.set_capture(transmit);
        }
        if let Some(side) = &mut self.receive {
            side.set_capture(receive);
        }
        self.capture = interface;
    }
}

impl<P: PortPath> RingThread for Worker<P> {
    type Device = WorkerCommand;

    fn queues(&self) -> Range<u16> {
        let first = 2 * self.report.pair as u16;
        first..first + 2
    }

    fn ring_mut(&mut self, at: At) -> Option<&mut HostRing> {
        match Direction::of(at.queue) {
            Direction::Transmit => self.transmit.as_mut().map(Transmit::host_mut),
            Direction::Receive => self.receive.as_mut().map(Receive::host_mut),
        }
    }

    fn memory(&mut self, _vm: usize) -> &mut Arc<GuestMemory> {
        &mut self.memory
    }

    fn epoll(&self) -> (&OwnedFd, fn(At) -> u64) {
        (&self.events.epoll, |at| match Direction::of(at.queue) {
            Direction::Transmit => TAG_TRANSMIT,
            Direction::Receive => TAG_RECEIVE,
        })
    }

    fn install(&mut self, at: At, setup: RingSetup) -> Result<(), String> {
        let capture = self.capture.as_ref().map(FrameCapture::new);
        match Direction::of(at.queue) {
            Direction::Transmit => {
                let (mut side, recovered) =
                    Transmit::<P::Outlet>::start(&mut self.path, setup, &self.memory)?;
                self.report.unsure(recovered.unsure);
                side.set_capture(capture);
                self.transmit = Some(side);
            }
            Direction::Receive => {
                let (mut side, _) = Receive::<P::Inlet>::start(&mut self.path, setup, &self.memory)?;
                side.set_capture(capture);
                self.receive = Some(side);
                self.bound_groups();
            }
        }
        Ok(())
    }

    fn remove(&mut self, at: At) -> Option<HostRing> {
        let (counters, memory) = (self.report.counters(), &self.memory);
        let limiters = self.report.limiters();
        Some(match Direction::of(at.queue) {
            Direction::Transmit => {
                self.limits.transmit.finish(&limiters.transmit, Instant::now);
                self.transmit.take()?.end(&mut self.path, memory, &counters.transmit)
            }
            Direction::Receive => {
                self.limits.receive.finish(&limiters.receive, Instant::now);
                self.receive.take()?.end(&mut self.path, memory, &counters.receive)
            }
        })
    }

    fn release(&mut self, _vm: usize) {
        if std::mem::replace(&mut self.life, Life::Released) == Life::Released {
            return;
        }
        let counters = self.report.counters();
        if let Some(side) = &mut self.receive {
            side.let_go(&mut self.path, &self.memory, &counters.receive);
        }
        if let Some(side) = &mut self.transmit {
            side.let_go(&mut self.path, &self.memory, &counters.transmit);
        }
        self.path.let_go();
    }

    fn set_memory(&mut self, _vm: usize, memory: Arc<GuestMemory>) {
        self.life = Life::Serving;
        // A path notes no writes, and has no use for a log, which may go before the memory does.
        let plain = if memory.log().is_some() { Arc::new(memory.with_log(None)) } else { memory.clone() };
        self.path.set_memory(&plain);
        let mut problems = Vec::new();
        if let Some(side) = &mut self.transmit {
            problems.extend(side.move_to(&mut self.path, &memory).err());
        }
        if let Some(side) = &mut self.receive {
            problems.extend(side.move_to(&mut self.path, &memory).err());
        }
        self.memory = memory;
        // Have the next turn look at a ring that comes back with its memory.
        self.rx.posted();
        if P::Inlet::POSTS_AHEAD {
            self.events.port.set_ready();
        }
        problems.iter().for_each(|problem| self.report.ring_waits(problem));
        self.report.path(|| self.path.describe());
    }

    fn changed(&mut self, _at: At) {
        self.rx.begin();
        self.events.port.set_ready();
    }

    /// A worker ends with its front end.
    fn left(&mut self, _vm: usize) {}

    fn device(&mut self, command: WorkerCommand) {
        match command {
            WorkerCommand::Tree(tree) => {
                if let Some(MetadataDetour::Service(service)) = &mut self.detour {
                    service.set_tree(tree);
                }
            }
            WorkerCommand::Frame(frame) => {
                self.forwarded.fetch_sub(1, Ordering::Relaxed);
                if let Some(MetadataDetour::Service(service)) = &mut self.detour {
                    service.ingest(&frame);
                }
            }
            WorkerCommand::Guard(guard) => self.set_guard(guard),
            WorkerCommand::Capture(capture, _passing) => self.set_capture(capture),
        }
    }
}
