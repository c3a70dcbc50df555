//! Areas that are added to a receiver in the middle (`ZCRX_CTRL_ADD_AREA`, Linux 7.3).

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use zerowire::area::AreaOptions;
use zerowire::recv::{Arrival, Receiver, RecvBackend, RecvError, RecvOptions};

use super::cases::{load, options, said};
use super::shared::{bytes_of, most};
use super::wire::{Book, add_all, join};

/// When nothing came for this long, all that can come is there.
const QUIET: Duration = Duration::from_millis(300);

fn pages(buffers: usize) -> AreaOptions {
    AreaOptions::default().buffers(buffers).buffer_bytes(4096)
}

/// The pages that these leases lie in; no two may have the same.
fn pages_of(held: &[Arrival]) -> Result<BTreeSet<usize>> {
    let page = |bytes: &[u8]| bytes.as_ptr() as usize / 4096;
    let all: BTreeSet<usize> = held.iter().filter_map(bytes_of).map(page).collect();
    ensure!(all.len() == held.len(), "{} leases have {} pages", held.len(), all.len());
    Ok(all)
}

/// Takes what comes until nothing does, and keeps it.
fn fill(receiver: &mut Receiver, book: &mut Book, held: &mut Vec<Arrival>) -> Result<()> {
    let before = held.len();
    while receiver.recv(held, Some(QUIET))? > 0 {}
    held[before..].iter().try_for_each(|a| book.note(a))
}

/// Whether this kernel has what Linux 7.3 brought.
pub fn takes_areas() -> Result<bool> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok).with_context(|| format!("Linux {release}"));
    Ok((next()?, next()?) >= (7, 3))
}

/// On an older kernel: it says which one is needed, and what else can be done.
fn refusal(error: &RecvError) -> Result<String> {
    let text = error.to_string();
    ensure!(error.errno() == Some(libc::EOPNOTSUPP), "{:?}: {text}", error.errno());
    for word in ["can't be added", "boot Linux 7.3", "another receiver"] {
        ensure!(text.contains(word), "no '{word}' in: {text}");
    }
    Ok(format!("refused: {text}"))
}

/// Four pages at the start; two areas come in the middle of two streams, while every page is held.
/// All pages of all areas are lent at once, come back and are lent again; the receiver goes while
/// leases of each are out.
pub fn added(backend: RecvBackend) -> Result<String> {
    const AREAS: [usize; 3] = [4, 8, 300];
    let mut receiver = Receiver::new(options(backend.clone(), AREAS[0]).share(Some(1000)))?;
    let mut book = Book::default();
    let (_, threads) = add_all(&mut receiver, &mut book, [load(700, 3 << 20), load(701, (3 << 20) + 77)])?;
    let mut held = Vec::new();
    while book.total() < 100_000 {
        book.turn(&mut receiver, &mut held)?;
        held.clear();
    }
    let mut total = 0;
    for (number, buffers) in AREAS.into_iter().enumerate() {
        if number > 0 {
            match receiver.add_area(pages(buffers)) {
                Err(error) if !takes_areas()? => {
                    // The receiver is as it was.
                    drop(held);
                    book.complete(&mut receiver)?;
                    join(threads)?;
                    return refusal(&error);
                }
                result => result.with_context(|| format!("area {number}"))?,
            }
        }
        total += buffers;
        fill(&mut receiver, &mut book, &mut held)?;
        // The pages of the areas before are all held, so that what is new lies in the new one.
        ensure!(held.len() == total, "{} of {total} buffers are lent with {} areas", held.len(), number + 1);
        pages_of(&held)?;
    }
    ensure!(
        receiver.path().contains(&format!("{total} buffers of 4096 bytes in 3 areas")),
        "{}",
        receiver.path()
    );
    drop(held);
    book.complete(&mut receiver)?;
    join(threads)?;
    let counters = receiver.counters().snapshot();
    ensure!(counters.bytes == book.total(), "the ledger has {} of {} bytes", counters.bytes, book.total());
    // Twice, so that entries of all areas went through the refill ring.
    for seed in [710, 720] {
        let free = most(&mut receiver, seed, 2 << 20)?;
        ensure!(free == total, "{free} of {total} buffers came back");
    }
    let text = said(&receiver, book.total());
    outlives(receiver, book, total, options(backend, 64))?;
    Ok(format!("{total} buffers in 3 areas; {text}"))
}

