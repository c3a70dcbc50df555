//! What the tests of the devices share: a back end in this process, a guest, and the host's side of
//! the tap.
//!
//! The devices' own tests in `tests/it/` use this, and see the same types as it does. Tests beside
//! the code can't: their crate is another one than this uses.

pub mod attack;
pub mod dirty;
pub mod lab;
pub mod vsock;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dirty::Migration;
use zerowire_capture::Capture;
use zerowire_guest::net::{FrameShape, Layout, NetDriver, NetOptions, QueuePair, SUPPORTED, VirtioNetHdr};
use zerowire_guest::{GuestAddr, GuestMemory, QueueSetup, VhostUser, VhostUserOptions};
pub use zerowire_net::ChangeError;
use zerowire_net::config::MacAddress;
use zerowire_net::port::PortSpec;
use zerowire_net::port::tap::TapSpec;
use zerowire_net::{FrameGuard, Limits, MetadataSource, Policy, Server, VmConfig, VmStats};
pub use zerowire_testkit::net::{PEER_HEADER, Peer, in_netns, ip};
pub use zerowire_testkit::{PATIENCE, frames, wait_until};
use zerowire_vhost::serve::Endpoint;
pub use zerowire_vhost::serve::VmState;
use zerowire_vhost::session::SessionImage;

/// A VM of a [`Backend`]; its tap bears its name.
#[derive(Clone, Debug)]
pub struct Vm {
    /// Its name and that of its tap.
    pub name: &'static str,
    /// Queue pairs.
    pub queues: usize,
    /// Scatter or copy.
    pub policy: Policy,
    /// Its metadata.
    pub metadata: Option<MetadataSource>,
    /// Its port as `--port` takes it; empty for a tap of its name.
    pub port: String,
    /// Its address, if the back end knows it.
    pub mac: Option<&'static str>,
    /// What the guest may send, as `--guard` takes it.
    pub guard: Option<&'static str>,
    /// What it may send and receive in a second.
    pub limits: Limits,
    /// Whether post-copy is offered.
    pub postcopy: bool,
}

impl Vm {
    /// On a tap, with one queue pair and the defaults.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            queues: 1,
            policy: Policy::default(),
            metadata: None,
            port: String::new(),
            mac: None,
            guard: None,
            limits: Limits::default(),
            postcopy: false,
        }
    }

    /// On another port, as `--port` takes it.
    pub fn on(name: &'static str, port: impl Into<String>) -> Self {
        Self { port: port.into(), ..Self::new(name) }
    }

    fn spec(&self) -> PortSpec {
        match self.port.as_str() {
            "" => TapSpec::new(self.name).queues(self.queues).into(),
            port => port.parse().unwrap_or_else(|e| panic!("{e}")),
        }
    }
}

/// A server in this process with its sockets in a directory of its own.
pub struct Backend {
    /// The server.
    pub server: Server,
    dir: tempfile::TempDir,
}

impl Backend {
    /// Starts it in this thread's network namespace.
    pub fn start(vms: &[Vm]) -> Self {
        Self::captured(vms, None)
    }

    /// The same, with the frames of all VMs in a capture.
    pub fn captured(vms: &[Vm], capture: Option<Arc<Capture>>) -> Self {
        let dir = tempfile::tempdir().expect("a directory for sockets");
        let configs = vms
            .iter()
            .map(|v| {
                let mac = v.mac.map(|mac| mac.parse::<MacAddress>().unwrap_or_else(|e| panic!("{e}")));
                VmConfig::new(v.name, Endpoint::Path(dir.path().join(v.name)), v.spec())
                    .metadata(v.metadata.clone())
                    .policy(v.policy)
                    .mac(mac)
                    .guard(v.guard.map(|g| FrameGuard::parse(g, mac).unwrap_or_else(|e| panic!("{e}"))))
                    .limits(v.limits)
                    .postcopy(v.postcopy)
            })
            .collect();
        let server = Server::start_captured(configs, capture).unwrap_or_else(|e| panic!("{e}"));
        Self { server, dir }
    }

    /// Connects as a front end.
    pub fn connect(&self, vm: &str) -> VhostUser {
        self.connect_without(vm, 0)
    }

    /// Where a VM's front end connects.
    pub fn socket(&self, vm: &str) -> std::path::PathBuf {
        self.dir.path().join(vm)
    }

    /// Connects as a front end that leaves out these protocol features.
    pub fn connect_without(&self, vm: &str, protocol: u64) -> VhostUser {
        let all = VhostUserOptions::default();
        let options = VhostUserOptions { protocol: all.protocol & !protocol, ..all };
        VhostUser::connect_with(self.socket(vm), PATIENCE, &options).unwrap_or_else(|e| panic!("{e}"))
    }

    /// What a VM moved so far. A frame can arrive before the worker that sent it has counted it. So
    /// as long as the figures change this reads them again, for a while.
    pub fn stats(&self, vm: &str) -> VmStats {
        let read = || {
            let stats = self.server.stats();
            stats.vms.into_iter().find(|v| v.name == vm).expect("a VM of that name").vm
        };
        let mut last = read();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(3));
            let now = read();
            let same = format!("{last:?}") == format!("{now:?}");
            last = now;
            if same {
                break;
            }
        }
        last
    }

    /// Starts a guest on a VM.
    pub fn guest(&self, vm: &str, options: &NetOptions) -> Guest {
        Guest::start(self.connect(vm), options)
    }
}

