//! Bytes that the guest's kernel stores for each byte that `zerowire send` sends over virtio-net. A
//! copy is one, the zeroing of the page it goes to another; lent pages need neither. What remains
//! is the work for each packet and for each page of the mapped file. It is a count, and no time.

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::guest::Guest;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::send::{self, PatternFile, Said};
use zerowire_vmtest::stores::{Meter, StoreRun, per_byte};

use super::send::Sink;
use super::setup::{Net, Plan};
use super::vsock::setup::together;

/// A short transfer and a long one, which have the program's start in common.
const SMALL: PatternFile = PatternFile { seed: 80, bytes: 1 << 20 };
const LARGE: PatternFile = PatternFile { seed: 81, bytes: 17 << 20 };

/// Writes of 64 KiB.
const OPTIONS: &str = "--backend socket --chunk 65536";

/// Copying stores more than this for each byte. Measured were 2.2 to 2.8, of which one is the copy
/// and one the zeroing of its page (Debian's kernels set init_on_alloc).
const COPY_AT_LEAST: f64 = 1.8;

/// The pages a file lies in: the folder in the guest, their length, and the most that is stored for
/// each lent byte. Measured were 0.69 to 1.0 and 0.36 to 0.53. Pages are mapped into the program,
/// the send looks them up, and the kernel unmaps them one by one, so their number counts.
const PAGES: [(&str, &str, f64); 2] = [("/tmp", "4 KiB", 1.3), (HUGE_FOLDER, "2 MiB", 0.8)];

/// A tmpfs of huge pages.
const HUGE_FOLDER: &str = "/tmp/huge";

/// TCP, 64 KiB a write: copying against lending.
pub fn net(env: &Env<'_>) -> Result<String> {
    let meter = Meter::new(env.dir)?;
    let mut net = Net::start(env, Plan { qemu_arguments: meter.arguments(), ..Plan::default() })?;
    net.wait_for_link()?;
    let sink = Sink::new(&net)?;
    make_files(&mut net.guest)?;
    // The first program after a restore stores some MiB that later ones don't.
    transfer(&mut net.guest, &sink, &meter, SMALL, PAGES[0].0, "copy")?;
    let mut text = Vec::new();
    for (folder, pages, lend_at_most) in PAGES {
        let mut count = |mode: &str| -> Result<f64> {
            let small = transfer(&mut net.guest, &sink, &meter, SMALL, folder, mode)?;
            let large = transfer(&mut net.guest, &sink, &meter, LARGE, folder, mode)?;
            per_byte(small, large)
        };
        let (copy, lend) = (count("copy")?, count("zerocopy")?);
        let line = format!("pages of {pages}: copy {copy:.2}, zerocopy {lend:.2} bytes stored for each sent");
        ensure!(copy > COPY_AT_LEAST, "copying stores too little to be counted right: {line}");
        ensure!(lend < lend_at_most, "lending stores more than {lend_at_most}: {line}");
        text.push(line);
    }
    net.finish()?;
    Ok(text.join("; "))
}

/// Both files in pages of both sizes.
fn make_files(guest: &mut Guest) -> Result<()> {
    for (folder, ..) in PAGES {
        if folder == HUGE_FOLDER {
            guest.sh(&format!("mkdir {folder} && mount -t tmpfs -o huge=always huge {folder}"))?;
        }
        for file in [SMALL, LARGE] {
            file.write_to(guest, folder)?;
        }
    }
    let huge = guest.sh("awk '/^ShmemHugePages/{print $2}' /proc/meminfo")?;
    let huge: u64 = huge.parse().with_context(|| format!("ShmemHugePages is '{huge}'"))?;
    ensure!(huge << 10 >= LARGE.bytes / 10 * 9, "only {huge} KiB of the files lie in huge pages");
    Ok(())
}

/// Sends a file of a folder; the meter's growth.
fn transfer(
    guest: &mut Guest,
    sink: &Sink,
    meter: &Meter,
    file: PatternFile,
    folder: &str,
    mode: &str,
) -> Result<StoreRun> {
    let to = sink.address()?;
    let options = format!("--mode {mode} {OPTIONS}");
    let before = meter.read()?;
    let sent = together(|| sink.receive(file), || send::complete_from(guest, &to, file, folder, &options));
    let stored = meter.read()? - before;
    let (said, ()) = sent.with_context(|| format!("{options} of {folder}"))?;
    check(&said, file, mode).with_context(|| format!("{options} of {folder}"))?;
    Ok(StoreRun { payload: file.bytes, stored })
}

/// What is counted must be what was asked for, all of it.
fn check(said: &Said, file: PatternFile, mode: &str) -> Result<()> {
    let ledger = &said.ledger;
    let right = if mode == "copy" { ledger.copied("asked") } else { ledger.zero_copied_bytes };
    ensure!(right == file.bytes, "not all bytes went the way that was asked for: {said:?}");
    Ok(())
}
