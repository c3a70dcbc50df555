//! The vsock server as front ends see it before any packet moves: features, configuration space,
//! queues, and what is refused. Messages are sent one by one, so that each answer is seen as it
//! comes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use zerowire_guest::ring::RingMemory;
use zerowire_guest::{GuestAddr, GuestMemory, Transport, VhostUser};
use zerowire_testkit::PATIENCE;
use zerowire_vhost::serve::{Endpoint, StartError};
use zerowire_vhost_user::{
    Config, FLAG_NEED_REPLY, MessageSocket, Request, VERSION, VringState, features as f, protocol as p,
};
use zerowire_vsock::{VsockConfig, VsockServer, VsockServerError};

/// More than 32 bits would show if the rest of the field were not 0.
const CID: u64 = 0xfedc_ba98;

fn config(dir: &Path, name: &str, cid: u64) -> VsockConfig {
    VsockConfig::new(
        name,
        Endpoint::Path(dir.join(format!("{name}.vhost"))),
        cid,
        dir.join(format!("{name}.vsock")),
    )
}

struct Backend {
    // The server goes before the directory of its sockets.
    server: VsockServer,
    dir: tempfile::TempDir,
}

impl Backend {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = VsockServer::start(vec![config(dir.path(), "vm", CID)]).unwrap();
        Self { server, dir }
    }

    /// A front end that has agreed on all protocol features.
    fn connect(&self) -> Front {
        let connection = MessageSocket::connect(self.dir.path().join("vm.vhost")).unwrap();
        connection.stream().set_read_timeout(Some(PATIENCE)).unwrap();
        let mut front = Front(connection);
        let protocol = front.ask(Request::GetProtocolFeatures, &[]);
        front.0.send_request(Request::SetProtocolFeatures, false, &protocol, &[]).unwrap();
        front
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "still not: {what}");
        std::thread::sleep(Duration::from_micros(500));
    }
}

struct Front(MessageSocket);

impl Front {
    /// The body of the answer.
    fn ask(&mut self, request: Request, body: &[u8]) -> Vec<u8> {
        self.0.send_request(request, false, body, &[]).unwrap();
        self.0.recv_reply(request).unwrap().body().to_vec()
    }

    fn ask_u64(&mut self, request: Request) -> u64 {
        u64::from_ne_bytes(self.ask(request, &[]).try_into().unwrap())
    }

    /// Sends a request and takes the acknowledgement.
    fn tell(&mut self, request: Request, body: &[u8]) {
        self.0.send_request(request, true, body, &[]).unwrap();
        self.0.recv_ack(request).unwrap_or_else(|e| panic!("{e}"));
    }

    fn get_config(&mut self, offset: u32, len: usize) -> Vec<u8> {
        self.ask(Request::GetConfig, &part(offset, &vec![0xee; len]))
    }

    /// The back end has ended the connection.
    fn assert_ended(mut self) {
        assert!(matches!(self.0.recv(), Ok(None)));
    }
}

fn part(offset: u32, data: &[u8]) -> Vec<u8> {
    Config { offset, flags: 0, data: data.to_vec() }.encode()
}

fn state(index: u32, num: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(VringState { index, num }.encode().as_ref());
    bytes
}

#[test]
fn the_device_offers_streams_messages_and_its_configuration_space() {
    let backend = Backend::start();
    let mut front = backend.connect();
    let offered = front.ask_u64(Request::GetFeatures);
    let wanted = f::VSOCK_STREAM
        | f::VSOCK_SEQPACKET
        | f::VERSION_1
        | f::RING_INDIRECT_DESC
        | f::RING_EVENT_IDX
        | f::IN_ORDER
        | f::ACCESS_PLATFORM
        | f::VHOST_LOG_ALL
        | f::VHOST_USER_PROTOCOL_FEATURES;
    assert_eq!(offered, wanted, "{:?}", f::vsock_names(offered ^ wanted));
    let protocol = front.ask_u64(Request::GetProtocolFeatures);
    let wanted = p::MQ
        | p::LOG_SHMFD
        | p::INFLIGHT_SHMFD
        | p::REPLY_ACK
        | p::CONFIG
        | p::BACKEND_REQ
        | p::RESET_DEVICE
        | p::CONFIGURE_MEM_SLOTS
        | p::STATUS
        | p::DEVICE_STATE;
    assert_eq!(protocol, wanted);
    assert_eq!(front.ask_u64(Request::GetQueueNum), 3);

    // Features that were not offered end the connection; the error names them as this device's.
    front.0.send_request(Request::SetFeatures, false, &(offered | 1 << 5).to_ne_bytes(), &[]).unwrap();
    front.assert_ended();
    wait_until("the error is told", || backend.server.stats().vms[0].connection_errors == 1);
    let error = backend.server.stats().vms[0].totals.last_error.clone().unwrap();
    assert!(error.contains("bit 5 were not offered"), "{error}");
}

