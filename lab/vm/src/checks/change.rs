//! Things that happen while traffic flows: the back end dies, memory is plugged,
//! the guest reboots, devices come and go.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use zerowire_vmtest::device::NetDevice;
use zerowire_vmtest::guest::Guest;
use zerowire_vmtest::runner::Env;

use super::setup::{HOST, HostPort, LINK, Net, Plan, VETH, write_metadata};
use super::traffic::{self, Background, Way};

/// Connections of the cycle test.
const CYCLES: u32 = 40;

/// Cycles before the first count: allocators and lazily made threads settle.
const WARM_UP: u32 = 5;

/// Growth that is taken for the allocator's own, KiB. A page leaked on each of 40
/// cycles, twice, is more.
const SLACK_KIB: u64 = 200;

/// New mappings that may be thread stacks and arenas that the C library keeps for
/// later. One leaked on each cycle is more.
const SLACK_MAPPINGS: usize = 8;

/// The back end is killed in the middle of a transfer; the guest and QEMU stay. The
/// connection survives and the transfer ends well.
pub fn restart(env: &Env<'_>) -> Result<String> {
    restart_on(env, Plan::default())
}

/// The same on an AF_XDP port with a metadata service, for whose answers some of the guest's
/// buffers are kept.
pub fn restart_xdp(env: &Env<'_>) -> Result<String> {
    let file = write_metadata(env.dir, &json!({"latest": {"meta-data": {"instance-id": "i-77"}}}))?;
    restart_on(env, Plan { port: HostPort::Xdp, metadata: Some(file), ..Plan::default() })
}

fn restart_on(env: &Env<'_>, plan: Plan) -> Result<String> {
    let answers = plan.metadata.is_some();
    let mut net = Net::start(env, Plan { reconnect: true, ..plan })?;
    net.wait_for_link()?;
    for way in [Way::ToGuest, Way::FromGuest] {
        let transfer = Background::start(&mut net, way)?;
        net.kill_and_restart()?;
        net.guest
            .until(&format!("grep -q 1 /sys/class/net/{}/carrier", net.interface), LINK)
            .context("carrier after the restart")?;
        net.wait_for_link()?;
        transfer.finish(&mut net).with_context(|| format!("{way:?}"))?;
    }
    if answers {
        traffic::ask_metadata(&mut net)?;
    }
    // Many times what the rings hold: a chain that is missing, or came back twice, is met again.
    traffic::file_both_ways(&mut net)?;
    let text = traffic::iperf_both_ways(&mut net, &[])?;
    // What its driver says of a chain that it had not lent (drivers/virtio/virtio_ring.c); it
    // leaves the ring alone then.
    let complaints = net.guest.sh("dmesg | grep -E 'is not a head|out of range' || true")?;
    ensure!(complaints.is_empty(), "the guest's driver: {complaints}");
    net.finish()?;
    Ok(text)
}

/// The MTU of an AF_XDP port's interface becomes smaller in the middle of a transfer: long frames
/// pass no more, short ones do. When it is raised again the transfer goes on and ends well.
pub fn mtu_xdp(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan { port: HostPort::Xdp, ..Plan::default() })?;
    net.wait_for_link()?;
    let mut dropped = 0;
    for way in [Way::ToGuest, Way::FromGuest] {
        let transfer = Background::start(&mut net, way)?;
        net.namespace.ip(&["link", "set", "dev", VETH, "mtu", "1000"])?;
        traffic::ping(&mut net).with_context(|| format!("short frames, {way:?}"))?;
        let long = net.guest.run(&format!("ping -c 2 -i 0.2 -W 1 -s 1400 {HOST}"), LINK)?;
        ensure!(long.status != 0, "long frames pass: {}", long.text);
        let ledger = net.ledger()?;
        let now = ledger.dropped(Way::FromGuest, "too_long");
        ensure!(now > dropped, "no frame was dropped, {way:?}: {ledger:?}");
        dropped = now;
        net.namespace.ip(&["link", "set", "dev", VETH, "mtu", "1500"])?;
        transfer.finish(&mut net).with_context(|| format!("{way:?}"))?;
    }
    traffic::file_both_ways(&mut net)?;
    let text = traffic::iperf_both_ways(&mut net, &[])?;
    let ledger = net.ledger()?;
    ledger.check_sound()?;
    let all = ledger.dropped(Way::FromGuest, "too_long");
    ensure!(all < dropped + 100, "{all} frames were too long, {dropped} of them while the MTU was smaller");
    net.backend.stop()?;
    Ok(format!("{all} frames were too long for the smaller MTU; {text}"))
}

/// How often the guest's memory is registered anew while frames pass one way.
const RENEWALS: usize = 10;

