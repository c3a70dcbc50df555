//! A program in the guest drives a second vsock device by itself (`zerowire-guest` over PCI). It
//! reads in place what the host sends, beside the kernel's own device.

use anyhow::{Result, ensure};
use zerowire_vmtest::guest::Guest;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::job::{self, Load};
use zerowire_vmtest::vsock::pci::HUGE_PAGES;
use zerowire_vmtest::vsock::remote::{self, Background};
use zerowire_vmtest::vsock::{VsockKind, host};

use super::pair::{KERNEL, PROGRAM, Pair};
use super::setup::{HOST, at_rest, together};
use crate::checks::traffic::Way;

/// One large transfer, bytes: odd, so that the last packet is short.
const BULK: Load = Load { seed: 70, bytes: (16 << 20) + 4_321, write_bytes: 64 << 10 };

/// For the ways of waiting that differ in nothing else.
const SHORT: Load = Load { seed: 71, bytes: (1 << 20) + 77, write_bytes: 64 << 10 };

/// How many of the bytes in bulk a program that gives leases back at once reads in
/// place, percent.
const IN_PLACE: u64 = 90;

/// To the program and from it, while the kernel's device works as before.
pub fn second_device(env: &Env<'_>) -> Result<String> {
    let mut pair = Pair::start(env, &[], HUGE_PAGES)?;
    let mut text = vec![to_guest(&mut pair, "sleep", BULK)?];
    for how in ["copy", "spin", "timer"] {
        let said = to_guest(&mut pair, how, SHORT)?;
        text.push(said);
    }
    from_guest(&mut pair)?;
    kernels_own(&mut pair)?;
    killed(&mut pair)?;
    let address = remote::run(&mut pair.guest, "pci sleep give-back")?;
    let driver = pair.guest.sh(&format!("readlink /sys/bus/pci/devices/{address}/driver"))?;
    ensure!(driver.ends_with("/virtio-pci"), "{address} went back to {driver}");
    pair.finish()?;
    Ok(text.join("; "))
}

/// The host sends, and says how; the guest listens.
fn to_guest(pair: &mut Pair, how: &str, load: Load) -> Result<String> {
    let uds = pair.uds(PROGRAM.0);
    let Pair { guest, backend, .. } = pair;
    let before = at_rest(backend, PROGRAM.0)?;
    let bytes = load.bytes;
    let line = format!("pci {how} listen 2000 receive {load}");
    let job = Background::listen(guest, &line)?;
    let sent = (|| job::send_whole(host::connect_to(&uds, 2000, VsockKind::Stream)?.0, load))();
    if let Err(error) = sent {
        // What the guest says is the better explanation, if it says something.
        let said = guest.sh("sleep 1; cat /tmp/job*; dmesg | tail -5").unwrap_or_default();
        return Err(error.context(format!("the host's end of `{line}`; in the guest: {said}")));
    }
    let said = job.finish(guest)?;
    let numbers: Vec<u64> = said.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let [in_place, held] = numbers[..] else { anyhow::bail!("the guest says '{said}'") };
    if how == "copy" {
        ensure!((in_place, held) == (0, 0), "a copying program counts {said}");
    } else {
        ensure!(in_place + held == bytes, "{in_place} and {held} bytes are not {bytes}");
        ensure!(in_place * 100 >= bytes * IN_PLACE, "only {in_place} of {bytes} bytes were read in place");
    }
    let after = at_rest(backend, PROGRAM.0)?;
    let grown = |name| after.grown(&before, Way::ToGuest, name);
    ensure!(grown("bytes")? == bytes, "the ledger has {} bytes, not {bytes}", grown("bytes")?);
    let zero_copied = grown("zero_copied_bytes")?;
    Ok(format!(
        "{how}: {bytes} bytes, {zero_copied} zero-copied to the ring, {in_place} read there, {held} held"
    ))
}

/// The guest sends.
fn from_guest(pair: &mut Pair) -> Result<()> {
    let uds = pair.uds(PROGRAM.0);
    let Pair { guest, backend, .. } = pair;
    let before = at_rest(backend, PROGRAM.0)?;
    let listener = host::Listener::new(&uds, 1000, VsockKind::Stream)?;
    let line = format!("pci sleep connect {HOST} 1000 send {BULK}");
    together(|| job::receive_whole(listener.accept()?, BULK), || remote::run(guest, &line))?;
    let after = at_rest(backend, PROGRAM.0)?;
    let moved = after.grown(&before, Way::FromGuest, "bytes")?;
    ensure!(moved == BULK.bytes, "the ledger has {moved} bytes from the guest, not {}", BULK.bytes);
    Ok(())
}

/// The kernel's sockets have their device as before.
fn kernels_own(pair: &mut Pair) -> Result<()> {
    let listener = host::Listener::new(&pair.uds(KERNEL.0), 1000, VsockKind::Stream)?;
    let line = format!("stream connect {HOST} 1000 exchange {SHORT}");
    let (_, echoed) = together(|| job::echo(listener.accept()?), || remote::run(&mut pair.guest, &line))?;
    ensure!(echoed == SHORT.bytes, "{echoed} bytes came over the kernel's device, not {}", SHORT.bytes);
    Ok(())
}

/// The kernel closes the descriptors of a killed process from the highest number down. It stops the
/// device when it closes the first one of the device's own. That one is above the memory that the
/// device can write.
fn stops_before_its_memory_is_free(guest: &mut Guest, job: &Background) -> Result<()> {
    let list = format!("for f in /proc/{}/fd/*; do echo ${{f##*/}} $(readlink $f); done", job.pid());
    let said = guest.sh(&list)?;
    let last = |what: &str| {
        let numbers = said.lines().filter_map(|line| line.split_once(' '));
        numbers.filter(|(_, to)| to.contains(what)).filter_map(|(n, _)| n.parse::<u32>().ok()).max()
    };
    let (device, memory) = (last("/dev/uio"), last("guest-memory"));
    ensure!(memory.is_some() && device > memory, "the device is not above its memory: {said}");
    Ok(())
}

/// A program is killed with a connection open; the next one finds a device that works.
fn killed(pair: &mut Pair) -> Result<()> {
    let uds = pair.uds(PROGRAM.0);
    let guest = &mut pair.guest;
    let line = format!("pci sleep listen 2000 receive {SHORT}");
    let job = Background::listen(guest, &line)?;
    let (socket, _) = host::connect_to(&uds, 2000, VsockKind::Stream)?;
    job::send_load(&socket, Load { bytes: SHORT.bytes / 2, ..SHORT })?;
    stops_before_its_memory_is_free(guest, &job)?;
    job.signal(guest, "KILL")?;
    let job = Background::listen(guest, &line)?;
    // The new driver's reset ended it, at the latest.
    ensure!(job::receive_end(&socket).is_err() || job::send_load(&socket, SHORT).is_err(), "it goes on");
    let (socket, _) = host::connect_to(&uds, 2000, VsockKind::Stream)?;
    job::send_whole(&socket, SHORT)?;
    job.finish(guest)?;
    Ok(())
}
