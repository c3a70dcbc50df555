//! `zw-vsock`: the guest's end of the vsock tests.
//!
//! ```text
//! zw-vsock cid
//! zw-vsock stream|seqpacket connect CID PORT JOB [NUMBER...]
//! zw-vsock stream|seqpacket listen PORT JOB [NUMBER...]
//! zw-vsock pci WORD...
//! zw-vsock file SEED BYTES PATH
//! zw-vsock tcp-echo PORT
//! zw-vsock tls MODE BACKEND SEED WRITE BYTES
//! ```
//! Jobs are those of `zerowire_vmtest::vsock::job`; numbers are listed at each. `pci`
//! drives a device of its own, see `zerowire_vmtest::vsock::pci`. `file`
//! writes a pattern to a file; `tcp-echo` sends everything back that comes on one TCP connection;
//! `tls` is `zerowire_vmtest::tls`. With
//! `listen` the line `listening` says that peers may connect. The last line is `ok …` or
//! `failed: …`; the exit status is 0 or 1.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use zerowire_vmtest::vsock::guest::{Address, accept_from, connect_to, connect_with, listen_on, local_cid};
use zerowire_vmtest::vsock::job::{self, Load};
use zerowire_vmtest::vsock::pattern::Pattern;
use zerowire_vmtest::vsock::{VsockKind, allow_descriptors, lend, pci, zerocopy};
use zerowire_vmtest::{report, tls};

fn main() -> ExitCode {
    report(run(&mut Words(std::env::args().skip(1).collect())))
}

fn run(words: &mut Words) -> Result<String> {
    let kind = match words.next("a command")?.as_str() {
        "cid" => return Ok(local_cid()?.to_string()),
        "pci" => return pci::run(words.0.make_contiguous()),
        "file" => return write_file(words),
        "tcp-echo" => return tcp_echo(words),
        "tls" => return send_encrypted(words),
        "stream" => VsockKind::Stream,
        "seqpacket" => VsockKind::Seqpacket,
        other => bail!("unknown command '{other}'"),
    };
    allow_descriptors()?;
    let role = words.next("connect or listen")?;
    let end = match role.as_str() {
        "connect" => ConnectionEnd::Connects(
            Address { cid: words.number("a CID")?, port: words.number("a port")? },
            kind,
        ),
        "listen" => {
            let listener = listen_on(words.number("a port")?, kind)?;
            println!("listening");
            ConnectionEnd::Listens(listener)
        }
        other => bail!("'{other}' is neither connect nor listen"),
    };
    let name = words.next("a job")?;
    let text = work(&end, &name, words).with_context(|| name.clone())?;
    ensure!(words.0.is_empty(), "too many arguments: {:?}", words.0);
    Ok(text)
}

/// SEED BYTES PATH
fn write_file(words: &mut Words) -> Result<String> {
    let (seed, bytes) = (words.number("a seed")?, words.number("a length")?);
    let path = words.next("a path")?;
    std::fs::write(&path, Pattern::new(seed).bytes(0, bytes)).with_context(|| format!("write {path}"))?;
    Ok(String::new())
}

/// PORT
fn tcp_echo(words: &mut Words) -> Result<String> {
    let listener = std::net::TcpListener::bind(("0.0.0.0", words.number("a port")?)).context("bind")?;
    println!("listening");
    let (socket, _) = listener.accept().context("accept")?;
    Ok(format!("{} bytes", job::echo(&socket)?))
}

/// MODE BACKEND SEED WRITE BYTES
fn send_encrypted(words: &mut Words) -> Result<String> {
    let options = lend::options(&words.next("a mode")?, &words.next("a back end")?)?;
    Ok(serde_json::to_string(&tls::send(options, words.load()?)?)?)
}

/// How connections come about.
enum ConnectionEnd {
    Connects(Address, VsockKind),
    Listens(OwnedFd),
}

impl ConnectionEnd {
    fn open(&self) -> Result<OwnedFd> {
        match self {
            Self::Connects(address, kind) => connect_to(*address, *kind),
            Self::Listens(listener) => accept_from(listener),
        }
    }

    fn open_with(&self, buffer: u64) -> Result<OwnedFd> {
        match self {
            Self::Connects(address, kind) => connect_with(*address, *kind, buffer),
            Self::Listens(_) => bail!("only a socket that connects is given a buffer"),
        }
    }

