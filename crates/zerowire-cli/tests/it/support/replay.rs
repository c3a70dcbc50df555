//! Shared by the tests of `zerowire replay`: the program as a child, captures, a veth with a
//! capture at its other end.

#[path = "../../../src/replay/capture/testing.rs"]
pub mod captures;

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use zerowire_testkit::process::{NET_RAW, drop_capability};
use zerowire_testkit::refuse::{Argument, refuse_syscall};

pub use captures::{Order, P};
pub use zerowire_testkit::PATIENCE;
pub use zerowire_testkit::net::lab::{self, HERE, in_lab};

/// What the child may not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Without {
    /// Nothing is forbidden.
    #[default]
    Nothing,
    /// CAP_NET_RAW.
    NetRaw,
    /// Transmit rings (PACKET_TX_RING).
    Rings,
}

/// What a run left behind.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub log: String,
}

impl Ran {
    /// The summary of a run with `--json -`.
    pub fn summary(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}\n{}", self.out, self.log))
    }

    /// It must have been refused, with all of these words, without a summary.
    pub fn refused(&self, words: &[&str]) {
        self.ended(1, words);
    }

    /// The same with another exit status.
    pub fn ended(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        for word in words {
            assert!(self.log.contains(word), "no '{word}' in: {}", self.log);
        }
        assert!(!self.log.contains("panicked"), "{}", self.log);
        // A cause is named once.
        for line in self.log.lines() {
            let clauses: Vec<&str> = line.split(": ").collect();
            assert!(clauses.windows(2).all(|two| two[0] != two[1]), "{line}");
        }
        assert_eq!(self.out, "");
    }
}

/// The command.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
    command.arg("replay").args(args).env_remove("ZEROWIRE_LOG");
    command
}

/// A running `zerowire replay`, killed when dropped.
pub struct Replay {
    child: Child,
    pub input: Option<ChildStdin>,
}

impl Replay {
    /// Starts it in this thread's network namespace.
    pub fn start(args: &[&str], without: Without) -> Self {
        let mut command = command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: `forbid` makes system calls only.
        unsafe { command.pre_exec(move || forbid(without)) };
        let mut child = command.spawn().expect("the program starts");
        let input = child.stdin.take();
        Self { child, input }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn signal(&self, number: i32) {
        // SAFETY: the child has not been waited for, so that the id is its own.
        assert_eq!(unsafe { libc::kill(self.pid(), number) }, 0);
    }

    /// Waits for the end.
    pub fn end(mut self) -> Ran {
        drop(self.input.take());
        let read = |pipe: Option<Box<dyn Read + Send>>| {
            std::thread::spawn(move || {
                let mut text = String::new();
                pipe.expect("a pipe").read_to_string(&mut text).expect("text");
                text
            })
        };
        let out = read(self.child.stdout.take().map(|p| Box::new(p) as _));
        let log = read(self.child.stderr.take().map(|p| Box::new(p) as _));
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("its status") {
                break status;
            }
            assert!(start.elapsed() < 3 * PATIENCE, "the program doesn't end");
            std::thread::sleep(Duration::from_millis(1));
        };
        let (out, log) = (out.join().expect("output"), log.join().expect("log"));
        Ran { code: status.code().unwrap_or(-1), out, log }
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs it to the end.
pub fn run(args: &[&str]) -> Ran {
    Replay::start(args, Without::Nothing).end()
}

/// Runs it on [`HERE`] with a file of these bytes, and `--json -`; it must succeed.
pub fn sent(file: &[u8], args: &[&str]) -> Value {
    let file = write(file);
    let path = file.path().to_str().expect("a path");
    let ran = run(&[&["-i", HERE, "--json", "-", path], args].concat());
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.log);
    ran.summary()
}

/// Runs it on [`HERE`] with a file of these bytes; it must be refused.
pub fn refused(file: &[u8], args: &[&str], words: &[&str]) {
    let file = write(file);
    let path = file.path().to_str().expect("a path");
    run(&[&["-i", HERE, path], args].concat()).refused(words);
}

/// A file of these bytes.
pub fn write(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(bytes).expect("written");
    file
}

/// Frames of many lengths for nobody.
pub fn frames(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|n| lab::frame(n, 60 + (n as usize * 97) % 1455)).collect()
}

/// A capture of these frames, `gap` nanoseconds apart.
pub fn capture(frames: &[Vec<u8>], gap: u64) -> Vec<u8> {
    let packets: Vec<_> = frames.iter().enumerate().map(|(n, f)| P::at(n as u64 * gap, f)).collect();
    captures::simple(&packets)
}

/// The next frames at the peer must be these, and no others.
pub fn arrive<'a>(peer: &lab::Capture, frames: impl IntoIterator<Item = &'a Vec<u8>>) {
    for (n, frame) in frames.into_iter().enumerate() {
        let got = peer.expect();
        assert!(got == *frame, "frame {n}: {} bytes {:02x?}…", got.len(), &got[..got.len().min(40)]);
    }
    assert_eq!(peer.next(Duration::from_millis(50)), None, "nothing else");
}

/// Option of packet(7) (linux/if_packet.h).
const PACKET_TX_RING: u32 = 13;

fn forbid(without: Without) -> std::io::Result<()> {
    match without {
        Without::Nothing => Ok(()),
        Without::NetRaw => drop_capability(NET_RAW),
        Without::Rings => {
            let ring = [(1, Argument::Is(libc::SOL_PACKET as u32)), (2, Argument::Is(PACKET_TX_RING))];
            refuse_syscall(libc::SYS_setsockopt, &ring, libc::EOPNOTSUPP)
        }
    }
}
