//! A pair of veth devices whose one end is the port, with a kernel thread for what the port
//! receives.
//!
//! The receive queue of a veth device is served where the sender runs, unless it is `threaded`
//! (Documentation/networking/napi.rst). Then a kernel thread does it, whose CPU time can be read
//! and which can be given a CPU. For that the queue must be one that is polled: the port has GRO
//! on, and its peer has no segmentation offloads. With those the kernel would pass by the queue
//! (drivers/net/veth.c, `veth_skb_is_eligible_for_gro`).
//!
//! A [`Wire`] is what a port is on: one end of a pair, or a tap that the back end has made.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, Result, bail};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use zerowire_testkit::net::lab::Offload;

use super::hold::go_first;
use crate::cpu::{Placement, ProcessClock};
use crate::netns::NetnsLink;
use crate::packet_tx::links::add_veth;

/// Frames that the port's queue holds before it is polled (VETH_RING_SIZE, drivers/net/veth.c).
pub const QUEUE: usize = 256;

/// How long the kernel thread may take to go to sleep after the last frame.
const SETTLE_LIMIT: Duration = Duration::from_millis(60);

/// Pairs made so far.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// The pair. Its devices go with the network namespace of the thread that made it.
#[derive(Debug)]
pub struct Veth {
    port: NetnsLink,
    peer: NetnsLink,
    clock: ProcessClock,
}

impl Veth {
    /// Makes a pair in the namespace of the calling thread, up, and puts the kernel thread on the
    /// worker's CPU.
    pub fn new(placement: &Placement) -> Result<Self> {
        // The kernel thread is found by the name of the device, which has to be the only one on
        // this machine.
        let name = format!("z{:x}n{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let peer = format!("{name}p");
        let here =
            fs::File::open("/proc/thread-self/ns/net").context("can't open /proc/thread-self/ns/net")?;
        add_veth(&name, &peer, here.as_fd())?;
        let (port, peer) = (NetnsLink::new(&name)?, NetnsLink::new(&peer)?);
        peer.set_offload(Offload::Tso, false)?;
        peer.up()?;
        port.up()?;
        port.set_offload(Offload::Gro, true)?;
        let thread = serve_by_thread(&name)?;
        placement
            .pin_task_to_worker(thread)
            .with_context(|| format!("can't give the kernel thread {thread} of {name} a CPU: run as root"))?;
        go_first(Some(thread))?;
        Ok(Self { port, peer, clock: ProcessClock::of(thread)? })
    }

    /// The port's end.
    pub fn port(&self) -> &NetnsLink {
        &self.port
    }

    /// The other end: what it sends the port receives.
    pub fn peer(&self) -> &NetnsLink {
        &self.peer
    }

    /// CPU time of the kernel thread so far, once it sleeps.
    pub fn kernel_time(&self) -> Result<Duration> {
        Ok(self.clock.settled(SETTLE_LIMIT)?.0)
    }

    /// Frames lost so far: by the port's queue, by the program on it, and on the way to the peer.
    pub fn lost(&self) -> Result<u64> {
        let (port, peer) = (self.port.counters()?, self.peer.counters()?);
        Ok(port.rx_dropped + port.tx_dropped + peer.tx_dropped)
    }
}

/// Makes a kernel thread serve the receive queue of `name`; its process number.
fn serve_by_thread(name: &str) -> Result<u32> {
    let path = format!("class/net/{name}/threaded");
    // The interfaces that a mount of sysfs shows are those of the namespace of the thread that made
    // it.
    let write = || -> io::Result<()> {
        let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(context.as_fd())?;
        let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let file = openat(&mount, path.as_str(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, b"1")?;
        Ok(())
    };
    write().with_context(|| {
        format!("can't write 1 to /sys/{path}: it takes Linux 5.12, and root (CAP_SYS_ADMIN) to mount sysfs")
    })?;
    let prefix = format!("napi/{name}-");
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(number) = entry.file_name().to_str().and_then(|text| text.parse().ok()) else { continue };
        // A process that has ended meanwhile is not the one.
        let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if comm.starts_with(&prefix) {
            return Ok(number);
        }
    }
    bail!("there is no kernel thread {prefix}* in /proc: run outside of a PID namespace (container)")
}

/// The interface of a port, seen from the host.
#[derive(Debug)]
pub enum Wire {
    /// A pair: the port is on one end, what it receives is sent into the other.
    Veth(Veth),
    /// A tap: what the port receives is sent out of it.
    Tap(NetnsLink),
}

impl Wire {
    /// The interface that the port is on.
    pub fn port(&self) -> &NetnsLink {
        match self {
            Self::Veth(veth) => veth.port(),
            Self::Tap(link) => link,
        }
    }

    /// Where frames are sent that the port is to receive, and where those arrive that it sends.
    pub fn peer(&self) -> &NetnsLink {
        match self {
            Self::Veth(veth) => veth.peer(),
            Self::Tap(link) => link,
        }
    }

    /// CPU time so far of the kernel thread that serves the port's receive queue; a tap has none,
    /// its reader makes the copy.
    pub fn kernel_time(&self) -> Result<Duration> {
        match self {
            Self::Veth(veth) => veth.kernel_time(),
            Self::Tap(_) => Ok(Duration::ZERO),
        }
    }

    /// Frames lost so far.
    pub fn lost(&self) -> Result<u64> {
        match self {
            Self::Veth(veth) => veth.lost(),
            Self::Tap(link) => Ok(link.counters()?.tx_dropped),
        }
    }
}
