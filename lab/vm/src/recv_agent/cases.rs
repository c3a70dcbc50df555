//! The cases. Each makes its own receiver and returns a line for people.

use std::io::Read;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use zerowire::area::{AreaOptions, Pages};
use zerowire::recv::{Arrival, Flush, Receiver, RecvBackend, RecvError, RecvOptions, What, ZcrxOptions};
use zerowire_vmtest::vsock::job::Load;
use zerowire_vmtest::vsock::pattern::Pattern;

use super::wire::{Book, PATIENCE, add_all, join, sender};
use super::{added, c_calls, flush, killed, memlock, shared};

/// A case.
pub type Case = fn(RecvBackend) -> Result<String>;

/// All of them.
pub const ALL: [(&str, Case); 31] = [
    ("streams", |b| streams(options(b, 256))),
    ("kernel-ring", |b| streams(with(options(b, 256), |z| z.kernel_ring = true))),
    ("kernel-ring-tiny", |b| tiny(with(options(b, 4), |z| (z.kernel_ring, z.mixed) = (true, true)))),
    ("mixed", |b| streams(with(options(b, 256), |z| z.mixed = true))),
    ("huge", huge),
    ("tiny-eager", |b| tiny(options(b, 4))),
    ("tiny-lazy", |b| tiny(with(options(b, 4), |z| z.flush = Flush::Lazy))),
    ("lazy", |b| streams(with(options(b, 64), |z| z.flush = Flush::Lazy))),
    ("lazy-mixed", |b| streams(with(options(b, 64), |z| (z.flush, z.mixed) = (Flush::Lazy, true)))),
    ("overflow", |b| overflow(options(b, 256))),
    ("overflow-mixed", |b| overflow(with(options(b, 256), |z| z.mixed = true))),
    ("small", small),
    ("many", many),
    ("held", held),
    ("elsewhere", elsewhere),
    ("limit", limit),
    ("remove", remove),
    ("dropped", dropped),
    ("reset", reset),
    ("areas", shared::areas),
    ("added", added::added),
    ("added-shared", added::shared),
    ("shared", |b| shared::two(options(b, 64))),
    ("shared-tiny", |b| shared::two(with(options(b, 6), |z| (z.mixed, z.flush) = (true, Flush::Lazy)))),
    ("left-behind", shared::left_behind),
    ("c-shared", c_calls::shared),
    ("c-dmabuf", c_calls::dmabuf),
    ("killed", killed::killed),
    ("flush-calls", flush::calls),
    ("memlock", memlock::refused),
    ("refused", refused),
];

/// `buffers` of a page each.
pub fn options(backend: RecvBackend, buffers: usize) -> RecvOptions {
    RecvOptions::default().backend(backend).buffer_bytes(4096).buffers(buffers)
}

pub fn with(mut options: RecvOptions, change: impl FnOnce(&mut ZcrxOptions)) -> RecvOptions {
    change(&mut options.zcrx);
    options
}

pub fn load(seed: u64, bytes: u64) -> Load {
    Load { seed, bytes, write_bytes: 50_000 }
}

/// What is said of a run.
pub fn said(receiver: &Receiver, bytes: u64) -> String {
    format!("{bytes} bytes, {:?}, {}", receiver.events(), receiver.path())
}

/// Receives these loads to their ends.
fn complete(options: RecvOptions, loads: impl IntoIterator<Item = Load>) -> Result<(Receiver, Book)> {
    let mut receiver = Receiver::new(options)?;
    let mut book = Book::default();
    let (_, threads) = add_all(&mut receiver, &mut book, loads)?;
    book.complete(&mut receiver)?;
    join(threads)?;
    Ok((receiver, book))
}

/// Several connections, byte for byte; the ledger counts every byte as copied by the kernel.
pub fn streams(options: RecvOptions) -> Result<String> {
    let is_zero_copy = options.backend == RecvBackend::NoDevice;
    let (receiver, book) = complete(options, (0..4).map(|i| load(10 + i, (2 << 20) + 4_321 * i)))?;
    let counters = receiver.counters();
    let totals = counters.snapshot();
    let by_kernel = totals.copied_bytes.values().sum::<u64>();
    ensure!(by_kernel == book.total(), "the ledger has {by_kernel} of {} bytes", book.total());
    ensure!(totals.zero_copied_bytes == 0, "nothing was placed by a NIC");
    let events = receiver.events();
    ensure!(!is_zero_copy || events.copied > 0, "the kernel counted no copies: {events:?}");
    ensure!(!is_zero_copy || events.notices > 0, "the kernel sent no event: {events:?}");
    Ok(said(&receiver, book.total()))
}

