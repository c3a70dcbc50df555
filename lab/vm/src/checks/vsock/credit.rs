//! One way only, from the guest: nothing but the device's own word tells the guest's kernel that it
//! may send on. That lets at most as much be under way as the device takes, and as its own socket's
//! buffer holds, and never asks for credit.

use anyhow::{Context, Result, bail, ensure};
use zerowire::recv::vsock::{Dequeued, MappedListener, MappedOptions};
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::job::{self, Load};
use zerowire_vmtest::vsock::pattern::Pattern;
use zerowire_vmtest::vsock::{PATIENCE, VsockKind, host};

use super::setup::{HOST, Vsock};

/// `--buffer`; the first one is the default.
const DEVICES: [&[&str]; 4] =
    [&[], &["--buffer", "65536"], &["--buffer", "524288"], &["--buffer", "1048576"]];

/// The credit of mapped connections, bytes.
const MAPPED: [u32; 3] = [64 << 10, 256 << 10, 1 << 20];

/// Buffers of the guest's sockets, bytes; 0 is the default of 256 KiB.
const BUFFERS: [u64; 4] = [0, 16 << 10, 64 << 10, 128 << 10];

/// Bytes of a write, or of a message.
const WRITES: [usize; 2] = [4 << 10, 64 << 10];

/// Several times what any of them lets be under way.
const BYTES: u64 = (1 << 20) + 5;

/// Every combination of what bounds the bytes that are under way.
pub fn one_way(env: &Env<'_>) -> Result<String> {
    let mut vsock = Vsock::start_with(env, DEVICES[0])?;
    let mut transfers = 0;
    for credit in MAPPED {
        transfers += each(|kind, load, buffers| {
            to_windows(&mut vsock, kind, load, buffers, credit)
                .with_context(|| format!("mapped, credit of {credit} bytes"))
        })?;
    }
    for (number, arguments) in DEVICES.into_iter().enumerate() {
        if number > 0 {
            vsock.replace(arguments)?;
        }
        transfers += each(|kind, load, buffers| {
            to_socket(&mut vsock, kind, load, buffers).with_context(|| format!("{arguments:?}"))
        })?;
    }
    vsock.finish()?;
    Ok(format!("{transfers} transfers of {BYTES} bytes"))
}

/// Streams and messages, and writes of each length; returns how many transfers those were.
fn each(mut transfer: impl FnMut(VsockKind, Load, &[u64]) -> Result<()>) -> Result<usize> {
    let mut transfers = 0;
    for kind in VsockKind::BOTH {
        for write_bytes in WRITES {
            let load = Load { seed: 3, bytes: BYTES, write_bytes };
            // The socket refuses a message that is longer than its buffer
            // (net/vmw_vsock/virtio_transport_common.c, `virtio_transport_seqpacket_enqueue`).
            let takes = |b: &&u64| kind == VsockKind::Stream || **b == 0 || **b >= write_bytes as u64;
            let buffers: Vec<u64> = BUFFERS.iter().filter(takes).copied().collect();
            transfers += buffers.len();
            transfer(kind, load, &buffers).with_context(|| format!("{kind:?}, writes of {write_bytes}"))?;
        }
    }
    Ok(transfers)
}

fn line(kind: VsockKind, port: u32, load: Load, buffers: &[u64]) -> String {
    let buffers: String = buffers.iter().map(|b| format!(" {b}")).collect();
    format!("{} connect {HOST} {port} send-each {load}{buffers}", kind.word())
}

fn to_socket(vsock: &mut Vsock, kind: VsockKind, load: Load, buffers: &[u64]) -> Result<()> {
    let listener = host::Listener::new(&vsock.uds(), 1020, kind)?;
    vsock.with_host(&line(kind, 1020, load, buffers), || {
        for buffer in buffers {
            let receive = || job::receive_whole(listener.accept()?, load);
            receive().with_context(|| format!("from a socket with a buffer of {buffer}"))?;
        }
        Ok(())
    })?;
    Ok(())
}

fn to_windows(vsock: &mut Vsock, kind: VsockKind, load: Load, buffers: &[u64], credit: u32) -> Result<()> {
    let options = match kind {
        VsockKind::Stream => MappedOptions::stream(),
        VsockKind::Seqpacket => MappedOptions::seqpacket(),
    };
    let listener = vsock.listen_mapped(1021, &options.credit(credit))?;
    vsock.with_host(&line(kind, 1021, load, buffers), || {
        for buffer in buffers {
            let context = || format!("from a socket with a buffer of {buffer}");
            receive_windows(&listener, load).with_context(context)?;
        }
        Ok(())
    })?;
    Ok(())
}

fn receive_windows(listener: &MappedListener, load: Load) -> Result<()> {
    let program = listener.accept_within(Some(PATIENCE))?.context("no connection")?;
    let pattern = Pattern::new(load.seed);
    let mut received = 0;
    loop {
        match program.dequeue()? {
            Dequeued::Window(window) => {
                for packet in window.packets() {
                    let bytes = packet.bytes().context("no bytes in a copied window")?;
                    if let Some(place) = pattern.first_difference(received, bytes) {
                        bail!("byte {place} of {} is wrong", load.bytes);
                    }
                    received += bytes.len() as u64;
                }
            }
            Dequeued::NotYet => {
                ensure!(
                    program.wait(Some(PATIENCE))?,
                    "nothing came after {received} of {} bytes",
                    load.bytes
                );
            }
            Dequeued::End => break,
        }
    }
    ensure!(received == load.bytes, "the end after {received} of {} bytes", load.bytes);
    Ok(())
}
