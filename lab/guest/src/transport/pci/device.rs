//! A device as a transport.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};

use super::PciAddress;
use super::bar::{self, Registers};
use super::capabilities::{self, BarRange, Capabilities};
use super::common::Common;
use super::interrupt::{Command, UioInterrupt};
use super::sysfs::{Sysfs, bad};
use crate::transport::{
    Doorbell, Interrupt, QueueHandle, QueueSetup, STATUS_ACKNOWLEDGE, STATUS_DRIVER, STATUS_DRIVER_OK,
    STATUS_FEATURES_OK, Transport,
};
use crate::{GuestError, GuestMemory, Region};

/// How often the driver polls a device without interrupts.
const LOOK: Duration = Duration::from_millis(1);
/// Tries to read a part of the configuration that does not change meanwhile.
const CONFIG_TRIES: u32 = 100;

/// Which device, and how.
#[derive(Clone, Copy, Debug)]
pub struct PciOptions {
    /// Its address. None: the only one that no kernel driver uses.
    pub address: Option<PciAddress>,
    /// Whether to use its interrupt, if the kernel gave it one. Else a timer
    /// of 1 ms stands for it.
    pub interrupts: bool,
}

impl Default for PciOptions {
    fn default() -> Self {
        PciOptions { address: None, interrupts: true }
    }
}

/// A device of this machine, bound to uio_pci_generic. Dropping it resets the
/// device and leaves it bound.
pub struct PciDevice {
    address: PciAddress,
    common: Common,
    notify: Registers,
    multiplier: u32,
    config: Option<Registers>,
    /// A second opening of the uio device. Whenever one is closed, the kernel stops its DMA
    /// (`release` in drivers/uio/uio_pci_generic.c). So it does when this process ends: this
    /// descriptor is above those of all memory. Closed before `line`, whose lock keeps other
    /// programs out.
    stop: OwnedFd,
    line: Arc<UioInterrupt>,
    /// True: queues wait for `line`. False: a timer stands for it.
    has_interrupt: bool,
    /// What the device uses: kept until it was reset.
    memory: Option<GuestMemory>,
}

impl PciDevice {
    /// Finds a device by its PCI device id ([`super::VSOCK`]), binds it to
    /// uio_pci_generic and resets it.
    ///
    /// # Errors
    /// [`GuestError::BadDevice`] when there is none, or none that can be used
    /// so; [`GuestError::Io`], also without root.
    pub fn open(id: u16, options: &PciOptions) -> Result<PciDevice, GuestError> {
        let sysfs = Sysfs::real();
        let address = sysfs.find(id, options.address)?;
        sysfs.bind(address)?;
        let folder = sysfs.device(address);
        let uio_path = Path::new("/dev").join(sysfs.uio(address)?);
        let uio = UioInterrupt::open_uio(&uio_path)?;
        let mut stop = bar::open(&uio_path)?.into();
        raise_above(&mut stop, uio.as_fd())?;
        let config = folder.join("config");
        let bytes = std::fs::read(&config);
        let bytes = bytes.map_err(|e| GuestError::io(format!("reading {}", config.display()), e))?;
        let places = capabilities::parse(&bytes).map_err(|rule| bad(address, rule))?;
        let Capabilities { common, notify, multiplier, isr, device } = places;
        let registers = |place: BarRange| -> Result<Registers, GuestError> {
            let bar = bar::map(&folder.join(format!("resource{}", place.bar)))?;
            bar::registers(&bar, place).map_err(|rule| bad(address, rule))
        };
        let (common, notify, isr) = (Common(registers(common)?), registers(notify)?, registers(isr)?);
        let device = device.map(registers).transpose()?;
        let has_interrupt = options.interrupts && UioInterrupt::exists(&uio);
        let line = Arc::new(UioInterrupt::new(uio, Command(bar::open(&config)?), isr));
        let mut opened = PciDevice {
            address,
            common,
            notify,
            multiplier,
            config: device,
            stop,
            line,
            has_interrupt,
            memory: None,
        };
        // Whoever had the device before may have left it running.
        opened.reset()?;
        opened.run(true)?;
        Ok(opened)
    }

    /// Its address.
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// Whether its interrupt is used; else the driver polls it each millisecond.
    pub fn has_interrupt(&self) -> bool {
        self.has_interrupt
    }

    /// The device status (virtio 1.3 §2.1).
    pub fn status(&self) -> u64 {
        self.common.status()
    }

    /// Resets the device and gives it to the kernel's own driver again.
    ///
    /// # Errors
    /// [`GuestError::Io`].
    pub fn give_back(self) -> Result<(), GuestError> {
        let address = self.address;
        drop(self);
        Sysfs::real().unbind(address)
    }

    fn run(&self, on: bool) -> Result<(), GuestError> {
        let command = &self.line.command;
        let result = command.let_run(on).and_then(|()| command.mask(!on || !self.has_interrupt));
        result.map_err(|e| GuestError::io("writing the command register", e))
    }

    fn refuse(&self, rule: impl Into<String>) -> GuestError {
        bad(self.address, rule.into())
    }
}

impl Transport for PciDevice {
    fn device_features(&mut self) -> Result<u64, GuestError> {
        Ok(self.common.device_features())
    }

    fn negotiate(&mut self, features: u64) -> Result<(), GuestError> {
        self.common.add_status(STATUS_ACKNOWLEDGE);
        self.common.add_status(STATUS_DRIVER);
        self.common.set_driver_features(features);
        let status = self.common.add_status(STATUS_FEATURES_OK);
        if status & STATUS_FEATURES_OK == 0 {
            return Err(GuestError::FeaturesRefused { acked: features, status });
        }
        Ok(())
    }

