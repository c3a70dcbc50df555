//! A small network for one test. The sender (the thread of the test) has a network namespace, the
//! peer a second one, and each has its interfaces. Namespaces and interfaces go with the last
//! thread, process and socket in them.
//!
//! ```text
//!   namespace of the test             namespace of the peer
//!   zw0  10.77.0.1/24  fd77::1  <veth>  zw1  10.77.0.2/24  fd77::2
//!   ifb0 (drops all)
//! ```

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socket_with};

use super::packet_socket::{PACKET_IGNORE_OUTGOING, packet_socket};
use super::{in_netns, netns, run, set_option};
use crate::PATIENCE;
use crate::frames::{EXPERIMENT, fill};

/// The end of the veth pair on the side of the test.
pub const HERE: &str = "zw0";
/// The end on the side of the peer.
pub const THERE: &str = "zw1";
/// Address of the end on the side of the test.
pub const HERE_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Address of the end on the side of the peer.
pub const THERE_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Hardware address of the end on the side of the test.
pub const HERE_MAC: [u8; 6] = [0x02, 0, 0, 0, 0x77, 1];
/// Hardware address of the end on the side of the peer.
pub const THERE_MAC: [u8; 6] = [0x02, 0, 0, 0, 0x77, 2];
/// An address of nobody: the peer's stack drops frames for it, the capture sees them.
pub const NOBODY_MAC: [u8; 6] = [0x02, 0, 0, 0, 0x77, 9];
/// EtherType of frames of the lab's own (the second of the local experiments); a capture leaves
/// them out.
const LAB_FRAME: [u8; 2] = [0x88, 0xb6];
/// The peer's namespace, and the tools for both. Lives on the thread of the test.
pub struct Lab {
    peer: File,
}

/// Runs `test` on a thread of its own in a new network namespace, with a second one for the peer.
///
/// Fails, and says what to do, where there are no namespaces: such a test never passes without one.
pub fn in_lab<T: Send + 'static>(test: impl FnOnce(&Lab) -> T + Send + 'static) -> T {
    in_netns(move || {
        keep_still();
        let peer = std::thread::spawn(|| {
            netns::enter();
            keep_still();
            File::open("/proc/thread-self/ns/net").expect("the peer's namespace")
        });
        let lab = Lab { peer: peer.join().unwrap_or_else(|e| std::panic::resume_unwind(e)) };
        run("ip", &["link", "set", "lo", "up"]);
        lab.at_peer(|| run("ip", &["link", "set", "lo", "up"]));
        test(&lab)
    })
}

/// Has interfaces that come up in this thread's namespace ask for no addresses.
fn keep_still() {
    for (setting, value) in [("accept_dad", "0"), ("router_solicitations", "0")] {
        netns::set_ipv6(setting, value);
    }
}

/// An offload that can be switched (include/uapi/linux/ethtool.h).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Offload {
    /// Checksums of received frames are trusted.
    ReceiveChecksum = 0x15,
    /// Checksums of sent frames are left to the interface.
    TransmitChecksum = 0x17,
    /// Frames in several pieces go out without being gathered.
    ScatterGather = 0x19,
    /// TCP frames of up to 64 K are left to the interface.
    Tso = 0x1f,
    /// Segmentation is put off until right before the driver.
    Gso = 0x24,
    /// Segments are joined on receive.
    Gro = 0x2c,
}