/// Memory is registered anew again and again while frames pass as fast as they can: no end waits
/// for a notification that nobody sends.
pub fn renewal_xdp(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan { port: HostPort::Xdp, ..Plan::default() })?;
    net.wait_for_link()?;
    let mut renewals = 0;
    for way in [Way::ToGuest, Way::FromGuest] {
        let transfer = Background::flood(&mut net, way)?;
        for _ in 0..RENEWALS {
            renewals += 1;
            // A larger MTU than ever before needs more room in the memory that is registered.
            let mtu = (1500 + 100 * renewals).to_string();
            net.namespace.ip(&["link", "set", "dev", VETH, "mtu", &mtu])?;
            transfer.wait_until_flowing(&mut net).with_context(|| format!("{way:?}, MTU {mtu}"))?;
        }
        transfer.finish(&mut net).with_context(|| format!("{way:?}"))?;
    }
    let log = net.backend.log_text();
    let seen = log.lines().filter(|line| line.contains("memory is registered anew for it")).count();
    ensure!(seen == renewals, "memory was registered anew {seen} times, not {renewals}");
    // A frame that is under way at that moment may be lost.
    net.ledger()?.check_sound()?;
    net.backend.stop()?;
    Ok(format!("registered anew {renewals} times"))
}

/// Memory is plugged in the middle of a transfer, and used for frames afterwards.
pub fn memory_plug(env: &Env<'_>) -> Result<String> {
    memory_plug_on(env, Plan::default())
}

/// The same while the memory is AF_XDP's.
pub fn memory_plug_xdp(env: &Env<'_>) -> Result<String> {
    memory_plug_on(env, Plan { port: HostPort::Xdp, ..Plan::default() })
}

fn memory_plug_on(env: &Env<'_>, plan: Plan) -> Result<String> {
    let mut net = Net::start(env, plan)?;
    net.wait_for_link()?;
    for (id, way) in [("dimm0", Way::ToGuest), ("dimm1", Way::FromGuest)] {
        let transfer = Background::start(&mut net, way)?;
        net.guest.plug_memory(id, 256)?;
        transfer.finish(&mut net).with_context(|| format!("{way:?}"))?;
    }
    traffic::file_both_ways(&mut net)?;
    let text = traffic::iperf_both_ways(&mut net, &[])?;
    // The memory from the start lies below 4 GiB, in zone DMA32; the kernel takes
    // from zone Normal, which holds the plugged memory, first.
    let used: u64 = net
        .guest
        .sh("awk '/zone/{n=($4==\"Normal\")} n&&/pages free/{f=$3} n&&/managed/{m=$2} END{print m-f}' /proc/zoneinfo")?
        .parse()
        .context("pages in use in zone Normal")?;
    ensure!(used > 1000, "only {used} pages of the plugged memory are in use");
    net.finish()?;
    Ok(text)
}

/// The machine is reset, and the guest reboots, with the device in place; its driver sets the
/// queues up anew.
pub fn reboot(env: &Env<'_>) -> Result<String> {
    reboot_on(env, Plan::default(), &[Guest::reset, Guest::reboot])
}

/// A reset on an AF_XDP port.
pub fn reboot_xdp(env: &Env<'_>) -> Result<String> {
    reboot_on(env, Plan { port: HostPort::Xdp, ..Plan::default() }, &[Guest::reset])
}

fn reboot_on(env: &Env<'_>, plan: Plan, ways: &[fn(&mut Guest) -> Result<()>]) -> Result<String> {
    let mut net = Net::start(env, plan)?;
    traffic::ping(&mut net)?;
    for begin in ways {
        begin(&mut net.guest)?;
        net.set_guest_address()?;
        traffic::ping(&mut net)?;
        traffic::file_both_ways(&mut net)?;
    }
    net.finish()?;
    Ok(String::new())
}

/// Forty times the guest gets the device, uses it and gives it back. As often QEMU connects
/// without a device. Nothing is left behind in the back end.
pub fn cycles(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan::default())?;
    net.wait_for_link()?;
    let device = net.device.clone();
    device.unplug(&mut net.guest)?;
    let mut before = None;
    for cycle in 0..WARM_UP + CYCLES {
        if cycle == WARM_UP {
            before = Some(net.backend.holdings_at_rest()?);
        }
        one_cycle(&mut net, &device).with_context(|| format!("cycle {cycle}"))?;
    }
    let before = before.context("no count before the cycles")?;
    let after = net.backend.holdings_at_rest()?;
    ensure!(after.guest_mappings == 0, "guest memory is still mapped: {after:?}");
    ensure!(after.descriptors == before.descriptors, "descriptors: {before:?}, then {after:?}");
    ensure!(after.mappings <= before.mappings + SLACK_MAPPINGS, "mappings: {before:?}, then {after:?}");
    ensure!(after.pinned_kib <= before.pinned_kib, "pinned memory: {before:?}, then {after:?}");
    ensure!(
        after.resident_kib <= before.resident_kib + SLACK_KIB,
        "resident memory: {before:?}, then {after:?}"
    );
    // And it still works.
    net.interface = device.plug(&mut net.guest)?;
    net.set_guest_address()?;
    traffic::ping(&mut net)?;
    traffic::file_both_ways(&mut net)?;
    net.finish()?;
    Ok(format!(
        "{} descriptors; {} mappings and {} KiB before, {} and {} after",
        before.descriptors, before.mappings, before.resident_kib, after.mappings, after.resident_kib
    ))
}

fn one_cycle(net: &mut Net, device: &NetDevice) -> Result<()> {
    net.interface = device.plug(&mut net.guest)?;
    net.set_guest_address()?;
    net.wait_for_link()?;
    device.unplug(&mut net.guest)?;
    device.connect(&mut net.guest)?;
    device.disconnect(&mut net.guest)
}
