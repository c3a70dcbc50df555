//! The demonstration's guest: zerowire-guest drives the device, smoltcp is its TCP/IP.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::{icmp, tcp};
use smoltcp::wire::{EthernetAddress, Icmpv4Packet, Icmpv4Repr, IpAddress, IpCidr};
use zerowire_guest::net::{NetDriver, NetOptions, QueuePair, TxQueue};
use zerowire_guest::{GuestAddr, GuestError, GuestMemory, VhostUser, features};

use super::host::{check_pattern, pattern_at};
use super::{GUEST, HOST, PREFIX, offload};

/// The guest's RAM.
const MEMORY_BYTES: u64 = 64 << 20;

/// Locally administered.
const MAC: [u8; 6] = [0x52, 0x54, 0, 0x77, 0, 2];

/// The metadata service, and an address of the guest's own beside it (RFC 3927).
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const LINK_LOCAL: Ipv4Addr = Ipv4Addr::new(169, 254, 77, 2);

/// Each of a connection's two buffers.
const SOCKET_BYTES: usize = 2 << 20;

/// Frames taken from the device before the stack looks at them.
const BUDGET: usize = 64;

/// Descriptors of frames under way at which no more are added: half the ring.
const TX_LIMIT: u16 = 128;

/// The demonstration has failed when nothing moved for this long.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest sleep, so that a stop is noticed.
const NAP: Duration = Duration::from_millis(5);

/// Without these the transfers would show another path than a stock guest's.
const REQUIRED: u64 = features::VERSION_1
    | features::NET_CSUM
    | features::NET_GUEST_CSUM
    | features::NET_HOST_TSO4
    | features::NET_GUEST_TSO4;

/// An HTTP response.
#[derive(Debug)]
pub(super) struct HttpResponse {
    pub(super) status: u16,
    pub(super) body: String,
}

/// The guest with its driver and its stack.
pub(super) struct SoftGuest {
    device: SmoltcpDevice,
    interface: Interface,
    sockets: SocketSet<'static>,
    begin: Instant,
    next_port: u16,
    stop: Arc<AtomicBool>,
    // Keeps the device running.
    _driver: NetDriver<VhostUser>,
}