/// Huge pages under the area.
fn huge(backend: RecvBackend) -> Result<String> {
    std::fs::write("/proc/sys/vm/nr_hugepages", "4").context("nr_hugepages")?;
    let text = streams(options(backend, 512).pages(Pages::Huge))?;
    std::fs::write("/proc/sys/vm/nr_hugepages", "0").context("nr_hugepages")?;
    Ok(text)
}

/// An area of four pages, emptied all the time: either connection alone may have all of it.
fn tiny(options: RecvOptions) -> Result<String> {
    let is_zero_copy = options.backend == RecvBackend::NoDevice;
    let share = Some(options.buffers);
    let (receiver, book) = complete(options.share(share), [load(1, 300_001), load(2, 200_000)])?;
    let events = receiver.events();
    ensure!(!is_zero_copy || events.out_of_buffers > 0, "the area never was empty: {events:?}");
    Ok(said(&receiver, book.total()))
}

/// A completion queue of eight.
fn overflow(options: RecvOptions) -> Result<String> {
    let (receiver, book) =
        complete(options.completions(8).share(Some(256)), (0..3).map(|i| load(20 + i, 1 << 20)))?;
    let events = receiver.events();
    ensure!(events.overflows > 0, "the queue never was full: {events:?}");
    Ok(said(&receiver, book.total()))
}

/// Pieces far shorter than a page.
fn small(backend: RecvBackend) -> Result<String> {
    let loads = (0..2).map(|i| Load { write_bytes: 3, ..load(30 + i, 6_000) });
    let (receiver, book) = complete(options(backend, 16), loads)?;
    Ok(said(&receiver, book.total()))
}

/// Fifty connections in an area of 64 pages.
fn many(backend: RecvBackend) -> Result<String> {
    let (receiver, book) = complete(options(backend, 64), (0..50).map(|i| load(100 + i, 30_000 + i)))?;
    Ok(said(&receiver, book.total()))
}

/// One connection's leases are all held: it waits at its share, and the others go on.
fn held(backend: RecvBackend) -> Result<String> {
    let mut receiver = Receiver::new(options(backend, 128).share(Some(16)))?;
    let mut book = Book::default();
    let loads = [load(40, 1 << 20), load(41, 1 << 20), load(42, 1 << 20)];
    let (ids, threads) = add_all(&mut receiver, &mut book, loads)?;
    let mut kept: Vec<Arrival> = Vec::new();
    let mut batch = Vec::new();
    while !(book.has_ended(ids[1]) && book.has_ended(ids[2])) {
        book.turn(&mut receiver, &mut batch)?;
        kept.extend(batch.drain(..).filter(|a| a.connection == ids[0]));
    }
    ensure!(kept.len() >= 16, "only {} leases were given before the pause", kept.len());
    ensure!(kept.len() <= 64, "{} leases were given to a connection with a share of 16", kept.len());
    ensure!(!book.has_ended(ids[0]) && receiver.events().paused > 0, "it was not paused");
    // Nobody wrote what was lent meanwhile.
    let mut at = 0;
    for arrival in &kept {
        let What::Data(lease) = &arrival.what else { bail!("{:?} is no data", arrival.what) };
        ensure!(Pattern::new(40).first_difference(at, lease).is_none(), "a lent piece at {at} was written");
        at += lease.len() as u64;
    }
    let count = kept.len();
    drop(kept);
    book.complete(&mut receiver)?;
    join(threads)?;
    Ok(format!("{count} held; {}", said(&receiver, book.total())))
}

/// Another thread drops the leases, some time later.
fn elsewhere(backend: RecvBackend) -> Result<String> {
    let mut receiver = Receiver::new(options(backend, 8))?;
    let mut book = Book::default();
    let (_, threads) = add_all(&mut receiver, &mut book, [load(50, 300_000), load(51, 300_000)])?;
    let (to, from) = std::sync::mpsc::channel::<Vec<Arrival>>();
    let dropper = std::thread::spawn(move || {
        for batch in from {
            std::thread::sleep(Duration::from_millis(2));
            drop(batch);
        }
    });
    while !book.is_complete() {
        let mut batch = Vec::new();
        book.turn(&mut receiver, &mut batch)?;
        to.send(batch).ok().context("the other thread is gone")?;
    }
    drop(to);
    dropper.join().ok().context("the other thread panicked")?;
    join(threads)?;
    Ok(said(&receiver, book.total()))
}

