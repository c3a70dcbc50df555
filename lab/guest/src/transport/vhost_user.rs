//! The vhost-user front end as a transport.
//!
//! Messages go in the order in which VMMs send them. First come features, protocol features, queue
//! count and owner. At start follow acknowledged features, status and memory; then for each queue
//! size, base, addresses, error, kick and call descriptors, enable. With REPLY_ACK each request
//! without a reply of its own asks for an acknowledgement, so that a refusal is seen where it
//! happens.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerowire_vhost_user::{
    Config, MAX_REGIONS, MemoryRegion, MemoryTable, Message, MessageSocket, Request, SingleRegion, VringAddr,
    VringState, WireError, features, protocol,
};

use super::inflight::InflightArea;
use super::log::Logging;
use super::{
    Interrupt, QueueHandle, QueueSetup, STATUS_ACKNOWLEDGE, STATUS_DRIVER, STATUS_DRIVER_OK,
    STATUS_FEATURES_OK, Transport, new_eventfd,
};
use crate::{GuestError, GuestMemory, Region};

/// How the front end behaves.
#[derive(Clone, Copy, Debug)]
pub struct VhostUserOptions {
    /// Protocol features to use if the back end offers them
    /// ([`zerowire_vhost_user::protocol`]). Take a bit away to test a back end
    /// without it; with INFLIGHT_SHMFD, which is not there by default, see
    /// [`VhostUser::inflight`].
    pub protocol: u64,
    /// How long to wait for each reply.
    pub reply_timeout: Duration,
}

impl Default for VhostUserOptions {
    fn default() -> Self {
        VhostUserOptions {
            protocol: protocol::MQ
                | protocol::LOG_SHMFD
                | protocol::RARP
                | protocol::REPLY_ACK
                | protocol::MTU
                | protocol::CONFIG
                | protocol::RESET_DEVICE
                | protocol::CONFIGURE_MEM_SLOTS
                | protocol::STATUS,
            reply_timeout: Duration::from_secs(40),
        }
    }
}

/// A vhost-user front end after its handshake. Dropping it closes the socket;
/// the back end stops the queues then.
///
/// # Errors
/// All calls that exchange messages fail with [`GuestError::Wire`], in which is
/// [`WireError::Refused`] if the back end refuses the request, and with [`GuestError::NoReply`].
/// Those of a protocol feature fail with [`GuestError::NotNegotiated`] without it. Calls that
/// connect fail with [`GuestError::Io`]: the last attempt's error.
#[derive(Debug)]
pub struct VhostUser {
    pub(super) connection: MessageSocket,
    offered: u64,
    pub(super) acked: u64,
    protocol: u64,
    pub(super) queues: u16,
    status: u64,
    pub(super) shared: BTreeMap<u64, Arc<Region>>,
    pub(super) logging: Logging,
    pub(super) inflight: Option<InflightArea>,
    /// The back end of this connection has the area.
    pub(super) inflight_shared: bool,
    reply_timeout: Duration,
}

#[allow(clippy::missing_errors_doc, reason = "said at the type, for all calls")]
impl VhostUser {
    /// Connects to the socket at `path`, trying again until `patience` is over
    /// while nobody listens there, and shakes hands.
    pub fn connect(path: impl AsRef<Path>, patience: Duration) -> Result<VhostUser, GuestError> {
        Self::connect_with(path, patience, &VhostUserOptions::default())
    }

    /// As [`VhostUser::connect`], with options.
    pub fn connect_with(
        path: impl AsRef<Path>,
        patience: Duration,
        options: &VhostUserOptions,
    ) -> Result<VhostUser, GuestError> {
        Self::from_stream(connect_patiently(path.as_ref(), patience)?, options)
    }

