//! Serves a file by HTTP and lends its pages: the kernel sends them from the page cache.
//!
//! ```text
//! file_server disk.img --listen 127.0.0.1:8080 &
//! curl -o copy http://127.0.0.1:8080/
//! ```
//! Each client has a thread, so a slow one holds up nobody else. The kernel may read a lent page
//! until the client has acknowledged it. So don't make the file shorter while it is served.

use clap::Parser;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use zerowire::area::MappedFile;
use zerowire::ledger::Totals;
use zerowire::send::{SendMode, SendOptions, Sender};

/// Bytes of the file in one payload.
const CHUNK: u64 = 256 << 10;
/// Bytes of the longest request.
const LONGEST_REQUEST: u64 = 8192;
/// How long a client may take nothing, or say nothing.
const PATIENCE: Duration = Duration::from_secs(30);

/// Serves a file by HTTP and lends its pages
#[derive(Parser)]
struct Args {
    /// What to serve, whatever path a client asks for
    file: PathBuf,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: String,
    /// copy, zerocopy, or auto: lend where that was measured to cost less
    #[arg(long, default_value = "auto", value_parser = mode)]
    mode: SendMode,
    /// End after this number of clients
    #[arg(long, value_name = "N")]
    clients: Option<usize>,
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
    eprintln!("file_server: {e}");
    ExitCode::FAILURE
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let file = &MappedFile::open(&args.file)?;
    let listener = TcpListener::bind(&args.listen)
        .map_err(|e| format!("can't listen at {}: {e}; name another address with --listen", args.listen))?;
    println!("listening at {}: {} bytes", listener.local_addr()?, file.len());
    thread::scope(|scope| {
        for client in listener.incoming().take(args.clients.unwrap_or(usize::MAX)) {
            let client = client?;
            scope.spawn(move || {
                serve(client, file, args.mode).unwrap_or_else(|e| eprintln!("file_server: {e}"));
            });
        }
        Ok(())
    })
}

fn serve(client: TcpStream, file: &MappedFile, mode: SendMode) -> Result<(), Box<dyn Error>> {
    let peer = client.peer_addr()?;
    client.set_read_timeout(Some(PATIENCE))?;
    let request = read_request(&client).map_err(|e| format!("no request from {peer}: {e}"))?;
    if !request.starts_with("GET ") {
        (&client).write_all(b"HTTP/1.0 405 Method Not Allowed\r\nAllow: GET\r\n\r\n")?;
        return Err(format!("{request:?} from {peer} is not answered: send GET, as curl does").into());
    }
    let mut sender = Sender::new(client.into(), SendOptions::default().mode(mode).timeout(Some(PATIENCE)))?;
    let sent = send(&mut sender, file);
    println!("to {peer}: {}; {}", ledger(&sender.counters().snapshot()), sender.path());
    sent.map_err(|e| format!("to {peer}: {e}"))?;
    let mut client = TcpStream::from(sender.into_socket(PATIENCE)?);
    client.shutdown(Shutdown::Write)?;
    // A socket that is closed with bytes unread resets the connection: the client closes first.
    io::copy(&mut client, &mut io::sink()).map_err(|e| format!("{peer} has not closed: {e}"))?;
    Ok(())
}

/// The first line of a request. Reads all of it, up to its empty line.
fn read_request(client: &TcpStream) -> io::Result<String> {
    let mut lines = BufReader::new(client.take(LONGEST_REQUEST)).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    Ok(first)
}

/// Sends the answer, and waits until the kernel has given all pages back.
fn send(sender: &mut Sender, file: &MappedFile) -> Result<(), Box<dyn Error>> {
    sender.send(format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", file.len()).into_bytes())?;
    for at in (0..file.len()).step_by(CHUNK as usize) {
        sender.send(file.slice(at..file.len().min(at + CHUNK))?)?;
    }
    Ok(sender.wait_all(PATIENCE)?)
}

/// Of every byte whether it was copied, and why.
fn ledger(totals: &Totals) -> String {
    let copied = totals.copied_bytes.iter().map(|(why, bytes)| format!(", {bytes} copied ({why})"));
    format!("{} bytes: {} not copied{}", totals.bytes, totals.zero_copied_bytes, copied.collect::<String>())
}
