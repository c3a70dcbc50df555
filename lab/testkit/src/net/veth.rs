//! A pair of interfaces for AF_XDP: one end for the back end, the other for a peer.

use std::process::Command;
use std::time::Duration;

use super::{ip, run};

/// Makes `port` and `peer`, up, in this thread's network namespace, with `queues` queues each and
/// this MTU.
pub fn veth(port: &str, peer: &str, queues: usize, mtu: usize) {
    let queues = queues.to_string();
    let mtu = mtu.to_string();
    ip(&[
        "link",
        "add",
        port,
        "numrxqueues",
        &queues,
        "numtxqueues",
        &queues,
        "type",
        "veth",
        "peer",
        "name",
        peer,
        "numrxqueues",
        &queues,
        "numtxqueues",
        &queues,
    ]);
    for name in [port, peer] {
        ip(&["link", "set", name, "mtu", &mtu, "up"]);
    }
    wait_for_carrier(port, peer);
}

/// The same for a port that waits for an interface of this name: it finds one that carries frames.
/// Under its own name it would take the frames that show that.
pub fn veth_for_who_waits(port: &str, peer: &str, queues: usize, mtu: usize) {
    veth("notyet", peer, queues, mtu);
    ip(&["link", "set", "notyet", "name", port]);
}

/// Waits until the pair carries frames both ways. The kernel starts the queues of an interface some
/// time after its other end came up, and throws away what is sent before.
fn wait_for_carrier(a: &str, b: &str) {
    let probe = crate::frames::frame(u32::MAX, 60);
    let (mut a, mut b) = (super::Peer::new(a), super::Peer::new(b));
    let mut carries = |from_a: bool| {
        let (from, to) = if from_a { (&a, &mut b) } else { (&b, &mut a) };
        crate::wait_until("the pair carries frames", || {
            from.send(&probe);
            std::iter::from_fn(|| to.recv(Duration::from_millis(5))).any(|f| f.bytes == probe)
        });
    };
    carries(true);
    carries(false);
}

/// How many users have made the interface promiscuous (`promiscuity`, IFLA_PROMISCUITY).
pub fn promiscuity(name: &str) -> u32 {
    let out =
        Command::new("ip").args(["-d", "link", "show", name]).output().expect("the program ip (iproute2)");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut words = text.split_ascii_whitespace().skip_while(|w| *w != "promiscuity");
    words.nth(1).and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no promiscuity of {name}: {text}"))
}

/// Puts a bridge behind interface `port`, and behind that a link between two new interfaces, so
/// slow that frames stay in the kernel. Returns a socket on its end.
pub fn slow_peer(port: &str, near: &str, far: &str) -> super::Peer {
    veth(near, far, 1, 1500);
    ip(&["link", "add", "br0", "type", "bridge"]);
    for name in [port, near] {
        ip(&["link", "set", name, "master", "br0"]);
    }
    ip(&["link", "set", "br0", "up"]);
    let shaper = ["root", "tbf", "rate", "30mbit", "burst", "3000", "limit", "10000000"];
    run("tc", &[&["qdisc", "add", "dev", near][..], &shaper].concat());
    super::Peer::new(far)
}
