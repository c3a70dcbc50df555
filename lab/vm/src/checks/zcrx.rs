//! io_uring zero-copy receive without a device in a guest, through `zerowire::recv`: byte for byte.
//! Areas and completion queues are too small, leases are held, limits, removals, resets and
//! refusals occur. Receivers share an area, and one is killed. First it runs over the guest's
//! loopback, then from this program through the guest's virtio-net card, and from iperf3 on both
//! ways.
//!
//! ```text
//!  guest: zw-recv (Receiver, ZCRX_REG_NODEV) ── TCP ── lo ── zw-recv's own senders
//!                         ── TCP ── virtio-net ── zerowire net ── tap0 ── this program
//!  iperf3 in the guest, iperf3 on tap0 ── TCP ── zw-recv, which speaks iperf3's protocol
//! ```

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::guest::{COMMAND, Guest};
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::send::PatternFile;
use zerowire_vmtest::vsock::limit;
use zerowire_vmtest::vsock::pattern::Pattern;

use super::setup::{GUEST, Net, Plan};
use super::vsock::setup::together;

/// For one case; an emulated guest needs a second or two.
const CASE: Duration = Duration::from_secs(120);

/// The guest's port.
const PORT: u16 = 7070;

/// What each of the connections through the card carries.
const BYTES: u64 = (2 << 20) + 4_321;
const CONNECTIONS: u8 = 3;
const SEED: u64 = 500;

/// What iperf3 sends; `zw-recv` knows it.
const IPERF_SEED: u64 = 600;

/// Linux 7.3 or newer: an older kernel lacks a part of what is tested (no device: 7.1, events and
/// statistics: 7.2).
pub fn has_all(guest: &mut Guest) -> Result<()> {
    let release = guest.sh("uname -r")?;
    let mut numbers = release.trim().split(['.', '-']).map(str::parse::<u32>);
    let version = numbers.next().zip(numbers.next());
    let is_new = matches!(version, Some((Ok(major), Ok(minor))) if (major, minor) >= (7, 3));
    ensure!(is_new, "the guest's kernel is {}; Linux 7.3 or newer is needed", release.trim());
    Ok(())
}

/// All cases of `zw-recv`, then connections from the host.
pub fn no_device(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan::default())?;
    has_all(&mut net.guest)?;
    let cases = net.guest.sh("zw-recv cases")?;
    let cases: Vec<String> = cases.trim().trim_start_matches("ok ").split(' ').map(str::to_owned).collect();
    for case in &cases {
        let said = net.guest.sh_within(&format!("zw-recv no-device {case}"), CASE)?;
        if std::env::var_os("ZEROWIRE_VERBOSE").is_some() {
            println!("  {case}: {}", said.trim());
        }
    }
    net.wait_for_link()?;
    let serve = format!("zw-recv no-device serve {PORT} {SEED} {BYTES} {CONNECTIONS}");
    // Both at once: the guest's command ends when the last connection has.
    let Net { guest, namespace, .. } = &mut net;
    let sent = together(|| namespace.inside(send_all), || guest.sh_within(&serve, CASE + COMMAND));
    sent.context("through the card")?;
    let iperf = iperf3(&mut net)?;
    net.finish()?;
    Ok(format!(
        "{} cases over loopback, {CONNECTIONS} connections through the card, iperf3: {iperf}",
        cases.len()
    ))
}

/// iperf3 sends a file over several streams, from inside the guest and from the host; every byte is
/// compared.
///
/// Of a block that the socket takes in part, iperf3 3.12 sends other bytes than the rest. So blocks
/// are short against the socket's buffer, and a rate is given. With a rate iperf3 checks before
/// each block whether there is room, and not once for ten.
fn iperf3(net: &mut Net) -> Result<String> {
    const STREAMS: usize = 3;
    let file = PatternFile { seed: IPERF_SEED, bytes: (3 << 20) + 77 };
    file.write_to(&mut net.guest, "/tmp")?;
    let path = file.path("/tmp");
    let bytes = file.bytes;
    let server = |port| format!("zw-recv no-device iperf3 {port} {bytes}");
    let client = |to: &str, port, path: &str| {
        format!("iperf3 -c {to} -p {port} -P {STREAMS} -F {path} -t 100 -w 200K -l 16K -b 10G")
    };
    // In the guest both run in one command.
    let (server_line, client_line) = (server(PORT + 1), client("127.0.0.1", PORT + 1, &path));
    let line = format!(
        ": >/tmp/server; {server_line} >/tmp/server 2>&1 & until grep -q listening /tmp/server; do sleep 0.1; done; \
         {client_line} >/tmp/client 2>&1; status=$?; wait; tail -n 1 /tmp/server; tail -n 4 /tmp/client; exit $status"
    );
    let output = net.guest.run(&line, CASE)?;
    let is_ok = output.status == 0 && output.text.trim_start().starts_with("ok ");
    ensure!(is_ok, "iperf3 in the guest: status {}: {}", output.status, output.text);
    // From the host.
    let here = net.dir().join("pattern");
    std::fs::write(&here, Pattern::new(IPERF_SEED).bytes(0, bytes as usize)).context("write the pattern")?;
    let line = client(GUEST, PORT + 2, &here.to_string_lossy());
    let mut command = net.host_command(&line.split(' ').collect::<Vec<_>>())?;
    let server_line = server(PORT + 2);
    let guest = &mut net.guest;
    let sent = together(|| wait_for_port(&mut command), || guest.sh_within(&server_line, CASE));
    sent.context("iperf3 on the host")?;
    Ok(format!("{STREAMS} streams of up to {bytes} bytes from the guest, and from the host"))
}

/// The server in the guest may not listen yet: iperf3 is then refused, and started again.
fn wait_for_port(command: &mut std::process::Command) -> Result<String> {
    let mut refused = String::new();
    zerowire_vmtest::command::wait_for("iperf3 to find its server", COMMAND, || {
        match zerowire_vmtest::command::output(command, CASE) {
            Ok(text) => Ok(Some(text)),
            Err(error) if format!("{error:#}").contains("refused") => {
                refused = format!("{error:#}");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    })
    .with_context(|| refused)
}

/// One connection after the other says its number and sends its pattern; all are open at once.
fn send_all() -> Result<()> {
    let mut sockets = Vec::new();
    for number in 0..CONNECTIONS {
        let mut socket = connect(PORT)?;
        socket.write_all(&[number])?;
        sockets.push((number, socket));
    }
    let pattern = |number: u8| Pattern::new(SEED + u64::from(number));
    let mut sent = 0;
    while sent < BYTES {
        let count = (BYTES - sent).min(100_000) as usize;
        for (number, socket) in &mut sockets {
            socket.write_all(&pattern(*number).bytes(sent, count))?;
        }
        sent += count as u64;
    }
    for (_, socket) in &sockets {
        socket.shutdown(std::net::Shutdown::Write)?;
    }
    Ok(())
}

/// Connects to a port of the guest's, where nobody may listen yet.
pub fn connect(port: u16) -> Result<TcpStream> {
    let socket = zerowire_vmtest::command::wait_for("the guest's program to listen", COMMAND, || {
        Ok(TcpStream::connect((GUEST, port)).ok())
    })?;
    limit(&socket)?;
    Ok(socket)
}
