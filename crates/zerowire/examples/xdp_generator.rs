//! Sends numbered Ethernet frames through AF_XDP, as fast as they go.
//!
//! ```text
//! xdp_generator eth1 --count 10000000 --to 52:54:00:12:34:56
//! ```
//! Frames are built in the memory that the kernel, or in zero-copy mode the NIC, sends from. They
//! have EtherType 0x88b5 (IEEE 802, local experiments). Behind it stands the frame's number in 8
//! bytes, the highest first, and then zeroes. It needs CAP_NET_RAW.

use clap::{Parser, value_parser};
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use zerowire::ledger::Totals;
use zerowire::send::frame::FrameSender;
use zerowire::send::in_place::InPlace;
use zerowire::xdp::{SenderOptions, XdpSender};

/// Sender of the frames, locally administered.
const FROM: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
/// EtherType of the frames.
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];
/// How long the interface may send nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends numbered Ethernet frames through AF_XDP, as fast as they go
#[derive(Parser)]
struct Args {
    /// Interface, in this network namespace
    interface: String,
    /// Its queue. In zero-copy mode what the queue receives is dropped: take one without traffic
    #[arg(long, value_name = "N", default_value_t = 0)]
    queue: u32,
    /// Frames to send
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    count: u64,
    /// Length of a frame with its Ethernet header
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = value_parser!(u32).range(60..))]
    len: u32,
    /// Whom the frames are for; the default is nobody's address
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:02", value_parser = mac)]
    to: [u8; 6],
}

fn mac(text: &str) -> Result<[u8; 6], &'static str> {
    let bytes: Result<Vec<u8>, _> = text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    // from_str_radix takes a sign.
    let bytes = bytes.ok().filter(|_| !text.contains('+'));
    bytes.and_then(|b| b.try_into().ok()).ok_or("give six bytes as in 52:54:00:12:34:56")
}

fn main() -> ExitCode {
    let Err(e) = run(&Args::parse()) else { return ExitCode::SUCCESS };
    eprintln!("xdp_generator: {e}");
    ExitCode::FAILURE
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let options = SenderOptions::new(&args.interface).queue(args.queue).max_frame_bytes(args.len as usize);
    let mut sender = XdpSender::open(options)?;
    let start = Instant::now();
    let sent = send(&mut sender, args);
    let seconds = start.elapsed().as_secs_f64();
    let totals = sender.counters().snapshot();
    let (frames, calls) = (totals.frames, totals.system_calls);
    println!(
        "{frames} frames in {seconds:.3} s, {:.0} frames/s, {calls} system calls",
        frames as f64 / seconds
    );
    println!("{}; {}", ledger(&totals), sender.path());
    sent
}

/// Pushes until no place is free, then waits until the kernel or the NIC has given some back.
fn send(sender: &mut XdpSender, args: &Args) -> Result<(), Box<dyn Error>> {
    let mut number = 0;
    while number < args.count {
        let mut build = |frame: &mut [u8]| build(frame, args.to, number);
        if sender.push(args.len as usize, &mut build)? {
            number += 1;
        } else if !sender.wait(PATIENCE)? {
            // What is stuck is named by draining.
            break;
        }
    }
    Ok(sender.drain(PATIENCE)?)
}

/// Writes each byte of a frame: its place may hold an older one.
fn build(frame: &mut [u8], to: [u8; 6], number: u64) {
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&FROM);
    frame[12..14].copy_from_slice(&EXPERIMENT);
    frame[14..22].copy_from_slice(&number.to_be_bytes());
    frame[22..].fill(0);
}

/// Of every byte whether it was copied, and why; and which frames were dropped.
fn ledger(totals: &Totals) -> String {
    let copied = totals.copied_bytes.iter().map(|(why, bytes)| format!(", {bytes} copied ({why})"));
    let dropped =
        totals.dropped_frames.iter().map(|(why, frames)| format!(", {frames} frames dropped ({why})"));
    let more: String = copied.chain(dropped).collect();
    format!("{} bytes: {} not copied{more}", totals.bytes, totals.zero_copied_bytes)
}
