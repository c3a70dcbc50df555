//! The guest sees whether its port's interface can carry frames.

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::runner::Env;

use super::setup::{HostPort, LINK, Net, Plan, TAP, VETH, set_host_up};
use super::traffic;

/// Down by command, without a carrier, and deleted: the guest's carrier goes and comes back, and
/// frames pass again. A device that is plugged while the link is down is there, and its link is
/// down, too.
pub fn state(env: &Env<'_>) -> Result<String> {
    let plan = Plan { reconnect: true, port: HostPort::Packet("auto"), follow_link: true, ..Plan::default() };
    let mtu = plan.mtu;
    let mut net = Net::start(env, plan)?;
    carrier(&mut net, true)?;
    traffic::ping(&mut net)?;
    for interface in [VETH, TAP, VETH] {
        net.namespace.ip(&["link", "set", "dev", interface, "down"])?;
        carrier(&mut net, false).with_context(|| format!("{interface} is down"))?;
        net.namespace.ip(&["link", "set", "dev", interface, "up"])?;
        carrier(&mut net, true).with_context(|| format!("{interface} is up"))?;
        net.wait_for_link()?;
        traffic::ping(&mut net)?;
    }
    net.namespace.ip(&["link", "del", "dev", VETH])?;
    carrier(&mut net, false).context("the interface is gone")?;
    net.namespace.ip(&["link", "add", VETH, "type", "veth", "peer", "name", TAP])?;
    net.namespace.ip(&["link", "set", "dev", VETH, "up"])?;
    set_host_up(&net.namespace, mtu)?;
    carrier(&mut net, true).context("the interface is there again")?;
    net.wait_for_link()?;
    traffic::file_both_ways(&mut net)?;

    let device = net.device.clone();
    device.unplug(&mut net.guest)?;
    net.namespace.ip(&["link", "set", "dev", TAP, "down"])?;
    net.interface = device.plug(&mut net.guest).context("plug while the link is down")?;
    net.set_guest_address()?;
    carrier(&mut net, false).context("plugged while the link is down")?;
    set_host_up(&net.namespace, mtu)?;
    carrier(&mut net, true).context("the link is up again")?;
    net.wait_for_link()?;
    traffic::file_both_ways(&mut net)?;

    let ledger = net.ledger()?;
    ledger.check_sound()?;
    let (connections, disconnects) = (ledger.number("connections")?, ledger.disconnects()?);
    ensure!(disconnects == 5, "{disconnects} disconnects, not 5");
    net.backend.stop()?;
    Ok(format!("{connections} connections, {disconnects} ended with the link"))
}

/// Waits until the guest's carrier is so.
fn carrier(net: &mut Net, on: bool) -> Result<()> {
    let (interface, value) = (net.interface.clone(), u8::from(on));
    net.guest
        .until(&format!("grep -q {value} /sys/class/net/{interface}/carrier"), LINK)
        .with_context(|| format!("carrier {value}"))?;
    Ok(())
}
