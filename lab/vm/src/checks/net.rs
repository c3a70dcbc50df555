//! `zerowire net` carries a stock guest's traffic, with each feature on and off.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use zerowire_vmtest::assets::Kernel;
use zerowire_vmtest::guest::COMMAND;
use zerowire_vmtest::runner::Env;

use super::ledger::check_zero_copied;
use super::setup::{GUEST, HOST, HostPort, LeftOut, Net, Plan, write_metadata};
use super::traffic::{self, Way};

/// Feature bits of the device and of virtio itself (virtio 1.3, 5.1.3 and 6).
const CHECKSUM: &[(usize, &str)] = &[(0, "CSUM"), (1, "GUEST_CSUM")];
const SEGMENTATION: &[(usize, &str)] =
    &[(7, "GUEST_TSO4"), (8, "GUEST_TSO6"), (11, "HOST_TSO4"), (12, "HOST_TSO6")];
const MERGEABLE: (usize, &str) = (15, "MRG_RXBUF");
const MULTIQUEUE: (usize, &str) = (22, "MQ");
const MTU: (usize, &str) = (3, "MTU");
const TRANSPORT: &[(usize, &str)] = &[(28, "RING_INDIRECT_DESC"), (29, "RING_EVENT_IDX"), (32, "VERSION_1")];
const ACCESS_PLATFORM: (usize, &str) = (33, "ACCESS_PLATFORM");
const IN_ORDER: (usize, &str) = (35, "IN_ORDER");

/// Everything on: ping, a file and iperf3, both ways.
pub fn full(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan::default())?;
    net.expect_features(true, CHECKSUM)?;
    net.expect_features(true, SEGMENTATION)?;
    net.expect_features(true, TRANSPORT)?;
    net.expect_features(true, &[MERGEABLE])?;
    carry_zero_copied(net)
}

/// The same over a packet port, on a veth.
pub fn packet(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan { port: HostPort::Packet("auto"), ..Plan::default() })?;
    net.expect_features(true, CHECKSUM)?;
    net.expect_features(true, SEGMENTATION)?;
    net.expect_features(true, &[MERGEABLE])?;
    carry_zero_copied(net)
}

/// The same, with frames of the guest copied into a ring, and short frames to it out of one.
pub fn packet_ring(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan { port: HostPort::Packet("on"), ..Plan::default() })?;
    traffic::ping(&mut net)?;
    traffic::file_both_ways(&mut net)?;
    let text = traffic::iperf_both_ways(&mut net, &[])?;
    let ledger = net.ledger()?;
    let (bytes, copied) = (ledger.count(Way::FromGuest, "bytes")?, ledger.copied(Way::FromGuest, "outside"));
    ensure!(bytes == copied && bytes > 0, "{copied} of {bytes} bytes went by the ring");
    let (short, long) =
        (ledger.copied(Way::ToGuest, "outside"), ledger.count(Way::ToGuest, "zero_copied_bytes")?);
    ensure!(short > 0 && long > 0, "{short} bytes came by the receive ring, {long} by the socket");
    net.finish()?;
    Ok(text)
}

/// The same over an AF_XDP port: the guest leaves checksums and segmentation to it, and gets frames
/// as they are on the wire.
pub fn xdp(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan { port: HostPort::Xdp, ..Plan::default() })?;
    net.expect_features(true, &[CHECKSUM[0], SEGMENTATION[2], SEGMENTATION[3], MERGEABLE])?;
    net.expect_features(false, &[CHECKSUM[1], SEGMENTATION[0], SEGMENTATION[1]])?;
    // What is completed and cut for the guest is copied on the way.
    let text = carry_share(&mut net, [SHARE, 0])?;
    let copied = net.ledger()?.copied(Way::FromGuest, "cheaper");
    ensure!(copied > 0, "nothing was cut for the guest");
    net.finish()?;
    Ok(text)
}

/// The same to a guest without offloads and without mergeable buffers: all frames are where the
/// guest has them.
pub fn xdp_plain(env: &Env<'_>) -> Result<String> {
    let plan =
        Plan { port: HostPort::Xdp, left_out: &[LeftOut::Mergeable, LeftOut::Offloads], ..Plan::default() };
    let mut net = Net::start(env, plan)?;
    net.expect_features(false, &[MERGEABLE])?;
    net.expect_features(false, CHECKSUM)?;
    carry_zero_copied(net)
}

/// Over a packet port to a guest without offloads, while the other end of the veth makes use of
/// them.
pub fn packet_no_offloads(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(
        env,
        Plan { port: HostPort::Packet("off"), left_out: &[LeftOut::Offloads], ..Plan::default() },
    )?;
    net.expect_features(false, CHECKSUM)?;
    carry(net)
}

