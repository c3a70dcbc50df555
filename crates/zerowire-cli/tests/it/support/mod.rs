//! Shared by the tests: the program as a child, a guest, the host's side of a port.

pub mod control;
pub mod http;
pub mod modes;
pub mod pipe;
pub mod processes;
pub mod program;
pub mod recv;
pub mod refused;
pub mod replay;
pub mod send;
pub mod vsock;

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use zerowire_guest::net::{FrameShape, Layout, NetDriver, NetOptions, QueuePair, VirtioNetHdr};
use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};

pub use program::{HANDED_FD, Program, Restrict, connect, is_refused};
pub use zerowire_testkit::net::{Peer, in_netns, interface, tap};
pub use zerowire_testkit::{PATIENCE, frames, measure_until, median_within, wait_until};

/// A folder with a copy of the program that every user may run, and the path of that.
///
/// cp(1) writes the copy. The kernel runs no program that a process has open for writing, and what
/// other tests start has this process's descriptors for a while.
pub fn program_for_everybody() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::Builder::new().prefix("zerowire-").tempdir().expect("a folder");
    let program = folder.path().join("zerowire");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_zerowire")).arg(&program).status().expect("cp");
    assert!(copied.success());
    let opened = Command::new("chmod").args(["-R", "755"]).arg(folder.path()).status().expect("chmod");
    assert!(opened.success());
    (folder, program)
}

/// Writes the file `vms.toml` in `dir`, with VMs on taps of their names and further lines of each.
/// A VM's socket has its name and this suffix. Returns the file's path.
pub fn file_of_vms(dir: &Path, vms: &[(&str, &str)], suffix: &str) -> String {
    let table = |(name, more): &(&str, &str)| {
        let socket = dir.join(format!("{name}{suffix}")).display().to_string();
        format!("[[vm]]\nname = '{name}'\n[vm.net]\nsocket = '{socket}'\nport = 'tap:{name}'\n{more}\n")
    };
    let path = dir.join("vms.toml");
    std::fs::write(&path, vms.iter().map(table).collect::<String>()).expect("a file");
    path.display().to_string()
}

/// Leaves a socket at `path` to which nobody listens any more.
pub fn left_behind(path: &Path) {
    drop(UnixListener::bind(path).expect("a socket"));
    // A program that another test starts has the listener, too, until it is executed.
    wait_until("nobody listens", || UnixStream::connect(path).is_err());
}

/// A guest with one queue pair.
pub struct Guest {
    /// The driver.
    pub driver: NetDriver<VhostUser>,
    /// Its queues.
    pub pairs: Vec<QueuePair>,
}

impl Guest {
    /// Starts a guest of 32 MiB on a connection.
    pub fn start(transport: VhostUser) -> Self {
        let memory = GuestMemory::new(&[(GuestAddr(0), 32 << 20)]).expect("guest memory");
        let shape = FrameShape { layout: Layout::Pages, indirect: true, capacity: 20_000 };
        let options = NetOptions { tx: shape, tx_slots: 256, ..NetOptions::default() };
        let (driver, pairs) =
            NetDriver::start(transport, &memory, &options).unwrap_or_else(|e| panic!("{e}"));
        Self { driver, pairs }
    }

    /// Sends a frame and waits until it is given back.
    pub fn send(&mut self, frame: &[u8]) {
        let tx = &mut self.pairs[0].tx;
        assert!(tx.send(&VirtioNetHdr::default(), frame).expect("a frame that fits"));
        assert!(tx.drain(PATIENCE).expect("a sound ring"));
    }

    /// The next numbered frame, which must come; what others send is passed over.
    pub fn expect_numbered(&mut self) -> Vec<u8> {
        loop {
            let frame = self.expect();
            if frame[12..14] == frames::EXPERIMENT {
                return frame;
            }
        }
    }

    /// The next frame, which must come.
    pub fn expect(&mut self) -> Vec<u8> {
        self.pairs[0].rx.recv(PATIENCE).expect("a sound ring").expect("a frame").1
    }

    /// Has the peer send until a frame arrives: the kernel passes none on for a moment behind the
    /// one in which a link is up.
    pub fn wait_for_frames(&mut self, peer: &mut Peer) {
        let begin = Instant::now();
        for probe in frames::PROBE.. {
            assert!(begin.elapsed() < PATIENCE, "no frame arrives");
            peer.send(&frames::frame(probe, 64));
            let rx = &mut self.pairs[0].rx;
            while let Some((_, frame)) = rx.recv(Duration::from_millis(20)).expect("a sound ring") {
                if frame == frames::frame(probe, 64) {
                    return;
                }
            }
        }
    }

    /// Short and long frames each way.
    pub fn ping(&mut self, peer: &mut Peer) {
        for (n, len) in [(1, 60), (2, 1514), (3, 20_000)] {
            let out = frames::frame(n, len);
            self.send(&out);
            assert_eq!(peer.expect().bytes, out, "guest to host");
            let back = frames::frame(n + 100, len.min(1514));
            peer.send(&back);
            assert_eq!(self.expect_numbered(), back, "host to guest");
        }
    }
}