    /// Shakes hands on a connected socket.
    ///
    /// # Errors
    /// [`GuestError::Io`], [`GuestError::Wire`].
    pub fn from_stream(stream: UnixStream, options: &VhostUserOptions) -> Result<VhostUser, GuestError> {
        stream
            .set_read_timeout(Some(options.reply_timeout))
            .map_err(|e| GuestError::io("setting the socket's time limit", e))?;
        let mut front = VhostUser {
            connection: MessageSocket::new(stream),
            offered: 0,
            acked: 0,
            protocol: 0,
            queues: 2,
            status: 0,
            shared: BTreeMap::new(),
            logging: Logging::default(),
            inflight: None,
            inflight_shared: false,
            reply_timeout: options.reply_timeout,
        };
        front.offered = front.ask(Request::GetFeatures)?;
        if front.offered & features::VHOST_USER_PROTOCOL_FEATURES != 0 {
            let wanted = front.ask(Request::GetProtocolFeatures)? & options.protocol;
            // Without REPLY_ACK in force yet, so no acknowledgement.
            let body = wanted.to_ne_bytes();
            let request = Request::SetProtocolFeatures;
            front.connection.send_request(request, false, &body, &[])?;
            front.protocol = wanted;
        }
        if front.has(protocol::MQ) {
            let queues = front.ask(Request::GetQueueNum)?;
            front.queues = u16::try_from(queues).unwrap_or(u16::MAX);
        }
        front.tell(Request::SetOwner, &[], &[])?;
        Ok(front)
    }

    /// Protocol features in force.
    pub fn protocol(&self) -> u64 {
        self.protocol
    }

    /// The socket, to send anything on it: for tests of the back end.
    pub fn connection(&mut self) -> &mut MessageSocket {
        &mut self.connection
    }

    /// Whether the back end still holds its end of the socket.
    pub fn is_alive(&self) -> bool {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.connection, PollFlags::RDHUP)];
        match poll(&mut fds, Some(&none)) {
            Ok(_) => !fds[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR),
            Err(_) => true,
        }
    }

    /// Tells the back end the guest's MTU in bytes (NET_SET_MTU).
    pub fn set_mtu(&mut self, mtu: u64) -> Result<(), GuestError> {
        self.need(protocol::MTU, "protocol feature MTU")?;
        self.tell(Request::NetSetMtu, &mtu.to_ne_bytes(), &[])
    }

    /// Reads the device status (GET_STATUS).
    pub fn status(&mut self) -> Result<u64, GuestError> {
        self.need(protocol::STATUS, "protocol feature STATUS")?;
        self.ask(Request::GetStatus)
    }

    /// Writes the device status (SET_STATUS).
    pub fn set_status(&mut self, status: u64) -> Result<(), GuestError> {
        self.need(protocol::STATUS, "protocol feature STATUS")?;
        self.tell(Request::SetStatus, &status.to_ne_bytes(), &[])?;
        self.status = status;
        Ok(())
    }

    /// Returns when the back end has handled all messages before.
    pub fn barrier(&mut self) -> Result<(), GuestError> {
        self.ask(Request::GetFeatures).map(|_| ())
    }

    /// Sends a request that has a u64 as its reply.
    pub fn ask(&mut self, request: Request) -> Result<u64, GuestError> {
        Ok(self.exchange(request, &[])?.u64()?)
    }

    /// Sends a request that has a reply of its own, and receives that.
    pub(super) fn exchange(&mut self, request: Request, body: &[u8]) -> Result<Message, GuestError> {
        self.connection.send_request(request, false, body, &[])?;
        let reply = self.connection.recv_reply(request);
        self.in_time(request, reply)
    }

    /// Sends a request that has no reply of its own, and waits for the
    /// acknowledgement if REPLY_ACK is in force.
    pub fn tell(&mut self, request: Request, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), GuestError> {
        let ack = self.has(protocol::REPLY_ACK);
        self.connection.send_request(request, ack, body, fds)?;
        if ack {
            let reply = self.connection.recv_ack(request);
            self.in_time(request, reply)?;
        }
        Ok(())
    }

    /// Says what a reply that did not come within the time limit means.
    pub(super) fn in_time<R>(&self, request: Request, reply: Result<R, WireError>) -> Result<R, GuestError> {
        reply.map_err(|error| match error {
            WireError::WouldBlock => {
                GuestError::NoReply { request: request.name(), timeout: self.reply_timeout }
            }
            other => GuestError::Wire(other),
        })
    }

    pub(super) fn has(&self, bit: u64) -> bool {
        self.protocol & bit != 0
    }

    pub(super) fn need(&self, bit: u64, what: &'static str) -> Result<(), GuestError> {
        if self.has(bit) { Ok(()) } else { Err(GuestError::NotNegotiated { what }) }
    }

    fn state(&mut self, request: Request, index: u16, num: u32) -> Result<(), GuestError> {
        let state = VringState { index: index.into(), num };
        self.tell(request, &state.encode(), &[])
    }

    fn send_table(&mut self) -> Result<(), GuestError> {
        if self.shared.len() > MAX_REGIONS {
            return Err(GuestError::BadSetting {
                what: "the number of memory regions without CONFIGURE_MEM_SLOTS",
                value: self.shared.len() as u64,
                rule: "at most 8",
            });
        }
        let regions: Vec<Arc<Region>> = self.shared.values().cloned().collect();
        let fds: Vec<BorrowedFd<'_>> = regions.iter().map(|r| r.file()).collect();
        let table = MemoryTable { regions: regions.iter().map(|r| describe(r)).collect() };
        self.tell(Request::SetMemTable, &table.encode(), &fds)
    }
}

