//! `zerowire-demo --soft`: the devices at work without a VM and without downloads.
//!
//! ```text
//!  this process                        child processes       host's kernel     this process
//!  smoltcp ── zerowire-guest ── vhost-user ── zerowire net ── tap ── TCP/IP ── threads
//!  sockets ── zerowire-guest ── vhost-user ── zerowire vsock ── unix sockets ── threads
//! ```
//! All of it is in a network namespace of its own, which vanishes with the processes.

mod backend;
mod guest;
mod host;
mod offload;
mod privilege;
mod vsock;

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};
use zerowire_bench::netns::{NetnsLink, in_new_namespace};
use zerowire_cli::outcome;
use zerowire_cli::signals::Signals;

use self::backend::SoftBackend;
use self::guest::SoftGuest;
use crate::next::{self, Shown};
use crate::story::Story;
use crate::story::ledger::{self, Way};

/// The host's end of the link.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// The guest's end.
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Network mask of both, bits.
const PREFIX: u8 = 24;

/// The tap's name in the namespace.
const TAP: &str = "zerowire0";

/// What the metadata service serves.
const METADATA: &str = r#"{"latest": {"meta-data": {"instance-id": "i-demo", "hostname": "guest.example"}}}"#;

/// The guest's address on its vsock device.
const CID: u32 = 3;

const STEPS: u32 = 11;

/// Arguments of `zerowire-demo --soft`.
#[derive(Args, Debug)]
pub struct SoftArgs {
    /// MiB to transfer in each direction.
    #[arg(long, requires = "soft", default_value_t = 1024, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    mib: u64,
    /// Print a summary as one JSON document and nothing else.
    #[arg(long, requires = "soft")]
    json: bool,
}

/// Runs the command.
pub fn run(args: &SoftArgs) -> Result<ExitCode> {
    // What comes after the demo is for the machine, not for the namespace that the demo makes.
    let next = next::after(Shown::Soft)?;
    // Before the first thread: a process with several can't enter a user namespace.
    privilege::enter_user_namespace_if_needed()?;
    let signals =
        Signals::block(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]).context("signals can't be blocked")?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        // An error would mean that no signal can be waited for: then nothing can be stopped.
        while matches!(signals.wait(None), Ok(None)) {}
        flag.store(true, Ordering::Relaxed);
    })?;
    let mut story = Story::new(STEPS, args.json);
    let begin = Instant::now();
    let summary = in_new_namespace(|| tell(&mut story, args.mib << 20, &stop))?;
    let took = begin.elapsed().as_secs_f64();
    story.end(&format!("The demo took {took:.1} s. Namespace, tap and files are gone."), &next);
    if args.json {
        outcome::print(&summary)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(story: &mut Story, bytes: u64, stop: &Arc<AtomicBool>) -> Result<Value> {
    story.step("What runs here");
    let system = rustix::system::uname();
    let kernel = system.release().to_string_lossy().into_owned();
    story.say(format!("zerowire {} on Linux {kernel}", env!("CARGO_PKG_VERSION")));
    story.say("The guest is zerowire-guest in this process: its own memory, virtqueues and TCP/IP, no VM.");
    story.say("Everything is in a network namespace of its own, which is gone when the demo ends.");

    story.step("Start the device and connect the guest");
    let mut backend = SoftBackend::net(METADATA)?;
    let begin = Instant::now();
    let mut guest = SoftGuest::connect(backend.socket(), Arc::clone(stop)).map_err(|e| backend.explain(e))?;
    let connected_in = begin.elapsed();
    let link = NetnsLink::new(TAP)?;
    link.set_ipv4(HOST, PREFIX.into())?;
    story.say(format!("$ {}", backend.command_line()));
    story.say(format!("listening and connected after {:.0} ms", connected_in.as_secs_f64() * 1e3));
    let vm = backend.statistics()?["vms"][0].take();
    let path = vm["path"].as_str().unwrap_or_default().to_owned();
    story.say(format!("path: {path}"));
    story.say(format!("features: {}", feature_names(&vm)));

    story.step(&format!("Ping: guest {GUEST} to the host's kernel {HOST}"));
    let mut round_trips = Vec::new();
    for number in 1..=3 {
        let time = guest.ping(number)?;
        story.say(format!("answer {number} after {:.0} µs", time.as_secs_f64() * 1e6));
        round_trips.push(time.as_micros() as u64);
    }

    story.step("Metadata: http://169.254.169.254 is answered inside zerowire net");
    let instance = metadata(&mut guest, story)?;

    let mut transfers = Vec::new();
    let mut cpu = Vec::new();
    for way in Way::BOTH {
        story.step(&format!("TCP, {}: {} MiB, every byte compared", way.name(), bytes >> 20));
        let before = backend.statistics()?;
        let took = transfer(&mut guest, story, way, bytes)?;
        let after = backend.statistics()?;
        let seconds =
            ledger::cpu_seconds_a_gigabyte(&before, &after, way).context("no bytes were counted")?;
        cpu.push((way, seconds));
        transfers.push(summary(way, bytes, took, seconds));
    }

    story.step("The ledger: what zerowire net did with the bytes");
    drop(guest);
    let last = backend.stop()?;
    let vm = &last["vms"][0];
    story.say(ledger::table(vm, &cpu));
    check("net", vm)?;
    let vsock = vsock::tell(story, bytes, stop)?;
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"), "kernel": kernel, "path": path,
        "round_trip_microseconds": round_trips, "metadata": {"instance-id": instance},
        "transfers": transfers, "statistics": last, "vsock": vsock,
    }))
}

