//! A guest sees whether its port's interface can carry frames: front ends are disconnected and
//! refused while it can't, with `link=follow`.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::support::frames::{frame, number};
use crate::support::{Backend, Guest, PATIENCE, Peer, Vm, in_netns, options, wait_until};
use zerowire_guest::net::{Layout, NetOptions};
use zerowire_net::{LinkState, Server, VmConfig};
use zerowire_sys::xdp::Interface;
use zerowire_testkit::net::ip;
use zerowire_testkit::net::veth::veth;
use zerowire_testkit::process::only;
use zerowire_testkit::this_test;
use zerowire_vhost::serve::Endpoint;

const PORTS: [&str; 4] = [
    "packet:v0,receive=socket",
    "packet:v0,rings=on,receive=ring",
    "xdp:v0,mode=copy",
    "xdp:v0,queues=2,mode=copy",
];

/// Runs a test on each of the ports at once, as most of it is waiting; each has a namespace of its
/// own.
fn on_each_port(test: impl Fn(&'static str) + Copy + Send + 'static) {
    let runs = PORTS.map(|port| std::thread::spawn(move || in_netns(move || test(port))));
    for (run, port) in runs.into_iter().zip(PORTS) {
        assert!(run.join().is_ok(), "it failed on {port}");
    }
}

/// Queue pairs of a port.
fn pairs(port: &str) -> usize {
    if port.contains("queues=2") { 2 } else { 1 }
}

fn start(port: &str, link: &str) -> Backend {
    veth("v0", "v1", pairs(port), 1500);
    Backend::start(&[Vm::on("a", format!("{port},link={link}"))])
}

fn guest(backend: &Backend) -> Guest {
    let queue_pairs = pairs(&backend.stats("a").port) as u16;
    backend.guest("a", &NetOptions { queue_pairs, ..options(0, Layout::Single) })
}

/// Frames of both ends until one has come through each way.
fn frames_pass(guest: &mut Guest, peer: &mut Peer, n: u32) {
    let mut came = [false; 2];
    wait_until("frames pass", || {
        guest.send_plain(&[frame(n, 100)]);
        let _ = peer.send_with(&[0; 10], &frame(n + 1, 100));
        came[0] |= peer.recv(Duration::from_millis(20)).is_some_and(|f| number(&f.bytes) == n);
        for pair in 0..guest.pairs.len() {
            came[1] |= guest.recv(pair, Duration::from_millis(20)).is_some_and(|f| number(&f.1) == n + 1);
        }
        came == [true; 2]
    });
}

#[test]
fn the_state_of_the_interface_is_among_the_statistics() {
    on_each_port(|port| {
        let backend = start(port, "ignore");
        let mut guest = guest(&backend);
        let mut peer = Peer::new("v1");
        frames_pass(&mut guest, &mut peer, 1);
        let told = || {
            let stats = backend.stats("a");
            (stats.port_state.interface, stats.port_state.interface_state)
        };
        assert_eq!(told(), ("v0".to_owned(), LinkState::Up));
        ip(&["link", "set", "v1", "down"]);
        wait_until("no carrier", || told().1 == LinkState::NoCarrier);
        ip(&["link", "set", "v0", "down"]);
        wait_until("down", || told().1 == LinkState::Down);
        ip(&["link", "del", "v0"]);
        wait_until("gone", || told().1 == LinkState::Gone);
    });
}

fn connect(backend: &Backend) -> std::io::Result<UnixStream> {
    UnixStream::connect(backend.stats("a").socket)
}

fn is_refused(backend: &Backend) -> bool {
    match connect(backend) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => true,
        Err(e) => panic!("{e}"),
        Ok(_) => false,
    }
}

fn is_up(backend: &Backend) -> bool {
    backend.stats("a").port_state.link.expect("a link that is followed").up
}

/// The earlier connection has ended, and the back end has no other one.
fn is_turned_away(guest: Guest, backend: &Backend, before: u64) {
    wait_until("the connection has ended", || !backend.stats("a").connected);
    let stats = backend.stats("a");
    let link = stats.port_state.link.expect("a link that is followed");
    assert_eq!((link.up, link.disconnects), (false, before + 1));
    assert_eq!((stats.connection_errors, stats.ring_errors), (0, 0));
    wait_until("nobody listens", || is_refused(backend));
    drop(guest);
    std::thread::sleep(Duration::from_millis(50));
    assert!(is_refused(backend), "the same process is refused as long as the link is down");
}

