//! Traffic over the link, and whether it arrived whole.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;
use zerowire_vmtest::command::{self, Running};
use zerowire_vmtest::guest::COMMAND;
use zerowire_vmtest::vsock::pattern::Pattern;

use super::setup::{GUEST, HOST, Net};

/// For a transfer of a few MB; a TCG guest moves some tens of MB a second.
const TRANSFER: Duration = Duration::from_secs(60);

/// Length of the file that travels, bytes: odd, so that the last frame is short.
const FILE_BYTES: usize = (6 << 20) + 4321;

/// What iperf3 sends in each direction.
const IPERF_BYTES: &str = "16M";

/// Length of the datagrams of [`datagrams`]: 41 fragments at an MTU of 1500.
pub const DATAGRAM_BYTES: usize = 60_000;

/// Which way data flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToGuest,
    FromGuest,
}

/// Pings both ways.
pub fn ping(net: &mut Net) -> Result<()> {
    net.wait_for_link()?;
    net.guest.sh(&format!("ping -c 3 -i 0.1 -W 5 {HOST}"))?;
    net.on_host(&["ping", "-c", "3", "-i", "0.1", "-W", "5", GUEST], COMMAND)?;
    Ok(())
}

/// The guest asks the metadata service for a value without a token, and is answered that it needs
/// one.
pub fn ask_metadata(net: &mut Net) -> Result<()> {
    let status = net.guest.sh(&format!(
        "ip route replace 169.254.169.254 dev {} && \
         curl -sS -m 15 -o /dev/null -w %{{http_code}} http://169.254.169.254/latest/meta-data/instance-id",
        net.interface
    ))?;
    ensure!(status == "401", "without a token the status is {status}, not 401");
    Ok(())
}

/// Moves a file to the guest and back over HTTP and compares every byte. TCP's checksum would prove
/// nothing, since offloads leave it out.
pub fn file_both_ways(net: &mut Net) -> Result<()> {
    let folder = net.dir().join("www");
    std::fs::create_dir_all(&folder).context("create a folder to serve")?;
    let sent = Pattern::new(1).bytes(0, FILE_BYTES);
    std::fs::write(folder.join("file"), &sent).context("write the file to send")?;
    let www = folder.to_string_lossy().into_owned();
    let mut server =
        net.host_command(&["busybox", "httpd", "-f", "-p", &format!("{HOST}:8080"), "-h", &www])?;
    let _server = Running::start_logged(&mut server, &net.dir().join("httpd.log"))?;

    let fetch = format!(
        "mkdir -p /tmp/www && curl -sSf --retry 20 --retry-connrefused --retry-delay 1 -o /tmp/www/file http://{HOST}:8080/file"
    );
    net.guest.sh_within(&fetch, TRANSFER).context("the guest could not fetch the file")?;
    // A server from an earlier transfer goes on.
    net.guest.sh("pidof httpd >/dev/null || httpd -p 8080 -h /tmp/www")?;
    let back = net.dir().join("back");
    net.on_host(
        &[
            "curl",
            "-sSf",
            "--retry",
            "20",
            "--retry-connrefused",
            "--retry-delay",
            "1",
            "-o",
            &back.to_string_lossy(),
            &format!("http://{GUEST}:8080/file"),
        ],
        TRANSFER,
    )?;
    let received = std::fs::read(&back).context("read the file that came back")?;
    if let Some(place) = first_difference(&sent, &received) {
        // It tells the direction in which bytes changed, and costs an emulated guest time.
        let sum = |path: &str| format!("sha256sum <{path} | cut -d' ' -f1");
        let in_guest = net.guest.sh(&sum("/tmp/www/file"))?;
        let on_host = net.on_host(&["sh", "-c", &sum(&folder.join("file").to_string_lossy())], COMMAND)?;
        bail!(
            "the file differs at byte {place} (sent {}, came back {}); SHA-256 of the one that was sent {}, in the guest {in_guest}",
            sent.len(),
            received.len(),
            on_host.trim()
        );
    }
    Ok(())
}

fn first_difference(one: &[u8], two: &[u8]) -> Option<usize> {
    let differs = one.iter().zip(two).position(|(a, b)| a != b);
    differs.or_else(|| (one.len() != two.len()).then(|| one.len().min(two.len())))
}

/// Starts the guest's iperf3 server, once.
pub fn start_iperf_server(net: &mut Net) -> Result<()> {
    net.guest.sh("pidof iperf3 >/dev/null || (iperf3 -s >/tmp/iperf3.log 2>&1 &)")?;
    // Port 5201 in state LISTEN.
    net.guest.until("cat /proc/net/tcp /proc/net/tcp6 | grep -q ':1451 .* 0A '", COMMAND)?;
    Ok(())
}

/// An iperf3 run with `more` options (`-P 4`); returns Mbit/s as iperf3 says.
pub fn iperf(net: &mut Net, way: Way, more: &[&str]) -> Result<f64> {
    start_iperf_server(net)?;
    let mut line = vec!["iperf3", "-c", GUEST, "-J", "-n", IPERF_BYTES];
    if way == Way::FromGuest {
        line.push("-R");
    }
    line.extend_from_slice(more);
    let report = net.on_host(&line, TRANSFER).with_context(|| format!("{way:?}"))?;
    rate(&report).with_context(|| format!("iperf3, {way:?}"))
}