#[test]
fn the_configuration_space_is_the_cid_in_little_endian() {
    let backend = Backend::start();
    let mut front = backend.connect();
    assert_eq!(front.get_config(0, 8), part(0, &CID.to_le_bytes()));
    assert_eq!(front.get_config(4, 4), part(4, &[0; 4]));
    assert_eq!(front.get_config(1, 2), part(1, &[0xba, 0xdc]));
    assert_eq!(front.get_config(8, 0), part(8, &[]));
    // The flags come back as they were.
    let asked = Config { offset: 7, flags: 1, data: vec![9] }.encode();
    assert_eq!(front.ask(Request::GetConfig, &asked), Config { offset: 7, flags: 1, data: vec![0] }.encode());
}

#[test]
fn parts_that_do_not_exist_are_answered_without_payload() {
    let backend = Backend::start();
    let mut front = backend.connect();
    for (offset, len) in [(0, 9), (1, 8), (8, 1), (9, 0), (0, 256), (256, 0), (0, 257), (u32::MAX, 8)] {
        assert_eq!(front.get_config(offset, len), [0; 0], "{len} bytes from {offset}");
    }
    // The connection goes on.
    assert_eq!(front.get_config(0, 8), part(0, &CID.to_le_bytes()));

    // A size that is not the payload's breaks the protocol.
    let mut ragged = part(0, &[0; 8]);
    ragged.pop();
    front.0.send_request(Request::GetConfig, false, &ragged, &[]).unwrap();
    front.assert_ended();
}

#[test]
fn the_configuration_space_is_read_only() {
    let backend = Backend::start();
    let mut front = backend.connect();
    front.0.send_request(Request::SetConfig, true, &part(0, &[1; 8]), &[]).unwrap();
    let refusal = front.0.recv_ack(Request::SetConfig).expect_err("refused").to_string();
    assert!(refusal.contains("SET_CONFIG") && refusal.contains('1'), "{refusal}");
    assert_eq!(front.get_config(0, 8), part(0, &CID.to_le_bytes()));
    let error = backend.server.stats().vms[0].totals.last_error.clone().unwrap();
    assert!(error.contains("read-only"), "{error}");

    // Without an answer the front end would go on as if it were written.
    front.0.send_request(Request::SetConfig, false, &part(0, &[1; 8]), &[]).unwrap();
    front.assert_ended();
}

#[test]
fn requests_of_other_devices_end_the_connection() {
    let backend = Backend::start();
    for (request, body) in [
        (Request::NetSetMtu, 1500u64.to_ne_bytes()),
        (Request::SetVringNum, state(3, 64)),
        (Request::GetVringBase, state(3, 0)),
    ] {
        let mut front = backend.connect();
        front.0.send(request.number(), VERSION | FLAG_NEED_REPLY, &body, &[]).unwrap();
        front.assert_ended();
    }
    assert!(backend.server.is_alive());
    wait_until("all have ended", || backend.server.stats().vms[0].connection_errors == 3);
}

#[test]
fn the_event_queue_is_taken_and_gives_its_base_back() {
    let backend = Backend::start();
    let memory = GuestMemory::new(&[(GuestAddr(0), 1 << 20)]).unwrap();
    let mut guest = VhostUser::connect(backend.dir.path().join("vm.vhost"), PATIENCE).unwrap();
    guest.negotiate(f::VERSION_1).unwrap();
    guest.share_memory(&memory).unwrap();
    let ring = RingMemory::new(&memory, 64).unwrap();
    for base in [77, 78] {
        // The device has given all of them back: a ring begins at its used index.
        ring.publish_avail_idx(base);
        ring.used().atomic_u16(2).store(base.to_le(), Ordering::Release);
        let _ = guest.start_queue(2, &ring.setup(base)).unwrap();
        guest.enable_queue(2, true).unwrap();
        assert_eq!(guest.stop_queue(2).unwrap(), base);
    }
    let vm = &backend.server.stats().vms[0];
    assert!(vm.connected);
    assert_eq!((vm.totals.ring_errors, vm.totals.last_error.as_deref()), (0, None));
}

