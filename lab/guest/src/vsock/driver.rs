//! Set-up of the device and its two queues.

use zerowire_vhost_user::features;

use super::rx::VsockRx;
use super::tx::{TxLayout, VsockTx};
use super::{RX_QUEUE, SUPPORTED, TX_QUEUE};
use crate::{DriverQueue, GuestError, GuestMemory, Transport};

/// Settings of a driver.
#[derive(Clone, Copy, Debug)]
pub struct VsockOptions {
    /// Features to acknowledge where the device offers them.
    pub wanted: u64,
    /// Features that the device must offer.
    pub required: u64,
    /// Whether to acknowledge RING_EVENT_IDX.
    pub event_idx: bool,
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
    pub layout: TxLayout,
    /// Buffers of 64 KiB that [`VsockTx::send`] copies to.
    pub tx_slots: usize,
    /// The guest's CID. None: what the configuration space says.
    pub cid: Option<u64>,
}

impl Default for VsockOptions {
    fn default() -> Self {
        VsockOptions {
            wanted: SUPPORTED,
            required: features::VERSION_1,
            event_idx: true,
            indirect: false,
            queue_size: 128,
            rx_buffer_len: 4096,
            rx_descriptors: 1,
            rx_buffers: 0,
            rx_limit: usize::MAX,
            rx_align_payload: false,
            layout: TxLayout::Split,
            tx_slots: 32,
            cid: None,
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

/// The driver of one vsock device; keeps the transport.
pub struct VsockDriver<T> {
    transport: T,
    memory: GuestMemory,
    features: u64,
}

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
        let mut driver = VsockDriver { transport, memory: memory.clone(), features: 0 };
        let queues = driver.bring_up(options)?;
        Ok((driver, queues))
    }

    /// Features in force.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// The transport: hot-plug, raw messages.
    pub fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Gives the transport back.
    pub fn into_transport(self) -> T {
        self.transport
    }

    /// Stops both queues. What the device did before is in the used rings.
    ///
    /// # Errors
    /// Those of the transport.
    pub fn stop(&mut self) -> Result<(), GuestError> {
        for index in [RX_QUEUE, TX_QUEUE] {
            self.transport.enable_queue(index, false)?;
            self.transport.stop_queue(index)?;
        }
        Ok(())
    }

    /// Starts stopped queues again on the same transport.
    ///
    /// # Errors
    /// Those of the transport.
    pub fn resume(&mut self, queues: &mut VsockQueues) -> Result<(), GuestError> {
        queues.rx.restart(&mut self.transport)?;
        queues.tx.restart(&mut self.transport)?;
        self.run(queues)
    }

    /// Goes on with a new transport after the device went away, as a VMM does
    /// when a back end was restarted. Each queue goes on at its used index
    /// (see [`crate::ring::DriverRing::setup`]). Connections are unknown to the new device:
    /// see [`super::VsockStack::reset_connections`].
    ///
    /// # Errors
    /// [`GuestError::FeaturesMissing`] when the new device offers less than
    /// is in force; those of the transport.
    pub fn reconnect(&mut self, transport: T, queues: &mut VsockQueues) -> Result<(), GuestError> {
        self.transport = transport;
        self.transport.require(self.features)?;
        self.transport.negotiate(self.features)?;
        self.transport.share_memory(&self.memory)?;
        self.resume(queues)
    }

    /// Resets the device and starts over with new queues, as a guest does that
    /// boots again. Drop the old queues when this has returned, not before.
    ///
    /// # Errors
    /// As [`VsockDriver::start`].
    pub fn reset(&mut self, options: &VsockOptions) -> Result<VsockQueues, GuestError> {
        self.transport.reset()?;
        self.bring_up(options)
    }

    fn bring_up(&mut self, options: &VsockOptions) -> Result<VsockQueues, GuestError> {
        let offered = self.transport.require(options.required)?;
        let mut wanted = options.wanted;
        if !options.event_idx {
            wanted &= !features::RING_EVENT_IDX;
        }
        self.features = offered & (wanted | options.required);
        let queues = self.transport.max_queues()?;
        if queues <= TX_QUEUE {
            return Err(GuestError::BadSetting {
                what: "the number of the device's queues",
                value: queues.into(),
                rule: "at least 2 (see GET_QUEUE_NUM)",
            });
        }
        self.transport.negotiate(self.features)?;
        let cid = match options.cid {
            Some(cid) => cid,
            None => self.read_cid()?,
        };
        self.transport.share_memory(&self.memory)?;
        let indirect = options.indirect && self.features & features::RING_INDIRECT_DESC != 0;
        let rx = VsockRx::new(self.make_queue(RX_QUEUE, options)?, &self.memory, options, indirect)?;
        let tx = VsockTx::new(self.make_queue(TX_QUEUE, options)?, &self.memory, options, indirect)?;
        let mut queues = VsockQueues { rx, tx, cid };
        self.run(&mut queues)?;
        Ok(queues)
    }

    fn make_queue(&mut self, index: u16, options: &VsockOptions) -> Result<DriverQueue, GuestError> {
        DriverQueue::start(&mut self.transport, &self.memory, index, options.queue_size, self.features)
    }

    /// The guest's CID, from the configuration space (§5.10.4).
    fn read_cid(&mut self) -> Result<u64, GuestError> {
        let bytes = self.transport.config(0, 8)?;
        match <[u8; 8]>::try_from(bytes) {
            Ok(bytes) => Ok(u64::from_le_bytes(bytes)),
            Err(bytes) => Err(GuestError::BadSetting {
                what: "the number of bytes of guest_cid",
                value: bytes.len() as u64,
                rule: "8",
            }),
        }
    }

    fn run(&mut self, queues: &mut VsockQueues) -> Result<(), GuestError> {
        for index in [RX_QUEUE, TX_QUEUE] {
            self.transport.enable_queue(index, true)?;
        }
        self.transport.driver_ok()?;
        // The device may have nothing to go by yet, so the first notification
        // comes whether or not it asks for one.
        queues.rx.publish()?;
        queues.rx.kick()?;
        queues.tx.kick()
    }
}
