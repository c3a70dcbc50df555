//! `--port xdp` on a driver with zero-copy mode: a VM inside a guest, on the guest's virtio-net card.
//!
//! ```text
//!  guest: zw-xdp (zerowire net's back end, and a VM) ── AF_XDP ── virtio-net ── QEMU ── unix datagrams ── this program
//! ```
//! Frames of every length go there and come back, and are compared on the wire outside. The card is QEMU's own: the driver's
//! zero-copy mode resets single queues (VIRTIO_F_RING_RESET), which QEMU doesn't pass on to vhost-user back ends.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use zerowire_vmtest::guest::{COMMAND, Guest};
use zerowire_vmtest::runner::Env;

use super::vsock::setup::together;

/// The card's address.
const CARD: &str = "52:54:00:77:00:01";

/// The card's address, since QEMU gives it no frames to others, and one of nobody, locally administered.
const THERE: [u8; 6] = [0x52, 0x54, 0, 0x77, 0, 1];
const HERE: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// EtherTypes for local experiments (IEEE 802): to be sent back, and to end.
const ECHO: [u8; 2] = [0x88, 0xb5];
const END: [u8; 2] = [0x88, 0xb6];

/// Lengths of the frames, bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 60..=1514;

/// For a frame to come back; then it is sent once more.
const ONCE: Duration = Duration::from_millis(500);
const TRIES: usize = 60;

/// For all of a run in the guest.
const RUN: Duration = Duration::from_secs(180);

/// Huge pages in zero-copy mode, huge and small ones in mode auto, and copy mode.
pub fn zero_copy(env: &Env<'_>) -> Result<String> {
    let mut guest = Guest::restore(env.lab, env.machine, env.dir)?;
    let wire = Wire::plug(&mut guest, env.dir)?;
    let find = format!("cd /sys/class/net && grep -l {CARD} */address | cut -d/ -f1 | grep .");
    let interface = guest.until(&find, COMMAND)?.trim().to_owned();
    guest.sh(&format!("ip link set {interface} up && echo 24 > /proc/sys/vm/nr_hugepages"))?;
    let mut text = Vec::new();
    for (mode, pages, word, whole) in [
        ("copy", "huge", "copy mode", true),
        ("zerocopy", "huge", "zero copy", true),
        ("auto", "huge", "zero copy", true),
        ("auto", "small", "no zero copy: the guest's memory lies on pages of 4 KiB", true),
    ] {
        let what = format!("mode {mode}, {pages} pages");
        let said = run(&mut guest, &wire, &interface, mode, pages).with_context(|| what.clone())?;
        let path = said["path"].as_str().unwrap_or_default();
        ensure!(path.contains(word), "{what}: {path}");
        ensure!(whole != path.contains("not bound"), "{what}: {path}");
        let number = |way: &str, name: &str| said[way][name].as_u64().unwrap_or(0);
        for way in ["transmit", "receive"] {
            let (frames, zero) = (number(way, "frames"), number(way, "zero_copied_frames"));
            ensure!(frames >= LENGTHS.count() as u64, "{what}: {frames} frames, {way}");
            // What crosses from one huge page to another goes by a copy.
            ensure!(zero * 100 >= frames * 90, "{what}: {zero} of {frames} frames not copied, {way}: {said}");
            text.push(format!("{mode} {pages} {way}: {zero} of {frames}"));
        }
    }
    let refused = guest.run(&format!("zw-xdp zerocopy {interface} small"), COMMAND)?;
    ensure!(
        refused.status != 0 && refused.text.contains("pages of 4 KiB"),
        "zero copy on small pages: {}",
        refused.text
    );
    Ok(format!("frames not copied in user space: {}", text.join("; ")))
}

/// One run in the guest, and what it says at its end.
fn run(guest: &mut Guest, wire: &Wire, interface: &str, mode: &str, pages: &str) -> Result<Value> {
    let line = format!("zw-xdp {mode} {interface} {pages}");
    let (output, ()) = together(|| wire.exchange(), || guest.run(&line, RUN))?;
    let last = output.text.trim().lines().last().unwrap_or_default();
    match last.strip_prefix("ok ") {
        Some(json) if output.status == 0 => Ok(serde_json::from_str(json)?),
        _ => bail!("{line}: {}", output.text),
    }
}

/// The other end of the card's wire.
struct Wire(UnixDatagram);

impl Wire {
    /// Gives the guest a card whose frames are datagrams of a socket.
    fn plug(guest: &mut Guest, dir: &Path) -> Result<Self> {
        let (card, here) = (dir.join("card"), dir.join("wire"));
        let socket = UnixDatagram::bind(&here).context("a socket")?;
        let place = |path: &Path| json!({"type": "unix", "path": path});
        let netdev =
            json!({"type": "dgram", "id": "card-net", "local": place(&card), "remote": place(&here)});
        guest.qmp.execute("netdev_add", netdev)?;
        guest.qmp.execute(
            "device_add",
            json!({
                "driver": "virtio-net-pci", "id": "card", "netdev": "card-net", "bus": "port0", "mac": CARD,
                "romfile": "", "disable-legacy": "on", "iommu_platform": true,
            }),
        )?;
        socket.connect(&card).context("connect to the card")?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        socket.set_write_timeout(Some(Duration::from_secs(5)))?;
        Ok(Self(socket))
    }

    /// Sends a frame of each length until it has come back, and then the end.
    fn exchange(&self) -> Result<()> {
        for len in LENGTHS {
            let frame = frame(len);
            let mut tries = 0;
            loop {
                self.0.send(&frame)?;
                if self.comes_back(&frame)? {
                    break;
                }
                tries += 1;
                ensure!(tries < TRIES, "a frame of {len} bytes never came back");
            }
        }
        let mut end = frame(60);
        end[12..14].copy_from_slice(&END);
        for _ in 0..20 {
            self.0.send(&end)?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits for the answer to `sent`. Anything of that type that is neither that nor the answer to an earlier frame is an
    /// error.
    fn comes_back(&self, sent: &[u8]) -> Result<bool> {
        let start = Instant::now();
        let mut buffer = vec![0; 4096];
        while start.elapsed() < ONCE {
            let n = match self.0.recv(&mut buffer) {
                Ok(n) => n,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => continue,
                Err(e) => return Err(e.into()),
            };
            let got = &buffer[..n];
            if n < 14 || got[6..12] != THERE || got[12..14] != ECHO {
                continue;
            }
            ensure!(
                got[..6] == HERE && got[12..] == frame(n)[12..],
                "a frame of {n} bytes came back changed"
            );
            if n == sent.len() {
                return Ok(true);
            }
            // An answer that came late, to a frame that was sent again.
            ensure!(n < sent.len(), "{n} bytes came back for {}", sent.len());
        }
        Ok(false)
    }
}

/// The frame of a length; its content follows from that.
fn frame(len: usize) -> Vec<u8> {
    let mut f = [&THERE[..], &HERE, &ECHO].concat();
    let mut state = len as u32 | 1;
    while f.len() < len {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        f.push(state as u8);
    }
    f
}
