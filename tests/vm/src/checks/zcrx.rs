//! io_uring zero-copy receive without a device in a guest, through `zerowire::recv`: byte for byte, with areas and
//! completion queues that are too small, held leases, limits, removals, resets and refusals; first over the guest's
//! loopback, then from this program through the guest's virtio-net card.
//!
//! ```text
//!  guest: zw-recv (Receiver, ZCRX_REG_NODEV) ── TCP ── lo ── zw-recv's own senders
//!                                            ── TCP ── virtio-net ── zerowire net ── tap0 ── this program
//! ```

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::guest::COMMAND;
use zerowire_vmtest::runner::Env;
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

/// All cases of `zw-recv`, then connections from the host.
pub fn no_device(env: &Env<'_>) -> Result<String> {
    let mut net = Net::start(env, Plan::default())?;
    let cases = net.guest.sh("zw-recv cases")?;
    let cases: Vec<String> = cases.trim().trim_start_matches("ok ").split(' ').map(str::to_owned).collect();
    for case in &cases {
        let output = net.guest.run(&format!("zw-recv no-device {case}"), CASE)?;
        ensure!(output.status == 0, "zw-recv no-device {case}: {}", output.text);
        if std::env::var_os("ZEROWIRE_VERBOSE").is_some() {
            println!("  {case}: {}", output.text.trim());
        }
    }
    net.wait_for_link()?;
    let serve = format!("zw-recv no-device serve {PORT} {SEED} {BYTES} {CONNECTIONS}");
    // Both at once: the guest's command ends when the last connection has.
    let Net { guest, namespace, .. } = &mut net;
    let sent = together(
        || namespace.inside(send_all),
        || {
            let output = guest.run(&serve, CASE + COMMAND)?;
            ensure!(output.status == 0, "{serve}: {}", output.text);
            Ok(())
        },
    );
    sent.context("through the card")?;
    net.finish()?;
    Ok(format!("{} cases over loopback, {CONNECTIONS} connections through the card", cases.len()))
}

/// One connection after the other says its number and sends its pattern; all are open at once.
fn send_all() -> Result<()> {
    let mut sockets = Vec::new();
    for number in 0..CONNECTIONS {
        let mut socket = connect()?;
        limit(&socket)?;
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

/// The guest's program may not listen yet.
fn connect() -> Result<TcpStream> {
    zerowire_vmtest::command::wait_for("the guest's program to listen", COMMAND, || {
        Ok(TcpStream::connect((GUEST, PORT)).ok())
    })
}