/// A session's image as another process gets it, with descriptors of its own.
pub fn pass_on(image: SessionImage) -> SessionImage {
    let (near, far) = UnixStream::pair().expect("sockets");
    std::thread::scope(|scope| {
        scope.spawn(|| image.send(&near).unwrap_or_else(|e| panic!("{e}")));
        SessionImage::receive(&far).unwrap_or_else(|e| panic!("{e}"))
    })
}

/// Memory in two regions with a hole between them, as a PC has it.
pub fn guest_memory() -> GuestMemory {
    GuestMemory::new(&[(GuestAddr(0), 32 << 20), (GuestAddr(1 << 32), 16 << 20)])
        .unwrap_or_else(|e| panic!("{e}"))
}

/// A guest with one or more queue pairs.
pub struct Guest {
    /// The driver.
    pub driver: NetDriver<VhostUser>,
    /// Its queues.
    pub pairs: Vec<QueuePair>,
    /// Its memory.
    pub memory: GuestMemory,
}

impl Guest {
    /// Starts a guest on a connection.
    pub fn start(transport: VhostUser, options: &NetOptions) -> Self {
        let memory = guest_memory();
        let (driver, pairs) = NetDriver::start(transport, &memory, options).unwrap_or_else(|e| panic!("{e}"));
        Self { driver, pairs, memory }
    }

    /// Sends frames on a queue pair and waits until all are given back.
    pub fn send(&mut self, pair: usize, frames: &[(VirtioNetHdr, Vec<u8>)]) {
        let tx = &mut self.pairs[pair].tx;
        for (header, frame) in frames {
            while !tx.send(header, frame).unwrap_or_else(|e| panic!("{e}")) {
                tx.publish().unwrap_or_else(|e| panic!("{e}"));
                assert!(tx.wait(1, PATIENCE).unwrap_or_else(|e| panic!("{e}")), "a buffer given back");
                tx.reap().unwrap_or_else(|e| panic!("{e}"));
            }
        }
        assert!(tx.drain(PATIENCE).unwrap_or_else(|e| panic!("{e}")), "all frames given back");
    }

    /// Sends plain frames on the first pair.
    pub fn send_plain(&mut self, frames: &[Vec<u8>]) {
        let with: Vec<_> = frames.iter().map(|f| (VirtioNetHdr::default(), f.clone())).collect();
        self.send(0, &with);
    }

    /// Receives the next frame on the first pair, which must come.
    pub fn expect(&mut self) -> (VirtioNetHdr, Vec<u8>) {
        self.recv(0, PATIENCE).expect("a frame from the host")
    }

    /// Receives the next frame on a pair.
    pub fn recv(&mut self, pair: usize, patience: Duration) -> Option<(VirtioNetHdr, Vec<u8>)> {
        self.pairs[pair].rx.recv(patience).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Has the peer send until a frame arrives, and no other one is under way. A port that hands
    /// buffers to the kernel takes frames only when the guest has posted some. The last one has
    /// come then, and frames come in the order in which they are sent. Returns how many arrived.
    pub fn warm_up(&mut self, pair: usize, peer: &Peer) -> u64 {
        let (start, mut arrived) = (Instant::now(), 0);
        for probe in frames::PROBE.. {
            assert!(start.elapsed() < PATIENCE, "no frame arrives");
            // The interface may be down yet.
            let _ = peer.send_with(&[0; PEER_HEADER], &frames::frame(probe, 64));
            while let Some((_, bytes)) = self.recv(pair, Duration::from_millis(20)) {
                arrived += 1;
                if frames::number(&bytes) == probe {
                    return arrived;
                }
            }
        }
        arrived
    }

    /// The same the other way, for an interface that passes nothing on yet: sends until the peer
    /// has received the last one.
    pub fn warm_up_peer(&mut self, peer: &mut Peer) {
        let start = Instant::now();
        for probe in frames::PROBE.. {
            assert!(start.elapsed() < PATIENCE, "no frame arrives");
            self.send_plain(&[frames::frame(probe, 100)]);
            while let Some(got) = peer.recv(Duration::from_millis(20)) {
                if frames::number(&got.bytes) == probe {
                    return;
                }
            }
        }
    }

    /// Its rings, and the buffers that the device writes, as (address, bytes).
    pub fn writable(&self) -> (Vec<QueueSetup>, Vec<(u64, u64)>) {
        let rings = self.pairs.iter().flat_map(|p| [p.rx.ring().setup(), p.tx.ring().setup()]).collect();
        let buffers = self.pairs.iter().flat_map(|p| p.rx.writable());
        (rings, buffers.map(|(at, len)| (at.0, len.into())).collect())
    }

    /// Has the device note its writes from now on.
    pub fn migrate(&mut self) -> Migration {
        let (rings, buffers) = self.writable();
        Migration::start(self.driver.transport(), &self.memory, &rings, &buffers)
    }

    /// A frame each way, to see that everything works.
    pub fn ping(&mut self, peer: &mut Peer, n: u32) {
        let out = frames::frame(n, 100);
        self.send_plain(std::slice::from_ref(&out));
        assert_eq!(peer.expect().bytes, out, "guest to host");
        let back = frames::frame(n ^ 0xffff, 200);
        peer.send(&back);
        assert_eq!(self.expect().1, back, "host to guest");
    }
}

/// Driver settings: all features but `without`, and buffers of `layout`.
pub fn options(without: u64, layout: Layout) -> NetOptions {
    NetOptions {
        wanted: SUPPORTED & !without,
        tx: FrameShape { layout, indirect: true, capacity: 65_550 },
        tx_slots: 32,
        ..NetOptions::default()
    }
}
