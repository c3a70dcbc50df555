//! Sends bytes over loopback, and prints both ends' ledgers as one JSON document.
//!
//! ```text
//! ledger_json --bytes 1000000000 --mode zerocopy | jq .sent.ledger.copied_bytes
//! ```
//! The sender's bytes lie in an area that is registered with io_uring, where that is allowed. Over
//! loopback the kernel copies lent memory to the receiver; the ledger says `kernel` then. By a NIC
//! the same program sends without a copy: give the sender another socket.

use clap::{Parser, value_parser};
use serde_json::{Value, json};
use std::error::Error;
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{slice, thread};
use zerowire::area::{Area, AreaOptions};
use zerowire::recv::{Receiver, RecvError, RecvOptions, What};
use zerowire::send::{SendMode, SendOptions, Sender};

/// How long the receiver may take nothing.
const PATIENCE: Duration = Duration::from_secs(30);
/// Buffers that are filled, sent and filled again.
const BUFFERS: usize = 32;

/// Sends bytes over loopback, and prints both ends' ledgers as one JSON document
#[derive(Parser)]
struct Args {
    /// Bytes to send
    #[arg(long, default_value_t = 100_000_000)]
    bytes: u64,
    /// Bytes of one payload
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = value_parser!(u32).range(1..=1 << 24))]
    payload: u32,
    /// copy, zerocopy, or auto: lend where that was measured to cost less
    #[arg(long, default_value = "auto", value_parser = mode)]
    mode: SendMode,
}

fn mode(name: &str) -> Result<SendMode, &'static str> {
    match name {
        "copy" => Ok(SendMode::Copy),
        "zerocopy" => Ok(SendMode::ZeroCopy),
        "auto" => Ok(SendMode::Auto),
        _ => Err("take copy, zerocopy or auto"),
    }
}

fn main() -> ExitCode {
    let Err(e) = run(&Args::parse()) else { return ExitCode::SUCCESS };
    eprintln!("ledger_json: {e}");
    ExitCode::FAILURE
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| format!("no port on loopback: {e}"))?;
    let socket = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    let start = Instant::now();
    let receiver = thread::spawn(move || receive(peer));
    let sent = send(socket, args)?;
    let received = receiver.join().map_err(|_| "the receiver panicked")??;
    let seconds = start.elapsed().as_secs_f64();
    println!("{:#}", json!({ "seconds": seconds, "sent": sent, "received": received }));
    Ok(())
}

/// Sends from buffers of an area, each of which the kernel gives back before it is filled again.
fn send(socket: TcpStream, args: &Args) -> Result<Value, Box<dyn Error>> {
    let options = SendOptions::default().mode(args.mode).timeout(Some(PATIENCE));
    let area = Area::new(AreaOptions::default().buffers(BUFFERS).buffer_bytes(args.payload as usize))?;
    let mut sender = Sender::with_areas(socket.into(), options, slice::from_ref(&area))?;
    let mut left = args.bytes;
    while left > 0 {
        let mut buffer = sender.lease(&area, Some(PATIENCE))?;
        let len = left.min(buffer.capacity() as u64);
        assert!(buffer.set_len(len as usize), "no more than the buffer has");
        buffer.fill(left as u8);
        sender.send(buffer)?;
        left -= len;
    }
    sender.wait_all(PATIENCE)?;
    let ledger = sender.counters().snapshot();
    Ok(json!({ "path": sender.path(), "choices": sender.choices(), "ledger": ledger }))
}

/// Receives until the end. A lease that is dropped gives its buffer back.
fn receive(socket: TcpStream) -> Result<Value, RecvError> {
    let mut receiver = Receiver::new(RecvOptions::default())?;
    receiver.add(socket.into())?;
    let (mut batch, mut failed, mut is_open) = (Vec::new(), None, true);
    while is_open {
        receiver.recv(&mut batch, None)?;
        for arrival in batch.drain(..) {
            match arrival.what {
                What::Data(lease) => drop(lease),
                What::Failed(e) => (failed, is_open) = (Some(e.to_string()), false),
                What::End => is_open = false,
                What::Accepted(_) => {}
            }
        }
    }
    let ledger = receiver.counters().snapshot();
    let (sure, events) = (receiver.zero_copied(), receiver.events());
    Ok(
        json!({ "path": receiver.path(), "error": failed, "zero_copied_is": sure, "ledger": ledger, "events": events }),
    )
}