impl Lab {
    /// Runs `work` on a thread in the peer's namespace. Sockets made there stay there, wherever
    /// they are used.
    pub fn at_peer<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: a descriptor of a network namespace; only this thread moves.
                let moved = unsafe { libc::setns(self.peer.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(moved, 0, "the peer's namespace: {}", io::Error::last_os_error());
                work()
            });
            thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
        })
    }

    /// Makes the veth pair [`HERE`], [`THERE`]: both ends up, with addresses that each other knows
    /// (no ARP is sent).
    pub fn veth(&self) {
        let (here_mac, there_mac) = (mac_text(HERE_MAC), mac_text(THERE_MAC));
        let namespace = format!("/proc/{}/fd/{}", std::process::id(), self.peer.as_raw_fd());
        let new = ["link", "add", HERE, "address", &here_mac, "type", "veth", "peer", "name", THERE];
        run("ip", &[&new[..], &["address", &there_mac, "netns", &namespace]].concat());
        let set = |name: &str, ip: Ipv4Addr, other: Ipv4Addr, other_mac: &str| {
            run("ip", &["addr", "add", &format!("{ip}/24"), "dev", name]);
            run("ip", &["link", "set", name, "up"]);
            let neighbour = ["neigh", "replace", &other.to_string(), "lladdr", other_mac, "dev", name];
            run("ip", &[&neighbour[..], &["nud", "permanent"]].concat());
        };
        set(HERE, HERE_IP, THERE_IP, &there_mac);
        self.at_peer(|| set(THERE, THERE_IP, HERE_IP, &here_mac));
        self.wait_for_carrier();
    }

    /// Waits until the pair carries frames both ways. The kernel starts the queues of an interface
    /// some time after its other end came up, and throws away what is sent before.
    fn wait_for_carrier(&self) {
        let (here, there) = (Capture::open(HERE), self.capture());
        let carries = |send: &dyn Fn(), capture: &Capture| {
            let start = Instant::now();
            while capture.any(Duration::from_millis(5)).is_none() {
                assert!(start.elapsed() < PATIENCE, "the veth pair doesn't carry frames");
                send();
            }
        };
        carries(&|| lab_frame(HERE, 60), &there);
        carries(&|| self.at_peer(|| lab_frame(THERE, 60)), &here);
    }

    /// Adds IPv6 addresses to the pair: fd77::1 here and fd77::2 at the peer.
    pub fn ipv6(&self) {
        let set = |name: &str, ip: &str, other: &str, other_mac: [u8; 6]| {
            let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
            std::fs::write(&path, "0").unwrap_or_else(|e| panic!("{path}: {e}"));
            run("ip", &["-6", "addr", "add", &format!("{ip}/64"), "dev", name, "nodad"]);
            let neighbour = ["-6", "neigh", "replace", other, "lladdr", &mac_text(other_mac), "dev", name];
            run("ip", &[&neighbour[..], &["nud", "permanent"]].concat());
        };
        set(HERE, "fd77::1", "fd77::2", THERE_MAC);
        self.at_peer(|| set(THERE, "fd77::2", "fd77::1", HERE_MAC));
        let bind = |ip: &str| UdpSocket::bind((ip, 0)).expect("a UDP socket");
        let (here, there) = (bind("fd77::1"), self.at_peer(|| bind("fd77::2")));
        wait_until_it_arrives(&here, &there);
        wait_until_it_arrives(&there, &here);
    }

    /// Makes an ifb interface on the side of the test, up: it takes frames without a copy and drops
    /// them. With `address`, 10.78.0.1/24 is on it, and 10.78.0.2 is a neighbour that never
    /// answers.
    pub fn ifb(&self, name: &str, address: bool) {
        run("ip", &["link", "add", name, "type", "ifb"]);
        run("ip", &["link", "set", name, "up"]);
        if address {
            run("ip", &["addr", "add", "10.78.0.1/24", "dev", name]);
            run("ip", &["neigh", "replace", "10.78.0.2", "lladdr", "02:00:00:00:78:02", "dev", name]);
        }
    }

    /// Puts a queue before `name` that lets `rate` through (in words of tc(8): "1mbit"), `burst`
    /// bytes at once. It keeps up to `limit` bytes waiting, and drops later frames.
    pub fn tbf(&self, name: &str, rate: &str, burst: usize, limit: usize) {
        let (burst, limit) = (format!("{burst}b"), format!("{limit}b"));
        let queue = ["qdisc", "replace", "dev", name, "root", "tbf", "rate", rate];
        run("tc", &[&queue[..], &["burst", &burst, "limit", &limit]].concat());
    }

    /// Puts a queue before `name` that holds every frame from now on until [`Lab::release`]: one
    /// that is nearly stopped and whose burst is used up. A frame of 1000 bytes would wait 8
    /// seconds by itself. For frames of up to 1514 bytes; frames to be segmented may be longer.
    pub fn hold(&self, name: &str) {
        self.hold_long(name, 1514);
    }

    /// The same for frames of up to `longest` bytes, which the MTU must allow: tbf drops frames
    /// longer than its burst.
    pub fn hold_long(&self, name: &str, longest: usize) {
        self.hold_some(name, longest, 64 << 20);
    }

    /// The same with room for `limit` bytes: the kernel drops frames beyond that (ENOBUFS).
    pub fn hold_some(&self, name: &str, longest: usize, limit: usize) {
        // The kernel keeps the burst as a time of at most 274 seconds.
        let rate = (longest * 8 / 200).max(1000);
        self.tbf(name, &format!("{rate}bit"), longest, limit);
        lab_frame(name, longest);
    }

    /// Lets the frames go that a queue of [`Lab::hold`] or [`Lab::tbf`] keeps.
    pub fn release(&self, name: &str) {
        let queue = ["qdisc", "change", "dev", name, "root", "tbf", "rate", "10gbit"];
        run("tc", &[&queue[..], &["burst", "1000000b", "limit", "67108864b"]].concat());
        // tbf looks at its new rate only when something is queued, or when its old timer runs out.
        lab_frame(name, 60);
    }

    /// Sets the MTU of an interface of the test's side, and of the peer's end of the pair.
    pub fn mtu(&self, name: &str, bytes: usize) {
        let bytes = bytes.to_string();
        let set = |name: &str| run("ip", &["link", "set", name, "mtu", &bytes]);
        if name == HERE {
            self.at_peer(|| set(THERE));
        }
        set(name);
    }

    /// Makes 10.78.0.0/24 a network behind the peer, whose link has this MTU. The peer forwards to
    /// it, and answers what is too long. No host is there.
    pub fn behind(&self, mtu: usize) {
        self.at_peer(|| {
            run("ip", &["link", "add", "zw2", "mtu", &mtu.to_string(), "type", "ifb"]);
            run("ip", &["addr", "add", "10.78.0.1/24", "dev", "zw2"]);
            run("ip", &["link", "set", "zw2", "up"]);
            for (name, value) in [("ip_forward", "1"), ("icmp_ratelimit", "0")] {
                let path = format!("/proc/sys/net/ipv4/{name}");
                std::fs::write(&path, value).unwrap_or_else(|e| panic!("{path}: {e}"));
            }
        });
        run("ip", &["route", "add", "10.78.0.0/24", "via", &THERE_IP.to_string()]);
    }

    /// Sets an interface of the test's side up, and waits until the pair carries frames.
    pub fn up(&self, name: &str) {
        run("ip", &["link", "set", name, "up"]);
        if name == HERE {
            self.wait_for_carrier();
        }
    }

    /// Sets an interface of the test's side down.
    pub fn down(&self, name: &str) {
        run("ip", &["link", "set", name, "down"]);
    }

    /// Deletes an interface of the test's side.
    pub fn delete(&self, name: &str) {
        run("ip", &["link", "delete", name]);
    }

    /// Switches an offload of an interface of this thread's namespace (`at_peer` for the peer's).
    pub fn offload(&self, name: &str, offload: Offload, on: bool) {
        set_offload(name, offload, on);
    }

    /// A capture of all frames that the peer's end of the pair receives from now on.
    pub fn capture(&self) -> Capture {
        self.at_peer(|| Capture::open(THERE))
    }

    /// A UDP socket of the peer, and its address.
    pub fn udp(&self) -> (UdpSocket, SocketAddr) {
        self.at_peer(|| {
            let socket = UdpSocket::bind((THERE_IP, 0)).expect("a UDP socket of the peer");
            socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20);
            let address = socket.local_addr().expect("an address");
            (socket, address)
        })
    }

    /// A listening TCP socket of the peer, and its address.
    pub fn tcp(&self) -> (TcpListener, SocketAddr) {
        self.at_peer(|| {
            let socket = TcpListener::bind((THERE_IP, 0)).expect("a TCP socket of the peer");
            let address = socket.local_addr().expect("an address");
            (socket, address)
        })
    }
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Has each processor handle a packet. The processor that made a packet frees it after it was read,
/// when it handles its next one (`skb_attempt_defer_free`, net/core/skbuff.c). On a machine without
/// other traffic that may be never.
pub fn stir() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::spawn(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for cpu in 0..cpus {
            // SAFETY: all zeroes is an empty set, which lives for the calls.
            let moved = unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(cpu, &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
            };
            if moved == 0 {
                socket.send_to(&[], socket.local_addr().expect("an address")).expect("sent");
            }
        }
    })
    .join()
    .unwrap_or_else(|e| std::panic::resume_unwind(e));
}