/// The rings of a guest that has offered nothing stop where they started.
fn start_and_stop(guest: &mut VhostUser, rings: &[RingMemory]) {
    for (index, ring) in (0..).zip(rings) {
        let _ = guest.start_queue(index, &ring.setup(0)).unwrap_or_else(|e| panic!("queue {index}: {e}"));
        guest.enable_queue(index, true).unwrap();
    }
    for index in 0..rings.len() as u16 {
        assert_eq!(guest.stop_queue(index).unwrap(), 0, "queue {index}");
    }
}

#[test]
fn rings_start_in_shared_memory_and_a_reset_device_keeps_it() {
    let backend = Backend::start();
    let memory = GuestMemory::new(&[(GuestAddr(0), 1 << 20)]).unwrap();
    for _ in 0..2 {
        let mut guest = VhostUser::connect(backend.dir.path().join("vm.vhost"), PATIENCE).unwrap();
        guest.negotiate(f::VERSION_1 | f::RING_EVENT_IDX).unwrap();
        let rings: Vec<_> = (0..3).map(|_| RingMemory::new(&memory, 16).unwrap()).collect();
        // Without memory there are no rings.
        let refusal = guest.start_queue(0, &rings[0].setup(0)).err().expect("refused").to_string();
        assert!(refusal.contains("SET_VRING_KICK"), "{refusal}");

        guest.share_memory(&memory).unwrap();
        start_and_stop(&mut guest, &rings);
        guest.reset().unwrap();
        guest.negotiate(f::VERSION_1).unwrap();
        start_and_stop(&mut guest, &rings);
        assert_eq!(backend.server.stats().vms[0].totals.ring_errors, 0);
        drop(guest);
        wait_until("the connection has ended", || !backend.server.stats().vms[0].connected);
    }
    // The memory went with the front end. Other tests of this process have memory as well: this
    // one's goes by its inode.
    let inodes: Vec<_> =
        memory.regions().iter().map(|r| rustix::fs::fstat(r.file()).unwrap().st_ino.to_string()).collect();
    wait_until("only the guest's own mappings are left", || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mapped =
            |inode: &String| maps.lines().filter(|l| l.split_whitespace().nth(4) == Some(inode)).count();
        inodes.iter().all(|inode| mapped(inode) == 1)
    });
}

#[test]
fn statistics_are_one_flat_object() {
    let backend = Backend::start();
    let mut front = backend.connect();
    let acked = f::VERSION_1 | f::VHOST_USER_PROTOCOL_FEATURES | f::VSOCK_SEQPACKET;
    front.tell(Request::SetFeatures, &acked.to_ne_bytes());
    front.tell(Request::SetStatus, &11u64.to_ne_bytes());
    let text = serde_json::to_string(&backend.server.stats()).unwrap();
    assert_eq!(text.matches("\"last_error\"").count(), 1, "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let vm = &json["vms"][0];
    assert_eq!(vm["cid"], CID);
    assert_eq!(vm["groups"], serde_json::json!(["default"]));
    assert_eq!(
        vm["features"],
        serde_json::json!(["VSOCK_SEQPACKET", "VHOST_USER_PROTOCOL_FEATURES", "VERSION_1"])
    );
    assert_eq!(vm["device_status"], 11);
    assert_eq!((&vm["connected"], &vm["connections"]), (&true.into(), &1.into()));
    assert_eq!(vm["connections_open"], 0);
    assert_eq!(vm["transmit"]["frames"], 0);
    assert!(vm["socket"].as_str().unwrap().ends_with("/vm.vhost"));
    assert!(vm["uds"].as_str().unwrap().ends_with("/vm.vsock"));
}

fn files(dir: &Path) -> BTreeSet<PathBuf> {
    std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect()
}

#[test]
fn sockets_go_with_the_server_and_with_a_failed_start() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = dir.path().join("b.vhost");
    std::fs::write(&blocked, "").unwrap();
    let before = files(dir.path());
    let configs = || vec![config(dir.path(), "a", 3), config(dir.path(), "b", 4)];
    match VsockServer::start(configs()).err() {
        Some(VsockServerError::Start(StartError::Listen { vm, .. })) => assert_eq!(vm, "b"),
        other => panic!("{other:?}"),
    }
    assert_eq!(files(dir.path()), before);

    std::fs::remove_file(&blocked).unwrap();
    let server = VsockServer::start(configs()).unwrap();
    assert!(server.is_alive());
    assert!(files(dir.path()).contains(&blocked));
    drop(server);
    assert_eq!(files(dir.path()), BTreeSet::new());
}
