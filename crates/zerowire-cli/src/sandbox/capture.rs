//! The frames of a VM's child on their way into the supervisor's capture.
//!
//! ```text
//! child                                  supervisor
//!  workers ─▶ rings ─▶ writer ─▶ socket ─▶ thread of the VM ─▶ ring ─▶ writer ─▶ FILE
//! ```
//!
//! Nobody waits: if the socket is full, the child's capture rings fill up, and what they have no
//! room for is lost to the capture and counted. The supervisor checks what comes
//! ([`CaptureInterface::record_stream`]) and books it on the child's own VM. It reads for a quarter
//! of a CPU ([`HearingPace`]), so that a child which writes all the time takes no more.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zerowire_capture::{Capture, CaptureInterface, CaptureStats};

use super::pace::{HearingPace, thread_cpu_time};

/// How long threads that have nothing more to read may take to end.
const LEFT_BEHIND: Duration = Duration::from_secs(1);

/// How long a child may take to write what it has captured.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// The pause between two looks meanwhile.
pub(crate) const LOOK: Duration = Duration::from_millis(1);
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
            if let Err(e) = interface.record_stream(Paced(&from, HearingPace::default())) {
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

/// What a child writes, within the time that it may take to hear it.
struct Paced<'a>(&'a UnixStream, HearingPace);

impl Read for Paced<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        std::thread::sleep(self.1.heard(Instant::now(), thread_cpu_time()));
        self.0.read(into)
    }
}

/// What takes the frames of one child, until that closes its end.
pub(crate) struct CaptureRelay {
    socket: UnixStream,
    thread: JoinHandle<()>,
}

impl CaptureRelay {
    /// Waits until the children have written all, or until `deadline`. False: a thread was left
    /// behind.
    pub(crate) fn finish(relays: impl IntoIterator<Item = Self>, deadline: Instant) -> bool {
        let mut relays: Vec<_> = relays.into_iter().collect();
        let ended = |relays: &[Self]| relays.iter().all(|relay| relay.thread.is_finished());
        let wait = |relays: &[Self], deadline| {
            while !ended(relays) && Instant::now() < deadline {
                std::thread::sleep(LOOK);
            }
        };
        wait(&relays, deadline);
        // Threads may wait for a child that does not end.
        for relay in &relays {
            let _ = relay.socket.shutdown(Shutdown::Both);
        }
        wait(&relays, Instant::now() + LEFT_BEHIND);
        // One that has not ended goes by itself when the kernel lets go of it, as where it closes a
        // descriptor that the child has sent along.
        for relay in relays.extract_if(.., |relay| relay.thread.is_finished()) {
            let _ = relay.thread.join();
        }
        if !relays.is_empty() {
            tracing::warn!("captures of {} VMs may lack their ends: a process holds them up", relays.len());
        }
        relays.is_empty()
    }
}

/// Whether a VM that was opened is served from now on.
pub(crate) enum KeepOutcome {
    Running,
    /// Not yet: what it moves goes to another capture by now, or to none.
    OtherCapture(Option<Arc<Capture>>),
    /// The supervisor stops.
    Stopping,
}

/// Has a VM that was opened with `capture` be served. `keep` enters it among those that are
/// captured, with these locked. A capture that has begun meanwhile misses it: `change` gives it
/// that one, and waits for its child until a deadline, without the lock. False: the supervisor
/// stops.
pub(crate) fn keep_captured(
    mut capture: Option<Arc<Capture>>,
    keep: impl Fn(Option<&Arc<Capture>>) -> KeepOutcome,
    change: impl Fn(Option<&Capture>, Instant),
) -> bool {
    loop {
        match keep(capture.as_ref()) {
            KeepOutcome::Running => return true,
            KeepOutcome::OtherCapture(now) => {
                change(now.as_deref(), Instant::now() + PATIENCE);
                capture = now;
            }
            KeepOutcome::Stopping => return false,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::io::Write;

    use zerowire_capture::{CaptureOptions, CaptureTarget, LINKTYPE_ETHERNET};

    use super::*;

    /// A capture that nobody reads.
    pub(crate) fn capture() -> Arc<Capture> {
        let target = CaptureTarget::File("/dev/null".into());
        let options = CaptureOptions::new(target).snaplen(64);
        Arc::new(Capture::start(&options, "a test").expect("a capture"))
    }

    /// The CPU time that the thread of this name has taken.
    fn cpu_time(name: &str) -> Duration {
        let threads = std::fs::read_dir("/proc/self/task").expect("/proc").flatten();
        let read = |thread: &std::fs::DirEntry, file| std::fs::read_to_string(thread.path().join(file));
        let named = |thread: &std::fs::DirEntry| read(thread, "comm").is_ok_and(|comm| comm.trim() == name);
        let thread = threads.into_iter().find(named).expect("the thread");
        let told = read(&thread, "schedstat").expect("its time");
        Duration::from_nanos(told.split(' ').next().and_then(|ns| ns.parse().ok()).expect("nanoseconds"))
    }

    #[test]
    fn a_child_that_captures_all_the_time_takes_a_part_of_a_cpu() {
        let capture = capture();
        let kept = KeptCapture::new(Some(&capture), LINKTYPE_ETHERNET, "flood", "");
        let mut kept = kept.expect("it is captured");
        let mut to = File::from(kept.begin("flood").expect("a socket"));
        // Descriptions of an interface that say nothing: blocks of the least length.
        let block: Vec<u8> = [1_u32, 12, 12].into_iter().flat_map(u32::to_le_bytes).collect();
        let (begin, blocks) = (Instant::now(), block.repeat(5000));
        while begin.elapsed() < Duration::from_secs(2) {
            to.write_all(&blocks).expect("they are read");
        }
        let (cpu, time) = (cpu_time("flood-pcap"), begin.elapsed());
        drop(to);
        assert!(CaptureRelay::finish(kept.take_relay(), Instant::now() + PATIENCE));
        assert!(cpu < time / 2, "{cpu:?} of {time:?}");
    }

    /// A child that keeps its end open does not make the others wait one after the other.
    #[test]
    fn ends_of_captures_share_one_time_limit() {
        let [(first, _first), (second, _second)] = [(); 2].map(|()| UnixStream::pair().expect("sockets"));
        let relay = |socket, thread| CaptureRelay { socket, thread };
        let mut shut = second.try_clone().expect("a descriptor");
        // The first one's thread ends when the second socket is shut. That is too late if one waits
        // for the other.
        let thread = std::thread::spawn(move || drop(shut.read(&mut [0])));
        let relays = [relay(first, thread), relay(second, std::thread::spawn(|| {}))];
        assert!(CaptureRelay::finish(relays, Instant::now()), "none is left behind");
    }
}