/// No checksum, no segmentation offload: every frame fits the MTU.
pub fn no_offloads(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan { left_out: &[LeftOut::Offloads], ..Plan::default() })?;
    net.expect_features(false, CHECKSUM)?;
    net.expect_features(false, SEGMENTATION)?;
    carry(net)
}

/// A received frame must fit one chain; with segmentation offload these are long.
pub fn no_mergeable(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan { left_out: &[LeftOut::Mergeable], ..Plan::default() })?;
    net.expect_features(false, &[MERGEABLE])?;
    net.expect_features(true, SEGMENTATION)?;
    carry_zero_copied(net)
}

/// Neither.
pub fn plain(env: &Env<'_>) -> Result<String> {
    let plan = Plan { left_out: &[LeftOut::Mergeable, LeftOut::Offloads], ..Plan::default() };
    let mut net = Net::start(env, plan)?;
    net.expect_features(false, &[MERGEABLE])?;
    net.expect_features(false, CHECKSUM)?;
    carry(net)
}

/// Two queue pairs, several connections at once.
pub fn two_queues(env: &Env<'_>) -> Result<String> {
    both_queues(env, HostPort::Tap)
}

/// The same on two queues of a veth.
pub fn two_queues_xdp(env: &Env<'_>) -> Result<String> {
    both_queues(env, HostPort::Xdp)
}

fn both_queues(env: &Env<'_>, port: HostPort) -> Result<String> {
    let mut net = Net::start(env, Plan { port, queue_pairs: 2, ..Plan::default() })?;
    net.expect_features(true, &[MULTIQUEUE])?;
    let queues = net.guest.sh(&format!("ls /sys/class/net/{}/queues", net.interface))?;
    ensure!(queues.contains("rx-1") && queues.contains("tx-1"), "the guest uses only: {queues}");
    traffic::ping(&mut net)?;
    traffic::file_both_ways(&mut net)?;
    let text = traffic::iperf_both_ways(&mut net, &["-P", "4"])?;
    let ledger = net.ledger()?;
    for way in [Way::ToGuest, Way::FromGuest] {
        let frames = ledger.frames_by_queue(way);
        ensure!(frames.len() == 2 && frames.iter().all(|&n| n > 0), "frames by queue, {way:?}: {frames:?}");
    }
    net.finish()?;
    Ok(text)
}

/// Datagrams far longer than the MTU: the guest's kernel and the host's cut them where
/// the device can't, and the other end puts them together.
pub fn large_datagrams(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan::default())?;
    traffic::ping(&mut net)?;
    let to = traffic::datagrams(&mut net, Way::ToGuest)?;
    let from = traffic::datagrams(&mut net, Way::FromGuest)?;
    net.finish()?;
    Ok(format!("{to} datagrams of {} bytes to the guest, {from} from it", traffic::DATAGRAM_BYTES))
}

/// Chains are used in order, which a new guest is promised and an old one does not ask for. No back
/// end is killed here: QEMU 10.0.2 loops for good where frames wait in the ring then.
pub fn in_order(env: &Env<'_>) -> Result<String> {
    keeps_order(env, HostPort::Tap)
}

/// The same over a packet port.
pub fn in_order_packet(env: &Env<'_>) -> Result<String> {
    keeps_order(env, HostPort::Packet("auto"))
}

fn keeps_order(env: &Env<'_>, port: HostPort) -> Result<String> {
    let promised = env.machine.kernel == Kernel::New;
    let mut net = Net::start(env, Plan { port, turned_on: &["in_order"], ..Plan::default() })?;
    net.expect_features(promised, &[IN_ORDER])?;
    net.ledger()?.expect(&["IN_ORDER"], promised)?;
    let text = carry_share(&mut net, [SHARE, SHARE])?;
    traffic::datagrams(&mut net, Way::FromGuest)?;
    // What its driver says of a chain out of order (drivers/virtio/virtio_ring.c); it leaves the
    // ring alone then.
    let complaints = net.guest.sh("dmesg | grep -E 'is not a head|out of range' || true")?;
    ensure!(complaints.is_empty(), "the guest's driver: {complaints}");
    net.finish()?;
    Ok(text)
}

/// QEMU asks no network back end for the configuration space: one that would tell it is used like
/// any other.
pub fn config_space(env: &Env<'_>) -> Result<String> {
    let mac = "52:54:00:12:34:56";
    let mut net = Net::start(env, Plan { mac: Some(mac.into()), ..Plan::default() })?;
    let seen = net.guest.sh(&format!("cat /sys/class/net/{}/address", net.interface))?;
    ensure!(
        seen == net.device.mac(),
        "the guest's address is {seen}, where QEMU was given {}",
        net.device.mac()
    );
    carry_zero_copied(net)
}

