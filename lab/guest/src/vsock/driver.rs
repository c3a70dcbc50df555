//! Set-up of the device and its two queues.

use zerowire_vhost_user::features;

use super::rx::VsockRx;
use super::tx::VsockTx;
use super::{RX_QUEUE, SUPPORTED, TX_QUEUE};
use crate::frames::Layout;
use crate::{DeviceDriver, DeviceQueues, DriverQueue, GuestError, GuestMemory, Transport};

/// Settings of a driver.
#[derive(Clone, Copy, Debug)]
pub struct VsockOptions {
    /// Features to acknowledge where the device offers them.
    pub wanted: u64,
    /// Features that the device must offer.
    pub required: u64,
    /// Whether chains of both queues have indirect tables, if
    /// RING_INDIRECT_DESC was negotiated.
    pub indirect: bool,
    /// Entries of each queue, a power of two.
    pub queue_size: u16,
    /// Bytes of each receive buffer, header included. Linux posts a little
    /// less than 4096.
    pub rx_buffer_len: u32,
    /// Descriptors that each receive buffer is cut into.
    pub rx_descriptors: u16,
    /// Receive buffers in all. They are posted in turn, so more than the queue holds make a larger
    /// working set. 0: as many as the queue holds.
    pub rx_buffers: usize,
    /// The most receive buffers posted at once.
    pub rx_limit: usize,
    /// Whether payload begins at a multiple of 64, for programs that read it
    /// in place ([`super::VsockStack::dequeue`]); else the buffer does.
    pub rx_align_payload: bool,
    /// How [`VsockTx::send`] cuts packets into descriptors.
    pub layout: Layout,
    /// Buffers of 64 KiB that [`VsockTx::send`] copies to.
    pub tx_slots: usize,
}

impl Default for VsockOptions {
    fn default() -> Self {
        VsockOptions {
            wanted: SUPPORTED,
            required: features::VERSION_1,
            indirect: false,
            queue_size: 128,
            rx_buffer_len: 4096,
            rx_descriptors: 1,
            rx_buffers: 0,
            rx_limit: usize::MAX,
            rx_align_payload: false,
            layout: Layout::Split,
            tx_slots: 32,
        }
    }
}

/// The queues of a device, and its guest's address.
pub struct VsockQueues {
    /// Receives.
    pub rx: VsockRx,
    /// Transmits.
    pub tx: VsockTx,
    /// CID of the guest.
    pub cid: u64,
}

impl DeviceQueues for VsockQueues {
    fn all(&mut self) -> Vec<&mut DriverQueue> {
        vec![&mut *self.rx, &mut *self.tx]
    }
}

/// The driver of one vsock device.
pub type VsockDriver<T> = DeviceDriver<T, VsockQueues>;

impl<T: Transport> VsockDriver<T> {
    /// Negotiates features, reads the CID, shares the memory, starts both
    /// queues and posts receive buffers.
    ///
    /// # Errors
    /// [`GuestError::FeaturesMissing`], [`GuestError::BadSetting`],
    /// [`GuestError::OutOfMemory`]; those of the transport.
    pub fn start(
        transport: T,
        memory: &GuestMemory,
        options: &VsockOptions,
    ) -> Result<(VsockDriver<T>, VsockQueues), GuestError> {
        let mut driver = VsockDriver::new(transport, memory);
        let queues = driver.bring_up(options)?;
        Ok((driver, queues))
    }

    /// Resets the device and starts over with new queues, as a guest does that
    /// boots again. Drop the old queues when this has returned, not before.
    ///
    /// # Errors
    /// As [`VsockDriver::start`].
    pub fn reset(&mut self, options: &VsockOptions) -> Result<VsockQueues, GuestError> {
        self.transport().reset()?;
        self.bring_up(options)
    }

    fn bring_up(&mut self, options: &VsockOptions) -> Result<VsockQueues, GuestError> {
        let queues = self.transport().max_queues()?;
        if queues <= TX_QUEUE {
            return Err(GuestError::BadSetting {
                what: "the number of the device's queues",
                value: queues.into(),
                rule: "at least 2 (see GET_QUEUE_NUM)",
            });
        }
        self.negotiate(options.wanted, options.required)?;
        let cid = self.read_cid()?;
        let indirect = options.indirect && self.has(features::RING_INDIRECT_DESC);
        let rx = self.make_queue(RX_QUEUE, options.queue_size)?;
        let rx = VsockRx::new(rx, self.memory(), options, indirect)?;
        let tx = self.make_queue(TX_QUEUE, options.queue_size)?;
        let tx = VsockTx::new(tx, self.memory(), options, indirect)?;
        let mut queues = VsockQueues { rx, tx, cid };
        self.run(&mut queues)?;
        Ok(queues)
    }

    /// The guest's CID, from the configuration space (§5.10.4).
    fn read_cid(&mut self) -> Result<u64, GuestError> {
        let bytes = self.transport().config(0, 8)?;
        Ok(bytes.iter().rev().fold(0, |cid, &byte| cid << 8 | u64::from(byte)))
    }
}
