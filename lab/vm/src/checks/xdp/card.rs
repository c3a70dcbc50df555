//! A guest with a card that has the driver's zero-copy mode.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use zerowire_vmtest::guest::{COMMAND, Guest};
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::remote::Background;
use zerowire_vmtest::xdp::{CARD, STOP};
use zerowire_vmtest::{command, device};

use super::wire::Wire;
use crate::checks::vsock::setup::together;

/// Pages of 2 MiB for the VMs in the guest.
const HUGE_PAGES: u32 = 24;

/// For all that `zw-xdp` does with frames that it asks for.
const RUN: Duration = Duration::from_secs(180);

/// The tap's name.
const TAP: &str = "card";

/// The guest, its card, and the other end of the card's wire.
#[derive(Debug)]
pub struct Card {
    pub guest: Guest,
    pub wire: Wire,
    /// The guest's name of the card.
    pub interface: String,
}

impl Card {
    /// A guest with a card of one queue pair, whose interface is up.
    pub fn plug(env: &Env<'_>) -> Result<Self> {
        let mut guest = Guest::restore(env.lab, env.machine, env.dir)?;
        let (there, here) = (env.dir.join("card"), env.dir.join("wire"));
        let wire = Wire::of_datagrams(&here)?;
        let place = |path: &Path| json!({"type": "unix", "path": path});
        guest.qmp.execute(
            "netdev_add",
            json!({"type": "dgram", "id": "card-net", "local": place(&there), "remote": place(&here)}),
        )?;
        plug(&mut guest, 1)?;
        wire.connect(&there)?;
        let interface = set_up(&mut guest)?;
        Ok(Self { guest, wire, interface })
    }

    /// A guest with a card of `queue_pairs` on a tap, in this thread's network namespace, which has
    /// to be of its own.
    pub fn plug_on_tap(env: &Env<'_>, queue_pairs: u16) -> Result<Self> {
        let mut guest = Guest::restore(env.lab, env.machine, env.dir)?;
        guest.qmp.execute(
            "netdev_add",
            json!({
                "type": "tap", "id": "card-net", "ifname": TAP, "script": "no", "downscript": "no", "vhost": false,
                "queues": queue_pairs,
            }),
        )?;
        command::output(Command::new("ip").args(["link", "set", TAP, "up"]), command::SHORT)?;
        plug(&mut guest, queue_pairs)?;
        let interface = set_up(&mut guest)?;
        Ok(Self { guest, wire: Wire::of_tap(TAP)?, interface })
    }

    /// Buffers of the card's queue `index` that the card has used so far, as QEMU counts them,
    /// modulo 65536.
    pub fn used(&mut self, index: u16) -> Result<u16> {
        let path = "/machine/peripheral/card/virtio-backend";
        let status =
            self.guest.qmp.execute("x-query-virtio-queue-status", json!({"path": path, "queue": index}))?;
        let used = status["used-idx"].as_u64().and_then(|n| u16::try_from(n).ok());
        used.with_context(|| format!("no used-idx in {status}"))
    }

    /// How the card stands, for an error: its counters in the guest, and its rings as QEMU has
    /// them.
    fn state(&mut self) -> String {
        let show = format!(
            "cd /sys/class/net/{}/statistics && grep . [rt]x_packets [rt]x_dropped [rt]x_errors",
            self.interface
        );
        let counters = self.guest.run(&show, COMMAND).map(|output| output.text).unwrap_or_default();
        let path = "/machine/peripheral/card/virtio-backend";
        let rings = (0..4).map(|queue| {
            let status = json!({"path": path, "queue": queue});
            self.guest
                .qmp
                .execute("x-query-virtio-queue-status", status)
                .map_or(String::new(), |s| s.to_string())
        });
        let rings = rings.collect::<Vec<_>>().join("; ");
        format!("the card: {}; rings: {rings}", counters.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Runs `zw-xdp WORDS` in the guest while the wire's end gives it the frames that it asks for.
    /// Returns what it says at its end.
    pub fn serve(&mut self, words: &str) -> Result<String> {
        let done = AtomicBool::new(false);
        let Self { guest, wire, .. } = self;
        let run = || {
            let output = guest.run(&format!("zw-xdp {words}"), RUN);
            done.store(true, Ordering::Relaxed);
            output
        };
        let (output, ()) = together(|| wire.serve(&done), run)?;
        match output.text.trim().lines().last().and_then(|line| line.strip_prefix("ok ")) {
            Some(said) if output.status == 0 => Ok(said.to_owned()),
            _ => bail!("zw-xdp {words}: {}", output.text),
        }
    }

    /// Starts VMs that send frames back, `zw-xdp WORDS` each, and runs `exchange` while they do.
    /// Returns what each says at its end.
    pub fn with_vms(
        &mut self,
        vms: &[String],
        exchange: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Vec<String>> {
        self.guest.sh(&format!("rm -f {STOP}"))?;
        let mut jobs = Vec::new();
        for words in vms {
            let job = Background::start_command(&mut self.guest, &format!("zw-xdp {words}"))?;
            job.wait_for(&mut self.guest, "ready")?;
            jobs.push(job);
        }
        let result = exchange(self).map_err(|e| e.context(self.state()));
        self.guest.sh(&format!("touch {STOP}"))?;
        // What a VM says of an error tells more than that nothing came back.
        let said = jobs.into_iter().map(|job| job.finish(&mut self.guest)).collect();
        match (result, said) {
            (Ok(()), said) => said,
            (Err(error), Ok(said)) => Err(error.context(format!("the VMs: {said:?}"))),
            (Err(error), Err(vm)) => Err(vm.context(format!("{error:#}"))),
        }
    }
}

/// Gives the guest the card on the netdev `card-net`.
fn plug(guest: &mut Guest, queue_pairs: u16) -> Result<()> {
    guest.qmp.execute(
        "device_add",
        json!({
            "driver": "virtio-net-pci", "id": "card", "netdev": "card-net", "bus": "port0", "mac": CARD,
            "romfile": "", "disable-legacy": "on", "iommu_platform": true,
            // One for each queue, one for control, one for changes (virtio 1.3 §5.1.2).
            "mq": queue_pairs > 1, "vectors": 2 * queue_pairs + 2,
        }),
    )?;
    Ok(())
}

/// Sets the card's interface up, and pages for the VMs aside; returns the interface's name.
fn set_up(guest: &mut Guest) -> Result<String> {
    let interface = device::interface(guest, CARD)?;
    // The guest's own stack shall send nothing there by itself.
    guest.sh(&format!("! cd /proc/sys/net/ipv6/conf/{interface} || echo 1 > disable_ipv6"))?;
    guest.sh(&format!("ip link set {interface} up && echo {HUGE_PAGES} > /proc/sys/vm/nr_hugepages"))?;
    Ok(interface)
}
