//! What the drivers of all devices have in common: a transport, and queues that start, stop and go
//! on.

use std::marker::PhantomData;

use crate::{DriverQueue, GuestError, GuestMemory, Transport};

/// The queues of a driver, which may be on other threads while they run.
pub trait DeviceQueues {
    /// All of them, by number.
    fn all(&mut self) -> Vec<&mut DriverQueue>;
}

/// The driver of one device, whose queues are `Q`. It keeps the transport.
pub struct DeviceDriver<T, Q: ?Sized> {
    transport: T,
    memory: GuestMemory,
    features: u64,
    /// Queues that run, or ran.
    queues: u16,
    kind: PhantomData<fn(&mut Q)>,
}

impl<T: Transport, Q: DeviceQueues + ?Sized> DeviceDriver<T, Q> {
    pub(crate) fn new(transport: T, memory: &GuestMemory) -> Self {
        DeviceDriver { transport, memory: memory.clone(), features: 0, queues: 0, kind: PhantomData }
    }

    /// Negotiates the features that the device offers of those `wanted`, and all that are
    /// `required`. Then lets the device use the memory.
    pub(crate) fn negotiate(&mut self, wanted: u64, required: u64) -> Result<(), GuestError> {
        let offered = self.transport.require(required)?;
        self.features = offered & (wanted | required);
        self.transport.negotiate(self.features)?;
        self.transport.share_memory(&self.memory)
    }

    pub(crate) fn make_queue(&mut self, index: u16, size: u16) -> Result<DriverQueue, GuestError> {
        DriverQueue::start(&mut self.transport, &self.memory, index, size, self.features)
    }

    /// Lets queues run that were started.
    pub(crate) fn run(&mut self, queues: &mut Q) -> Result<(), GuestError> {
        let queues = queues.all();
        self.queues = queues.len() as u16;
        for index in 0..self.queues {
            self.transport.enable_queue(index, true)?;
        }
        self.transport.driver_ok()?;
        // The device may have nothing to go by yet, so the first notification
        // comes whether or not it asks for one.
        for queue in queues {
            queue.publish()?;
            queue.kick()?;
        }
        Ok(())
    }

    pub(crate) fn has(&self, mask: u64) -> bool {
        self.features & mask != 0
    }

    /// Features in force.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// The transport: hot-plug, MTU, reset, raw messages.
    pub fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Gives the transport back.
    pub fn into_transport(self) -> T {
        self.transport
    }

    /// Stops all queues. What the device did before is in the used rings.
    ///
    /// # Errors
    /// Those of the transport.
    pub fn stop(&mut self) -> Result<(), GuestError> {
        for index in 0..self.queues {
            self.transport.enable_queue(index, false)?;
            self.transport.stop_queue(index)?;
        }
        Ok(())
    }

    /// Starts stopped queues again on the same transport.
    ///
    /// # Errors
    /// Those of the transport.
    pub fn resume(&mut self, queues: &mut Q) -> Result<(), GuestError> {
        for queue in queues.all() {
            queue.restart(&mut self.transport)?;
        }
        self.run(queues)
    }

    /// Goes on with a new transport after the device went away, as a VMM does when a back end was
    /// restarted. Each queue goes on at its used index (see [`crate::ring::DriverRing::setup`]).
    /// Connections of a vsock device are unknown to the new one: see
    /// [`crate::vsock::VsockStack::reset_connections`].
    ///
    /// # Errors
    /// [`GuestError::FeaturesMissing`] when the new device offers less than
    /// is in force; those of the transport.
    pub fn reconnect(&mut self, transport: T, queues: &mut Q) -> Result<(), GuestError> {
        self.transport = transport;
        self.negotiate(self.features, self.features)?;
        self.resume(queues)
    }
}