impl SoftGuest {
    /// Connects to the back end and starts driver and stack. `stop` ends every wait.
    pub(super) fn connect(socket: &Path, stop: Arc<AtomicBool>) -> Result<Self> {
        let memory = GuestMemory::new(&[(GuestAddr(0), MEMORY_BYTES as usize)])?;
        let transport = VhostUser::connect(socket, PATIENCE)?;
        let options = NetOptions { required: REQUIRED, ..NetOptions::default() };
        let (driver, pairs) = NetDriver::start(transport, &memory, &options)?;
        let pair = pairs.into_iter().next().context("a device without queues")?;
        let mut device = SmoltcpDevice {
            pair,
            received: VecDeque::new(),
            scratch: Vec::new(),
            // What a peer that names no limit takes (RFC 9293 §3.7.1).
            segment: 536,
            failed: None,
        };
        let config = Config::new(EthernetAddress(MAC).into());
        let mut interface = Interface::new(config, &mut device, smoltcp::time::Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            for (address, prefix) in [(GUEST, PREFIX), (LINK_LOCAL, 16)] {
                // There is room for two.
                let _ = addresses.push(IpCidr::new(IpAddress::Ipv4(address), prefix));
            }
        });
        Ok(Self {
            device,
            interface,
            sockets: SocketSet::new(Vec::new()),
            begin: Instant::now(),
            next_port: 49_152,
            stop,
            _driver: driver,
        })
    }

    /// Sends an echo request to the host and waits for the reply; returns the time between.
    pub(super) fn ping(&mut self, sequence: u16) -> Result<Duration> {
        const IDENT: u16 = 0x77;
        let buffer = || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 4], vec![0; 1024]);
        let mut socket = icmp::Socket::new(buffer(), buffer());
        socket.bind(icmp::Endpoint::Ident(IDENT)).map_err(|e| anyhow!("ICMP socket: {e}"))?;
        let handle = self.sockets.add(socket);
        let request = Icmpv4Repr::EchoRequest { ident: IDENT, seq_no: sequence, data: &[0x55; 56] };
        let socket = self.sockets.get_mut::<icmp::Socket<'_>>(handle);
        let room = socket
            .send(request.buffer_len(), IpAddress::Ipv4(HOST))
            .map_err(|e| anyhow!("ICMP socket: {e}"))?;
        request.emit(&mut Icmpv4Packet::new_unchecked(room), &ChecksumCapabilities::default());
        let begin = Instant::now();
        let result = self.until("the host's echo reply", |guest| {
            let socket = guest.sockets.get_mut::<icmp::Socket<'_>>(handle);
            let Ok((bytes, _)) = socket.recv() else { return Ok(None) };
            let packet = Icmpv4Packet::new_checked(bytes).map_err(|e| anyhow!("echo reply: {e}"))?;
            Ok((packet.echo_seq_no() == sequence).then(|| begin.elapsed()))
        });
        self.sockets.remove(handle);
        result
    }

    /// One HTTP exchange with the metadata service.
    pub(super) fn http(&mut self, request: &str, headers: &str) -> Result<HttpResponse> {
        let handle = self.open(METADATA, 80)?;
        let text = format!("{request} HTTP/1.1\r\nHost: {METADATA}\r\nConnection: close\r\n{headers}\r\n");
        let mut left = text.as_bytes();
        self.until("the request to go", |guest| {
            let sent = guest.tcp(handle).send_slice(left).map_err(|e| anyhow!("{request}: {e}"))?;
            left = &left[sent..];
            Ok(left.is_empty().then_some(()))
        })?;
        let mut bytes = Vec::new();
        self.until("the response", |guest| {
            let socket = guest.tcp(handle);
            while socket.can_recv() {
                let part = socket.recv(|part| (part.len(), bytes.extend_from_slice(part)));
                part.map_err(|e| anyhow!("{request}: {e}"))?;
            }
            Ok((!socket.may_recv()).then_some(()))
        })?;
        self.close(handle)?;
        parse(&bytes).with_context(|| format!("the response to {request}"))
    }

    /// Sends `bytes` bytes of the pattern to the host; returns how many went.
    pub(super) fn send(&mut self, port: u16, bytes: u64, mut progress: impl FnMut(u64)) -> Result<u64> {
        let handle = self.open(HOST, port)?;
        let mut done = 0;
        while done < bytes {
            done = self.until("room in the send buffer", |guest| {
                let mut now = done;
                while now < bytes && guest.tcp(handle).can_send() {
                    let rest = pattern_at(now);
                    let len = rest.len().min(usize::try_from(bytes - now).unwrap_or(usize::MAX));
                    now +=
                        guest.tcp(handle).send_slice(&rest[..len]).map_err(|e| anyhow!("send: {e}"))? as u64;
                }
                Ok((now > done).then_some(now))
            })?;
            progress(done);
        }
        self.close(handle)?;
        Ok(done)
    }

    /// Receives from the host until it closes, and compares; returns how many bytes came.
    pub(super) fn receive(&mut self, port: u16, mut progress: impl FnMut(u64)) -> Result<u64> {
        let handle = self.open(HOST, port)?;
        let mut done = 0;
        loop {
            let (now, more) = self.until("data from the host", |guest| {
                let socket = guest.tcp(handle);
                let mut now = done;
                while socket.can_recv() {
                    let part =
                        socket.recv(|part| (part.len(), check_pattern(now, part).map(|()| part.len())));
                    now += part.map_err(|e| anyhow!("receive: {e}"))?? as u64;
                }
                let more = socket.may_recv();
                Ok((now > done || !more).then_some((now, more)))
            })?;
            done = now;
            progress(done);
            if !more {
                break;
            }
        }
        self.close(handle)?;
        Ok(done)
    }

    fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    fn open(&mut self, address: Ipv4Addr, port: u16) -> Result<SocketHandle> {
        let buffer = || tcp::SocketBuffer::new(vec![0; SOCKET_BYTES]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        let local = self.next_port;
        self.next_port += 1;
        socket
            .connect(self.interface.context(), (address, port), local)
            .map_err(|e| anyhow!("connect to {address}:{port}: {e}"))?;
        let handle = self.sockets.add(socket);
        self.until("a TCP connection", |guest| match guest.tcp(handle).state() {
            tcp::State::Closed => bail!("{address}:{port} refuses the connection"),
            _ => Ok(guest.tcp(handle).may_send().then_some(())),
        })?;
        Ok(handle)
    }

    /// Closes, and waits until the other side has everything.
    fn close(&mut self, handle: SocketHandle) -> Result<()> {
        self.tcp(handle).close();
        self.until("the end of the connection", |guest| {
            let state = guest.tcp(handle).state();
            Ok(matches!(state, tcp::State::Closed | tcp::State::TimeWait | tcp::State::FinWait2)
                .then_some(()))
        })?;
        self.sockets.remove(handle);
        Ok(())
    }

    /// Runs the guest until `check` returns a value.
    fn until<T>(&mut self, what: &str, mut check: impl FnMut(&mut Self) -> Result<Option<T>>) -> Result<T> {
        let begin = Instant::now();
        loop {
            if let Some(value) = check(self)? {
                return Ok(value);
            }
            if self.stop.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            if begin.elapsed() > PATIENCE {
                bail!("the guest waited {PATIENCE:?} in vain for {what}");
            }
            self.turn()?;
        }
    }

    /// Takes frames, lets the stack work, hands frames over, and sleeps if there was
    /// nothing to do.
    fn turn(&mut self) -> Result<()> {
        let taken = self.device.harvest()?;
        let now = smoltcp::time::Instant::from_micros(self.begin.elapsed().as_micros() as i64);
        self.interface.poll(now, &mut self.device, &mut self.sockets);
        if let Some(error) = self.device.failed.take() {
            return Err(error.into());
        }
        let pair = &mut self.device.pair;
        pair.tx.publish()?;
        pair.rx.publish()?;
        pair.tx.reap()?;
        if taken == 0 {
            let delay = self.interface.poll_delay(now, &self.sockets);
            let delay = delay.map_or(NAP, |delay| Duration::from_micros(delay.total_micros()));
            pair.rx.wait(1, delay.min(NAP))?;
        }
        Ok(())
    }
}

