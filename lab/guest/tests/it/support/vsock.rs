//! Vsock devices for the tests: one without a thread, whose queues the test
//! works itself, and a switch that carries packets from guest to guest.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use zerowire_guest::vsock::{
    HEADER_LEN, Op, PacketHeader, SUPPORTED, SocketType, StackOptions, VsockDriver, VsockOptions,
    VsockQueues, VsockStack,
};
use zerowire_guest::{
    GuestAddr, GuestError, GuestMemory, Interrupt, QueueHandle, QueueSetup, Region, Transport, features,
    new_eventfd,
};

use super::{Chain, Device};

/// The device's side of both queues.
pub struct Ports {
    memory: GuestMemory,
    cid: u64,
    acked: u64,
    queues: [Option<(Device, OwnedFd)>; 2],
    error: Option<OwnedFd>,
}

impl Ports {
    /// The chain of the next packet from the guest, given back at once.
    pub fn pop_chain(&mut self) -> Option<(Chain, Vec<u8>)> {
        let (device, call) = self.queues[1].as_mut()?;
        let chain = device.pop()?;
        let bytes = chain.readable(&self.memory);
        device.push(chain.head.into(), 0);
        device.arm();
        if device.publish() {
            rustix::io::write(call, &1u64.to_ne_bytes()).unwrap();
        }
        Some((chain, bytes))
    }

    /// The next packet from the guest.
    pub fn pop(&mut self) -> Option<(PacketHeader, Vec<u8>)> {
        let (_, bytes) = self.pop_chain()?;
        let (header, payload) = bytes.split_first_chunk::<HEADER_LEN>().expect("a header");
        Some((PacketHeader::from_bytes(header), payload.to_vec()))
    }

    /// Writes bytes to the guest's next buffer and says that `len` were written. False without a
    /// buffer.
    pub fn push_bytes(&mut self, bytes: &[u8], len: u32) -> bool {
        let Some((device, call)) = self.queues[0].as_mut() else { return false };
        let Some(chain) = device.pop() else { return false };
        assert_eq!(chain.write(&self.memory, bytes), bytes.len());
        device.push(chain.head.into(), len);
        device.arm();
        if device.publish() {
            rustix::io::write(call, &1u64.to_ne_bytes()).unwrap();
        }
        true
    }

    /// Sends a packet to the guest; its header's length is that of `payload`.
    pub fn push(&mut self, header: &PacketHeader, payload: &[u8]) -> bool {
        let header = PacketHeader { len: payload.len() as u32, ..*header };
        let bytes = [&header.to_bytes()[..], payload].concat();
        self.push_bytes(&bytes, bytes.len() as u32)
    }

    /// Payload that fits the guest's next buffer.
    pub fn room(&mut self) -> Option<usize> {
        let (device, _) = self.queues[0].as_mut()?;
        let chain = device.pop()?;
        device.next_avail = device.next_avail.wrapping_sub(1);
        Some(chain.capacity() - HEADER_LEN)
    }

    /// Reports an error of the transmit queue, as a device does that stops it.
    pub fn report_error(&self) {
        rustix::io::write(self.error.as_ref().unwrap(), &1u64.to_ne_bytes()).unwrap();
    }
}

/// A transport to [`Ports`].
#[derive(Clone)]
pub struct Direct(pub Arc<Mutex<Ports>>);

impl Direct {
    pub fn new(memory: &GuestMemory, cid: u64) -> Direct {
        let ports = Ports { memory: memory.clone(), cid, acked: 0, queues: [None, None], error: None };
        Direct(Arc::new(Mutex::new(ports)))
    }

    pub fn ports(&self) -> std::sync::MutexGuard<'_, Ports> {
        self.0.lock().unwrap()
    }
}

impl Transport for Direct {
    fn device_features(&mut self) -> Result<u64, GuestError> {
        Ok(SUPPORTED)
    }
    fn negotiate(&mut self, features: u64) -> Result<(), GuestError> {
        self.ports().acked = features;
        Ok(())
    }
    fn max_queues(&mut self) -> Result<u16, GuestError> {
        Ok(2)
    }
    fn config(&mut self, offset: u32, len: u32) -> Result<Vec<u8>, GuestError> {
        let bytes = self.ports().cid.to_le_bytes();
        Ok(bytes[offset as usize..][..len as usize].to_vec())
    }
    fn share_memory(&mut self, _: &GuestMemory) -> Result<(), GuestError> {
        Ok(())
    }
    fn add_memory(&mut self, _: &Arc<Region>) -> Result<(), GuestError> {
        Ok(())
    }
    fn remove_memory(&mut self, _: &Arc<Region>) -> Result<(), GuestError> {
        Ok(())
    }
    fn start_queue(&mut self, index: u16, setup: &QueueSetup) -> Result<QueueHandle, GuestError> {
        let (interrupt, error) = (Interrupt::new().unwrap(), Interrupt::new().unwrap());
        let clone = |interrupt: &Interrupt| interrupt.as_fd().try_clone_to_owned().unwrap();
        let mut ports = self.ports();
        let event_idx = ports.acked & features::RING_EVENT_IDX != 0;
        let device = Device::new(&ports.memory, *setup, event_idx);
        ports.queues[usize::from(index)] = Some((device, clone(&interrupt)));
        ports.error = Some(clone(&error));
        let doorbell = Box::new(new_eventfd().unwrap());
        Ok(QueueHandle { doorbell, interrupt, error: Some(error) })
    }
    fn enable_queue(&mut self, _: u16, _: bool) -> Result<(), GuestError> {
        Ok(())
    }
    fn stop_queue(&mut self, index: u16) -> Result<u16, GuestError> {
        let queue = self.ports().queues[usize::from(index)].take();
        Ok(queue.map_or(0, |(device, _)| device.next_avail))
    }
    fn driver_ok(&mut self) -> Result<(), GuestError> {
        Ok(())
    }
    fn reset(&mut self) -> Result<(), GuestError> {
        self.ports().queues = [None, None];
        Ok(())
    }
}

