//! A capture that runs.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;
use zerowire_wire::pcapng::InterfaceCounts;

use crate::options::{CaptureError, CaptureOptions, CaptureTarget};
use crate::queue::CaptureQueue;
use crate::shared::{InterfaceState, Shared};
use crate::sink::CaptureSink;
use crate::stream;
use crate::writer::CaptureWriter;

/// How often the end looks whether the thread has written what is left.
const LOOK: Duration = Duration::from_millis(1);

/// A capture: a file, and a thread that writes it. Dropping it ends it, without waiting for what is
/// to be written ([`Self::finish`]).
#[derive(Debug)]
pub struct Capture {
    shared: Arc<Shared>,
    options: CaptureOptions,
    thread: JoinHandle<()>,
}

impl Capture {
    /// Opens the file, writes how it begins, and starts the thread. The file names `program` as its
    /// author.
    ///
    /// # Errors
    /// [`CaptureError`], also where nobody reads the pipe: it waits for no reader.
    pub fn start(options: &CaptureOptions, program: &str) -> Result<Self, CaptureError> {
        Self::write(CaptureSink::open(options)?, options, program, false)
    }

    /// A capture that another process reads, as a stream ([`CaptureInterface::record_stream`]). Of
    /// each packet up to `snaplen` bytes are kept.
    ///
    /// # Errors
    /// [`CaptureError::Open`] where nobody reads it, [`CaptureError::Thread`].
    pub fn stream(to: OwnedFd, snaplen: u32) -> Result<Self, CaptureError> {
        let target = CaptureTarget::File("another process".into());
        let options = CaptureOptions::new(target).snaplen(snaplen);
        let sink = CaptureSink::stream(to.into(), options.target.clone());
        Self::write(sink, &options, "", true)
    }

    fn write(
        sink: CaptureSink,
        options: &CaptureOptions,
        program: &str,
        tells_losses: bool,
    ) -> Result<Self, CaptureError> {
        let shared = Arc::new(Shared::new(options.copied_bytes()));
        let mut writer = CaptureWriter::new(shared.clone(), sink, options, program, tells_losses);
        let failed = |cause| CaptureError::Open { target: options.target.clone(), cause };
        writer.begin().map_err(failed)?;
        let thread = std::thread::Builder::new().name("capture".to_owned());
        let thread = thread.spawn(move || writer.run()).map_err(CaptureError::Thread)?;
        shared.set_thread(thread.thread().clone());
        Ok(Self { shared, options: options.clone(), thread })
    }

    /// Adds an interface, whose packets are of this link type. It has a block in each file until
    /// all that know of it have gone. None if only others are captured.
    pub fn interface(&self, link: u16, name: &str, description: &str) -> Option<CaptureInterface> {
        let only = &self.options.only;
        if !only.is_empty() && !only.iter().any(|n| n == name) {
            return None;
        }
        let state = Arc::new(InterfaceState {
            link,
            name: name.to_owned(),
            description: description.to_owned(),
            captured: AtomicU64::default(),
            lost: AtomicU64::default(),
            number: AtomicU32::default(),
        });
        self.shared.arrive(|new| new.interfaces.push(state.clone()));
        Some(CaptureInterface { state, shared: self.shared.clone() })
    }

    /// What it was started with.
    pub fn options(&self) -> &CaptureOptions {
        &self.options
    }

    /// Bytes of a packet that it takes: more than it keeps where a filter looks at them.
    pub fn copied_bytes(&self) -> u32 {
        self.shared.copied_bytes
    }

    /// Whether it has ended: it could not be written, or was finished.
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended()
    }

    /// Ends the capture: what was published so far is written, and the counts of each interface.
    /// Returns false if that took longer than `patience`; the thread is left to itself then.
    pub fn finish(&self, patience: Duration) -> bool {
        self.shared.stop();
        let begin = Instant::now();
        while !self.thread.is_finished() {
            if begin.elapsed() >= patience {
                return false;
            }
            std::thread::park_timeout(LOOK);
        }
        true
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// A server whose VMs can be captured.
pub trait Captured: Send + Sync {
    /// Where the packets of all VMs go as well.
    fn capture(&self) -> Option<Arc<Capture>>;

    /// Has the packets of all VMs go to another capture from now on, or to none. The one before
    /// gets what is under way, and is returned.
    fn set_capture(&self, capture: Option<Arc<Capture>>) -> Option<Arc<Capture>>;
}

/// An interface of a capture.
#[derive(Clone, Debug)]
pub struct CaptureInterface {
    state: Arc<InterfaceState>,
    shared: Arc<Shared>,
}

impl CaptureInterface {
    /// A ring of 4 MiB for one worker's packets.
    pub fn queue(&self) -> CaptureQueue {
        CaptureQueue::new(self.state.clone(), self.shared.clone())
    }

    /// Records the packets that another process writes by [`Capture::stream`], until its end. It
    /// trusts none of it: a packet has at most as many bytes as are captured, and is not of the
    /// future. What the other process has lost is counted as lost.
    ///
    /// # Errors
    /// It can't be read, or is none.
    pub fn record_stream(&self, from: impl Read) -> io::Result<()> {
        stream::record(from, &self.state, &mut self.queue())
    }

    /// What was counted so far.
    pub fn stats(&self) -> CaptureStats {
        let InterfaceCounts { captured, lost } = self.state.counts();
        CaptureStats { captured, lost }
    }
}

/// What a capture has of an interface, for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CaptureStats {
    /// Packets in the capture.
    pub captured: u64,
    /// Packets that it lacks: there was no room, or it has ended.
    pub lost: u64,
}