fn parse(bytes: &[u8]) -> Result<HttpResponse> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("no end of head in {text:?}"))?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    Ok(HttpResponse {
        status: status.with_context(|| format!("no status in {head:?}"))?,
        body: body.to_owned(),
    })
}

/// The driver's queues as smoltcp sees them.
struct SmoltcpDevice {
    pair: QueuePair,
    received: VecDeque<Vec<u8>>,
    scratch: Vec<u8>,
    /// Payload bytes that the host takes in one TCP segment.
    segment: u16,
    /// smoltcp has no way to report it.
    failed: Option<GuestError>,
}

impl SmoltcpDevice {
    fn harvest(&mut self) -> Result<usize, GuestError> {
        let (received, segment) = (&mut self.received, &mut self.segment);
        self.pair.rx.harvest(BUDGET, |frame| {
            let mut bytes = frame.to_vec();
            if let Some(real) = offload::raise_segment_limit(&mut bytes) {
                *segment = real;
            }
            received.push_back(bytes);
        })
    }

    fn has_room(&self) -> bool {
        self.pair.tx.in_flight() < TX_LIMIT
    }
}

impl phy::Device for SmoltcpDevice {
    type RxToken<'a> = RxFrame;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(RxFrame, Sending<'_>)> {
        if !self.has_room() {
            return None;
        }
        let frame = self.received.pop_front()?;
        Some((RxFrame(frame), Sending(self)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Sending<'_>> {
        self.has_room().then_some(Sending(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 14 + 65_535;
        // The device takes partial checksums, and gives them.
        capabilities.checksum.tcp = phy::Checksum::None;
        capabilities
    }
}

struct RxFrame(Vec<u8>);

impl phy::RxToken for RxFrame {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, use_frame: F) -> R {
        use_frame(&self.0)
    }
}

struct Sending<'a>(&'a mut SmoltcpDevice);

impl phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let SmoltcpDevice { pair, scratch, segment, failed, .. } = self.0;
        scratch.clear();
        scratch.resize(len, 0);
        let result = fill(scratch);
        let header = offload::prepare(scratch, *segment);
        if let Err(error) = send(&mut pair.tx, &header, scratch) {
            *failed = Some(error);
        }
        result
    }
}

/// The queue has room: that was checked before the token was given out. A frame that still finds
/// none is lost, as on any link, and TCP sends it again.
fn send(
    queue: &mut TxQueue,
    header: &zerowire_guest::net::VirtioNetHdr,
    frame: &[u8],
) -> Result<(), GuestError> {
    queue.send(header, frame)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_taken_apart() {
        let answer = parse(b"HTTP/1.1 401 Unauthorized\r\nA: b\r\n\r\nno").unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (401, "no"));
        assert!(parse(b"HTTP/1.1 200").is_err());
        assert!(parse(b"x\r\n\r\n").is_err());
    }
}