/// Both ways, as one line for the report.
pub fn iperf_both_ways(net: &mut Net, more: &[&str]) -> Result<String> {
    let to = iperf(net, Way::ToGuest, more)?;
    let from = iperf(net, Way::FromGuest, more)?;
    Ok(format!("{to:.0} Mbit/s to the guest, {from:.0} from it"))
}

/// Sends large UDP datagrams, slowly: their loss would say more about socket buffers
/// than about the device. Returns how many arrived, nearly all.
pub fn datagrams(net: &mut Net, way: Way) -> Result<u64> {
    start_iperf_server(net)?;
    let length = DATAGRAM_BYTES.to_string();
    let mut line = vec!["iperf3", "-c", GUEST, "-J", "-u", "-l", &length, "-n", "2400000", "-b", "10M"];
    if way == Way::FromGuest {
        line.push("-R");
    }
    let report = net.on_host(&line, TRANSFER).with_context(|| format!("{way:?}"))?;
    let report: Value = serde_json::from_str(&report).context("no JSON from iperf3")?;
    let sum = &report["end"]["sum"];
    let count = |name: &str| sum[name].as_u64().with_context(|| format!("no {name} in {report}"));
    let (sent, lost) = (count("packets")?, count("lost_packets")?);
    ensure!(sent > 0 && lost * 10 <= sent, "{lost} of {sent} datagrams were lost, {way:?}");
    Ok(sent - lost)
}

fn rate(report: &str) -> Result<f64> {
    let report: Value = serde_json::from_str(report).context("no JSON from iperf3")?;
    if let Some(error) = report.get("error") {
        bail!("{error}");
    }
    let received = &report["end"]["sum_received"];
    let bytes = received["bytes"].as_f64().unwrap_or(0.0);
    ensure!(bytes > 0.0, "nothing was received: {}", report["end"]);
    received["bits_per_second"].as_f64().map(|rate| rate / 1e6).context("no rate in iperf3's report")
}

/// A slow transfer in the background, during which something happens.
#[derive(Debug)]
pub struct Background {
    process: Running,
    report: PathBuf,
}

impl Background {
    /// Starts a paced TCP transfer that lasts until [`Self::finish`].
    pub fn start(net: &mut Net, way: Way) -> Result<Self> {
        Self::start_at(net, way, "16M")
    }

    /// One as fast as it can be.
    pub fn flood(net: &mut Net, way: Way) -> Result<Self> {
        Self::start_at(net, way, "0")
    }

    fn start_at(net: &mut Net, way: Way, rate: &str) -> Result<Self> {
        start_iperf_server(net)?;
        let report = net.dir().join("background.out");
        let mut line = vec!["iperf3", "-c", GUEST, "-J", "-t", "0", "-b", rate];
        if way == Way::FromGuest {
            line.push("-R");
        }
        let mut iperf = net.host_command(&line)?;
        let process = Running::start_logged(&mut iperf, &report)?;
        let background = Self { process, report };
        background.wait_until_flowing(net)?;
        Ok(background)
    }

    /// Waits until frames move: the counters of the host's end grow. If they don't, it runs a
    /// command in the guest. A guest that stands still is QEMU's fault, and one that answers says
    /// what its interface counted.
    pub fn wait_until_flowing(&self, net: &mut Net) -> Result<()> {
        let before = net.host_bytes()?;
        let flows = command::wait_for("traffic at the host's end", COMMAND, || {
            Ok((net.host_bytes()? > before + 1_000_000).then_some(()))
        });
        flows.or_else(|error| {
            let counted = net.guest.sh(&format!("cat /proc/net/dev; ping -c 3 {HOST}; cat /proc/net/dev"))?;
            let moved = net.host_bytes()? - before;
            Err(error.context(format!("{moved} bytes over the host's end; the guest answers:\n{counted}")))
        })
    }

    /// Waits until the transfer goes on, and ends it. It must have been one connection all the
    /// time.
    pub fn finish(mut self, net: &mut Net) -> Result<()> {
        self.wait_until_flowing(net)?;
        ensure!(self.process.ended()?.is_none(), "the transfer ended by itself: {}", self.text());
        self.process.signal(Signal::TERM)?;
        self.process.wait(TRANSFER)?;
        let text = self.text();
        let report: Value =
            serde_json::from_str(&text).with_context(|| format!("no JSON from iperf3: {text}"))?;
        ensure!(report["error"] == "interrupt - the client has terminated", "the transfer failed: {text}");
        // The next one finds a server that is not busy with this one.
        net.guest.sh("kill $(pidof iperf3); while pidof iperf3 >/dev/null; do sleep 0.1; done")?;
        Ok(())
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.report).unwrap_or_default()
    }
}

impl Net {
    /// Bytes over the host's end, both ways.
    fn host_bytes(&self) -> Result<u64> {
        let counters = self.counters(self.host_end)?;
        let bytes = |way: &str| counters[way]["bytes"].as_u64().unwrap_or(0);
        Ok(bytes("rx") + bytes("tx"))
    }

    /// What the kernel counts of an interface in the namespace, as `ip` shows it: `rx` and `tx`.
    pub fn counters(&self, interface: &str) -> Result<Value> {
        let text = self.namespace.ip(&["-json", "-s", "link", "show", "dev", interface])?;
        let mut links: Value = serde_json::from_str(&text).context("no JSON from ip")?;
        Ok(links[0]["stats64"].take())
    }
}