/// A connected device without traffic costs nothing: its threads sleep.
pub fn idle(env: &Env<'_>) -> Result<String> {
    /// Long enough for two clock ticks of anything that runs a hundredth of the time.
    const WINDOW: Duration = Duration::from_secs(2);
    /// Wake-ups for a frame, at most.
    const WAKES_A_FRAME: u64 = 8;
    /// The main thread goes back to sleep after it has told the counters.
    const WAKES_OF_READING: u64 = 2;
    let mut net = Net::start(env, Plan::default())?;
    traffic::ping(&mut net)?;
    // Address configuration of IPv6 sends frames of its own for some seconds.
    let quiet = format!("sysctl -qw net.ipv6.conf.{}.disable_ipv6=1", net.interface);
    net.guest.sh(&quiet)?;
    let frames = |net: &mut Net| -> Result<u64> {
        let ledger = net.ledger()?;
        Ok(ledger.count(Way::ToGuest, "frames")? + ledger.count(Way::FromGuest, "frames")?)
    };
    let frames_before = frames(&mut net)?;
    let before = net.backend.effort()?;
    std::thread::sleep(WINDOW);
    let after = net.backend.effort()?;
    let moved = frames(&mut net)? - frames_before;
    let ticks = after.ticks - before.ticks;
    let wakes = after.switches - before.switches;
    ensure!(ticks <= 1, "{ticks} clock ticks of CPU time in {WINDOW:?} for {moved} frames");
    ensure!(
        wakes <= WAKES_OF_READING + WAKES_A_FRAME * moved,
        "{wakes} wake-ups in {WINDOW:?} for {moved} frames"
    );
    net.finish()?;
    Ok(format!("{ticks} clock ticks and {wakes} wake-ups in {WINDOW:?}, {moved} frames"))
}

/// An MTU of 9000 bytes with segmentation offload.
pub fn jumbo(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan { mtu: 9000, ..Plan::default() })?;
    check_jumbo(&mut net)?;
    carry_zero_copied(net)
}

/// The same without offloads, so that TCP's frames have this length on the ring.
pub fn jumbo_no_offloads(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan { mtu: 9000, left_out: &[LeftOut::Offloads], ..Plan::default() })?;
    check_jumbo(&mut net)?;
    carry_zero_copied(net)
}

fn check_jumbo(net: &mut Net) -> Result<()> {
    net.expect_features(true, &[MTU])?;
    let mtu = net.guest.sh(&format!("cat /sys/class/net/{}/mtu", net.interface))?;
    ensure!(mtu == "9000", "the guest took MTU {mtu} from the device, not 9000");
    net.wait_for_link()?;
    // 8972 bytes, 8 of ICMP, 20 of IP: a frame of 9000 bytes, whole each way.
    let line = ["ping", "-c", "3", "-i", "0.1", "-W", "5", "-M", "do", "-s", "8972", GUEST];
    net.on_host(&line, COMMAND)?;
    net.guest.sh(&format!("ping -c 3 -W 5 -s 8972 {HOST}"))?;
    Ok(())
}

/// The device may be behind an IOMMU as far as the guest knows.
pub fn access_platform(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan { turned_on: &["iommu_platform"], ..Plan::default() })?;
    net.expect_features(true, &[ACCESS_PLATFORM])?;
    carry_zero_copied(net)
}

fn carry(mut net: Net) -> Result<String> {
    traffic::ping(&mut net)?;
    traffic::file_both_ways(&mut net)?;
    let text = traffic::iperf_both_ways(&mut net, &[])?;
    net.finish()?;
    Ok(text)
}

/// Percent of the bytes. The rest is what the ledger names: headers that are inspected, and small
/// frames.
const SHARE: u64 = 90;

/// As [`carry`], and nearly all payload goes without a copy in user space, both ways.
fn carry_zero_copied(mut net: Net) -> Result<String> {
    let text = carry_share(&mut net, [SHARE, SHARE])?;
    net.finish()?;
    Ok(text)
}

/// The traffic of [`carry`]. Of its payload at least these shares, to the guest and from it, go
/// without a copy in user space.
fn carry_share(net: &mut Net, percent: [u64; 2]) -> Result<String> {
    traffic::ping(net)?;
    traffic::file_both_ways(net)?;
    let mut text = Vec::new();
    let ways = [(Way::ToGuest, "to the guest"), (Way::FromGuest, "from it")];
    for ((way, words), percent) in ways.into_iter().zip(percent) {
        let before = net.ledger()?;
        let rate = traffic::iperf(net, way, &[])?;
        let share = check_zero_copied(&before, &net.ledger()?, way, percent)?;
        text.push(format!("{rate:.0} Mbit/s {words} ({share} % zero-copied)"));
    }
    Ok(text.join(", "))
}

