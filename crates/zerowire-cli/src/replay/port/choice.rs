//! Which port, and whether the capture lies in its memory for good.

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use zerowire::packet::{MAX_FRAME_BYTES, OpenError, PacketOptions};

use super::super::interface::{OutInterface, VLAN_BYTES};
use super::super::store::Store;
use super::ring::RingPort;
use super::socket::SocketPort;
use super::xdp::XdpPort;
use super::{NotResident, ReplayPort};

/// Room for a frame at least, bytes.
const SHORT_BYTES: usize = 64;

/// Frames up to this length are copied at once where the interface copies lent ones anyway. They
/// fit a buffer of the kernel's of half a page. Measured on a veth: 64 and 1400 bytes take 0.7 of
/// the time.
const COPY_UP_TO: usize = 1514;

/// A capture with frames up to this length only is copied on any interface. Such a frame in one
/// piece takes the kernel less than its headers and a lent page. Measured on an ifb: 64 bytes take
/// 0.93 of the time, 128 bytes 0.95, 256 bytes all of it.
const SHORT_UP_TO: usize = 128;

/// The port as the user asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PortChoice {
    /// A packet ring, and where rings are refused a packet socket.
    Auto,
    /// A packet ring (PACKET_TX_RING): no copy in the socket.
    Packet,
    /// AF_XDP.
    Xdp,
    /// A packet socket: the kernel copies each frame.
    Send,
}

/// What a port is opened for.
#[derive(Clone, Debug)]
pub struct Wish<'a> {
    /// Which one.
    pub choice: PortChoice,
    /// Where to.
    pub interface: &'a OutInterface,
    /// Frames may go with a virtio-net header.
    pub offload: bool,
    /// Past the interface's queue.
    pub bypass_queue: bool,
    /// Queue of the interface, for AF_XDP.
    pub queue: u32,
    /// Bytes of memory for resident frames.
    pub memory: usize,
    /// The longest frame, where it is known.
    pub longest: Option<usize>,
}

/// An open port.
pub struct Opened {
    /// The port.
    pub port: Box<dyn ReplayPort>,
    /// All frames lie in its memory.
    pub resident: bool,
    /// Why it is this one, and why nothing is resident.
    pub notes: Vec<String>,
}

/// Opens a port. With a `store` of all frames they become resident if they fit.
pub fn open(wish: &Wish<'_>, store: Option<&Store>) -> Result<Opened> {
    if wish.choice == PortChoice::Xdp {
        if wish.offload {
            bail!("AF_XDP has no segmentation: --oversized gso needs --port packet or --port send");
        }
        if wish.bypass_queue {
            bail!("AF_XDP goes past the interface's queue anyway: leave out --bypass-queue");
        }
        return open_xdp(wish, store);
    }
    let frame_bytes = match wish.longest {
        Some(n) => Some(n.max(SHORT_BYTES)),
        None if wish.offload => None,
        None => Some((wish.interface.frame_bytes() + VLAN_BYTES).min(MAX_FRAME_BYTES)),
    };
    // Where nothing is longer, short frames lie close together.
    let options = PacketOptions::default()
        .offload(wish.offload)
        .copy_up_to(copy_up_to(wish))
        .bypass_queue(wish.bypass_queue)
        .frame_bytes(frame_bytes);
    let name = wish.interface.name.as_str();
    let mut notes = Vec::new();
    match options.copy_up_to {
        0 => {}
        _ if wish.choice == PortChoice::Send => {}
        SHORT_UP_TO => notes
            .push(format!("no frame is longer than {SHORT_UP_TO} bytes: they are copied, which is faster")),
        n => {
            let kind = &wish.interface.kind;
            notes.push(format!(
                "{name} is a {kind}, which copies every frame: those up to {n} bytes are copied at once, which is faster"
            ));
        }
    }
    if wish.choice != PortChoice::Send {
        match open_ring(name, &options, store, wish.memory) {
            Ok((port, resident, note)) => {
                notes.extend(note);
                return Ok(Opened { port: Box::new(port), resident, notes });
            }
            Err(e) if wish.choice == PortChoice::Auto && falls_back(&e) => {
                notes.push(format!("no packet ring ({e}); a packet socket instead"));
            }
            Err(e) => return Err(e.context("packet ring")),
        }
    } else {
        notes.push("packet socket as asked".to_owned());
    }
    let port = SocketPort::open(name, &options).context("packet socket")?;
    Ok(Opened { port: Box::new(port), resident: false, notes })
}

/// Up to which length a ring copies frames at once.
fn copy_up_to(wish: &Wish<'_>) -> usize {
    if PacketOptions::lending_is_lost(&wish.interface.kind) {
        COPY_UP_TO
    } else if wish.longest.is_some_and(|n| n <= SHORT_UP_TO) {
        SHORT_UP_TO
    } else {
        0
    }
}

/// Whether a packet socket may work where a ring does not.
fn falls_back(e: &anyhow::Error) -> bool {
    matches!(
        e.downcast_ref(),
        Some(OpenError::NoRing { .. } | OpenError::NoMemory { .. } | OpenError::System { .. })
    )
}

fn open_ring(
    interface: &str,
    options: &PacketOptions,
    store: Option<&Store>,
    memory: usize,
) -> Result<(RingPort, bool, Option<String>)> {
    let mut note = None;
    if let Some(store) = store {
        match RingPort::resident(interface, options, store, memory) {
            Ok(port) => return Ok((port, true, None)),
            Err(NotResident::Failed(e)) => return Err(e),
            Err(NotResident::Room(why)) => note = Some(format!("not resident in the ring: {why}")),
        }
    }
    Ok((RingPort::open(interface, options)?, false, note))
}

fn open_xdp(wish: &Wish<'_>, store: Option<&Store>) -> Result<Opened> {
    let name = wish.interface.name.as_str();
    let mut notes = Vec::new();
    if let Some(store) = store {
        match XdpPort::resident(name, wish.queue, store, wish.memory) {
            Ok(port) => return Ok(Opened { port: Box::new(port), resident: true, notes }),
            Err(NotResident::Failed(e)) => return Err(e.context("AF_XDP")),
            Err(NotResident::Room(why)) => notes.push(format!("not resident in the UMEM: {why}")),
        }
    }
    let port = XdpPort::open(name, wish.queue).context("AF_XDP")?;
    Ok(Opened { port: Box::new(port), resident: false, notes })
}