/// A transfer in the JSON document.
fn summary(way: Way, bytes: u64, took: Duration, cpu_seconds_a_gigabyte: f64) -> Value {
    json!({
        "direction": way.name(), "bytes": bytes, "seconds": took.as_secs_f64(),
        "gigabits_per_second": bytes as f64 * 8e-9 / took.as_secs_f64(),
        "backend_cpu_seconds_per_gigabyte": cpu_seconds_a_gigabyte,
    })
}

/// A demonstration in which something was lost must not look like one that went well.
fn check(device: &str, vm: &Value) -> Result<()> {
    for name in ["ring_errors", "connection_errors"] {
        ensure!(vm[name] == 0, "zerowire {device} counted {} {name}: {}", vm[name], vm["last_error"]);
    }
    Ok(())
}

fn metadata(guest: &mut SoftGuest, story: &Story) -> Result<String> {
    let refused = guest.http("GET /latest/meta-data/instance-id", "")?;
    story.say(format!("GET /latest/meta-data/instance-id without a token: status {}", refused.status));
    ensure!(refused.status == 401, "a request without a token must be refused");
    let token = guest.http("PUT /latest/api/token", "X-metadata-token-ttl-seconds: 60\r\n")?;
    ensure!(token.status == 200, "no token: status {}", token.status);
    story.say(format!("PUT /latest/api/token: a token of {} bytes for 60 s", token.body.len()));
    let header = format!("X-metadata-token: {}\r\n", token.body);
    let answer = guest.http("GET /latest/meta-data/instance-id", &header)?;
    ensure!(answer.status == 200, "with a token: status {}", answer.status);
    story.say(format!("GET /latest/meta-data/instance-id with it: {}", answer.body));
    Ok(answer.body)
}

fn transfer(guest: &mut SoftGuest, story: &Story, way: Way, bytes: u64) -> Result<Duration> {
    let peer = host::HostPeer::start(way, bytes)?;
    let mut progress = story.progress(bytes);
    let moved = match way {
        Way::FromGuest => guest.send(peer.port(), bytes, |done| progress.set(done)),
        Way::ToGuest => guest.receive(peer.port(), |done| progress.set(done)),
    }?;
    let at_host = peer.finish()?;
    if moved != bytes || at_host != bytes {
        bail!("{moved} bytes at the guest and {at_host} at the host, of {bytes}");
    }
    Ok(progress.finish(bytes))
}

fn feature_names(vm: &Value) -> String {
    let names = vm["features"].as_array().into_iter().flatten().filter_map(Value::as_str);
    names.map(|name| name.trim_start_matches("NET_")).collect::<Vec<_>>().join(", ")
}
