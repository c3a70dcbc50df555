//! The XDP program that steers received frames to sockets.
//!
//! A frame of queue n goes to the socket that a map has for n, if the queue's [`Rule`] has it so.
//! Otherwise it goes to the kernel's own stack (Documentation/bpf/map_xskmap.rst):
//!
//! 1. no socket for the queue: to the kernel;
//! 2. a rule with an address, and the frame has another, unicast destination: to the kernel;
//! 3. the frame is longer than the rule allows: dropped, and counted ([`Steering::dropped`]);
//! 4. to the socket.
//!
//! A program of this kind can't send a frame both ways: the kernel's stack doesn't see what goes to
//! a socket. So with an address the socket gets all broadcast and multicast frames of its queue,
//! without which nobody would find a guest (ARP, neighbour discovery). The host itself gets such
//! frames on other queues only.
//!
//! Program, maps and link live as long as their descriptors. When the value is dropped, or the
//! process is killed, the interface is as it was, without any clean-up. Another process's program
//! on the interface is respected: attaching fails, and the error names it.

mod code;
mod other;
mod sys;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::error::XdpError;
use super::interface::Interface;
use super::socket::Socket;
use sys::Map;

/// More queues than any interface has; the maps take 32 bytes for each.
const MAX_QUEUES: u32 = 4096;

/// Name of the program, which 'bpftool prog' and 'ip -details link' show.
pub const NAME: &str = "zerowire_steer";

/// How long another process's program of the same name may take to go: its owner may be about to
/// end.
const OWN_GOES: Duration = Duration::from_millis(500);

/// Bytes of a rule, and where the limit is in it.
const RULE_BYTES: usize = 24;
const RULE_LIMIT: i16 = 8;

/// Where the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hook {
    /// In the driver where it can, else in the stack.
    #[default]
    Auto,
    /// In the driver, before the kernel makes a packet of the frame: what zero-copy mode needs.
    Native,
    /// In the stack: any interface, slower.
    Generic,
}

/// Which frames of a queue go to its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Only those to this Ethernet address, and those to groups (broadcast and multicast); others
    /// are the kernel's. None: all.
    pub address: Option<[u8; 6]>,
    /// Of those, longer ones are dropped, bytes from the Ethernet header on. Before Linux 5.18
    /// nothing is measured.
    pub longest_bytes: u32,
}

impl Default for Rule {
    /// All frames of any length.
    fn default() -> Self {
        Self { address: None, longest_bytes: u32::MAX }
    }
}

impl Rule {
    /// As the program reads it: address, whether it is any, limit, and the count of dropped frames.
    fn encode(&self, dropped: u64) -> [u8; RULE_BYTES] {
        let mut bytes = [0; RULE_BYTES];
        match self.address {
            Some(address) => bytes[..6].copy_from_slice(&address),
            None => bytes[6] = 1,
        }
        bytes[8..12].copy_from_slice(&self.longest_bytes.to_ne_bytes());
        bytes[16..].copy_from_slice(&dropped.to_ne_bytes());
        bytes
    }
}

/// The program on an interface, and the sockets that it steers to.
#[derive(Debug)]
pub struct Steering {
    interface: String,
    sockets: Map,
    rules: Map,
    hook: Hook,
    link: OwnedFd,
    _program: OwnedFd,
}