pub fn memory() -> GuestMemory {
    GuestMemory::new(&[(GuestAddr(0), 2 << 20), (GuestAddr(1 << 32), 24 << 20)]).unwrap()
}

/// A guest whose device the test works.
pub fn guest(cid: u64, options: &VsockOptions) -> (VsockDriver<Direct>, VsockQueues, Direct) {
    let memory = memory();
    let direct = Direct::new(&memory, cid);
    let (driver, queues) = VsockDriver::start(direct.clone(), &memory, options).unwrap();
    (driver, queues, direct)
}

/// Carries packets between guests: the addresses decide where to. Packets
/// longer than the receiver's buffers are cut.
pub struct Switch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Switch {
    pub fn start(guests: Vec<(u64, Direct)>) -> Switch {
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let guests: BTreeMap<u64, Direct> = guests.into_iter().collect();
            while !stopped.load(Ordering::Relaxed) {
                let moved = guests.values().any(|guest| carry(&guests, guest, &stopped));
                if !moved {
                    thread::sleep(Duration::from_micros(100));
                }
            }
        });
        Switch { stop, thread: Some(thread) }
    }
}

fn carry(guests: &BTreeMap<u64, Direct>, from: &Direct, stopped: &AtomicBool) -> bool {
    let Some((header, payload)) = from.ports().pop() else { return false };
    assert_eq!(header.len as usize, payload.len());
    let Some(target) = guests.get(&header.dst_cid) else {
        let reset = header.answer(Op::Rst);
        if header.op() != Some(Op::Rst) {
            from.ports().push(&reset, &[]);
        }
        return true;
    };
    let mut at = 0;
    while !stopped.load(Ordering::Relaxed) {
        let mut ports = target.ports();
        let Some(room) = ports.room() else {
            drop(ports);
            thread::sleep(Duration::from_micros(100));
            continue;
        };
        let now = room.min(payload.len() - at);
        let last = at + now == payload.len();
        let flags = if last { header.flags } else { 0 };
        assert!(ports.push(&PacketHeader { flags, ..header }, &payload[at..at + now]));
        at += now;
        if last {
            break;
        }
    }
    true
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            assert!(result.is_ok() || thread::panicking(), "the switch panicked");
        }
    }
}

/// Two guests whose packets the test carries.
pub struct Bench {
    pub stacks: [VsockStack; 2],
    guests: BTreeMap<u64, Direct>,
    _drivers: [VsockDriver<Direct>; 2],
}

impl Bench {
    pub fn new(options: &VsockOptions, stacks: [StackOptions; 2]) -> Bench {
        let (driver_a, queues_a, direct_a) = guest(A, options);
        let (driver_b, queues_b, direct_b) = guest(B, options);
        let [a, b] = stacks;
        Bench {
            stacks: [VsockStack::new(queues_a, a), VsockStack::new(queues_b, b)],
            guests: BTreeMap::from([(A, direct_a), (B, direct_b)]),
            _drivers: [driver_a, driver_b],
        }
    }

    /// Carries at most one packet from one side, and lets the other take it.
    /// True when there was one.
    pub fn carry(&mut self, side: usize) -> bool {
        let from = &self.guests[&[A, B][side]];
        let moved = carry(&self.guests, from, &AtomicBool::default());
        for stack in &mut self.stacks {
            stack.turn(Duration::ZERO).unwrap();
        }
        moved
    }
}

/// Two guests behind one switch.
pub struct Pair {
    pub a: VsockStack,
    pub b: VsockStack,
    pub drivers: [VsockDriver<Direct>; 2],
    _switch: Switch,
}

pub const A: u64 = 11;
pub const B: u64 = 12;

pub fn pair(options: &VsockOptions, stack: StackOptions) -> Pair {
    let (driver_a, queues_a, direct_a) = guest(A, options);
    let (driver_b, queues_b, direct_b) = guest(B, options);
    Pair {
        a: VsockStack::new(queues_a, stack),
        b: VsockStack::new(queues_b, stack),
        drivers: [driver_a, driver_b],
        _switch: Switch::start(vec![(A, direct_a), (B, direct_b)]),
    }
}

/// Header of a packet from the host to `cid`.
pub fn from_host(cid: u64, src_port: u32, dst_port: u32, op: Op) -> PacketHeader {
    PacketHeader {
        src_cid: 2,
        dst_cid: cid,
        src_port,
        dst_port,
        kind: SocketType::Stream as u16,
        op: op as u16,
        buf_alloc: 65536,
        ..PacketHeader::default()
    }
}
