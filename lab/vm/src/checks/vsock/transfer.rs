//! Streams and messages, both ways, whoever connects.

use anyhow::{Context, Result, bail, ensure};
use zerowire_vmtest::assets::Kernel;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::job::{self, Load};
use zerowire_vmtest::vsock::remote;
use zerowire_vmtest::vsock::{VsockKind, host};
use zerowire_vmtest::vsock_device::VsockDevice;

use super::setup::{HOST, Vsock};
use crate::checks::ledger::check_zero_copied;
use crate::checks::traffic::Way;

/// What is echoed, each on a connection of its own, bytes.
const ECHOES: [u64; 5] = [1, 7, 4 << 10, 64 << 10, 1 << 20];

/// The longest write of the guest's that one packet may carry on a stream.
const WRITE_BYTES: usize = 64 << 10;

/// Lengths of messages: about the borders of a buffer, a page, a packet, and beyond the
/// length of one packet. Linux lets a unix socket send 212 960 bytes at once.
const MESSAGES: [usize; 16] = [
    1, 2, 7, 100, 3_000, 3_776, 3_777, 4_095, 4_096, 4_097, 16_384, 65_535, 65_536, 65_537, 100_000, 200_000,
];

/// One large transfer, bytes: odd, so that the last packet is short.
const BULK: Load = Load { seed: 40, bytes: (16 << 20) + 4_321, write_bytes: WRITE_BYTES };

/// Bytes of a write, and of all: from one byte to many packets at once.
const WRITES: [(usize, u64); 4] =
    [(1, 10_007), (4 << 10, (2 << 20) + 3), (256 << 10, (8 << 20) + 5), (1 << 20, (8 << 20) + 7)];

/// The same in messages.
const BULK_MESSAGES: Load = Load { seed: 41, bytes: (2 << 20) + 1_234, write_bytes: 50_000 };

/// A request and its reply: the reply is longer than all buffers on its way.
const REQUEST: Load = Load { seed: 50, bytes: 100_003, write_bytes: 10_000 };
const REPLY_BYTES: u64 = 600_007;

/// Of bulk, percent. To the guest the rest is what the ledger names. From it the rest also holds
/// what waits for the host's program, which other work on this machine may delay.
const ZERO_COPIED_TO: u64 = 95;
const ZERO_COPIED_FROM: u64 = 50;

/// Everything that one guest and the host do with each other.
pub fn base(env: &Env<'_>) -> Result<String> {
    let mut vsock = Vsock::start(env)?;
    echo(&mut vsock)?;
    messages(&mut vsock)?;
    half_close(&mut vsock)?;
    refused(&mut vsock)?;
    let text = bulk(&mut vsock)?;
    writes(&mut vsock)?;
    vsock.finish()?;
    Ok(text)
}

/// Packets are used in order, which a new guest is promised and an old one does not ask for. To one
/// whose memory programs may read it is promised to nobody.
pub fn in_order(env: &Env<'_>) -> Result<String> {
    /// VIRTIO_F_IN_ORDER.
    const BIT: usize = 35;
    let new = env.machine.kernel == Kernel::New;
    let mut vsock = Vsock::start_device(env, &[], VsockDevice::in_order)?;
    for promised in [new, false] {
        let bits =
            vsock.guest.sh("cat /sys/bus/virtio/drivers/vmw_vsock_virtio_transport/virtio*/features")?;
        let seen = bits.as_bytes().get(BIT) == Some(&b'1');
        ensure!(seen == promised, "the guest's features: {bits}");
        vsock.ledger()?.expect(&["IN_ORDER"], promised)?;
        echo(&mut vsock)?;
        messages(&mut vsock)?;
        bulk(&mut vsock)?;
        if promised {
            vsock.kill_and_restart()?;
            vsock.device.unplug(&mut vsock.guest)?;
            vsock.plug()?;
            echo(&mut vsock)?;
        }
        vsock.replace(&["--share-guest-memory"])?;
    }
    vsock.finish()?;
    Ok(String::new())
}

