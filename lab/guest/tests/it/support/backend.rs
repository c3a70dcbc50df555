//! A vhost-user back end on a thread: every frame sent on a pair comes back
//! on the same pair.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use zerowire_guest::{DualAddr, GuestAddr, GuestMemory, QueueSetup, features, protocol};
use zerowire_vhost_user::{MemoryRegion, Message, MessageSocket, Request, VringAddr, VringState, WireError};

use super::Device;

/// What the back end offers and how it behaves.
#[derive(Clone)]
pub struct Script {
    pub features: u64,
    pub protocol: u64,
    pub queues: u64,
    /// Requests to refuse with this code.
    pub refuse: Vec<(Request, u64)>,
    /// Whether FEATURES_OK sticks.
    pub features_ok: bool,
    /// Give chains back in the opposite order.
    pub reverse: bool,
    /// The configuration space.
    pub config: u64,
}

impl Default for Script {
    fn default() -> Script {
        Script {
            features: zerowire_guest::net::SUPPORTED | features::VHOST_USER_PROTOCOL_FEATURES,
            protocol: u64::MAX,
            queues: 4,
            refuse: Vec::new(),
            features_ok: true,
            reverse: false,
            config: 77,
        }
    }
}

#[derive(Default)]
struct Queue {
    size: u16,
    base: u16,
    addr: VringAddr,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    device: Option<Device>,
}

pub struct Backend {
    thread: Option<JoinHandle<()>>,
    /// Names of the requests that came, in order.
    pub log: Arc<Mutex<Vec<Request>>>,
    pub regions: Arc<Mutex<BTreeMap<u64, MemoryRegion>>>,
    stop: UnixStream,
}

impl Backend {
    /// The front end's end of the socket and the running back end. `memory`
    /// is the guest's: the back end uses it at the addresses that the
    /// messages give, after checking them against the regions sent.
    pub fn start(memory: &GuestMemory, mut script: Script) -> (UnixStream, Backend) {
        if script.reverse {
            script.features &= !features::IN_ORDER;
        }
        let (front, back) = UnixStream::pair().unwrap();
        let stop = back.try_clone().unwrap();
        let (log, regions) = (Arc::default(), Arc::default());
        let mut server = Server {
            connection: MessageSocket::new(back),
            memory: memory.clone(),
            script,
            log: Arc::clone(&log),
            regions: Arc::clone(&regions),
            acked: 0,
            protocol: 0,
            status: 0,
            queues: (0..4).map(|_| Queue::default()).collect(),
        };
        let thread = Some(thread::spawn(move || server.run()));
        (front, Backend { thread, log, regions, stop })
    }

