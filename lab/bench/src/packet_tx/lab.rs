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

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use zerowire_sys::socket::set_int;

use super::case::SinkKind;
use super::links;
use super::receiver::{PEER, SinkReceiver};
use crate::cpu::Placement;
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