#[test]
fn a_guest_is_disconnected_while_the_interface_is_down_and_served_again_after() {
    on_each_port(|port| {
        let backend = start(port, "follow");
        let mut peer = Peer::new("v1");
        for (n, which) in (0..).zip(["v0", "v1", "v0"]) {
            let mut guest = guest(&backend);
            frames_pass(&mut guest, &mut peer, 10 * n);
            ip(&["link", "set", which, "down"]);
            is_turned_away(guest, &backend, u64::from(n));
            ip(&["link", "set", which, "up"]);
            wait_until("the link is up", || is_up(&backend));
        }
        let mut guest = guest(&backend);
        frames_pass(&mut guest, &mut peer, 100);
        assert_eq!(backend.stats("a").connections, 4);
    });
}

#[test]
fn an_interface_that_is_deleted_and_made_again_is_followed_as_well() {
    on_each_port(|port| {
        let backend = start(port, "follow");
        for n in 0..2u32 {
            let mut peer = Peer::new("v1");
            let mut guest = guest(&backend);
            frames_pass(&mut guest, &mut peer, 10 * n);
            drop(peer);
            ip(&["link", "del", "v0"]);
            is_turned_away(guest, &backend, n.into());
            veth("v0", "v1", pairs(port), 1500);
            wait_until("the link is up", || is_up(&backend));
        }
        frames_pass(&mut guest(&backend), &mut Peer::new("v1"), 100);
    });
}

#[test]
fn another_name_is_no_other_state() {
    in_netns(|| {
        let backend = start(PORTS[0], "follow");
        let mut peer = Peer::new("v1");
        let mut guest = guest(&backend);
        frames_pass(&mut guest, &mut peer, 10);
        // Frames pass before the back end has seen the carrier; until then it looks for the
        // interface by name.
        wait_until("the link is up", || is_up(&backend));
        ip(&["link", "set", "v0", "name", "other"]);
        ip(&["link", "add", "v0", "type", "bridge"]);
        std::thread::sleep(Duration::from_secs(1));
        frames_pass(&mut guest, &mut peer, 20);
        assert_eq!((backend.stats("a").connections, is_up(&backend)), (1, true));
        // The one that has the name is down, and so is the one that it had before.
        ip(&["link", "set", "other", "down"]);
        is_turned_away(guest, &backend, 0);
        ip(&["link", "set", "other", "up"]);
        std::thread::sleep(Duration::from_secs(1));
        assert!(!is_up(&backend), "front ends would get the one of that name");
    });
}

#[test]
fn without_it_a_guest_stays_connected() {
    on_each_port(|port| {
        let backend = start(port, "ignore");
        let mut peer = Peer::new("v1");
        let mut guest = guest(&backend);
        frames_pass(&mut guest, &mut peer, 10);
        for which in ["v0", "v1"] {
            ip(&["link", "set", which, "down"]);
            std::thread::sleep(Duration::from_secs(1));
            let stats = backend.stats("a");
            assert!(stats.connected && stats.port_state.link.is_none());
            ip(&["link", "set", which, "up"]);
        }
        frames_pass(&mut guest, &mut peer, 20);
        assert_eq!(backend.stats("a").connections, 1);
    });
}

#[test]
fn a_link_that_flaps_carries_frames_when_it_has_come_to_rest() {
    for port in [PORTS[0], PORTS[2]] {
        in_netns(move || {
            let backend = start(port, "follow");
            let mut guests = vec![guest(&backend)];
            for n in 0..20 {
                ip(&["link", "set", "v1", if n % 2 == 0 { "down" } else { "up" }]);
                if is_up(&backend) && !backend.stats("a").connected {
                    guests.push(guest(&backend));
                }
            }
            let stats = backend.stats("a");
            assert!(stats.connections <= 11 && stats.connection_errors == 0, "{stats:?}");
            drop(guests);
            wait_until("the link is up", || is_up(&backend) && !backend.stats("a").connected);
            frames_pass(&mut guest(&backend), &mut Peer::new("v1"), 100);
        });
    }
}

/// A front end that is a process of its own.
struct Other {
    process: Child,
}

const SOCKET: &str = "ZEROWIRE_TEST_SOCKET";

/// What the other process does, which is this program and its one test that starts it.
fn other_process(socket: &str) {
    let mut stream = UnixStream::connect(socket).expect("a connection");
    println!("\nconnected");
    assert_eq!(stream.read_to_end(&mut Vec::new()).expect("the end of the connection"), 0);
    println!("ended");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the end of the input");
}