/// Nothing of what is lent, all `total` buffers, changes when the receiver goes; the `next` one
/// works.
fn outlives(mut receiver: Receiver, mut book: Book, total: usize, next: RecvOptions) -> Result<()> {
    let (_, broken) = add_all(&mut receiver, &mut book, [load(730, 8 << 20)])?;
    let mut held = Vec::new();
    fill(&mut receiver, &mut book, &mut held)?;
    ensure!(pages_of(&held)?.len() == total, "{} of {total} buffers are lent", held.len());
    let copies: Vec<Vec<u8>> = held.iter().filter_map(bytes_of).map(<[u8]>::to_vec).collect();
    drop(receiver);
    for thread in broken {
        ensure!(thread.join().ok().context("a sender panicked")?.is_err(), "8 MiB went to nobody");
    }
    most(&mut Receiver::new(next)?, 740, 1 << 20)?;
    let same = held.iter().filter_map(bytes_of).zip(&copies).all(|(lease, copy)| lease == copy);
    ensure!(same, "a lease that outlived its receiver has changed");
    std::thread::spawn(move || drop(held)).join().ok().context("dropping leases panicked")
}

/// One of two receivers of a registration adds an area while it holds all of the first one. The
/// other, which got no message, gets buffers of the new one. When both have gone, a third one has
/// all of them.
pub fn shared(backend: RecvBackend) -> Result<String> {
    const FIRST: usize = 8;
    const MORE: usize = 16;
    let options = |buffers| options(backend.clone(), buffers).share(Some(1000));
    let mut first = Receiver::new(options(FIRST))?;
    let area = first.export()?;
    let mut second = Receiver::import(&area, options(FIRST))?;
    let mut book = Book::default();
    let (_, broken) = add_all(&mut second, &mut book, [load(750, 8 << 20)])?;
    let mut held = Vec::new();
    fill(&mut second, &mut book, &mut held)?;
    let old = pages_of(&held)?;
    ensure!(old.len() == FIRST, "{} of {FIRST} buffers are lent", old.len());
    match second.add_area(pages(MORE)) {
        Err(error) if !takes_areas()? => return refusal(&error),
        result => result?,
    }
    ensure!((area.buffers(), area.area_bytes()) == (FIRST + MORE, (FIRST + MORE) * 4096), "{area:?}");
    // The first receiver, which may hold as many as before.
    let mut other_book = Book::default();
    let (_, threads) = add_all(&mut first, &mut other_book, [load(760, 300_001)])?;
    let mut other = Vec::new();
    fill(&mut first, &mut other_book, &mut other)?;
    let new = pages_of(&other)?;
    ensure!(
        new.len() == FIRST && new.is_disjoint(&old),
        "{} buffers, of the old ones {:?}",
        new.len(),
        new.intersection(&old)
    );
    drop(other);
    other_book.complete(&mut first)?;
    join(threads)?;
    drop(first);
    // The second one goes with all of the first area lent, and what else was in its completions.
    drop(second);
    for thread in broken {
        ensure!(thread.join().ok().context("a sender panicked")?.is_err(), "8 MiB went to nobody");
    }
    let mut third = Receiver::import(&area, options(FIRST + MORE))?;
    let free = most(&mut third, 770, 1 << 20)?;
    ensure!(free == MORE, "{free} of {MORE} buffers are free");
    drop(held);
    let all = most(&mut third, 780, 1 << 20)?;
    ensure!(all == FIRST + MORE, "{all} of {} buffers came back", FIRST + MORE);
    Ok(format!("{free}, then {all}; {}", said(&third, 0)))
}