/// Waits until datagrams of `from` reach `to`. An address is there when ip(8) returns; its local
/// route comes later, from a work queue of the kernel (`addrconf_dad_work`, net/ipv6/addrconf.c).
/// What comes before that is dropped.
fn wait_until_it_arrives(from: &UdpSocket, to: &UdpSocket) {
    let address = to.local_addr().expect("an address");
    to.set_read_timeout(Some(Duration::from_millis(5))).expect("a timeout");
    let start = Instant::now();
    loop {
        let sent = from.send_to(&[0], address);
        if to.recv(&mut [0]).is_ok() {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "no datagram reaches {address}; sent: {sent:?}");
    }
}

/// Sends one frame of the lab's own through an interface of this thread's namespace.
fn lab_frame(name: &str, len: usize) {
    let socket = packet_socket(name, 0, &[]);
    let mut frame = vec![0u8; len];
    frame[..6].copy_from_slice(&NOBODY_MAC);
    frame[6..12].copy_from_slice(&HERE_MAC);
    frame[12..14].copy_from_slice(&LAB_FRAME);
    let sent = rustix::net::send(&socket, &frame, SendFlags::empty());
    assert_eq!(sent, Ok(len), "a frame through {name}");
}

/// As [`try_set_offload`], of an interface that has the offload.
pub fn set_offload(name: &str, offload: Offload, on: bool) {
    try_set_offload(name, offload, on).unwrap_or_else(|error| panic!("{offload:?} of {name}: {error}"));
}