    fn open_all(&self, count: usize) -> Result<Vec<OwnedFd>> {
        let mut sockets = Vec::with_capacity(count);
        while sockets.len() < count {
            let number = sockets.len();
            sockets.push(self.open().with_context(|| format!("connection {number} of {count}"))?);
        }
        Ok(sockets)
    }
}

/// Does a job; its numbers are in `words`.
type Job = fn(end: &ConnectionEnd, words: &mut Words) -> Result<String>;

const JOBS: [(&str, Job); 21] = [
    ("echo", echo),
    ("exchange", exchange),
    ("send", send),
    ("send-each", send_each),
    ("receive", receive),
    ("zerocopy", zerocopy),
    ("held", held),
    ("choose", choose),
    ("request", request),
    ("reply", reply),
    ("exchange-messages", exchange_messages),
    ("send-records", send_records),
    ("receive-records", receive_records),
    ("ask-tokens", ask_tokens),
    ("answer-tokens", answer_tokens),
    ("churn", churn),
    ("hold", hold),
    ("silent", silent),
    ("send-until-refused", send_until_refused),
    ("send-and-wait", send_and_wait),
    ("refused", refused),
];

fn work(end: &ConnectionEnd, name: &str, words: &mut Words) -> Result<String> {
    let (_, job) =
        JOBS.iter().find(|(job, _)| *job == name).with_context(|| format!("unknown job '{name}'"))?;
    job(end, words)
}

/// CONNECTIONS, one after the other; 0 is without end.
fn echo(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    let count: usize = words.number("a count")?;
    let mut bytes = 0;
    let mut number = 0;
    while count == 0 || number < count {
        bytes += job::echo(end.open()?).with_context(|| format!("connection {number}"))?;
        number += 1;
    }
    Ok(format!("{bytes} bytes"))
}

/// SEED WRITE BYTES..., each on a connection of its own.
fn exchange(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    let (seed, write_bytes) = (words.number("a seed")?, words.number("a write size")?);
    for bytes in words.rest::<u64>()? {
        let load = Load { seed, bytes, write_bytes };
        job::exchange(end.open()?, load).with_context(|| format!("{bytes} bytes"))?;
    }
    Ok(String::new())
}

/// SEED WRITE BYTES
fn send(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    job::send_whole(end.open()?, words.load()?)?;
    Ok(String::new())
}

/// SEED WRITE BYTES BUFFER..., each on a connection of its own whose socket has that buffer;
/// 0 is the default.
fn send_each(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    let (load, buffers) = (words.load()?, words.rest::<u64>()?);
    for buffer in buffers {
        let send = end.open_with(buffer).and_then(|socket| job::send_whole(socket, load));
        send.with_context(|| format!("with a buffer of {buffer}"))?;
    }
    Ok(String::new())
}

/// SEED WRITE BYTES
fn receive(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    job::receive_whole(end.open()?, words.load()?)?;
    Ok(String::new())
}

/// SEED WRITE BYTES
fn zerocopy(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    let socket = end.open()?;
    let sends = zerocopy::send_load(&socket, words.load()?)?;
    job::end_data(&socket)?;
    job::receive_end(&socket)?;
    Ok(format!("{} {}", sends.calls, sends.copied))
}

/// MODE BACKEND COUNT BYTES: payloads by zerowire's sender that change while they are on
/// their way.
fn held(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    let options = lend::options(&words.next("a mode")?, &words.next("a back end")?)?;
    let count = words.number("a count")?;
    lend::held(end.open()?, options, count, words.number("a length")?)
}

/// BYTES: by the same sender, which chooses.
fn choose(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    lend::choose(end.open()?, words.number("a length")?)
}

/// SEED WRITE BYTES REPLY_BYTES
fn request(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    job::request(end.open()?, words.load()?, words.number("the length of the reply")?)?;
    Ok(String::new())
}

/// SEED WRITE BYTES REPLY_BYTES
fn reply(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    job::reply(end.open()?, words.load()?, words.number("the length of the reply")?)?;
    Ok(String::new())
}

/// SEED LENGTH...
fn exchange_messages(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    let (seed, lengths) = (words.number("a seed")?, words.rest::<usize>()?);
    job::exchange_messages(end.open()?, seed, &lengths)?;
    Ok(String::new())
}