impl Transport for VhostUser {
    fn device_features(&mut self) -> Result<u64, GuestError> {
        Ok(self.offered & !features::VHOST_USER_PROTOCOL_FEATURES)
    }

    fn negotiate(&mut self, acked: u64) -> Result<(), GuestError> {
        let with_protocol =
            acked | self.offered & features::VHOST_USER_PROTOCOL_FEATURES | self.logging.feature();
        if self.has(protocol::STATUS) {
            self.set_status(STATUS_ACKNOWLEDGE | STATUS_DRIVER)?;
        }
        self.tell(Request::SetFeatures, &with_protocol.to_ne_bytes(), &[])?;
        self.acked = with_protocol;
        if self.has(protocol::STATUS) {
            self.set_status(STATUS_ACKNOWLEDGE | STATUS_DRIVER | STATUS_FEATURES_OK)?;
            let status = self.status()?;
            if status & STATUS_FEATURES_OK == 0 {
                return Err(GuestError::FeaturesRefused { acked, status });
            }
        }
        Ok(())
    }

    fn max_queues(&mut self) -> Result<u16, GuestError> {
        Ok(self.queues)
    }

    fn config(&mut self, offset: u32, len: u32) -> Result<Vec<u8>, GuestError> {
        self.need(protocol::CONFIG, "protocol feature CONFIG")?;
        let request = Request::GetConfig;
        let body = Config { offset, flags: 0, data: vec![0; len as usize] }.encode();
        let reply = self.exchange(request, &body)?;
        // A back end that can't answer sends an empty payload.
        let config = Config::decode(request.number(), reply.body())?;
        if config.offset != offset || config.data.len() != len as usize {
            return Err(GuestError::Wire(WireError::BadValue {
                request: request.number(),
                field: "the reply's part of configuration space",
                value: u64::from(config.offset) << 32 | config.data.len() as u64,
                rule: "the offset and the length asked for",
            }));
        }
        Ok(config.data)
    }

    fn share_memory(&mut self, memory: &GuestMemory) -> Result<(), GuestError> {
        let regions = memory.regions();
        if self.has(protocol::CONFIGURE_MEM_SLOTS) {
            let old: Vec<Arc<Region>> = self.shared.values().cloned().collect();
            for region in &old {
                self.remove_memory(region)?;
            }
            for region in &regions {
                self.add_memory(region)?;
            }
            return Ok(());
        }
        self.shared = regions.into_iter().map(|r| (r.guest_addr().0, r)).collect();
        self.send_table()
    }

    fn add_memory(&mut self, region: &Arc<Region>) -> Result<(), GuestError> {
        let key = region.guest_addr().0;
        self.shared.insert(key, Arc::clone(region));
        let result = if self.has(protocol::CONFIGURE_MEM_SLOTS) {
            let body = SingleRegion(describe(region)).encode();
            self.tell(Request::AddMemReg, &body, &[region.file()])
        } else {
            self.send_table()
        };
        if result.is_err() {
            self.shared.remove(&key);
        }
        result
    }

