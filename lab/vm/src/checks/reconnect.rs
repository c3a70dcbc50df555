//! A VM gets another port while frames flow (`PATCH /vms/NAME?reconnect`), and QEMU connects again
//! by itself.
//!
//! ```text
//!                                  ┌─ tap0 ───────┐
//!  guest 10.77.0.2 ─ zerowire net ─┼─ tap1 ───────┼─ br0 10.77.0.1
//!                                  └─ zw0 ─ far0 ─┘
//! ```

use std::path::Path;

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::command::wait_for;
use zerowire_vmtest::netns::Netns;
use zerowire_vmtest::runner::Env;

use super::setup::{HOST, LINK, NAME, Net, Plan, TAP, VETH, ctl, refused};
use super::traffic::{self, Background, Way};

const BRIDGE: &str = "br0";
const OTHER_TAP: &str = "tap1";
/// The end of the veth that is at the bridge.
const FAR: &str = "far0";

/// What is at the bridge.
const MEMBERS: [&str; 3] = [TAP, OTHER_TAP, FAR];

/// A connection goes on over each port that the VM gets, and over that one alone. The guest sees
/// its link go and come, and nothing else. A change that can't be carried out leaves the port as it
/// is, or gives it back.
pub fn ports(env: &Env<'_>) -> Result<String> {
    let control = env.dir.join("control");
    let plan = Plan { reconnect: true, control: Some(control.clone()), ..Plan::default() };
    let mut net = Net::start_in(env, plan, network()?)?;
    bridge(&mut net)?;
    let seen = device(&mut net)?;
    let links = link_changes(&mut net)?;
    let transfer = Background::start(&mut net, Way::FromGuest)?;
    for (port, member) in [("tap:tap1", OTHER_TAP), ("packet:zw0", FAR), ("tap:tap0", TAP)] {
        change(&control, port)?;
        let before = frames(&net)?;
        carrier(&mut net).context(port)?;
        transfer.wait_until_flowing(&mut net).context(port)?;
        traffic::ping(&mut net).context(port)?;
        let now = device(&mut net)?;
        ensure!(now == seen, "{port}: the guest's device was {seen}, and is {now}");
        for ((name, before), after) in MEMBERS.iter().zip(before).zip(frames(&net)?) {
            ensure!(
                (after > before) == (*name == member),
                "{port}: {name} had {before} frames, then {after}"
            );
        }
        let ledger = net.check().context(port)?;
        let (now, connections) = (ledger.port()?, ledger.number("connections")?);
        ensure!(now.starts_with(port) && connections == 1, "{port}: {now}, {connections} connections");
        for way in [Way::FromGuest, Way::ToGuest] {
            ensure!(ledger.count(way, "frames")? > 0, "{port}: no frames, {way:?}: {ledger:?}");
        }
    }
    // A guest that is slow may miss one.
    ensure!(link_changes(&mut net)? >= links + 2, "the guest's link never went");
    not_carried_out(&mut net, &control)?;
    fewer_features(&mut net, &control)?;
    transfer.finish(&mut net)?;
    traffic::file_both_ways(&mut net)?;
    net.finish()?;
    Ok(String::new())
}

fn not_carried_out(net: &mut Net, control: &Path) -> Result<()> {
    let links = link_changes(net)?;
    for port in ["packet:gone0", "xdp:gone0"] {
        let text = refused(control, &["change", NAME, "--reconnect", "--port", port])?;
        ensure!(text.contains("gone0"), "{port}: {text}");
    }
    traffic::ping(net)?;
    let ledger = net.check()?;
    ensure!(ledger.number("connections")? == 1, "a change that was refused: {ledger:?}");
    ensure!(link_changes(net)? == links, "the guest's link went, and the change was refused");

    // The tap has one queue, which is seen when the VM has let it go.
    let text = refused(control, &["change", NAME, "--reconnect", "--port", "tap:tap0,queues=2"])?;
    ensure!(text.contains("has its old settings again"), "{text}");
    carrier(net)?;
    traffic::ping(net)?;
    net.check().map(drop)
}

/// An AF_XDP port lacks offloads that the guest has. QEMU leaves by itself, again and again, and
/// the log says why that may be. The port before has all that the guest needs.
fn fewer_features(net: &mut Net, control: &Path) -> Result<()> {
    change(control, "xdp:zw0")?;
    wait_for("the remedy in the log", LINK, || {
        Ok(net.backend.log_text().contains("features that this device does not offer").then_some(()))
    })?;
    net.guest.sh(&format!("grep -q 0 /sys/class/net/{}/carrier", net.interface))?;
    change(control, "tap:tap0")?;
    carrier(net)?;
    net.check().map(drop)
}

/// A namespace with what the VM can have. Its kernel sends nothing through [`VETH`] that would be
/// taken for the guest's: no IPv6, and no answers to the guest's own ARP.
fn network() -> Result<Netns> {
    let namespace = Netns::new()?;
    let setting = Path::new("/proc/sys/net/ipv6/conf/default/disable_ipv6");
    namespace.inside(|| if setting.exists() { Ok(std::fs::write(setting, "1")?) } else { Ok(()) })?;
    for tap in [TAP, OTHER_TAP] {
        namespace.ip(&["tuntap", "add", tap, "mode", "tap", "vnet_hdr"])?;
    }
    namespace.ip(&["link", "add", VETH, "arp", "off", "type", "veth", "peer", "name", FAR])?;
    namespace.ip(&["link", "add", BRIDGE, "type", "bridge"])?;
    for member in MEMBERS {
        namespace.ip(&["link", "set", "dev", member, "master", BRIDGE])?;
    }
    for interface in [TAP, OTHER_TAP, VETH, FAR, BRIDGE] {
        namespace.ip(&["link", "set", "dev", interface, "up"])?;
    }
    Ok(namespace)
}

/// The host's address goes from the first tap to the bridge.
fn bridge(net: &mut Net) -> Result<()> {
    let address = format!("{HOST}/24");
    net.namespace.ip(&["addr", "del", &address, "dev", TAP])?;
    net.namespace.ip(&["addr", "add", &address, "dev", BRIDGE])?;
    net.host_end = BRIDGE;
    net.wait_for_link()
}

fn change(control: &Path, port: &str) -> Result<()> {
    ctl(control, &["change", NAME, "--reconnect", "--port", port]).map(drop)
}

/// How many frames came out of each port to the bridge.
fn frames(net: &Net) -> Result<[u64; 3]> {
    let mut all = [0; 3];
    for (count, member) in all.iter_mut().zip(MEMBERS) {
        let frames = net.counters(member)?["rx"]["packets"].as_u64();
        *count = frames.with_context(|| format!("no frames of {member}"))?;
    }
    Ok(all)
}

/// What the guest's driver has agreed on, and its interface.
fn device(net: &mut Net) -> Result<String> {
    let show = "cat device/features address mtu tx_queue_len; ls queues";
    net.guest.sh(&format!("cd /sys/class/net/{} && ({show}) | xargs echo", net.interface))
}

/// How often the guest's carrier went or came.
fn link_changes(net: &mut Net) -> Result<u64> {
    let count = net.guest.sh(&format!("cat /sys/class/net/{}/carrier_changes", net.interface))?;
    count.parse().context("carrier_changes")
}

/// Waits until the guest's carrier is back and the host answers.
fn carrier(net: &mut Net) -> Result<()> {
    net.guest.until(&format!("grep -q 1 /sys/class/net/{}/carrier", net.interface), LINK)?;
    net.wait_for_link()
}