impl Other {
    fn start(test: &str, socket: &str) -> (Self, BufReader<std::process::ChildStdout>) {
        let mut process = only(test)
            .env(SOCKET, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let out = BufReader::new(process.stdout.take().expect("its output"));
        (Self { process }, out)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn says(out: &mut impl BufRead, word: &str) {
    let mut line = String::new();
    while line.trim() != word {
        line.clear();
        assert!(out.read_line(&mut line).expect("output") > 0, "it ends before '{word}'");
    }
}

#[test]
fn a_front_end_that_starts_while_the_link_is_down_is_let_in_once() {
    if let Ok(socket) = std::env::var(SOCKET) {
        return other_process(&socket);
    }
    let test = this_test!();
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        ip(&["link", "set", "v1", "down"]);
        // The kernel takes up to a second to tell of a carrier that is gone
        // (net/core/link_watch.c).
        let interface = Interface::open("v0").expect("v0");
        wait_until("v0 has no carrier", || matches!(interface.up_and_running(), Ok((true, false))));
        let backend = Backend::start(&[Vm::on("a", "packet:v0,link=follow")]);
        let stats = backend.stats("a");
        assert!(!is_up(&backend));
        let (other, mut out) = Other::start(test, &stats.socket);
        says(&mut out, "connected");
        says(&mut out, "ended");
        assert_eq!(backend.stats("a").port_state.link.expect("a link").disconnects, 1);
        wait_until("nobody listens", || is_refused(&backend));
        for _ in 0..20 {
            assert!(is_refused(&backend), "as long as that process runs");
        }
        // Its process ends: whoever comes next has just started.
        drop(other);
        let mut stream = None;
        wait_until("another one is let in", || {
            stream = connect(&backend).ok();
            stream.is_some()
        });
        let mut stream = stream.expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        // `read` alone does not go on where it was interrupted.
        assert_eq!(stream.read_to_end(&mut Vec::new()).expect("the end of the connection"), 0);
        wait_until("this one is refused as well", || is_refused(&backend));
        ip(&["link", "set", "v1", "up"]);
        wait_until("the link is up", || is_up(&backend));
        frames_pass(&mut guest(&backend), &mut Peer::new("v1"), 100);
    });
}

/// A front end that announces its guest right when the interface goes down has broken no rule.
/// Where the link is not followed it alone gets an error.
#[test]
fn an_announcement_that_the_interface_does_not_take_is_no_error_of_a_front_end_that_is_disconnected() {
    in_netns(|| {
        for link in ["follow", "ignore"] {
            let backend = start("packet:v0,receive=socket", link);
            let mut guest = guest(&backend);
            frames_pass(&mut guest, &mut Peer::new("v1"), 7);
            ip(&["link", "set", "v0", "down"]);
            // At once: a link that is followed has to rest before it counts. Later there may be
            // nobody to send to.
            let sent = guest.driver.transport().send_rarp(crate::support::frames::GUEST_MAC);
            let told = || backend.stats("a").last_error.is_some_and(|e| e.contains("SEND_RARP"));
            if link == "follow" {
                wait_until("it is disconnected", || !backend.stats("a").connected);
                assert!(!told(), "{:?}", backend.stats("a").last_error);
            } else {
                assert!(sent.is_err(), "the interface is down");
                wait_until("the error is told", told);
            }
            assert_eq!(backend.stats("a").connection_errors, 0);
            ip(&["link", "del", "v0"]);
        }
    });
}

#[test]
fn a_descriptor_can_not_be_followed() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let dir = tempfile::tempdir().expect("a directory");
        let listening = UnixListener::bind(dir.path().join("s")).expect("a socket");
        let (near, mut far) = UnixStream::pair().expect("a pair");
        for socket in [OwnedFd::from(listening), near.into()] {
            let endpoint = Endpoint::of(socket);
            let config = |link: &str| {
                VmConfig::new(
                    "a",
                    endpoint.clone(),
                    format!("packet:v0,link={link}").parse().expect("a port"),
                )
            };
            let error = Server::start(vec![config("follow")]).err().expect("an error").to_string();
            assert!(error.contains("link=follow") && error.contains(&endpoint.to_string()), "{error}");
            assert!(error.contains("--socket PATH") && error.contains("link=ignore"), "{error}");
            drop(Server::start(vec![config("ignore")]).expect("a server"));
        }
        // Programs that other tests start have a copy until they are under way.
        wait_until("the servers have taken and closed the descriptors", || far.write(&[0]).is_err());
    });
}