impl Steering {
    /// Attaches the program to an interface of this thread's network namespace. It can steer
    /// `queues` queues.
    ///
    /// One process has it for all of an interface's queues. If another process has it there,
    /// attaching waits half a second for it to go: its owner may just have been killed.
    ///
    /// # Errors
    /// [`XdpError::NoInterface`], [`XdpError::Value`], [`XdpError::OtherProgram`], and
    /// [`XdpError::System`] with EPERM (CAP_BPF and CAP_NET_ADMIN are needed), EOPNOTSUPP (`native`
    /// without such a driver).
    pub fn attach(interface: &str, queues: u32, hook: Hook) -> Result<Self, XdpError> {
        if queues == 0 || queues > MAX_QUEUES {
            let rule = format!("take 1 to {MAX_QUEUES}");
            return Err(XdpError::Value { name: "the number of queues", value: queues.into(), rule });
        }
        let interface = Interface::open(interface)?;
        let bpf = |what: &'static str| {
            let name = interface.name();
            move |e| {
                let what = format!("interface {name}: {what} (CAP_BPF and CAP_NET_ADMIN are needed)");
                XdpError::system(what, "bpf", e)
            }
        };
        let sockets = Map::of_sockets(queues).map_err(bpf("a map of sockets"))?;
        let rules = Map::array(RULE_BYTES, queues).map_err(bpf("a map of rules"))?;
        let program = load(&sockets, &rules).map_err(bpf("the program"))?;
        let (link, hook) = attach(&program, &interface, hook)?;
        Ok(Self { interface: interface.name().to_owned(), sockets, rules, hook, link, _program: program })
    }

    /// Where the program runs.
    pub fn hook(&self) -> Hook {
        self.hook
    }

    /// Steers all that the socket's queue receives to the socket, until it is closed, or another
    /// one takes its place.
    ///
    /// # Errors
    /// [`XdpError::System`]: E2BIG for a queue beyond those that the program was attached for;
    /// EINVAL for a socket without receive ring.
    pub fn steer(&self, socket: &Socket) -> Result<(), XdpError> {
        self.steer_by(socket, &Rule::default())
    }

    /// The same for those frames that a rule has for the socket.
    ///
    /// # Errors
    /// As [`steer`](Self::steer).
    pub fn steer_by(&self, socket: &Socket, rule: &Rule) -> Result<(), XdpError> {
        self.steer_queue(socket.queue(), socket.as_fd(), rule)
    }

    /// The same for a socket of that queue which another process uses.
    ///
    /// # Errors
    /// As [`steer`](Self::steer).
    pub fn steer_queue(&self, queue: u32, socket: BorrowedFd<'_>, rule: &Rule) -> Result<(), XdpError> {
        let number = socket.as_raw_fd();
        // The rule first: it is not looked at before there is a socket.
        self.rules
            .get(queue)
            .and_then(|old| self.rules.set(queue, &rule.encode(count(&old))))
            .or_else(|e| if e.raw_os_error() == Some(libc::ENOENT) { Ok(()) } else { Err(e) })
            .and_then(|()| self.sockets.set(queue, &number.to_ne_bytes()))
            .map_err(|e| self.failed(queue, e))
    }

    /// Leaves what a queue receives to the kernel again.
    ///
    /// # Errors
    /// [`XdpError::System`]: EINVAL for a queue that the map doesn't have.
    pub fn stop(&self, queue: u32) -> Result<(), XdpError> {
        self.sockets.remove(queue).map_err(|e| self.failed(queue, e))
    }

    /// Frames of a queue that were dropped since they were longer than its rule allows.
    ///
    /// # Errors
    /// [`XdpError::System`]: ENOENT for a queue beyond those that the program was attached for.
    pub fn dropped(&self, queue: u32) -> Result<u64, XdpError> {
        self.rules.get(queue).map(|rule| count(&rule)).map_err(|e| self.failed(queue, e))
    }

    fn failed(&self, queue: u32, error: io::Error) -> XdpError {
        XdpError::system(format!("interface {}: steering queue {queue}", self.interface), "bpf", error)
    }
}

impl Drop for Steering {
    /// Takes the program off the interface at once: a child process that was just forked may hold
    /// the link a little longer.
    fn drop(&mut self) {
        // Where it can't be done, the last descriptor does it.
        let _ = sys::detach(&self.link);
    }
}

/// The count of dropped frames in a rule.
fn count(rule: &[u8]) -> u64 {
    rule.last_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// The best program that this kernel takes.
fn load(sockets: &Map, rules: &Map) -> io::Result<OwnedFd> {
    let mut name = [0; 16];
    name[..NAME.len()].copy_from_slice(NAME.as_bytes());
    let code = |measures| code::code(sockets.number(), rules.number(), measures);
    sys::load(&code(true), name, sys::BPF_F_XDP_HAS_FRAGS).or_else(|_| sys::load(&code(false), name, 0))
}

/// Loads a program that passes every frame, to tell whether this user may. It is attached to
/// nothing and is gone at the end.
pub fn try_load() -> io::Result<()> {
    // r0 = 2 (XDP_PASS); exit.
    let code = [[0xb7, 0, 0, 0, 2, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    sys::load(&code, [0; 16], 0).map(drop)
}

fn attach(program: &OwnedFd, interface: &Interface, hook: Hook) -> Result<(OwnedFd, Hook), XdpError> {
    let attached = |hook, flags| sys::link(program, interface.index(), flags).map(|link| (link, hook));
    let native = || attached(Hook::Native, sys::XDP_FLAGS_DRV_MODE);
    let generic = || attached(Hook::Generic, sys::XDP_FLAGS_SKB_MODE);
    let start = Instant::now();
    loop {
        let result = match hook {
            Hook::Native => native(),
            Hook::Generic => generic(),
            Hook::Auto => native().or_else(|e| match e.raw_os_error() {
                // Somebody else's program: not to be bypassed by the other hook.
                Some(libc::EBUSY | libc::EEXIST) => Err(e),
                _ => generic(),
            }),
        };
        let e = match result {
            Ok(done) => return Ok(done),
            Err(e) => e,
        };
        let why = match e.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => {
                let other = other::on(interface.name());
                if other.is_own() && start.elapsed() < OWN_GOES {
                    std::thread::park_timeout(Duration::from_millis(10));
                    continue;
                }
                let interface = interface.name().to_owned();
                return Err(XdpError::OtherProgram { interface, program: other.to_string() });
            }
            Some(libc::EOPNOTSUPP) => "its driver runs no XDP programs: use the generic hook",
            _ => "attaching the program",
        };
        let what = format!("interface {}: {why}", interface.name());
        return Err(XdpError::system(what, "bpf(BPF_LINK_CREATE)", e));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_laid_out_as_the_program_reads_it() {
        let rule = Rule { address: Some([2, 3, 4, 5, 6, 7]), longest_bytes: 1518 }.encode(9);
        assert_eq!((&rule[..8], &rule[8..12]), (&[2, 3, 4, 5, 6, 7, 0, 0][..], &1518u32.to_ne_bytes()[..]));
        assert_eq!(count(&rule), 9);
        let any = Rule::default().encode(0);
        assert_eq!((any[6], &any[8..12]), (1, &[0xff; 4][..]));
        assert_eq!(RULE_LIMIT, 8);
    }
}