/// Bounded receives end at the byte.
fn limit(backend: RecvBackend) -> Result<String> {
    let mut receiver = Receiver::new(options(backend, 64))?;
    let mut book = Book::default();
    let (ids, threads) = add_all(&mut receiver, &mut book, [load(60, 500_000)])?;
    let mut batch = Vec::new();
    let mut upto = 0;
    for step in [1, 4_095, 4_096, 100_000, 77_777] {
        receiver.limit(ids[0], Some(step))?;
        upto += step;
        while book.got(ids[0]) < upto {
            book.turn(&mut receiver, &mut batch)?;
            batch.clear();
        }
        ensure!(receiver.recv(&mut batch, Some(Duration::from_millis(50)))? == 0, "more came: {batch:?}");
        ensure!(book.got(ids[0]) == upto, "{} came, {upto} were asked for", book.got(ids[0]));
    }
    receiver.limit(ids[0], None)?;
    book.complete(&mut receiver)?;
    join(threads)?;
    Ok(said(&receiver, book.total()))
}

/// What was taken before a removal comes; the rest is still in the socket.
fn remove(backend: RecvBackend) -> Result<String> {
    let mut receiver = Receiver::new(options(backend, 32))?;
    let mut book = Book::default();
    let loads = [load(70, 600_000), load(71, 600_000)];
    let (ids, threads) = add_all(&mut receiver, &mut book, loads)?;
    let mut batch = Vec::new();
    while book.got(ids[0]) < 100_000 {
        book.turn(&mut receiver, &mut batch)?;
        batch.clear();
    }
    let mut socket = TcpStream::from(receiver.remove(ids[0])?);
    let id = loop {
        book.turn(&mut receiver, &mut batch)?;
        let is_done = batch.iter().all(|a| a.connection != ids[0]);
        batch.clear();
        if is_done {
            break ids[0];
        }
    };
    let got = book.got(id);
    let mut rest = Vec::new();
    let left = std::thread::spawn(move || socket.read_to_end(&mut rest).map(|_| rest));
    while !book.has_ended(ids[1]) {
        book.turn(&mut receiver, &mut batch)?;
        ensure!(batch.iter().all(|a| a.connection != id), "a removed connection receives");
        batch.clear();
    }
    let rest = left.join().ok().context("the reader panicked")?.context("read")?;
    ensure!(got + rest.len() as u64 == 600_000, "{got} and {} of 600000 bytes", rest.len());
    ensure!(Pattern::new(70).first_difference(got, &rest).is_none(), "the rest is another");
    join(threads)?;
    Ok(format!("{got} before; {}", said(&receiver, book.total())))
}

/// The receiver goes in the middle, with leases out.
fn dropped(backend: RecvBackend) -> Result<String> {
    let mut kept = Vec::new();
    for round in 0..3 {
        let mut receiver = Receiver::new(options(backend.clone(), 64))?;
        let mut book = Book::default();
        // Another receiver's leases are out; they must not change.
        let (_, threads) =
            add_all(&mut receiver, &mut book, [load(80 + round, 8 << 20), load(90 + round, 8 << 20)])?;
        let mut batch = Vec::new();
        while book.total() < 100_000 * (round + 1) {
            book.turn(&mut receiver, &mut batch)?;
            kept.extend(
                std::mem::take(&mut batch).into_iter().filter(|a| !book.has_ended(a.connection)).take(1).map(
                    |a| match a.what {
                        What::Data(lease) => (lease.to_vec(), lease),
                        _ => unreachable!("a connection that has not ended gives data"),
                    },
                ),
            );
        }
        drop(receiver);
        // The sockets are gone, too: senders find out.
        for thread in threads {
            let sent = thread.join().ok().context("a sender panicked")?;
            ensure!(sent.is_err(), "a sender sent 8 MiB to nobody");
        }
    }
    for (copy, lease) in &kept {
        ensure!(copy[..] == lease[..], "a lent piece has changed");
    }
    let count = kept.len();
    std::thread::spawn(move || drop(kept)).join().ok().context("dropping leases panicked")?;
    let last = streams(options(backend, 64))?;
    Ok(format!("{count} leases outlived three receivers; {last}"))
}

