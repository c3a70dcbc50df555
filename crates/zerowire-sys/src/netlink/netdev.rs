//! The family "netdev": what an interface's queues are used for (include/uapi/linux/netdev.h).

use super::attributes::{Attributes, Builder};
use super::error::{Malformed, NetlinkError};
use super::generic::Family;
use super::socket::Extent;

const DEV_GET: u8 = 1;
const QUEUE_GET: u8 = 10;

const DEV_IFINDEX: u16 = 1;
const QUEUE_ID: u16 = 1;
const QUEUE_IFINDEX: u16 = 2;
const QUEUE_TYPE: u16 = 3;
/// NETDEV_QUEUE_TYPE_RX.
const RECEIVE: u32 = 0;

/// A socket on the family.
#[derive(Debug)]
pub struct Netdev {
    family: Family,
}

impl Netdev {
    /// Opens a socket in this thread's network namespace.
    ///
    /// # Errors
    /// [`NetlinkError::NoFamily`] before Linux 6.3.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { family: Family::open("netdev", "6.3")? })
    }

    /// What interface number `index` can do with XDP (NETDEV_CMD_DEV_GET).
    ///
    /// # Errors
    /// ENODEV.
    pub fn device(&mut self, index: u32) -> Result<Device, NetlinkError> {
        let which = Builder::default().word(DEV_IFINDEX, index);
        self.family.ask_one("asking what an interface can do with XDP", DEV_GET, which, Device::parse)
    }

    /// The receive queues (NETDEV_CMD_QUEUE_GET, since Linux 6.8), by number; none where the
    /// interface is down.
    ///
    /// # Errors
    /// ENODEV; EOPNOTSUPP before Linux 6.8.
    pub fn queues(&mut self, index: u32) -> Result<Vec<Queue>, NetlinkError> {
        const WHAT: &str = "asking for an interface's queues";
        let which = Builder::default().word(QUEUE_IFINDEX, index);
        let parts = self.family.ask(WHAT, QUEUE_GET, Extent::All, which)?;
        let mut queues = Vec::with_capacity(parts.len());
        for part in &parts {
            if let Some(queue) = Queue::parse(part).map_err(|e| e.of(WHAT))? {
                queues.push(queue);
            }
        }
        queues.sort_unstable_by_key(|q| q.id);
        Ok(queues)
    }

    /// One receive queue.
    ///
    /// # Errors
    /// ENODEV; EINVAL where the interface has no such queue; ENOENT where it is down; EOPNOTSUPP
    /// before Linux 6.8.
    pub fn queue(&mut self, index: u32, id: u32) -> Result<Queue, NetlinkError> {
        let which =
            Builder::default().word(QUEUE_IFINDEX, index).word(QUEUE_TYPE, RECEIVE).word(QUEUE_ID, id);
        self.family.ask_one("asking for a queue", QUEUE_GET, which, |part| {
            Queue::parse(part)?.ok_or(Malformed("a queue that doesn't receive"))
        })
    }
}

/// What an interface can do with XDP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Device {
    /// Bits of `enum netdev_xdp_act`.
    pub xdp_features: u64,
    /// The most buffers of a frame in AF_XDP's zero-copy mode.
    pub xdp_zc_max_segs: Option<u32>,
}

impl Device {
    /// Whether AF_XDP's zero-copy mode can be had (NETDEV_XDP_ACT_XSK_ZEROCOPY).
    pub fn has_xsk_zerocopy(&self) -> bool {
        self.xdp_features & 8 != 0
    }

    pub(super) fn parse(attributes: &[u8]) -> Result<Self, Malformed> {
        let mut device = Self::default();
        for attribute in Attributes::new(attributes) {
            let a = attribute?;
            match a.kind {
                3 => device.xdp_features = a.number()?,
                4 => device.xdp_zc_max_segs = Some(a.word()?),
                _ => {}
            }
        }
        Ok(device)
    }
}

/// Who has put memory of its own under a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum QueueUser {
    /// A DMA buffer (device memory TCP).
    Dmabuf,
    /// io_uring zero-copy receive.
    IoUring,
    /// An AF_XDP socket.
    AfXdp,
    /// A queue of another interface that stands for this one.
    Lease,
}

impl QueueUser {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dmabuf => "a DMA buffer",
            Self::IoUring => "io_uring zero-copy receive",
            Self::AfXdp => "an AF_XDP socket",
            Self::Lease => "another interface's queue (a lease)",
        }
    }
}

/// A receive queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Queue {
    /// Its number.
    pub id: u32,
    /// Number of the NAPI instance that serves it.
    pub napi: Option<u32>,
    /// Who uses it; `None`: the kernel's own stack, as far as it tells (DMA buffers since Linux
    /// 6.12, the others since 6.15).
    pub user: Option<QueueUser>,
}

impl Queue {
    /// `None` for one that doesn't receive.
    pub(super) fn parse(attributes: &[u8]) -> Result<Option<Self>, Malformed> {
        let (mut queue, mut id, mut kind) = (Self::default(), None, RECEIVE);
        for attribute in Attributes::new(attributes) {
            let a = attribute?;
            match a.kind {
                QUEUE_ID => id = Some(a.word()?),
                QUEUE_TYPE => kind = a.word()?,
                4 => queue.napi = Some(a.word()?),
                5 => queue.user = Some(QueueUser::Dmabuf),
                6 => queue.user = Some(QueueUser::IoUring),
                7 => queue.user = Some(QueueUser::AfXdp),
                8 => queue.user = queue.user.or(Some(QueueUser::Lease)),
                _ => {}
            }
        }
        queue.id = id.ok_or(Malformed("a queue without a number"))?;
        Ok((kind == RECEIVE).then_some(queue))
    }
}