/// The same by IPv6, with curl and wget, and a token of its own.
fn metadata_by_ipv6(net: &mut Net) -> Result<()> {
    net.guest.sh(&format!("ip -6 route replace fd00:ec2::254 dev {}", net.interface))?;
    let base = "http://[fd00:ec2::254]/latest";
    // The guest's own address may still be looked for on the link.
    let curl = "curl -g -sS -m 15 --retry 20 --retry-all-errors --retry-delay 1";
    net.guest.sh(&format!(
        "{curl} -f -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' {base}/api/token >/tmp/token6"
    ))?;
    for get in [format!("{curl} -f -H"), "wget -q -O - --header".into()] {
        let value = net
            .guest
            .sh(&format!("{get} \"X-metadata-token: $(cat /tmp/token6)\" {base}/meta-data/instance-id"))?;
        ensure!(value == "i-77", "{get}: instance-id is '{value}'");
    }
    Ok(())
}

/// A client behind the guest's own routing gets answers, but no token: the guest's kernel does not
/// forward hop limit 1.
fn metadata_from_a_container(net: &mut Net) -> Result<()> {
    net.guest.sh(
        "sysctl -qw net.ipv4.ip_forward=1 && unshare -n sleep 1000 >/dev/null & echo $! >/tmp/container; \
         until [ $(readlink /proc/$(cat /tmp/container)/ns/net) != $(readlink /proc/self/ns/net) ]; do sleep 0.1; done; \
         ip link add type veth && ip link set veth1 netns $(cat /tmp/container) && \
         ip addr add 10.88.0.1/24 dev veth0 && ip link set veth0 up",
    )?;
    let inside = "nsenter -n -t $(cat /tmp/container)";
    net.guest.sh(&format!(
        "{inside} ip addr add 10.88.0.2/24 dev veth1 && {inside} ip link set veth1 up && \
         {inside} ip route add default via 10.88.0.1"
    ))?;
    let curl = "curl -sS -o /dev/null -w %{http_code}";
    let base = "http://169.254.169.254/latest";
    let get = net.guest.sh(&format!("{inside} {curl} -m 15 {base}/"))?;
    ensure!(get == "401", "a GET without a token from a container gets {get}");
    let put = format!("{inside} {curl} -m 5 -X PUT -H 'X-metadata-token-ttl-seconds: 60' {base}/api/token");
    let put = net.guest.sh(&format!("{put} 2>/dev/null || echo none"))?;
    ensure!(put == "000none", "a PUT from a container gets {put}");
    net.guest.sh("kill $(cat /tmp/container)")?;
    Ok(())
}

/// A cloud guest's way to its metadata: a token by PUT, then GET. The back end is set
/// up by a configuration file.
pub fn metadata(env: &Env<'_>) -> Result<String> {
    let tree = json!({"latest": {"meta-data": {"instance-id": "i-77", "tags": {"a": "1", "b": "2"}}}});
    let file = write_metadata(env.dir, &tree)?;
    let mut net = Net::start(env, Plan { metadata: Some(file), config: true, ..Plan::default() })?;
    net.wait_for_link()?;
    traffic::ask_metadata(&mut net)?;
    let base = "http://169.254.169.254/latest";
    let curl = "curl -sS -m 15";
    let put = format!("{curl} -f -X PUT -H 'X-metadata-token-ttl-seconds: 60' {base}/api/token >/tmp/token");
    net.guest.sh(&put)?;
    let get = format!("{curl} -f -H \"X-metadata-token: $(cat /tmp/token)\"");
    let value = net.guest.sh(&format!("{get} {base}/meta-data/instance-id"))?;
    ensure!(value == "i-77", "instance-id is '{value}'");
    let listing = net.guest.sh(&format!("{get} {base}/meta-data/"))?;
    ensure!(listing == "instance-id\ntags/", "the listing is {listing:?}");
    let tags = net.guest.sh(&format!("{get} -H 'Accept: application/json' {base}/meta-data/tags"))?;
    let tags: serde_json::Value = serde_json::from_str(&tags).with_context(|| tags.clone())?;
    ensure!(tags == json!({"a": "1", "b": "2"}), "the JSON is {tags}");
    let rebound = net
        .guest
        .sh(&format!("{curl} -o /dev/null -w %{{http_code}} -H 'Host: attacker.example' {base}/"))?;
    ensure!(rebound == "421", "a request for another host gets {rebound}");
    metadata_by_ipv6(&mut net)?;
    metadata_from_a_container(&mut net)?;

    // The frames were answered inside; other traffic goes on.
    traffic::ping(&mut net)?;
    traffic::file_both_ways(&mut net)?;
    net.finish()?;
    Ok(String::new())
}
