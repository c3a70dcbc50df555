//! Bytes that the guest's kernel stores for each byte that it receives over virtio-net. Zero-copy
//! receive without a device copies payload into the area once, as recv copies it into the program's
//! buffer. It must not store more besides. It is a count, and no time.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::stores::{Meter, StoreRun, per_byte};
use zerowire_vmtest::vsock::job::{self, Load};

use super::setup::{Net, Plan};
use super::vsock::setup::together;
use super::zcrx::{connect, has_all};

/// For one transfer.
const TRANSFER: Duration = Duration::from_secs(120);

/// A short transfer and a long one, which have the program's start in common.
const SMALL: u64 = 1 << 20;
const LARGE: u64 = 33 << 20;

const SEED: u64 = 520;
const PORT: u16 = 7090;

/// The ways that are compared, as `zw-recv` names them: a receiver without a device, and recv with
/// 64 KiB.
const WAYS: [&str; 2] = ["no-device", "recv:65536"];

/// How often each way is counted, in turn: how many frames come at a time differs from run to run.
const ROUNDS: usize = 5;

/// A tenth of the payload copied once more is found. The medians differ less: 1.607 and 1.592,
/// 1.579 and 1.588 (without a device, recv) with a release build of the program, of counts from
/// 1.53 to 1.67. The tests' build is slower, so its guest's kernel is entered and left more often a
/// byte: 1.683 and 1.635, 1.692 and 1.626.
const NOISE: f64 = 1.1;

/// TCP, one connection.
pub fn count(env: &Env<'_>) -> Result<String> {
    let meter = Meter::new(env.dir)?;
    let mut net = Net::start(env, Plan { qemu_arguments: meter.arguments(), ..Plan::default() })?;
    has_all(&mut net.guest)?;
    net.wait_for_link()?;
    // The first program after a restore stores some MiB that later ones don't.
    let mut port = PORT;
    transfer(&mut net, &meter, WAYS[0], SMALL, port)?;
    let mut all = WAYS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (way, counts) in WAYS.into_iter().zip(&mut all) {
            let mut run = |bytes| {
                port += 1;
                transfer(&mut net, &meter, way, bytes, port)
            };
            counts.push(per_byte(run(SMALL)?, run(LARGE)?)?);
        }
    }
    if std::env::var_os("ZEROWIRE_VERBOSE").is_some() {
        println!("  without a device {:.3?}, recv {:.3?}", all[0], all[1]);
    }
    let [no_device, recv] = all.map(median);
    let line = format!("without a device {no_device:.3}, recv {recv:.3} bytes stored for each received");
    ensure!(recv >= 1.0, "recv stores too little to be counted right: {line}");
    ensure!(no_device <= recv * NOISE, "zero-copy receive without a device stores more than recv: {line}");
    net.finish()?;
    Ok(line)
}

fn median(mut counts: Vec<f64>) -> f64 {
    counts.sort_by(f64::total_cmp);
    counts[counts.len() / 2]
}

/// What the meter grows by while one connection brings `bytes` bytes.
fn transfer(net: &mut Net, meter: &Meter, way: &str, bytes: u64, port: u16) -> Result<StoreRun> {
    let serve = format!("zw-recv {way} serve {port} {SEED} {bytes} 1");
    let before = meter.read()?;
    let Net { guest, namespace, .. } = net;
    let sent = together(|| namespace.inside(|| send(port, bytes)), || guest.sh_within(&serve, TRANSFER));
    sent.with_context(|| serve.clone())?;
    Ok(StoreRun { payload: bytes, stored: meter.read()? - before })
}

fn send(port: u16, bytes: u64) -> Result<()> {
    let mut socket = connect(port)?;
    socket.write_all(&[0])?;
    job::send_load(&socket, Load { seed: SEED, bytes, write_bytes: 1 << 20 })?;
    job::end_data(&socket)
}
