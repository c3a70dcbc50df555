//! A TCP proxy without a copy of its own: it lends what it receives, where it was received.
//!
//! ```text
//! proxy 127.0.0.1:8080 10.0.0.2:80
//! ```
//! The kernel fills a buffer of the receiver. The program has a lease of it, and gives the lease to
//! the sender as a payload. The sender drops it when the kernel has read the bytes, which gives the
//! buffer back to the receiver. Each client has a thread for either way.

use bytes::Bytes;
use clap::Parser;
use std::error::Error;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use zerowire::ledger::Totals;
use zerowire::recv::{Receiver, RecvOptions, What};
use zerowire::send::{SendOptions, Sender};

/// Payloads that the kernel may hold. A receiver stops at 64 leases of one connection.
const MAX_LENT: usize = 32;
/// How often to look for memory that is back, while nothing comes and some is lent.
const TICK: Duration = Duration::from_millis(10);
/// How long the other side may take for what is left at the end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A TCP proxy without a copy of its own
#[derive(Parser)]
struct Args {
    /// Where to listen, as 127.0.0.1:8080; port 0 takes a free one
    listen: String,
    /// Where to connect for each client, as 10.0.0.2:80
    target: String,
    /// Only from the client to the target
    #[arg(long)]
    one_way: bool,
    /// End after this number of clients
    #[arg(long, value_name = "N")]
    clients: Option<usize>,
}

fn main() -> ExitCode {
    let Err(e) = run(&Args::parse()) else { return ExitCode::SUCCESS };
    eprintln!("proxy: {e}");
    ExitCode::FAILURE
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(&args.listen)
        .map_err(|e| format!("can't listen at {}: {e}; name another address", args.listen))?;
    println!("listening at {}: for {}", listener.local_addr()?, args.target);
    thread::scope(|scope| {
        for client in listener.incoming().take(args.clients.unwrap_or(usize::MAX)) {
            let client = client?;
            scope.spawn(move || serve(&client, args).unwrap_or_else(|e| eprintln!("proxy: {e}")));
        }
        Ok(())
    })
}

fn serve(client: &TcpStream, args: &Args) -> Result<(), Box<dyn Error>> {
    let target = &TcpStream::connect(&args.target)
        .map_err(|e| format!("can't connect to {}: {e}; does a program listen there?", args.target))?;
    thread::scope(|scope| {
        let ways = [(client, target), (target, client)];
        for (from, to) in ways.into_iter().take(if args.one_way { 1 } else { 2 }) {
            scope.spawn(move || {
                let Err(e) = forward(from, to) else { return };
                eprintln!("proxy: {e}");
                // The other way ends, too.
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            });
        }
    });
    Ok(())
}

/// Moves one way until its end, and says how.
fn forward(from: &TcpStream, to: &TcpStream) -> Result<(), Box<dyn Error>> {
    let name = format!("{} to {}", from.peer_addr()?, to.peer_addr()?);
    let mut receiver = Receiver::new(RecvOptions::default())?;
    receiver.add(from.try_clone()?.into())?;
    let mut sender = Sender::new(to.try_clone()?.into(), SendOptions::default().max_lent(MAX_LENT))?;
    let moved = pump(&mut receiver, &mut sender);
    let [received, sent] = [receiver.counters(), sender.counters()].map(|c| ledger(&c.snapshot()));
    println!("{name}: received {received}; sent {sent}");
    moved.map_err(|e| format!("{name}: {e}"))?;
    Ok(to.shutdown(Shutdown::Write)?)
}

fn pump(receiver: &mut Receiver, sender: &mut Sender) -> Result<(), Box<dyn Error>> {
    let mut batch = Vec::new();
    loop {
        receiver.recv(&mut batch, (sender.outstanding() > 0).then_some(TICK))?;
        for arrival in batch.drain(..) {
            match arrival.what {
                What::Data(lease) => {
                    sender.send(Bytes::from_owner(lease))?;
                }
                What::End => return Ok(sender.wait_all(PATIENCE)?),
                What::Failed(e) => return Err(e.into()),
                What::Accepted(_) => {}
            }
        }
        sender.poll()?;
    }
}

/// Of every byte whether it was copied, and why.
fn ledger(totals: &Totals) -> String {
    let copied = totals.copied_bytes.iter().map(|(why, bytes)| format!(", {bytes} copied ({why})"));
    format!("{} bytes: {} not copied{}", totals.bytes, totals.zero_copied_bytes, copied.collect::<String>())
}
