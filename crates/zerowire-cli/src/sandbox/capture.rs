//! The frames of a VM's child on their way into the supervisor's capture.
//!
//! ```text
//! child                                  supervisor
//!  workers ─▶ rings ─▶ writer ─▶ socket ─▶ thread of the VM ─▶ ring ─▶ writer ─▶ FILE
//! ```
//!
//! Nobody waits: if the socket is full, the child's capture rings fill up, and what they have no
//! room for is lost to the capture and counted. The supervisor checks what comes
//! ([`CaptureInterface::record_stream`]) and books it on the child's own VM.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zerowire_capture::{Capture, CaptureInterface, CaptureStats};

/// How long a thread that has nothing more to read may take to end.
const LEFT_BEHIND: Duration = Duration::from_secs(1);

/// How long a child may take to write what it has captured.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// The pause between two looks meanwhile.
const LOOK: Duration = Duration::from_millis(1);
/// Stack of the thread, bytes.
const STACK_BYTES: usize = 128 * 1024;

/// A VM's part of a capture.
pub(crate) struct KeptCapture {
    interface: CaptureInterface,
    /// Bytes that are kept of a frame.
    pub(crate) snaplen: u32,
    relay: Option<CaptureRelay>,
}

impl KeptCapture {
    /// With an interface of this link type. None: the VM is not captured.
    pub(crate) fn new(capture: Option<&Capture>, link: u16, vm: &str, description: &str) -> Option<Self> {
        let capture = capture?;
        let interface = capture.interface(link, vm, description)?;
        Some(Self { interface, snaplen: capture.copied_bytes(), relay: None })
    }

    /// Takes the frames of a child from now on, which writes them to what this returns.
    pub(crate) fn begin(&mut self, vm: &str) -> io::Result<OwnedFd> {
        let (ours, theirs) = UnixStream::pair()?;
        let from = ours.try_clone()?;
        let (name, interface) = (vm.to_owned(), self.interface.clone());
        let thread = std::thread::Builder::new().name(format!("{vm}-pcap")).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || {
            let _lines = tracing::error_span!("vm", name).entered();
            if let Err(e) = interface.record_stream(&from) {
                tracing::error!("{name}: what its process captures can't be taken: {e}");
                let _ = from.shutdown(Shutdown::Both);
            }
        })?;
        self.relay = Some(CaptureRelay { socket: ours, thread });
        Ok(theirs.into())
    }

    /// What takes the frames of the last child.
    pub(crate) fn take_relay(&mut self) -> Option<CaptureRelay> {
        self.relay.take()
    }

    /// What was counted so far.
    pub(crate) fn stats(&self) -> CaptureStats {
        self.interface.stats()
    }
}

/// What takes the frames of one child, until that closes its end.
pub(crate) struct CaptureRelay {
    socket: UnixStream,
    thread: JoinHandle<()>,
}

impl CaptureRelay {
    /// Waits until the child has written all, or until `deadline`.
    pub(crate) fn finish(self, deadline: Instant) {
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        // The thread may wait for a child that does not end.
        let _ = self.socket.shutdown(Shutdown::Both);
        let deadline = Instant::now() + LEFT_BEHIND;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        // It goes by itself when the kernel lets go of it, as where it closes a descriptor that the
        // child has sent along.
        if self.thread.is_finished() {
            let _ = self.thread.join();
        }
    }
}
