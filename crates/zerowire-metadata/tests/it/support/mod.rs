//! A guest for the tests. It has a second TCP stack as client, a wire that can lose frames, a
//! gateway, and a clock that is only a number.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr, Ipv4Address, Ipv6Address};
use zerowire_metadata::{
    Config, DEFAULT_MAC, MetadataService, MetadataTree, SERVICE_ADDRESS, SERVICE_ADDRESS_V6, TokenPolicy,
    wants,
};

pub const GUEST_MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
pub const GATEWAY_MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 0xfe];

pub const DOCUMENT: &str = r#"{"latest": {
    "user-data": "hello\n",
    "meta-data": {"instance-id": "i-123", "cpus": 4, "network": {"mac": "x"}}
}}"#;

/// How the guest reaches the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By a default gateway; frames carry the gateway's MAC.
    Gateway,
    /// On-link: the guest asks by ARP for the service itself.
    OnLink,
}

struct GuestDevice {
    received: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
    /// Leaves the TCP checksum to the device, as NEEDS_CSUM does.
    partial_checksums: bool,
}

pub struct Rx(Vec<u8>);
pub struct Tx<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl Device for GuestDevice {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Rx, Tx<'_>)> {
        let frame = self.received.pop_front()?;
        Some((Rx(frame), Tx(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        if self.partial_checksums {
            // Verified on receive, so the service's must be complete.
            capabilities.checksum.tcp = Checksum::Rx;
        }
        capabilities
    }
}

pub struct Guest {
    pub service: MetadataService,
    pub now: Duration,
    /// Every n-th frame is lost, in both directions together; 0 for none.
    pub lose_every: u64,
    /// Frames for the guest that its gateway or the wire saw.
    pub frames: u64,
    /// Hop limits of packets from the service since this was emptied last.
    pub hop_limits: Vec<u8>,
    /// The service, as the guest asks for it.
    pub remote: IpAddress,
    device: GuestDevice,
    interface: Interface,
    sockets: SocketSet<'static>,
    next_port: u16,
}

/// A response as the client sees it.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }
}

pub fn service(document: &str, token_policy: TokenPolicy) -> MetadataService {
    let tree = Arc::new(MetadataTree::from_json_str(document).expect("a valid document"));
    let config = Config::new(tree).token_policy(token_policy);
    MetadataService::new(config).expect("a valid configuration")
}

impl Guest {
    pub fn new(document: &str, token_policy: TokenPolicy) -> Self {
        Self::with_route(document, token_policy, [10, 0, 0, 2], Route::Gateway)
    }

    pub fn with_route(document: &str, policy: TokenPolicy, ip: [u8; 4], route: Route) -> Self {
        let mut device =
            GuestDevice { received: VecDeque::new(), sent: VecDeque::new(), partial_checksums: true };
        let config = InterfaceConfig::new(EthernetAddress(GUEST_MAC).into());
        let mut interface = Interface::new(config, &mut device, Instant::ZERO);
        // On-link means that the service is inside the guest's prefix.
        let prefix = if route == Route::OnLink { 0 } else { 24 };
        interface.update_ip_addrs(|addresses| {
            let address = IpCidr::new(Ipv4Address::from(ip).into(), prefix);
            addresses.push(address).expect("room");
        });
        if route == Route::Gateway {
            let gateway = Ipv4Address::new(ip[0], ip[1], ip[2], 1);
            let routes = interface.routes_mut();
            routes.add_default_ipv4_route(gateway).expect("room");
        }
        Self {
            service: service(document, policy),
            now: Duration::from_secs(1000),
            lose_every: 0,
            frames: 0,
            hop_limits: Vec::new(),
            remote: Ipv4Address::from(SERVICE_ADDRESS).into(),
            device,
            interface,
            sockets: SocketSet::new(Vec::new()),
            next_port: 40_000,
        }
    }

