//! The common configuration of a device (virtio 1.3 §4.1.4.3).

use std::time::{Duration, Instant};

use super::bar::Registers;
use crate::QueueSetup;

const DEVICE_FEATURE_SELECT: usize = 0;
const DEVICE_FEATURE: usize = 4;
const DRIVER_FEATURE_SELECT: usize = 8;
const DRIVER_FEATURE: usize = 12;
const NUM_QUEUES: usize = 18;
const DEVICE_STATUS: usize = 20;
const CONFIG_GENERATION: usize = 21;
const QUEUE_SELECT: usize = 22;
const QUEUE_SIZE: usize = 24;
const QUEUE_ENABLE: usize = 28;
const QUEUE_NOTIFY_OFF: usize = 30;
const QUEUE_DESC: usize = 32;
const QUEUE_DRIVER: usize = 40;
const QUEUE_DEVICE: usize = 48;

/// Until a device that was reset says so. One with much to stop takes its
/// time.
const RESET: Duration = Duration::from_secs(5);

/// The registers by name.
#[derive(Debug)]
pub(super) struct Common(pub Registers);

impl Common {
    pub(super) fn device_features(&self) -> u64 {
        let half = |number: u32| -> u32 {
            self.0.write_int(DEVICE_FEATURE_SELECT, number);
            self.0.read_int(DEVICE_FEATURE)
        };
        u64::from(half(0)) | u64::from(half(1)) << 32
    }

    pub(super) fn set_driver_features(&self, features: u64) {
        for (half, value) in [(0u32, features as u32), (1, (features >> 32) as u32)] {
            self.0.write_int(DRIVER_FEATURE_SELECT, half);
            self.0.write_int(DRIVER_FEATURE, value);
        }
    }

    pub(super) fn queues(&self) -> u16 {
        self.0.read_int(NUM_QUEUES)
    }

    pub(super) fn status(&self) -> u64 {
        self.0.read_int::<u8>(DEVICE_STATUS).into()
    }

    /// Adds bits to the status; bits are never taken away but by a reset.
    pub(super) fn add_status(&self, bits: u64) -> u64 {
        self.0.write_int(DEVICE_STATUS, (self.status() | bits) as u8);
        self.status()
    }

    /// Resets the device. It is done when the status reads 0 (§4.1.4.3.2); false
    /// if it never does.
    pub(super) fn reset(&self) -> bool {
        let start = Instant::now();
        self.0.write_int(DEVICE_STATUS, 0u8);
        while self.status() != 0 {
            if start.elapsed() > RESET {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        true
    }

    pub(super) fn generation(&self) -> u8 {
        self.0.read_int(CONFIG_GENERATION)
    }

    /// Most entries of a queue; 0 if there is none of this number.
    pub(super) fn max_size(&self, queue: u16) -> u16 {
        self.0.write_int(QUEUE_SELECT, queue);
        self.0.read_int(QUEUE_SIZE)
    }

    /// Tells of a queue; returns its place among the doorbells.
    pub(super) fn set_up(&self, queue: u16, setup: &QueueSetup) -> u16 {
        self.0.write_int(QUEUE_SELECT, queue);
        self.0.write_int(QUEUE_SIZE, setup.size);
        for (register, address) in
            [(QUEUE_DESC, setup.desc), (QUEUE_DRIVER, setup.avail), (QUEUE_DEVICE, setup.used)]
        {
            // Registers of 64 bits may be written in halves only (§4.1.3.1).
            self.0.write_int(register, address.guest.0 as u32);
            self.0.write_int(register + 4, (address.guest.0 >> 32) as u32);
        }
        self.0.read_int(QUEUE_NOTIFY_OFF)
    }

    pub(super) fn enable(&self, queue: u16) {
        self.0.write_int(QUEUE_SELECT, queue);
        self.0.write_int(QUEUE_ENABLE, 1u16);
    }
}
