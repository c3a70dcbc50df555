//! A pair of interfaces for AF_XDP: one end for the back end, the other for a peer.

use std::process::Command;

/// Makes `port` and `peer`, up, in this thread's network namespace, with `queues` queues each and this MTU.
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
}

/// Runs `ip` with these arguments, which must succeed.
pub fn ip(arguments: &[&str]) {
    let done = Command::new("ip").args(arguments).output().expect("the program ip (iproute2) to be there");
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "ip {}: {error}", arguments.join(" "));
}
