//! When the refill ring is handed over: early, when half of the area waits there, or late, when
//! less is left than a turn brings.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result, ensure};
use zerowire::recv::{Events, Flush, Receiver, RecvBackend, What};
use zerowire_vmtest::vsock::pattern::Pattern;

use super::cases::{options, with};
use super::wire::PATIENCE;

const BUFFERS: usize = 64;
/// A message takes one buffer.
const MESSAGE: usize = 1000;
/// Many times the area.
const MESSAGES: usize = BUFFERS * 16;
const SEED: u64 = 15;

/// A write of many buffers that the socket takes at once.
const LOAD: usize = 100_000;
const LOADS: usize = 40;

/// Each message costs one call; what differs is the calls that hand the ring over: late, fewer. Of
/// loads of many buffers it is not more.
pub fn calls(backend: RecvBackend) -> Result<String> {
    ensure!(backend == RecvBackend::NoDevice, "only without a device");
    let [eager, lazy] = [Flush::Eager, Flush::Lazy].map(|flush| run(flush, MESSAGES, MESSAGE));
    let (eager, lazy) = (eager?, lazy?);
    let line = format!("{MESSAGES} messages: eager {eager:?}, lazy {lazy:?}");
    ensure!(lazy.system_calls < eager.system_calls, "late saves no calls: {line}");
    ensure!(eager.out_of_buffers + lazy.out_of_buffers == 0, "the area was empty: {line}");
    let [eager, lazy] = [Flush::Eager, Flush::Lazy].map(|flush| run(flush, LOADS, LOAD));
    let (eager, lazy) = (eager?, lazy?);
    let line = format!("{line}; {LOADS} loads: eager {eager:?}, lazy {lazy:?}");
    // A load comes in more than one turn where the socket has not all of it yet: the runs differ by
    // that.
    ensure!(lazy.system_calls <= eager.system_calls + LOADS as u64 / 4, "late costs calls: {line}");
    Ok(line)
}

/// `messages` messages of a length, each received and given back before the next is sent.
fn run(flush: Flush, messages: usize, len: usize) -> Result<Events> {
    let options = with(options(RecvBackend::NoDevice, BUFFERS), |z| z.flush = flush);
    let mut receiver = Receiver::new(options)?;
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    let mut far = TcpStream::connect(listener.local_addr()?).context("connect")?;
    far.set_nodelay(true)?;
    receiver.add(listener.accept().context("accept")?.0.into())?;
    let pattern = Pattern::new(SEED);
    let mut batch = Vec::new();
    for number in 0..messages {
        let begin = (number * len) as u64;
        let end = begin + len as u64;
        far.write_all(&pattern.bytes(begin, len))?;
        let mut at = begin;
        while at < end {
            ensure!(receiver.recv(&mut batch, Some(PATIENCE))? > 0, "nothing comes at byte {at}");
            for arrival in batch.drain(..) {
                let What::Data(lease) = arrival.what else { anyhow::bail!("{:?} at {at}", arrival.what) };
                ensure!(pattern.first_difference(at, &lease).is_none(), "a byte is wrong behind {at}");
                at += lease.len() as u64;
            }
        }
        ensure!(at == end, "{at} of {end} bytes came");
    }
    Ok(receiver.events())
}