    fn remove_memory(&mut self, region: &Arc<Region>) -> Result<(), GuestError> {
        self.shared.remove(&region.guest_addr().0);
        if self.has(protocol::CONFIGURE_MEM_SLOTS) {
            let body = SingleRegion(describe(region)).encode();
            self.tell(Request::RemMemReg, &body, &[])?;
        } else {
            self.send_table()?;
        }
        if self.has(protocol::REPLY_ACK) { Ok(()) } else { self.barrier() }
    }

    fn start_queue(&mut self, index: u16, setup: &QueueSetup) -> Result<QueueHandle, GuestError> {
        self.share_inflight(setup.size)?;
        let make = |e: io::Error| GuestError::io("eventfd for a queue", e);
        let doorbell = new_eventfd().map_err(make)?;
        let interrupt = Interrupt::new().map_err(make)?;
        let error = Interrupt::new().map_err(make)?;
        self.state(Request::SetVringNum, index, setup.size.into())?;
        self.state(Request::SetVringBase, index, setup.next_avail.into())?;
        let addr = VringAddr {
            index: index.into(),
            flags: self.logging.flags(),
            desc: setup.desc.user,
            used: setup.used.user,
            avail: setup.avail.user,
            log: setup.used.guest.0,
        };
        self.tell(Request::SetVringAddr, &addr.encode(), &[])?;
        self.logging.queues.insert(index, addr);
        let number = u64::from(index).to_ne_bytes();
        self.tell(Request::SetVringErr, &number, &[error.as_fd()])?;
        self.tell(Request::SetVringCall, &number, &[interrupt.as_fd()])?;
        self.tell(Request::SetVringKick, &number, &[doorbell.as_fd()])?;
        Ok(QueueHandle { doorbell: Box::new(doorbell), interrupt, error: Some(error) })
    }

    fn enable_queue(&mut self, index: u16, on: bool) -> Result<(), GuestError> {
        // Without protocol features rings are enabled from the start.
        if self.acked & features::VHOST_USER_PROTOCOL_FEATURES == 0 {
            return Ok(());
        }
        self.state(Request::SetVringEnable, index, on.into())
    }

    fn stop_queue(&mut self, index: u16) -> Result<u16, GuestError> {
        let request = Request::GetVringBase;
        let body = VringState { index: index.into(), num: 0 }.encode();
        let base = self.exchange(request, &body)?.vring_state()?;
        self.logging.queues.remove(&index);
        if base.index != u32::from(index) || base.num > u32::from(u16::MAX) {
            return Err(GuestError::Wire(WireError::BadValue {
                request: request.number(),
                field: "the reply's index and base",
                value: u64::from(base.index) << 32 | u64::from(base.num),
                rule: "the index asked for and a base of 16 bits",
            }));
        }
        Ok(base.num as u16)
    }

    fn driver_ok(&mut self) -> Result<(), GuestError> {
        if self.has(protocol::STATUS) {
            self.set_status(self.status | STATUS_DRIVER_OK)?;
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<(), GuestError> {
        while let Some(&index) = self.logging.queues.keys().next() {
            self.stop_queue(index)?;
        }
        // What was in flight belongs to queues that are no more.
        self.set_inflight(None);
        if self.has(protocol::RESET_DEVICE) {
            self.tell(Request::ResetDevice, &[], &[])?;
        }
        if self.has(protocol::STATUS) {
            self.set_status(0)?;
        }
        Ok(())
    }
}

/// Connects, again and again while the path is missing or refuses.
fn connect_patiently(path: &Path, patience: Duration) -> Result<UnixStream, GuestError> {
    let start = Instant::now();
    loop {
        let error = match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let may_come = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        if !may_come || start.elapsed() >= patience {
            let what = format!("connecting to the vhost-user socket {}", path.display());
            return Err(GuestError::io(what, error));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn describe(region: &Region) -> MemoryRegion {
    MemoryRegion {
        guest_addr: region.guest_addr().0,
        size: region.len() as u64,
        user_addr: region.user_addr(),
        mmap_offset: region.file_offset(),
    }
}