/// Echo in both directions, at each size.
pub fn echo(vsock: &mut Vsock) -> Result<()> {
    let uds = vsock.uds();
    let listener = host::Listener::new(&uds, 1000, VsockKind::Stream)?;
    let sizes = ECHOES.map(|bytes| bytes.to_string()).join(" ");
    vsock.with_host(&format!("stream connect {HOST} 1000 exchange 1 {WRITE_BYTES} {sizes}"), || {
        for bytes in ECHOES {
            let echoed = job::echo(listener.accept()?)?;
            ensure!(echoed == bytes, "{echoed} bytes came, not {bytes}");
        }
        Ok(())
    })?;
    vsock.with_listener(&format!("stream listen 2000 echo {}", ECHOES.len()), || {
        for bytes in ECHOES {
            let (socket, _) = host::connect_to(&uds, 2000, VsockKind::Stream)?;
            let load = Load { seed: 2, bytes, write_bytes: WRITE_BYTES };
            job::exchange(socket, load).with_context(|| format!("{bytes} bytes"))?;
        }
        Ok(())
    })
}

/// Messages keep their bounds on the way there and back.
fn messages(vsock: &mut Vsock) -> Result<()> {
    let uds = vsock.uds();
    let listener = host::Listener::new(&uds, 1001, VsockKind::Seqpacket)?;
    let lengths = MESSAGES.map(|length| length.to_string()).join(" ");
    vsock.with_host(&format!("seqpacket connect {HOST} 1001 exchange-messages 3 {lengths}"), || {
        job::echo(listener.accept()?)
    })?;
    vsock.with_listener("seqpacket listen 2001 echo 1", || {
        let (socket, _) = host::connect_to(&uds, 2001, VsockKind::Seqpacket)?;
        job::exchange_messages(socket, 4, &MESSAGES)
    })
}

/// One end ends its data and gets a reply nevertheless: each end in each role, whoever
/// has connected.
fn half_close(vsock: &mut Vsock) -> Result<()> {
    let uds = vsock.uds();
    let arguments = format!("{REQUEST} {REPLY_BYTES}");
    let listener = host::Listener::new(&uds, 1002, VsockKind::Stream)?;
    vsock.with_host(&format!("stream connect {HOST} 1002 request {arguments}"), || {
        job::reply(listener.accept()?, REQUEST, REPLY_BYTES)
    })?;
    vsock.with_host(&format!("stream connect {HOST} 1002 reply {arguments}"), || {
        job::request(listener.accept()?, REQUEST, REPLY_BYTES)
    })?;
    vsock.with_listener(&format!("stream listen 2002 reply {arguments}"), || {
        job::request(host::connect_to(&uds, 2002, VsockKind::Stream)?.0, REQUEST, REPLY_BYTES)
    })?;
    vsock.with_listener(&format!("stream listen 2002 request {arguments}"), || {
        job::reply(host::connect_to(&uds, 2002, VsockKind::Stream)?.0, REQUEST, REPLY_BYTES)
    })
}

/// Nobody listens, at either end.
fn refused(vsock: &mut Vsock) -> Result<()> {
    let uds = vsock.uds();
    let before = vsock.ledger()?.number("connections_refused")?;
    for kind in VsockKind::BOTH {
        remote::run(&mut vsock.guest, &format!("{} connect {HOST} 999 refused", kind.word()))?;
        match host::connect_to(&uds, 2999, kind) {
            Ok(_) => bail!("a connection to the guest's port 2999 was accepted, where nobody listens"),
            Err(error) => {
                let text = format!("{error:#}");
                ensure!(text.contains("refused") || text.contains("reset"), "refused by: {text}");
            }
        }
    }
    let refused = vsock.ledger()?.number("connections_refused")? - before;
    ensure!(refused == 4, "the statistics count {refused} refused connections of 4");
    Ok(())
}

