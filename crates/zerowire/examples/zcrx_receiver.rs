//! Receives a TCP connection into a queue of a NIC, which places the payload in this program's
//! memory. Where that is refused it receives by the best way that is left, and says why.
//!
//! ```text
//! zerowire doctor -i eth1 -q 7 --configure &    # header split, RSS; prints the rules for steering
//! zcrx_receiver -i eth1 -q 7 --listen [::]:9999 --to received
//! ```
//! It needs Linux 6.15, CAP_NET_ADMIN, and a NIC with queue management (bnxt_en, mlx5_core, gve,
//! fbnic). Only flows that the NIC steers to the queue arrive without a copy.

use clap::Parser;
use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use zerowire::recv::{Receiver, RecvBackend, RecvError, RecvOptions, What, ZeroCopied};

/// Receives a TCP connection into a queue of a NIC, or by the best way that is left
#[derive(Parser)]
struct Args {
    /// Interface with the queue, as eth1
    #[arg(short, long)]
    interface: String,
    /// Number of its receive queue
    #[arg(short, long)]
    queue: u32,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:9999")]
    listen: String,
    /// Write what comes to this file
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Fail where the queue is refused
    #[arg(long)]
    strict: bool,
}

fn main() -> ExitCode {
    let Err(e) = run(&Args::parse()) else { return ExitCode::SUCCESS };
    eprintln!("zcrx_receiver: {e}");
    ExitCode::FAILURE
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(&args.listen)
        .map_err(|e| format!("can't listen at {}: {e}; name another address with --listen", args.listen))?;
    let mut output = match &args.to {
        Some(path) => Some(File::create(path).map_err(|e| format!("--to {}: {e}", path.display()))?),
        None => None,
    };
    let mut receiver = open(args)?;
    println!("listening at {}: {}", listener.local_addr()?, receiver.path());
    let (socket, peer) = listener.accept()?;
    receiver.add(socket.into())?;
    let received = receive(&mut receiver, output.as_mut());
    println!("from {peer}: {}", ledger(&receiver));
    received
}

/// A receiver on the queue. Else another one, after the reason and what to do about it.
fn open(args: &Args) -> Result<Receiver, RecvError> {
    let queue = RecvBackend::Queue { interface: args.interface.clone(), queue: args.queue };
    match Receiver::new(RecvOptions::default().backend(queue)) {
        Err(e) if !args.strict => {
            println!("not into the queue: {e}");
            Receiver::new(RecvOptions::default())
        }
        opened => opened,
    }
}

/// Receives until the end of the connection. The file is written from the memory that the NIC or
/// the kernel has filled; each lease that is dropped gives its buffer back.
fn receive(receiver: &mut Receiver, mut output: Option<&mut File>) -> Result<(), Box<dyn Error>> {
    let mut batch = Vec::new();
    loop {
        receiver.recv(&mut batch, None)?;
        for arrival in batch.drain(..) {
            match arrival.what {
                What::Data(lease) => {
                    if let Some(file) = &mut output {
                        file.write_all(&lease)?;
                    }
                }
                What::End => return Ok(()),
                What::Failed(e) => return Err(e.into()),
                What::Accepted(_) => {}
            }
        }
    }
}

/// Of every byte whether it was copied, and why, as far as the kernel tells.
fn ledger(receiver: &Receiver) -> String {
    let totals = receiver.counters().snapshot();
    let copied = totals.copied_bytes.iter().map(|(why, bytes)| format!(", {bytes} copied ({why})"));
    let known = match receiver.zero_copied() {
        ZeroCopied::Exact => "",
        ZeroCopied::AtMost => "at most ",
        ZeroCopied::Unknown => "an unknown part of ",
    };
    let (all, placed) = (totals.bytes, totals.zero_copied_bytes);
    format!("{all} bytes: {known}{placed} not copied{}", copied.collect::<String>())
}
