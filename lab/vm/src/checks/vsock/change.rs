//! Things that happen while connections are open: the guest reboots, the back end dies.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::command::wait_for;
use zerowire_vmtest::guest::{COMMAND, Guest};
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::job;
use zerowire_vmtest::vsock::remote::Background;
use zerowire_vmtest::vsock::{VsockKind, host};
use zerowire_vmtest::vsock_device::VsockDevice;

use super::setup::{HOST, Vsock, together};
use super::transfer;

/// Connections that are open, from each side.
const HELD: usize = 3;

/// The machine is reset, and the guest reboots, with the device in place. The host's programs see
/// the ends of their connections, and new ones work.
pub fn reboot(env: &Env<'_>) -> Result<String> {
    let mut vsock = Vsock::start(env)?;
    for (begin, how) in [(Guest::reset as fn(&mut Guest) -> Result<()>, "reset"), (Guest::reboot, "reboot")] {
        let held = hold(&mut vsock)?;
        begin(&mut vsock.guest)?;
        for (number, socket) in held.sockets.iter().enumerate() {
            job::wait_gone(socket)
                .with_context(|| format!("the host's end of connection {number} after the {how}"))?;
        }
        drop(held);
        transfer::echo(&mut vsock)?;
    }
    vsock.finish()?;
    Ok(String::new())
}

/// The back end is killed with connections open, and another one takes its place. QEMU 7.2 and 10
/// do not connect again for this kind of device. With the socket's option to reconnect they do, but
/// set nothing up over it. So the device is unplugged and plugged anew. QEMU 10 asks for an
/// acknowledgement meanwhile, which it has not negotiated with this back end.
pub fn restart(env: &Env<'_>) -> Result<String> {
    let mut vsock = Vsock::start_device(env, &[], VsockDevice::reconnect)?;
    transfer::echo(&mut vsock)?;
    let held = hold(&mut vsock)?;
    vsock.kill_and_restart()?;
    for (number, socket) in held.sockets.iter().enumerate() {
        job::wait_gone(socket)
            .with_context(|| format!("the host's end of connection {number} after the kill"))?;
    }
    wait_for("QEMU to connect again", COMMAND, || Ok(vsock.ledger_now()?.is_connected().then_some(())))?;
    let ledger = vsock.ledger_now()?;
    ensure!(ledger.number("device_status")? == 0, "QEMU has set the device up: {ledger:?}");
    vsock.device.unplug(&mut vsock.guest)?;
    for job in held.jobs {
        job.finish(&mut vsock.guest).context("the guest's ends, after the device was unplugged")?;
    }
    vsock.plug()?;
    transfer::echo(&mut vsock)?;
    vsock.finish()?;
    Ok(String::new())
}

/// The confined process that serves the VM is killed with connections open, twice in a row. The
/// supervisor keeps the front end's connection, so QEMU sees nothing. The guest's connections are
/// reset, also those that wait for bytes, and new ones work both ways.
pub fn sandbox(env: &Env<'_>) -> Result<String> {
    let mut vsock = Vsock::start_with(env, &["--sandbox", "on"])?;
    transfer::echo(&mut vsock)?;
    for death in 1..=2 {
        let held = hold(&mut vsock)?;
        vsock.backend.kill_children()?;
        for (number, socket) in held.sockets.iter().enumerate() {
            job::wait_gone(socket)
                .with_context(|| format!("the host's end of connection {number} after death {death}"))?;
        }
        for job in held.jobs {
            job.finish(&mut vsock.guest).with_context(|| format!("the guest's ends after death {death}"))?;
        }
        transfer::echo(&mut vsock).with_context(|| format!("after death {death}"))?;
        let ledger = vsock.ledger_now()?;
        ensure!(ledger.is_connected(), "QEMU was disconnected: {ledger:?}");
        ensure!(ledger.number("connection_errors")? == 0, "connection_errors in {ledger:?}");
    }
    let log = vsock.backend.log_text();
    ensure!(log.matches("and goes on with its front end").count() == 2, "the log: {log}");
    vsock.backend.stop()?;
    Ok(String::new())
}

/// Memory is plugged; connections that are open go on, and new ones use it.
pub fn memory_plug(env: &Env<'_>) -> Result<String> {
    let mut vsock = Vsock::start(env)?;
    let held = hold(&mut vsock)?;
    vsock.guest.plug_memory("dimm0", 256)?;
    transfer::echo(&mut vsock)?;
    let ledger = vsock.ledger_now()?;
    let open = ledger.number("connections_open")?;
    ensure!(open == 2 * HELD as u64, "{open} connections are open: {ledger:?}");
    drop(held.sockets);
    for job in held.jobs {
        job.finish(&mut vsock.guest)?;
    }
    vsock.finish()?;
    Ok(String::new())
}

/// Open connections: the host's ends, and the guest's jobs.
struct HeldConnections {
    sockets: Vec<OwnedFd>,
    jobs: Vec<Background>,
}

/// Opens connections from both sides and uses each once.
fn hold(vsock: &mut Vsock) -> Result<HeldConnections> {
    let uds = vsock.uds();
    let listener = host::Listener::new(&uds, 1020, VsockKind::Stream)?;
    let line = format!("stream connect {HOST} 1020 hold 20 {HELD}");
    let guest = &mut vsock.guest;
    let (job, mut sockets) = together(
        || {
            let sockets = listener.accept_all(HELD)?;
            for socket in &sockets {
                job::answer_token(socket)?;
            }
            Ok(sockets)
        },
        || {
            let job = Background::start(guest, &line)?;
            job.wait_for(guest, "holding")?;
            Ok(job)
        },
    )?;
    let mut jobs = vec![job];
    jobs.push(Background::listen(&mut vsock.guest, &format!("stream listen 2020 hold 21 {HELD}"))?);
    for _ in 0..HELD {
        let (socket, _) = host::connect_to(&uds, 2020, VsockKind::Stream)?;
        sockets.push(socket);
    }
    for socket in &sockets[HELD..] {
        job::answer_token(socket)?;
    }
    for job in &jobs {
        job.wait_for(&mut vsock.guest, "holding")?;
    }
    wait_for("the connections in the statistics", COMMAND, || {
        let open = vsock.ledger_now()?.number("connections_open")?;
        Ok((open == 2 * HELD as u64).then_some(()))
    })?;
    Ok(HeldConnections { sockets, jobs })
}
