//! What is known of an interface, its queues and the kernel: plain results of system calls. Nothing
//! is changed, no queue is opened.

use serde::Serialize;

use super::super::{errno, nic, recv, uring};
use zerowire_sys::netdevice;
use zerowire_sys::netdevice::rules::{self, Rule};
use zerowire_sys::netlink::{
    Channels, DataSplit, Device, Ethtool, LinkInfo, Netdev, NetlinkError, Queue, Rings, Rss,
};
use zerowire_sys::trial::register_zcrx;
use zerowire_sys::uring::wide::{Completions, WideRing};
use zerowire_sys::uring::zcrx::ZcrxSource;

/// The interface as the kernel tells it. An error is its number.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub link: LinkInfo,
    /// Name of its driver; `None` where it has none.
    pub driver: Option<String>,
    pub rings: Result<Rings, i32>,
    pub channels: Result<Channels, i32>,
    pub rss: Result<Rss, i32>,
    pub ntuple: Option<Ntuple>,
    pub rules: Result<Vec<Rule>, i32>,
    pub device: Result<Device, i32>,
    /// Those in use; an empty list where it is down.
    pub queues: Result<Vec<Queue>, i32>,
}

/// The feature that steering rules need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Ntuple {
    /// It is on.
    On,
    /// It can be turned on.
    Off,
    /// The interface can't have it.
    Absent,
}

fn number(e: &NetlinkError) -> i32 {
    // An answer that can't be read is none of the kernel's errors.
    e.errno().unwrap_or(libc::EBADMSG)
}

impl Facts {
    /// Reads everything; the error number where the interface does not exist.
    pub(super) fn gather(interface: &str) -> Result<Self, i32> {
        let link = LinkInfo::find(interface).map_err(|e| number(&e))?;
        let index = link.index;
        let mut ethtool = Ethtool::open().map_err(|e| number(&e));
        let mut netdev = Netdev::open().map_err(|e| number(&e));
        let driver = netdevice::socket()
            .and_then(|s| netdevice::driver(s, &link.name))
            .ok()
            .map(|d| d.name)
            .filter(|d| !d.is_empty());
        Ok(Self {
            driver,
            rings: ask(&mut ethtool, |e| e.rings(index)),
            channels: ask(&mut ethtool, |e| e.channels(index)),
            rss: ask(&mut ethtool, |e| e.rss(index)),
            ntuple: ask(&mut ethtool, |e| e.features(index)).ok().map(|f| {
                let has = |list: &[String]| list.iter().any(|name| name == "rx-ntuple-filter");
                match (has(&f.active), has(&f.hardware)) {
                    (true, _) => Ntuple::On,
                    (false, true) => Ntuple::Off,
                    (false, false) => Ntuple::Absent,
                }
            }),
            rules: rules::read(&link.name).map_err(errno::number),
            device: ask(&mut netdev, |n| n.device(index)),
            queues: ask(&mut netdev, |n| n.queues(index)),
            link,
        })
    }

    /// Receive queues in use, as far as anybody tells: the kernel's own count, else the driver's,
    /// else the room that there is for them.
    pub(super) fn receive_queues(&self) -> Option<u32> {
        let listed = self.queues.as_ref().ok().and_then(|q| u32::try_from(q.len()).ok());
        let channels = || self.channels.as_ref().ok().map(Channels::receive_queues);
        listed.filter(|n| *n > 0).or_else(|| channels().filter(|n| *n > 0)).or(self.link.rx_queues)
    }

    /// The command that gives the interface this many receive queues.
    pub(super) fn queues_command(&self, count: u32) -> String {
        let only_receive = |c: &Channels| c.combined_max == 0 && c.rx_max > 0;
        let kind = if self.channels.as_ref().is_ok_and(only_receive) { "rx" } else { "combined" };
        format!("ethtool -L {} {kind} {count}", self.link.name)
    }

    /// Whether the driver is known to have queue management operations.
    pub(super) fn has_known_driver(&self) -> bool {
        self.driver.as_deref().is_some_and(|d| nic::SPLITTING.contains(&d))
    }

    /// Header split, where the driver reports it.
    pub(super) fn data_split(&self) -> Option<DataSplit> {
        self.rings.as_ref().ok()?.data_split
    }

    /// The rules that put flows into `queue`.
    pub(super) fn rules_for(&self, queue: u32) -> impl Iterator<Item = &Rule> {
        self.rules.iter().flatten().filter(move |r| r.queue == Some(queue))
    }

    /// The queue, where the kernel told about it.
    pub(super) fn queue(&self, id: u32) -> Option<&Queue> {
        self.queues.as_ref().ok()?.iter().find(|q| q.id == id)
    }
}

fn ask<S, T>(
    socket: &mut Result<S, i32>,
    question: impl FnOnce(&mut S) -> Result<T, NetlinkError>,
) -> Result<T, i32> {
    match socket {
        Ok(socket) => question(socket).map_err(|e| number(&e)),
        Err(e) => Err(*e),
    }
}

/// What the kernel's io_uring has for this.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    /// A ring with 32-byte completions and DEFER_TASKRUN; the error number where there is none.
    pub ring: Result<(), i32>,
    /// Whether it knows the operation that receives.
    pub recv_zc: bool,
    /// What came of registering for an interface that isn't: ENODEV where all else is right.
    pub device: i32,
    /// What came of registering without a device.
    pub nodev: Result<(), i32>,
    /// Whether areas can be added to a registration.
    pub more_areas: bool,
}

impl Kernel {
    /// Tries it, on rings of its own that are gone at the end.
    pub(super) fn probe() -> Self {
        Self {
            ring: WideRing::new(8, 8, Completions::Wide).map(drop).map_err(errno::number),
            recv_zc: uring::probe().is_ok_and(|a| a.recv_zc),
            device: register_zcrx(recv::NO_INTERFACE).err().map_or(0, errno::number),
            nodev: register_zcrx(ZcrxSource::NoDevice).map_err(errno::number),
            more_areas: recv::has_more_areas(),
        }
    }
}
