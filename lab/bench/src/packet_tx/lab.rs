//! The device that is sent to, and who reads behind it.
//!
//! ```text
//!   ifb                                  veth
//!   namespace of the benchmark           namespace of the benchmark    namespace of the receiver
//!   zwtx 198.18.0.1/24                   zwtx 198.18.0.1/24 <-------> zwrx 198.18.0.2/24
//!   (198.18.0.2 is nobody)                                          UDP socket, a reading thread
//! ```
//!
//! The MTU is the largest, so that a UDP payload of 65 000 bytes is one datagram in one frame.
//! Namespaces, devices and the receiver's thread go with [`TxLab`] and the benchmark's thread.
//!
//! Behind a veth pair a [`SinkReceiver`] reads: a thread with one UDP socket of the other
//! namespace. It counts bytes, not datagrams: the kernel joins or cuts frames that it carries as
//! one (UDP_GRO).

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use zerowire_sys::socket::set_int;

use super::case::SinkKind;
use super::links;
use crate::cpu::{Placement, ThreadClock};
use crate::netns::{NetnsLink, OtherNamespace};

/// The interface that frames are sent to.
pub const INTERFACE: &str = "zwtx";
/// The largest MTU: the length field of IPv4 has 16 bits (RFC 791).
const MTU: usize = 65_535;
/// The address of the sender, and the one that it sends to: from the networks for benchmarks (RFC
/// 2544).
pub const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// See [`SOURCE`].
pub const TARGET: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// UDP ports: of the frames that are built here, and of the receiver.
pub const SOURCE_PORT: u16 = 40_000;
/// See [`SOURCE_PORT`].
pub const TARGET_PORT: u16 = 40_001;
/// Send buffer of every socket: above 32 frames of 64 KiB and what the kernel adds.
const SEND_BUFFER: i32 = 64 << 20;
/// How long frames may take to arrive.
const PATIENCE: Duration = Duration::from_secs(5);

/// A sink.
pub struct TxLab {
    kind: SinkKind,
    link: NetnsLink,
    receiver: Option<SinkReceiver>,
    mac: [u8; 6],
    target_mac: [u8; 6],
}

impl TxLab {
    /// Makes the devices in the network namespace of the calling thread, which must be the
    /// benchmark's own.
    pub fn new(kind: SinkKind, placement: &Placement) -> Result<Self> {
        let far = match kind {
            SinkKind::Ifb => {
                links::add_ifb(INTERFACE)?;
                None
            }
            SinkKind::Veth => {
                let far = OtherNamespace::new()?;
                links::add_veth(INTERFACE, PEER, far.as_fd())?;
                Some(far)
            }
        };
        let link = NetnsLink::new(INTERFACE)?;
        link.set_mtu(MTU)?;
        link.set_ipv4(SOURCE, 24)?;
        let mac = link.mac()?;
        // The other end comes up first. Of a veth pair the kernel starts the queues of the second
        // one at once, and those of the first some time later. It throws away what is sent there
        // before.
        let (receiver, target_mac) = match far {
            Some(far) => {
                let (receiver, mac) = SinkReceiver::listen(&far, placement)?;
                (Some(receiver), mac)
            }
            None => (None, mac),
        };
        link.up()?;
        Ok(Self { kind, link, receiver, mac, target_mac })
    }

    /// Makes the receiver's end of a veth pair ready; for [`SinkReceiver`].
    pub(super) fn set_up_peer(name: &str) -> Result<[u8; 6]> {
        let link = NetnsLink::new(name)?;
        link.set_mtu(MTU)?;
        link.set_ipv4(TARGET, 24)?;
        link.up()?;
        link.mac()
    }

    /// Which sink it is.
    pub fn kind(&self) -> SinkKind {
        self.kind
    }

    /// The index of the interface.
    pub fn index(&self) -> Result<u32> {
        self.link.index()
    }

    /// Ethernet addresses for frames: whom to, and from whom.
    pub fn macs(&self) -> ([u8; 6], [u8; 6]) {
        (self.target_mac, self.mac)
    }

    /// A UDP socket that is connected to the target, with a send buffer that holds a batch.
    pub fn udp(&self) -> Result<UdpSocket> {
        let socket = UdpSocket::bind((SOURCE, 0)).context("can't bind a UDP socket to the interface")?;
        socket.connect(SocketAddrV4::new(TARGET, TARGET_PORT))?;
        widen(&socket)?;
        Ok(socket)
    }