/// Switches an offload of an interface of this thread's namespace (`SIOCETHTOOL`, struct
/// ethtool_value).
///
/// # Errors
/// The interface doesn't exist, or it can't do that.
pub fn try_set_offload(name: &str, offload: Offload, on: bool) -> io::Result<()> {
    #[repr(C)]
    struct IfRequest {
        name: [u8; 16],
        value: *mut [u32; 2],
        rest: [u64; 2],
    }
    let mut value = [offload as u32, u32::from(on)];
    let mut request = IfRequest { name: [0; 16], value: &raw mut value, rest: [0; 2] };
    if name.len() >= request.name.len() {
        return Err(Errno::NAMETOOLONG.into());
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: the kernel reads the request and the value it points to, both on this stack frame.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), 0x8946, &raw mut request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Frames that the peer's end of the pair receives.
pub struct Capture {
    socket: OwnedFd,
}

impl Capture {
    /// Captures what an interface of this thread's namespace receives.
    fn open(name: &str) -> Self {
        let options = [
            (libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1),
            (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 256 << 20),
        ];
        let socket = packet_socket(name, libc::ETH_P_ALL as u16, &options);
        Self { socket }
    }

    /// The next frame within `timeout`; those of the lab itself are left out.
    pub fn next(&self, timeout: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + timeout;
        loop {
            let frame = self.any(end.saturating_duration_since(Instant::now()))?;
            if frame.get(12..14) != Some(&LAB_FRAME) {
                return Some(frame);
            }
        }
    }

    /// The next frame of any kind.
    fn any(&self, timeout: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + timeout;
        loop {
            let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).ok();
            if !matches!(poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], left.as_ref()), Ok(1..)) {
                return None;
            }
            let mut frame = vec![0u8; 1 << 17];
            match rustix::io::read(&self.socket, &mut frame) {
                Ok(n) => {
                    frame.truncate(n);
                    return Some(frame);
                }
                // The interface went down or away; frames that came before are still there.
                Err(Errno::NETDOWN | Errno::AGAIN | Errno::INTR) => {}
                Err(error) => panic!("the capture: {error}"),
            }
        }
    }

    /// The next frame, which must come.
    pub fn expect(&self) -> Vec<u8> {
        self.next(PATIENCE).expect("a frame at the peer")
    }

    /// What is there now, without waiting.
    pub fn rest(&self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.next(Duration::ZERO)).collect()
    }
}

/// A test frame of `len` bytes (at least 14) for nobody: its content follows from `seed` and `len`.
pub fn frame(seed: u32, len: usize) -> Vec<u8> {
    let mut frame = [&NOBODY_MAC[..], &HERE_MAC, &EXPERIMENT].concat();
    fill(&mut frame, seed, len);
    frame
}

/// `len` bytes that follow from `seed`.
pub fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    fill(&mut bytes, seed, len);
    bytes
}