    /// A guest that asks by IPv6, on-link or by a gateway, whose address it knows.
    pub fn with_ipv6(document: &str, policy: TokenPolicy, ip: Ipv6Address, route: Route) -> Self {
        let mut guest = Self::with_route(document, policy, [10, 0, 0, 2], Route::OnLink);
        guest.remote = SERVICE_ADDRESS_V6.into();
        let prefix = if route == Route::OnLink { 0 } else { 64 };
        guest.interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(ip.into(), prefix)).expect("room");
        });
        if route == Route::Gateway {
            let mut gateway = ip.octets();
            gateway[15] = 0xfe;
            guest.interface.routes_mut().add_default_ipv6_route(gateway.into()).expect("room");
        }
        guest
    }

    /// Leaves the checksums of sent segments to the device, or not.
    pub fn set_partial_checksums(&mut self, partial: bool) {
        self.device.partial_checksums = partial;
    }

    fn lost(&mut self) -> bool {
        self.frames += 1;
        self.lose_every > 0 && self.frames.is_multiple_of(self.lose_every)
    }

    /// One round of everything; true if a frame moved.
    pub fn step(&mut self) -> bool {
        let at = Instant::from_micros(i64::try_from(self.now.as_micros()).expect("small"));
        self.interface.poll(at, &mut self.device, &mut self.sockets);
        let mut moved = false;
        while let Some(frame) = self.device.sent.pop_front() {
            moved = true;
            if self.lost() {
                continue;
            }
            if wants(&frame[..frame.len().min(78)]) {
                self.service.ingest(&frame, self.now);
            } else {
                self.gateway(&frame);
            }
        }
        self.service.poll(self.now);
        while let Some(frame) = self.service.pop_frame() {
            moved = true;
            assert_eq!(frame[0..6], GUEST_MAC, "for the guest");
            assert_eq!(frame[6..12], DEFAULT_MAC, "from the service");
            assert!(frame.len() <= 1514);
            match frame[12..14] {
                [8, 0] => self.hop_limits.push(frame[22]),
                [0x86, 0xdd] => self.hop_limits.push(frame[21]),
                _ => {}
            }
            if !self.lost() {
                self.device.received.push_back(frame);
            }
        }
        moved
    }

    /// Answers ARP and neighbour solicitations for whoever isn't the service.
    fn gateway(&mut self, frame: &[u8]) {
        if frame[12..14] == [0x86, 0xdd] {
            self.ipv6_gateway(frame);
            return;
        }
        assert_eq!(frame[12..14], [8, 6], "only ARP goes past the service");
        assert_ne!(frame[38..42], SERVICE_ADDRESS);
        let mut reply = frame.to_vec();
        reply[0..6].copy_from_slice(&GUEST_MAC);
        reply[6..12].copy_from_slice(&GATEWAY_MAC);
        reply[21] = 2;
        reply[22..28].copy_from_slice(&GATEWAY_MAC);
        reply[28..32].copy_from_slice(&frame[38..42]);
        reply[32..42].copy_from_slice(&frame[22..32]);
        self.device.received.push_back(reply);
    }

    fn ipv6_gateway(&mut self, frame: &[u8]) {
        assert_eq!((frame[20], frame[54]), (58, 135), "only solicitations go past the service");
        assert_ne!(frame[62..78], SERVICE_ADDRESS_V6.octets());
        let mut reply = frame[..78].to_vec();
        reply[0..6].copy_from_slice(&GUEST_MAC);
        reply[6..12].copy_from_slice(&GATEWAY_MAC);
        reply[18..20].copy_from_slice(&[0, 32]);
        reply[22..38].copy_from_slice(&frame[62..78]);
        reply[38..54].copy_from_slice(&frame[22..38]);
        reply[54..62].copy_from_slice(&[136, 0, 0, 0, 0x60, 0, 0, 0]);
        reply.extend([2, 1]);
        reply.extend(GATEWAY_MAC);
        let pseudo = [&reply[22..54], &[0, 0, 0, 32, 0, 0, 0, 58], &reply[54..]].concat();
        let mut sum: u32 =
            pseudo.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        reply[56..58].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        self.device.received.push_back(reply);
    }

    /// Runs for a time, jumping over the quiet parts of it.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.run_until_next(end);
        }
    }

    fn run_until_next(&mut self, end: Duration) {
        if self.step() {
            self.now += Duration::from_micros(100);
            return;
        }
        let at = Instant::from_micros(i64::try_from(self.now.as_micros()).expect("small"));
        let client = self
            .interface
            .poll_at(at, &self.sockets)
            .map(|at| Duration::from_micros(u64::try_from(at.total_micros()).expect("not negative")));
        let service = self.service.next_deadline(self.now);
        let next = client.into_iter().chain(service).chain([end]).min();
        let soonest = self.now + Duration::from_micros(100);
        self.now = next.unwrap_or(end).max(soonest);
    }

    /// Runs until `done`; fails the test if that takes ten virtual minutes.
    pub fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.now + Duration::from_secs(600);
        while !done(self) {
            assert!(self.now < end, "{what} didn't happen: {:?}", self.service.stats());
            self.run_until_next(end);
        }
    }

    pub fn socket(&mut self, handle: SocketHandle) -> &mut Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Begins a connection without waiting.
    pub fn open(&mut self) -> SocketHandle {
        let buffer = |len| SocketBuffer::new(vec![0; len]);
        let mut socket = Socket::new(buffer(64 * 1024), buffer(64 * 1024));
        socket.set_nagle_enabled(false);
        self.next_port += 1;
        socket.connect(self.interface.context(), (self.remote, 80), self.next_port).expect("a free port");
        self.sockets.add(socket)
    }

    pub fn connect(&mut self) -> SocketHandle {
        let handle = self.open();
        self.run_until("connect", |guest| guest.socket(handle).may_send());
        handle
    }

    pub fn send(&mut self, handle: SocketHandle, data: &[u8]) {
        let mut sent = 0;
        self.run_until("send", |guest| {
            sent += guest.socket(handle).send_slice(&data[sent..]).expect("open");
            sent == data.len()
        });
    }

    fn read_into(&mut self, handle: SocketHandle, data: &mut Vec<u8>) {
        let socket = self.socket(handle);
        while socket.can_recv() {
            let taken = socket.recv(|bytes| {
                data.extend_from_slice(bytes);
                (bytes.len(), ())
            });
            taken.expect("readable");
        }
    }

    /// Reads one response; `rest` keeps what came after it.
    pub fn answer_with(&mut self, handle: SocketHandle, head_only: bool, rest: &mut Vec<u8>) -> Answer {
        let mut data = std::mem::take(rest);
        let mut head_len = 0;
        self.run_until("a response's head", |guest| {
            guest.read_into(handle, &mut data);
            let end = data.windows(4).position(|window| window == b"\r\n\r\n");
            head_len = end.map_or(0, |end| end + 4);
            head_len > 0
        });
        let head = String::from_utf8(data[..head_len].to_vec()).expect("text");
        let mut answer = Answer { status: head[9..12].parse().expect("a status"), head, body: Vec::new() };
        let length = answer.header("Content-Length").expect("a length");
        let body_len: usize = if head_only { 0 } else { length.parse().expect("a number") };
        self.run_until("a response's body", |guest| {
            guest.read_into(handle, &mut data);
            data.len() >= head_len + body_len
        });
        *rest = data.split_off(head_len + body_len);
        answer.body = data.split_off(head_len);
        answer
    }

    pub fn answer(&mut self, handle: SocketHandle) -> Answer {
        let mut rest = Vec::new();
        let answer = self.answer_with(handle, false, &mut rest);
        assert_eq!(rest, b"", "nothing after the response");
        answer
    }

    /// Sends a request on a connection of its own, reads the response and
    /// closes.
    pub fn exchange(&mut self, request: &str) -> Answer {
        let handle = self.connect();
        self.send(handle, request.as_bytes());
        let answer = self.answer(handle);
        self.socket(handle).close();
        answer
    }

    /// GET with some more header lines.
    pub fn get(&mut self, path: &str, headers: &str) -> Answer {
        self.exchange(&format!("GET {path} HTTP/1.1\r\nHost: 169.254.169.254\r\n{headers}\r\n"))
    }

    pub fn token(&mut self, ttl: &str) -> Answer {
        self.exchange(&format!(
            "PUT /latest/api/token HTTP/1.1\r\nHost: 169.254.169.254\r\nX-metadata-token-ttl-seconds: {ttl}\r\n\r\n"
        ))
    }

    /// Waits until the service has closed its side.
    pub fn wait_closed(&mut self, handle: SocketHandle) {
        let mut ignored = Vec::new();
        self.run_until("close", |guest| {
            guest.read_into(handle, &mut ignored);
            let state = guest.socket(handle).state();
            matches!(state, State::CloseWait | State::Closed)
        });
    }
}
