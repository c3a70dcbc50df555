//! The virtio-net driver (virtio 1.3 §5.1).
//!
//! [`NetDriver`] does the set-up and keeps the transport; the queues are split
//! off and may run on threads of their own. Queue `2 n` receives and
//! `2 n + 1` transmits (§5.1.2).

pub mod header;
mod rx;
mod tx;

use zerowire_vhost_user::features;

pub use crate::frames::{FramePool, FrameShape, Layout};
use crate::{DeviceDriver, DeviceQueues, DriverQueue, GuestError, GuestMemory, Transport};
pub use header::VirtioNetHdr;
pub use rx::{RxFrame, RxMode, RxOptions, RxQueue};
pub use tx::TxQueue;

/// Every feature that this driver can use.
pub const SUPPORTED: u64 = features::VERSION_1
    | features::ACCESS_PLATFORM
    | features::RING_INDIRECT_DESC
    | features::RING_EVENT_IDX
    | features::IN_ORDER
    | features::NET_MRG_RXBUF
    | features::NET_MQ
    | features::NET_MTU
    | OFFLOADS;

/// Every checksum and segmentation feature, both directions.
pub const OFFLOADS: u64 = features::NET_CSUM
    | features::NET_GUEST_CSUM
    | features::NET_GUEST_TSO4
    | features::NET_GUEST_TSO6
    | features::NET_GUEST_ECN
    | features::NET_GUEST_UFO
    | features::NET_GUEST_USO4
    | features::NET_GUEST_USO6
    | features::NET_HOST_TSO4
    | features::NET_HOST_TSO6
    | features::NET_HOST_ECN
    | features::NET_HOST_UFO
    | features::NET_HOST_USO;

/// Settings of a driver.
#[derive(Clone, Copy, Debug)]
pub struct NetOptions {
    /// Features to acknowledge where the device offers them.
    pub wanted: u64,
    /// Features that the device must offer.
    pub required: u64,
    /// Queue pairs.
    pub queue_pairs: u16,
    /// Entries of each queue, a power of two.
    pub queue_size: u16,
    /// Form of the buffers that [`TxQueue::send`] copies to.
    pub tx: FrameShape,
    /// Number of those buffers a queue.
    pub tx_slots: usize,
    /// Receive buffers. None: by features, mergeable of 4096 bytes, or with
    /// receive offloads chains of 17 pages, or small ones.
    pub rx: Option<RxOptions>,
}

impl Default for NetOptions {
    fn default() -> Self {
        NetOptions {
            wanted: SUPPORTED,
            required: features::VERSION_1,
            queue_pairs: 1,
            queue_size: 256,
            tx: FrameShape { layout: Layout::Split, indirect: false, capacity: 65550 },
            tx_slots: 64,
            rx: None,
        }
    }
}

/// The two queues of a pair.
pub struct QueuePair {
    /// Receives.
    pub rx: RxQueue,
    /// Transmits.
    pub tx: TxQueue,
}

impl DeviceQueues for [QueuePair] {
    fn all(&mut self) -> Vec<&mut DriverQueue> {
        self.iter_mut().flat_map(|pair| [&mut *pair.rx, &mut *pair.tx]).collect()
    }
}

/// The driver of one net device.
pub type NetDriver<T> = DeviceDriver<T, [QueuePair]>;

impl<T: Transport> NetDriver<T> {
    /// Negotiates features, shares the memory, starts all queues and posts
    /// receive buffers. The queues are returned and may go to other threads;
    /// the driver keeps the transport.
    ///
    /// # Errors
    /// [`GuestError::FeaturesMissing`], [`GuestError::BadSetting`],
    /// [`GuestError::OutOfMemory`]; those of the transport.
    pub fn start(
        mut transport: T,
        memory: &GuestMemory,
        options: &NetOptions,
    ) -> Result<(NetDriver<T>, Vec<QueuePair>), GuestError> {
        let most = transport.max_queues()? / 2;
        if options.queue_pairs == 0 || options.queue_pairs > most {
            return Err(GuestError::BadSetting {
                what: "the number of queue pairs",
                value: options.queue_pairs.into(),
                rule: "at least 1 and at most what the device has (see GET_QUEUE_NUM)",
            });
        }
        let mut driver = NetDriver::new(transport, memory);
        driver.negotiate(options.wanted, options.required)?;
        let pairs = (0..options.queue_pairs).map(|number| driver.make_pair(number, options));
        let mut pairs = pairs.collect::<Result<Vec<QueuePair>, GuestError>>()?;
        driver.run(&mut pairs)?;
        Ok((driver, pairs))
    }

    fn make_pair(&mut self, number: u16, options: &NetOptions) -> Result<QueuePair, GuestError> {
        let tx_shape = FrameShape {
            indirect: options.tx.indirect && self.has(features::RING_INDIRECT_DESC),
            ..options.tx
        };
        let rx_options = options.rx.unwrap_or_else(|| self.default_rx());
        let rx = self.make_queue(number * 2, options.queue_size)?;
        let rx = RxQueue::new(rx, self.memory(), &rx_options)?;
        let tx = self.make_queue(number * 2 + 1, options.queue_size)?;
        let tx = TxQueue::new(tx, self.memory(), tx_shape, options.tx_slots)?;
        Ok(QueuePair { rx, tx })
    }

    fn default_rx(&self) -> RxOptions {
        let large = features::NET_GUEST_TSO4
            | features::NET_GUEST_TSO6
            | features::NET_GUEST_UFO
            | features::NET_GUEST_USO4
            | features::NET_GUEST_USO6;
        let mode = if self.has(features::NET_MRG_RXBUF) {
            RxMode::Mergeable { buffer_len: 4096 }
        } else if self.has(large) {
            RxMode::Big { descriptors: 17, header_apart: false }
        } else {
            RxMode::Small
        };
        RxOptions { mode, indirect: false, buffers: 0 }
    }
}