/// A reset is reported; after a half-close the other direction works.
fn reset(backend: RecvBackend) -> Result<String> {
    let mut receiver = Receiver::new(options(backend, 64))?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let pair = || -> Result<_> {
        let stream = TcpStream::connect(listener.local_addr()?)?;
        Ok((stream, listener.accept()?.0))
    };
    let (broken, socket) = pair()?;
    let id = receiver.add(socket.into())?;
    rustix::net::sockopt::set_socket_linger(&broken, Some(Duration::ZERO))?;
    let mut batch = Vec::new();
    ensure!(receiver.recv(&mut batch, Some(Duration::from_millis(20)))? == 0, "{batch:?}");
    drop(broken);
    receiver.recv(&mut batch, Some(PATIENCE))?;
    match batch.as_slice() {
        [Arrival { connection, what: What::Failed(e) }] if *connection == id => {
            ensure!(e.raw_os_error() == Some(libc::ECONNRESET), "{e}");
        }
        other => bail!("a reset gave {other:?}"),
    }
    batch.clear();
    let (mut half, socket) = pair()?;
    let id = receiver.add(socket.into())?;
    half.shutdown(std::net::Shutdown::Write)?;
    receiver.recv(&mut batch, Some(PATIENCE))?;
    ensure!(matches!(batch[..], [Arrival { what: What::End, .. }]), "{batch:?}");
    let socket = receiver.socket(id).context("the socket is gone")?;
    rustix::io::write(socket, b"reply")?;
    let mut reply = [0; 5];
    half.read_exact(&mut reply)?;
    ensure!(&reply == b"reply");
    Ok(String::new())
}

/// What can't be: each with its reason.
fn refused(_: RecvBackend) -> Result<String> {
    let mut receiver = Receiver::new(options(RecvBackend::NoDevice, 16))?;
    let udp = UdpSocket::bind("127.0.0.1:0")?;
    let refused = receiver.add(udp.into()).err().context("a UDP socket was taken")?;
    ensure!(matches!(refused.error, RecvError::NotTcp), "{refused}");
    UdpSocket::from(refused.socket).local_addr().context("the socket did not come back")?;
    let (unix, _other) = std::os::unix::net::UnixStream::pair()?;
    let refused = receiver.add(unix.into()).err().context("a Unix socket was taken")?;
    ensure!(matches!(refused.error, RecvError::NotTcp), "{refused}");
    let (socket, thread) = sender(load(1, 10))?;
    receiver.add(socket)?;
    join(vec![thread])?;
    let says = |options: RecvOptions, errno: i32, word: &str| match Receiver::new(options) {
        Err(error) if error.errno() == Some(errno) && error.to_string().contains(word) => Ok(()),
        other => bail!("expected errno {errno} and '{word}': {other:?}"),
    };
    let mut other = Receiver::new(options(RecvBackend::Multishot, 16))?;
    let area = AreaOptions::default().buffers(16).buffer_bytes(4096);
    ensure!(matches!(other.add_area(area), Err(RecvError::OneArea)), "multishot took an area");
    let short = receiver.add_area(area.buffer_bytes(64));
    ensure!(matches!(short, Err(RecvError::ZeroCopyArea { bytes: 1024, .. })), "{short:?}");
    let none = receiver.add_area(area.buffers(1));
    ensure!(matches!(none, Err(RecvError::Buffers(1))), "{none:?}");
    let queue = |name: &str, queue| options(RecvBackend::Queue { interface: name.to_owned(), queue }, 16);
    says(queue("lo", 0), libc::EOPNOTSUPP, "queue management")?;
    says(queue("nowhere0", 0), libc::ENODEV, "nowhere0")?;
    let long = with(options(RecvBackend::NoDevice, 64), |z| z.rx_buf_len = Some(65536));
    says(long, libc::EOPNOTSUPP, "rx_buf_len")?;
    says(
        with(options(RecvBackend::NoDevice, 64), |z| z.rx_buf_len = Some(5000)),
        libc::EINVAL,
        "power of two",
    )?;
    let area = receiver.export()?;
    rustix::thread::set_thread_res_uid(uid(), uid(), uid()).context("setresuid")?;
    says(options(RecvBackend::NoDevice, 16), libc::EPERM, "CAP_NET_ADMIN")?;
    match Receiver::import(&area, options(RecvBackend::NoDevice, 16)) {
        Err(error) if error.errno() == Some(libc::EPERM) => {
            let text = error.to_string();
            ensure!(text.contains("area of another receiver") && text.contains("CAP_NET_ADMIN"), "{text}");
        }
        other => bail!("an import without CAP_NET_ADMIN: {other:?}"),
    }
    Ok(String::new())
}

/// Nobody.
fn uid() -> rustix::fs::Uid {
    rustix::fs::Uid::from_raw(65534)
}