    fn max_queues(&mut self) -> Result<u16, GuestError> {
        Ok(self.common.queues())
    }

    fn config(&mut self, offset: u32, len: u32) -> Result<Vec<u8>, GuestError> {
        let Some(config) = &self.config else {
            return Err(GuestError::NotNegotiated { what: "a configuration space" });
        };
        let (offset, len) = (offset as usize, len as usize);
        if offset > config.len() || len > config.len() - offset {
            let rule = format!("its configuration space of {} bytes ends before", config.len());
            return Err(self.refuse(format!("{len} bytes at {offset} are wanted: {rule}")));
        }
        for _ in 0..CONFIG_TRIES {
            let before = self.common.generation();
            let mut bytes = Vec::with_capacity(len);
            while bytes.len() < len {
                let at = offset + bytes.len();
                // By the width of the fields, 64-bit ones in halves
                // (§4.1.3.1); bytes where nothing wider can be.
                match len - bytes.len() {
                    4.. if at.is_multiple_of(4) => bytes.extend(config.read_int::<u32>(at).to_le_bytes()),
                    2.. if at.is_multiple_of(2) => bytes.extend(config.read_int::<u16>(at).to_le_bytes()),
                    _ => bytes.push(config.read_int(at)),
                }
            }
            if self.common.generation() == before {
                return Ok(bytes);
            }
        }
        Err(self.refuse("its configuration never stops changing"))
    }

    fn share_memory(&mut self, memory: &GuestMemory) -> Result<(), GuestError> {
        // The device can use all memory anyway.
        self.memory = Some(memory.clone());
        memory.regions().iter().try_for_each(|region| self.add_memory(region))
    }

    fn add_memory(&mut self, region: &Arc<Region>) -> Result<(), GuestError> {
        raise_above(&mut self.stop, region.file())
    }

    fn remove_memory(&mut self, _region: &Arc<Region>) -> Result<(), GuestError> {
        let what = "taking memory from a device on a bus (reset it)";
        Err(GuestError::NotNegotiated { what })
    }

    fn start_queue(&mut self, index: u16, setup: &QueueSetup) -> Result<QueueHandle, GuestError> {
        let most = self.common.max_size(index);
        if setup.size > most {
            let rule = format!("queue {index} has at most {most} entries and {} are wanted", setup.size);
            return Err(self.refuse(rule));
        }
        if setup.next_avail != 0 {
            let what = "starting a queue of a device on a bus elsewhere than at its beginning";
            return Err(GuestError::NotNegotiated { what });
        }
        let place = usize::from(self.common.set_up(index, setup)) * self.multiplier as usize;
        if place + 2 > self.notify.len() || !place.is_multiple_of(2) {
            return Err(self.refuse(format!("the doorbell of queue {index} at {place:#x} is not in its BAR")));
        }
        let doorbell = PciDoorbell { registers: self.notify.clone(), place, queue: index };
        let interrupt = match self.has_interrupt {
            true => Interrupt::shared(Arc::clone(&self.line)),
            false => ticks().map_err(|e| GuestError::io("a timer instead of interrupts", e))?,
        };
        Ok(QueueHandle { doorbell: Box::new(doorbell), interrupt, error: None })
    }

    fn enable_queue(&mut self, index: u16, on: bool) -> Result<(), GuestError> {
        if !on {
            // 0 must not be written to queue_enable (§4.1.4.3.2).
            return Err(GuestError::NotNegotiated { what: "stopping a queue (feature RING_RESET)" });
        }
        self.common.enable(index);
        Ok(())
    }

    fn stop_queue(&mut self, _index: u16) -> Result<u16, GuestError> {
        Err(GuestError::NotNegotiated { what: "stopping a queue (feature RING_RESET)" })
    }

    fn driver_ok(&mut self) -> Result<(), GuestError> {
        self.common.add_status(STATUS_DRIVER_OK);
        Ok(())
    }

    fn reset(&mut self) -> Result<(), GuestError> {
        match self.common.reset() {
            true => Ok(()),
            false => {
                Err(self.refuse(format!("it does not reset: its status stays {:#x}", self.common.status())))
            }
        }
    }
}

impl Drop for PciDevice {
    fn drop(&mut self) {
        let reset = self.common.reset();
        let stopped = self.run(false).is_ok();
        if !reset && !stopped {
            // It may still write to the memory, which therefore must not be
            // used for anything else.
            std::mem::forget(self.memory.take());
        }
    }
}

/// A doorbell of a device: the queue's number is written to its place
/// (§4.1.4.4).
#[derive(Debug)]
struct PciDoorbell {
    registers: Registers,
    place: usize,
    queue: u16,
}

impl Doorbell for PciDoorbell {
    fn ring(&self) -> io::Result<()> {
        // What was written to memory before is there when the device looks.
        fence(Ordering::SeqCst);
        self.registers.write_int(self.place, self.queue);
        Ok(())
    }
}

/// Moves a descriptor above another one. The kernel closes those of a killed
/// process from the highest number down: so the device is stopped before the
/// other one's pages are free.
fn raise_above(stop: &mut OwnedFd, other: BorrowedFd<'_>) -> Result<(), GuestError> {
    let other = other.as_raw_fd();
    if stop.as_raw_fd() < other {
        let raised = fcntl_dupfd_cloexec(&*stop, other + 1);
        *stop = raised.map_err(|e| GuestError::io(format!("a descriptor of the device above {other}"), e))?;
    }
    Ok(())
}

/// A timer that reads like an eventfd.
fn ticks() -> io::Result<Interrupt> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let each = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
    let time = Itimerspec { it_interval: each, it_value: each };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &time)?;
    Ok(Interrupt::from_fd(timer))
}

#[cfg(test)]
mod tests;