    /// The program that reads, if there is one.
    pub fn receiver(&self) -> Option<&SinkReceiver> {
        self.receiver.as_ref()
    }

    /// What has arrived so far: frames at an ifb, bytes of payload at the receiver of a veth.
    pub fn arrived(&self) -> Result<u64> {
        match &self.receiver {
            Some(receiver) => Ok(receiver.bytes()),
            None => Ok(self.link.counters()?.rx_packets),
        }
    }

    /// Checks that all of a run arrived: `sends` payloads of `payload` bytes after `before`.
    pub fn verify(&self, before: u64, sends: usize, payload: usize) -> Result<()> {
        let (expected, unit) = match self.kind {
            SinkKind::Ifb => (sends as u64, "frames"),
            SinkKind::Veth => ((sends * payload) as u64, "bytes"),
        };
        if let Some(receiver) = &self.receiver {
            receiver.wait_for(before + expected, PATIENCE)?;
        }
        let arrived = self.arrived()? - before;
        if arrived != expected {
            bail!("{expected} {unit} were sent and {arrived} arrived: the run is void");
        }
        Ok(())
    }
}

/// Gives a socket a send buffer that holds a batch. Needs CAP_NET_ADMIN.
pub fn widen(socket: &impl AsFd) -> Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER)
        .context("can't enlarge a send buffer: CAP_NET_ADMIN is needed")
}

/// The receiver's end of the pair.
pub(super) const PEER: &str = "zwrx";
/// Room for what waits: the sender stays within it.
const RECEIVE_BUFFER: i32 = 256 << 20;
/// How often the thread looks whether it shall end.
const LOOK: Duration = Duration::from_millis(50);
/// How long the sender sleeps when it is too far ahead.
const NAP: Duration = Duration::from_micros(50);

/// The thread that reads.
pub struct SinkReceiver {
    bytes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    clock: ThreadClock,
    thread: Option<JoinHandle<()>>,
}

impl SinkReceiver {
    /// Sets up the interface [`PEER`] of the namespace `far`, and reads what comes there; its
    /// Ethernet address. The socket keeps the namespace.
    pub(super) fn listen(far: &OtherNamespace, placement: &Placement) -> Result<(Self, [u8; 6])> {
        let (socket, mac) = far.run(socket)?;
        let (bytes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end, placement) = (bytes.clone(), stop.clone(), placement.clone());
        let (clocks, clock) = channel();
        let thread = std::thread::Builder::new().name("receiver".into()).spawn(move || {
            let pinned = placement.pin_driver();
            let sound = pinned.is_ok();
            if clocks.send(pinned.map(|()| ThreadClock::own())).is_ok() && sound {
                read(&socket, &count, &end);
            }
        })?;
        let clock = clock.recv().map_err(|_| anyhow!("the receiver's thread ended early"))??;
        Ok((Self { bytes, stop, clock, thread: Some(thread) }, mac))
    }

    /// Bytes of payload read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// CPU time of the thread so far; exact while it sleeps.
    pub fn cpu(&self) -> Result<Duration> {
        self.clock.now().context("the receiver's clock")
    }

    /// Waits until `bytes` have been read in all; fails when nothing more comes for `patience`.
    pub fn wait_for(&self, bytes: u64, patience: Duration) -> Result<()> {
        let (mut last, mut since) = (self.bytes(), Instant::now());
        while last < bytes {
            std::thread::sleep(NAP);
            let now = self.bytes();
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > patience {
                bail!("the receiver has {last} of {bytes} bytes and nothing more comes: the run is void");
            }
        }
        Ok(())
    }
}

impl Drop for SinkReceiver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn socket() -> Result<(UdpSocket, [u8; 6])> {
    let mac = TxLab::set_up_peer(PEER)?;
    let socket = UdpSocket::bind((TARGET, TARGET_PORT))?;
    socket.set_read_timeout(Some(LOOK))?;
    set_int(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)?;
    // A frame that is carried as one is read as one (udp(7)).
    set_int(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    Ok((socket, mac))
}

fn read(socket: &UdpSocket, count: &AtomicU64, end: &AtomicBool) {
    let mut buffer = vec![0; 1 << 16];
    while !end.load(Ordering::Relaxed) {
        match socket.recv(&mut buffer) {
            Ok(len) => count.store(count.load(Ordering::Relaxed) + len as u64, Ordering::Release),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            // The sender finds that bytes are missing, and says how many.
            Err(_) => return,
        }
    }
}
