//! Maps the receive buffers of a vsock connection, and hashes what the guest sends in place.
//!
//! ```text
//! zerowire vsock --socket /run/vm.vsock.sock --cid 3 --uds /run/vm.vsock &
//! mapped_vsock /run/vm.vsock.map 5000 --listen
//! socat -u FILE:data VSOCK-CONNECT:2:5000          # in the guest
//! ```
//! A window belongs to this program until its lease is dropped. zerowire vsock has then copied the
//! payload into it once. With --direct it copies nothing: the window says where in the guest's
//! memory the payload lies, and the guest may change it there at any time.

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use zerowire::recv::vsock::{self, Dequeued, MappedConnection, MappedListener, MappedOptions, Payload};

/// Maps the receive buffers of a vsock connection, and hashes what the guest sends in place
#[derive(Parser)]
struct Args {
    /// Socket of zerowire vsock: its --uds with .map appended
    socket: PathBuf,
    /// Port of the guest to connect to; with --listen the host's port that a guest connects to
    port: u32,
    /// Wait for a connection of the guest
    #[arg(long)]
    listen: bool,
    /// Receive messages (SOCK_SEQPACKET), not a stream
    #[arg(long)]
    messages: bool,
    /// Read in the guest's memory, where zerowire vsock has --share-guest-memory
    #[arg(long)]
    direct: bool,
}

/// What came.
struct Seen {
    /// FNV-1a of all bytes.
    hash: u64,
    /// Bytes in windows.
    window: usize,
    /// Bytes in the guest's memory.
    direct: usize,
    messages: usize,
}

impl Seen {
    fn hash(&mut self, bytes: impl IntoIterator<Item = u8>) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

fn main() -> ExitCode {
    let Err(e) = run(&Args::parse()) else { return ExitCode::SUCCESS };
    eprintln!("mapped_vsock: {e}");
    ExitCode::FAILURE
}

fn run(args: &Args) -> Result<(), vsock::Error> {
    let options = if args.messages { MappedOptions::seqpacket() } else { MappedOptions::stream() };
    let options = options.direct(args.direct);
    let guest = if args.listen {
        MappedListener::bind(&args.socket, args.port, &options)?.accept()?
    } else {
        vsock::connect(&args.socket, args.port, &options)?
    };
    let mut seen = Seen { hash: 0xcbf2_9ce4_8422_2325, window: 0, direct: 0, messages: 0 };
    let received = receive(&guest, &mut seen);
    let Seen { hash, window, direct, messages } = seen;
    let ledger = guest.ledger();
    println!(
        "hash {hash:016x}; {} packets, {messages} messages, {} waits",
        ledger.frames, ledger.system_calls
    );
    println!(
        "{} bytes: {direct} not copied, {window} copied by zerowire vsock (window), {} by this program",
        window + direct,
        ledger.copied_total()
    );
    received
}

/// Takes windows until the guest ends its sending.
fn receive(guest: &MappedConnection, seen: &mut Seen) -> Result<(), vsock::Error> {
    loop {
        match guest.dequeue()? {
            Dequeued::Window(window) => {
                for packet in window.packets() {
                    match packet.payload() {
                        Payload::Window(bytes) => {
                            seen.window += bytes.len();
                            seen.hash(bytes.iter().copied());
                        }
                        Payload::Guest(bytes) => {
                            seen.direct += bytes.len();
                            seen.hash((0..bytes.len()).filter_map(|at| bytes.get(at)));
                        }
                    }
                    seen.messages += usize::from(packet.end_of_message());
                }
            } // dropping the window gives it back
            Dequeued::NotYet => {
                guest.wait(None)?;
            }
            Dequeued::End => return Ok(()),
        }
    }
}
