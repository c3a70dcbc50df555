//! Several areas, and several receivers of one area.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use zerowire::recv::{Arrival, Receiver, RecvBackend, RecvOptions, SharedArea};

use super::cases::{load, options, said};
use super::wire::{Book, PATIENCE, Sending, add_all, join};

/// Two areas on one thread: two receivers, whose batches are taken in turn.
pub fn areas(backend: RecvBackend) -> Result<String> {
    let mut both = [Receiver::new(options(backend.clone(), 32))?, Receiver::new(options(backend, 64))?];
    let mut books = [Book::default(), Book::default()];
    let mut threads = Vec::new();
    for (receiver, (book, seed)) in both.iter_mut().zip(books.iter_mut().zip([200, 210])) {
        threads.extend(add_all(receiver, book, [load(seed, 1 << 20), load(seed + 1, 1 << 20)])?.1);
    }
    // Leases of both at once, in one list.
    let (mut held, begin) = (Vec::new(), Instant::now());
    while !books.iter().all(Book::is_complete) {
        ensure!(begin.elapsed() < PATIENCE, "{:?}", books);
        held.clear();
        for (receiver, book) in both.iter_mut().zip(&mut books) {
            let before = held.len();
            receiver.recv(&mut held, Some(Duration::from_millis(1)))?;
            held[before..].iter().try_for_each(|a| book.note(a))?;
        }
    }
    join(threads)?;
    Ok(said(&both[0], books[0].total() + books[1].total()))
}

/// Two receivers on two threads share one area; when the first has gone, the second goes on.
pub fn two(options: RecvOptions) -> Result<String> {
    let buffers = options.buffers;
    let mut first = Receiver::new(options.clone())?;
    let area = first.export()?;
    ensure!(area.buffers() == buffers && area.area_bytes() == buffers * 4096, "{area:?}");
    let first_is_gone = Arc::new(AtomicBool::new(false));
    let second = std::thread::spawn({
        let first_is_gone = Arc::clone(&first_is_gone);
        move || partner(&area, options, &first_is_gone)
    });
    let (book, threads) = run(&mut first, 300)?;
    join(threads)?;
    let text = said(&first, book.total());
    drop(first);
    first_is_gone.store(true, Ordering::Release);
    let other = second.join().ok().context("the second receiver panicked")??;
    Ok(format!("{text}; {other}"))
}

/// The second receiver: at the same time as the first, and once more after it.
fn partner(area: &SharedArea, options: RecvOptions, first_is_gone: &AtomicBool) -> Result<String> {
    let mut receiver = Receiver::import(area, options)?;
    let (before, threads) = run(&mut receiver, 310)?;
    join(threads)?;
    let begin = Instant::now();
    while !first_is_gone.load(Ordering::Acquire) {
        ensure!(begin.elapsed() < PATIENCE, "the first receiver doesn't end");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (after, threads) = run(&mut receiver, 320)?;
    join(threads)?;
    let counters = receiver.counters().snapshot();
    let bytes = before.total() + after.total();
    ensure!(counters.bytes == bytes, "the ledger has {} of {bytes} bytes", counters.bytes);
    Ok(said(&receiver, bytes))
}

fn run(receiver: &mut Receiver, seed: u64) -> Result<(Book, Vec<Sending>)> {
    let mut book = Book::default();
    let loads = [load(seed, 400_001), load(seed + 1, 300_000)];
    let (ids, threads) = add_all(receiver, &mut book, loads)?;
    book.complete(receiver)?;
    for id in ids {
        receiver.remove(id)?;
    }
    Ok((book, threads))
}

/// A receiver goes with completions that nobody took and leases that are out: the other one gets
/// those buffers.
pub fn left_behind(backend: RecvBackend) -> Result<String> {
    const BUFFERS: usize = 24;
    const LEFT: usize = 4;
    let options = options(backend, BUFFERS).share(Some(BUFFERS));
    let mut first = Receiver::new(options.clone())?;
    let area = first.export()?;
    let mut book = Book::default();
    let loads = [load(330, 8 << 20), load(331, 8 << 20)];
    let (_, broken) = add_all(&mut first, &mut book, loads)?;
    let mut out = Vec::new();
    while out.len() < LEFT {
        book.turn(&mut first, &mut out)?;
    }
    // The others are dropped, though the receiver doesn't hear of it any more.
    out.truncate(LEFT);
    let copies: Vec<Vec<u8>> = out.iter().filter_map(bytes_of).map(<[u8]>::to_vec).collect();
    drop(first);
    for thread in broken {
        ensure!(thread.join().ok().context("a sender panicked")?.is_err(), "8 MiB went to nobody");
    }
    let mut second = Receiver::import(&area, options)?;
    let free = most(&mut second, 340, 1 << 20)?;
    let same = out.iter().filter_map(bytes_of).zip(&copies).all(|(lease, copy)| lease == copy);
    ensure!(same, "a lease that was left behind has changed");
    ensure!(free == BUFFERS - LEFT, "{free} of {BUFFERS} buffers are free, {} leases are out", copies.len());
    drop(out);
    let armed = second.events().armed;
    let all = most(&mut second, 350, 1 << 20)?;
    let armed = second.events().armed - armed;
    ensure!(armed < MOST_TRIES, "with no buffer free, a receive was started {armed} times");
    ensure!(all == BUFFERS, "{all} of {BUFFERS} buffers came back");
    Ok(format!("{free}, then {all}; {}", said(&second, 0)))
}

pub fn bytes_of(arrival: &Arrival) -> Option<&[u8]> {
    match &arrival.what {
        zerowire::recv::What::Data(lease) => Some(lease),
        _ => None,
    }
}

/// More than the tries of a second, one a millisecond.
const MOST_TRIES: u64 = 2_000;

/// How many leases of whole buffers can be held at a time, while a stream that is longer comes.
pub fn most(receiver: &mut Receiver, seed: u64, bytes: u64) -> Result<usize> {
    let mut book = Book::default();
    let (ids, threads) = add_all(receiver, &mut book, [load(seed, bytes)])?;
    let mut held = Vec::new();
    while receiver.recv(&mut held, Some(Duration::from_millis(300)))? > 0 {}
    held.iter().try_for_each(|a| book.note(a))?;
    let count = held.len();
    drop(held);
    book.complete(receiver)?;
    receiver.remove(ids[0])?;
    join(threads)?;
    Ok(count)
}