/// SEED LENGTH..., with marked records.
fn send_records(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    let (seed, lengths) = (words.number("a seed")?, words.rest::<usize>()?);
    let socket = end.open()?;
    job::send_messages(&socket, seed, &lengths, true)?;
    job::end_data(&socket)?;
    job::receive_end(&socket)?;
    Ok(String::new())
}

/// SEED LENGTH...
fn receive_records(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    let (seed, lengths) = (words.number("a seed")?, words.rest::<usize>()?);
    let socket = end.open()?;
    job::receive_messages(&socket, seed, &lengths, true)?;
    job::receive_end(&socket)?;
    Ok(String::new())
}

/// SEED CONNECTIONS, all open at the same time.
fn ask_tokens(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    let seed = words.number("a seed")?;
    let sockets = end.open_all(words.number("a count")?)?;
    job::ask_tokens(&sockets, seed)?;
    Ok(format!("{} connections", sockets.len()))
}

/// CONNECTIONS, all open at the same time.
fn answer_tokens(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    let sockets = end.open_all(words.number("a count")?)?;
    for (number, socket) in sockets.iter().enumerate() {
        job::answer_token(socket).with_context(|| format!("connection {number}"))?;
    }
    for socket in &sockets {
        job::receive_end(socket)?;
    }
    Ok(format!("{} connections", sockets.len()))
}

/// SEED CONNECTIONS, one after the other.
fn churn(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    let (seed, count): (u64, u64) = (words.number("a seed")?, words.number("a count")?);
    for number in 0..count {
        let ask = end.open().and_then(|socket| job::ask_tokens(&[socket], seed + number));
        ask.with_context(|| format!("connection {number} of {count}"))?;
    }
    Ok(String::new())
}

/// SEED CONNECTIONS: exchanges a token on each, then keeps them until they end.
fn hold(end: &ConnectionEnd, words: &mut Words) -> Result<String> {
    let seed = words.number("a seed")?;
    let sockets = end.open_all(words.number("a count")?)?;
    job::ask_tokens(&sockets, seed)?;
    println!("holding");
    for (number, socket) in sockets.iter().enumerate() {
        job::wait_gone(socket).with_context(|| format!("connection {number}"))?;
    }
    Ok(String::new())
}

/// Ends its receiving, and does nothing any more.
fn silent(end: &ConnectionEnd, _words: &mut Words) -> Result<String> {
    let socket = end.open()?;
    job::end_receiving(&socket)?;
    println!("silent");
    loop {
        std::thread::park();
    }
}

/// Sends until the peer receives no more.
fn send_until_refused(end: &ConnectionEnd, _words: &mut Words) -> Result<String> {
    Ok(format!("{} bytes", job::send_until_refused(end.open()?)?))
}

/// Sends one token, and waits for the end.
fn send_and_wait(end: &ConnectionEnd, _words: &mut Words) -> Result<String> {
    let socket = end.open()?;
    job::send_load(&socket, Load { seed: 0, bytes: job::TOKEN_BYTES as u64, write_bytes: job::TOKEN_BYTES })?;
    job::wait_gone(&socket)?;
    Ok(String::new())
}

/// A connect that must fail.
fn refused(end: &ConnectionEnd, _words: &mut Words) -> Result<String> {
    match end.open() {
        Ok(_) => bail!("the connection was accepted"),
        Err(error) => match error.downcast_ref::<Errno>() {
            Some(&Errno::CONNRESET | &Errno::CONNREFUSED) => Ok(format!("{error:#}")),
            _ => Err(error.context("refused in another way than by a reset")),
        },
    }
}

/// The rest of the command line.
struct Words(VecDeque<String>);

impl Words {
    fn next(&mut self, what: &str) -> Result<String> {
        self.0.pop_front().with_context(|| format!("{what} is missing"))
    }

    fn number<N: FromStr<Err = std::num::ParseIntError>>(&mut self, what: &str) -> Result<N> {
        let word = self.next(what)?;
        word.parse().with_context(|| format!("'{word}' is not {what}"))
    }

    fn load(&mut self) -> Result<Load> {
        Ok(Load {
            seed: self.number("a seed")?,
            write_bytes: self.number("a write size")?,
            bytes: self.number("a number of bytes")?,
        })
    }

    fn rest<N: FromStr<Err = std::num::ParseIntError>>(&mut self) -> Result<Vec<N>> {
        let mut numbers = Vec::new();
        while !self.0.is_empty() {
            numbers.push(self.number("a length")?);
        }
        Ok(numbers)
    }
}