    pub fn seen(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the front end has closed the socket and the thread ended.
    pub fn join(mut self) {
        self.thread.take().unwrap().join().unwrap();
    }

    /// Dies at once, as a process that is killed.
    pub fn kill(mut self) {
        self.stop.shutdown(std::net::Shutdown::Both).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Server {
    connection: MessageSocket,
    memory: GuestMemory,
    script: Script,
    log: Arc<Mutex<Vec<Request>>>,
    regions: Arc<Mutex<BTreeMap<u64, MemoryRegion>>>,
    acked: u64,
    protocol: u64,
    status: u64,
    queues: Vec<Queue>,
}

impl Server {
    fn run(&mut self) {
        loop {
            let mut fds = vec![PollFd::new(&self.connection, PollFlags::IN)];
            for kick in self.queues.iter().filter_map(|q| q.kick.as_ref()) {
                fds.push(PollFd::new(kick, PollFlags::IN));
            }
            poll(&mut fds, None).unwrap();
            let message = fds[0].revents().intersects(PollFlags::IN | PollFlags::HUP);
            let kicked = fds[1..].iter().any(|fd| !fd.revents().is_empty());
            drop(fds);
            if kicked {
                for kick in self.queues.iter().filter_map(|q| q.kick.as_ref()) {
                    let _ = rustix::io::read(kick, &mut [0; 8]);
                }
                for pair in 0..self.queues.len() / 2 {
                    self.echo(pair);
                }
            }
            if message {
                match self.connection.recv() {
                    Ok(Some(message)) => self.handle(message),
                    Ok(None) | Err(WireError::CutOff { .. }) => return,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    fn handle(&mut self, mut message: Message) {
        let request = message.request().unwrap();
        self.log.lock().unwrap().push(request);
        if let Some(&(_, code)) = self.script.refuse.iter().find(|(r, _)| *r == request) {
            self.connection.send_reply(&message, &code.to_ne_bytes(), &[]).unwrap();
            return;
        }
        let mut reply = None;
        match request {
            Request::GetFeatures => reply = Some(self.script.features),
            Request::GetProtocolFeatures => reply = Some(self.script.protocol),
            Request::GetQueueNum => reply = Some(self.script.queues),
            Request::SetFeatures => self.acked = message.u64().unwrap(),
            Request::SetProtocolFeatures => self.protocol = message.u64().unwrap(),
            Request::SetOwner | Request::NetSetMtu | Request::ResetDevice => {}
            Request::SetStatus => {
                self.status = message.u64().unwrap();
                if !self.script.features_ok {
                    self.status &= !8;
                }
            }
            Request::GetStatus => reply = Some(self.status),
            Request::SetMemTable => {
                let table = message.memory_table().unwrap();
                self.regions.lock().unwrap().clear();
                for (region, fd) in table {
                    self.map(region, fd);
                }
            }
            Request::AddMemReg => {
                let region = message.single_region().unwrap();
                self.map(region, message.take_fd().unwrap());
            }
            Request::RemMemReg => {
                let region = message.single_region().unwrap();
                let gone = self.regions.lock().unwrap().remove(&region.guest_addr);
                assert_eq!(gone, Some(region));
            }
            Request::SetVringNum | Request::SetVringBase | Request::SetVringEnable => {
                let VringState { index, num } = message.vring_state().unwrap();
                let queue = &mut self.queues[index as usize];
                match request {
                    Request::SetVringNum => queue.size = num as u16,
                    Request::SetVringBase => queue.base = num as u16,
                    _ if num == 1 => self.enable(index as usize),
                    _ => {}
                }
            }
            Request::SetVringAddr => {
                let addr = message.vring_addr().unwrap();
                self.queues[addr.index as usize].addr = addr;
            }
            Request::SetVringKick | Request::SetVringCall | Request::SetVringErr => {
                let fd = message.vring_fd().unwrap();
                match request {
                    Request::SetVringKick => self.queues[fd.index].kick = fd.fd,
                    Request::SetVringCall => self.queues[fd.index].call = fd.fd,
                    _ => {}
                }
            }
            Request::GetConfig => {
                let mut config = message.config().unwrap();
                let space = self.script.config.to_le_bytes();
                let start = config.offset as usize;
                config.data = space[start..start + config.data.len()].to_vec();
                self.connection.send_reply(&message, &config.encode(), &[]).unwrap();
                return;
            }
            Request::GetVringBase => {
                let index = message.vring_state().unwrap().index;
                let queue = &mut self.queues[index as usize];
                let num = queue.device.take().map_or(queue.base, |d| d.next_avail).into();
                queue.kick = None;
                let state = VringState { index, num };
                self.connection.send_reply(&message, &state.encode(), &[]).unwrap();
                return;
            }
            other => panic!("unexpected {}", other.name()),
        }
        if let Some(value) = reply {
            self.connection.send_reply(&message, &value.to_ne_bytes(), &[]).unwrap();
        } else if message.wants_reply() {
            assert!(self.protocol & protocol::REPLY_ACK != 0, "REPLY_ACK is not in force");
            self.connection.send_reply(&message, &[0; 8], &[]).unwrap();
        }
    }

    fn map(&self, region: MemoryRegion, fd: OwnedFd) {
        let file = rustix::fs::fstat(&fd).unwrap().st_size as u64;
        assert!(region.mmap_offset + region.size <= file);
        self.regions.lock().unwrap().insert(region.guest_addr, region);
    }

    fn translate(&self, user: u64) -> DualAddr {
        let regions = self.regions.lock().unwrap();
        let region = regions
            .values()
            .find(|r| r.user_addr <= user && user < r.user_addr + r.size)
            .expect("a ring address is in a region");
        let guest = GuestAddr(region.guest_addr + (user - region.user_addr));
        DualAddr { guest, user }
    }

    fn enable(&mut self, index: usize) {
        let queue = &self.queues[index];
        let setup = QueueSetup {
            size: queue.size,
            next_avail: queue.base,
            desc: self.translate(queue.addr.desc),
            avail: self.translate(queue.addr.avail),
            used: self.translate(queue.addr.used),
        };
        let event_idx = self.acked & features::RING_EVENT_IDX != 0;
        self.queues[index].device = Some(Device::new(&self.memory, setup, event_idx));
    }

    /// Moves frames from a pair's transmit queue to its receive queue while
    /// both have chains.
    fn echo(&mut self, pair: usize) {
        let mergeable = self.acked & features::NET_MRG_RXBUF != 0;
        let (rx_side, tx_side) = self.queues[pair * 2..].split_at_mut(1);
        let (rx_queue, tx_queue) = (&mut rx_side[0], &mut tx_side[0]);
        let (Some(rx), Some(tx)) = (&mut rx_queue.device, &mut tx_queue.device) else {
            return;
        };
        loop {
            let mut done = Vec::new();
            while let Some(chain) = tx.pop() {
                assert!(chain.pieces.iter().all(|p| !p.writable));
                let mut frame = chain.readable(&self.memory);
                done.push(chain.head);
                let (mut at, mut used) = (0, Vec::new());
                frame[10..12].fill(0);
                while at < frame.len() {
                    let Some(buffer) = rx.pop() else { break };
                    let now = (frame.len() - at).min(buffer.capacity());
                    used.push((buffer, at, now));
                    at += now;
                    if !mergeable {
                        break;
                    }
                }
                if at < frame.len() {
                    // Too long for the buffers: dropped, and they are kept.
                    rx.next_avail = rx.next_avail.wrapping_sub(used.len() as u16);
                    continue;
                }
                frame[10..12].copy_from_slice(&(used.len() as u16).to_le_bytes());
                for (buffer, at, len) in used {
                    buffer.write(&self.memory, &frame[at..at + len]);
                    rx.push(buffer.head.into(), len as u32);
                }
            }
            if self.script.reverse {
                done.reverse();
            }
            for head in done {
                tx.push(head.into(), 0);
            }
            for (device, queue) in [(&mut *rx, &rx_queue.call), (&mut *tx, &tx_queue.call)] {
                if let (true, Some(call)) = (device.publish(), queue) {
                    rustix::io::write(call, &1u64.to_ne_bytes()).unwrap();
                }
            }
            rx.arm();
            if !tx.arm() {
                return;
            }
        }
    }
}

/// Long enough for anything in these tests, however slow the machine.
pub const PATIENCE: Duration = Duration::from_secs(40);