/// A large transfer each way, which the ledger must call zero-copied; then messages.
pub fn bulk(vsock: &mut Vsock) -> Result<String> {
    let uds = vsock.uds();
    let bytes = BULK.bytes;
    let mut text = Vec::new();
    for way in [Way::FromGuest, Way::ToGuest] {
        let before = vsock.ledger()?;
        match way {
            Way::FromGuest => {
                let listener = host::Listener::new(&uds, 1003, VsockKind::Stream)?;
                let line = format!("stream connect {HOST} 1003 send {BULK}");
                vsock.with_host(&line, || job::receive_whole(listener.accept()?, BULK))?;
            }
            Way::ToGuest => vsock.with_listener(&format!("stream listen 2003 receive {BULK}"), || {
                job::send_whole(host::connect_to(&uds, 2003, VsockKind::Stream)?.0, BULK)
            })?,
        }
        let after = vsock.ledger()?;
        let moved = after.grown(&before, way, "bytes")?;
        ensure!(moved == bytes, "the ledger has {moved} bytes, {way:?}, not {bytes}");
        let wanted = if way == Way::ToGuest { ZERO_COPIED_TO } else { ZERO_COPIED_FROM };
        let share = check_zero_copied(&before, &after, way, wanted)?;
        let calls = after.grown(&before, way, "system_calls")?;
        let frames = after.grown(&before, way, "frames")?;
        text.push(format!("{way:?}: {share} % zero-copied, {frames} packets, {calls} system calls"));
    }
    bulk_messages(vsock)?;
    Ok(text.join("; "))
}

/// Writes of each length, both ways.
fn writes(vsock: &mut Vsock) -> Result<()> {
    let uds = vsock.uds();
    let listener = host::Listener::new(&uds, 1006, VsockKind::Stream)?;
    for (write_bytes, bytes) in WRITES {
        let load = Load { seed: 70, bytes, write_bytes };
        vsock.with_host(&format!("stream connect {HOST} 1006 send {load}"), || {
            job::receive_whole(listener.accept()?, load)
        })?;
        vsock.with_listener(&format!("stream listen 2006 receive {load}"), || {
            job::send_whole(host::connect_to(&uds, 2006, VsockKind::Stream)?.0, load)
        })?;
    }
    Ok(())
}

fn bulk_messages(vsock: &mut Vsock) -> Result<()> {
    let uds = vsock.uds();
    let listener = host::Listener::new(&uds, 1004, VsockKind::Seqpacket)?;
    vsock.with_host(&format!("seqpacket connect {HOST} 1004 send {BULK_MESSAGES}"), || {
        job::receive_whole(listener.accept()?, BULK_MESSAGES)
    })?;
    vsock.with_listener(&format!("seqpacket listen 2004 receive {BULK_MESSAGES}"), || {
        job::send_whole(host::connect_to(&uds, 2004, VsockKind::Seqpacket)?.0, BULK_MESSAGES)
    })
}

/// The guest's kernel sends from its program's pages.
pub fn zerocopy(env: &Env<'_>) -> Result<String> {
    /// Writes within a packet, of a packet, and of several.
    const WRITES: [usize; 4] = [4_000, 32 << 10, 64 << 10, 256 << 10];
    const BYTES: u64 = (2 << 20) + 77;
    let mut vsock = Vsock::start(env)?;
    let uds = vsock.uds();
    let listener = host::Listener::new(&uds, 1005, VsockKind::Stream)?;
    let mut text = Vec::new();
    for write_bytes in WRITES {
        let load = Load { seed: 60, bytes: BYTES, write_bytes };
        let line = format!("stream connect {HOST} 1005 zerocopy {load}");
        let (said, ()) = vsock.with_host(&line, || job::receive_whole(listener.accept()?, load))?;
        let (calls, copied) = said.split_once(' ').context("no counts from the guest")?;
        ensure!(calls != copied, "the guest's kernel copied all {calls} sends of {write_bytes} bytes");
        text.push(format!("{write_bytes}: {copied} of {calls} copied in the guest"));
    }
    vsock.finish()?;
    Ok(text.join(", "))
}
