//! The dirty log in zero-copy mode. It holds the pages of what the guest was given, by the length
//! of each frame, and no other. When the ring stops, it also holds what the device had room for in
//! buffers that it still had. Nothing is written after that.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use zerowire_guest::misbehave::patterned::{DATA, SIZE};
use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::ring::RingMemory;
use zerowire_guest::{DirtyLog, GuestAddr, LOG_PAGE, Transport};
use zerowire_vmtest::xdp::{LENGTHS, sent};

use super::PATIENCE;
use super::scene::{FAR, Given, HEADER, HUGE, Place, Scene};

type Pages = BTreeSet<u64>;

/// The longest frame at MTU 1500 with what drivers round it up to, and the bytes of a buffer that a
/// device reaches then.
const LONGEST: usize = 1536;
const REACH: u64 = (HEADER + LONGEST) as u64;

/// The first frames lie in places of the back end's own.
const KEPT: usize = 4;

/// Buffers that are posted at once, each in two pages of its own.
const BUFFERS: usize = 24;

/// Rounds of cases in which frames come at any moment.
const ROUNDS: u32 = 8;

/// For a frame that was asked for.
const ONCE: Duration = Duration::from_secs(1);

/// `dirty INTERFACE`
pub fn run(interface: &str) -> Result<String> {
    let mut said = Vec::new();
    for (name, case) in [
        ("frames of every length", lengths as fn(&str) -> Result<String>),
        ("switched on among frames", switched_on),
        ("a ring that stops among frames", stopped),
        ("frames sent", transmit),
    ] {
        said.push(format!("{name}: {}", case(interface).context(name)?));
    }
    Ok(said.join("; "))
}

/// The pages that `len` bytes at `at` touch.
fn pages(at: u64, len: u64) -> std::ops::Range<u64> {
    at / LOG_PAGE..(at + len).div_ceil(LOG_PAGE)
}

/// Buffer `i`, which goes on in a second page behind its first `before` bytes.
fn place(i: usize, before: usize) -> Place {
    let start = if i.is_multiple_of(2) { FAR } else { DATA };
    (start + 0x1_0000 + i as u64 * 0x2000 + LOG_PAGE - before as u64, REACH as u32)
}

/// Posts a buffer for each of these lengths. The frame ends a byte before its second page, with the
/// first one, or a byte behind it.
fn post(scene: &mut Scene, lengths: &[usize]) {
    for (i, len) in lengths.iter().enumerate() {
        scene.post(&[place(i, HEADER + len + 1 - i % 3)]);
    }
}

/// Posts buffers, and has the first ones used, so that the device has the others.
fn begin(interface: &str) -> Result<Scene> {
    let mut scene = Scene::start(interface, 0)?;
    post(&mut scene, &[1514; BUFFERS]);
    (0..=KEPT).try_for_each(|_| scene.deliver(100))?;
    Ok(scene)
}

/// What has to be noted for these chains: what was used of them, their elements of the used ring,
/// and its index.
fn written(ring: &RingMemory, given: &[Given]) -> Pages {
    let used = ring.setup(0).used.guest.0;
    let element = |at: u16| pages(used + 4 + 8 * u64::from(at % ring.size()), 8);
    let mut all: Pages = given.iter().flat_map(|g| element(g.at)).collect();
    if !given.is_empty() {
        all.extend(pages(used + 2, 2));
    }
    for given in given {
        let mut rest = given.len as u64;
        for &(at, len) in &given.places {
            let n = rest.min(len.into());
            all.extend(pages(at, n));
            rest -= n;
        }
    }
    all
}

/// Waits until all of `must` is noted, and fails where anything but `may` is.
fn compare(scene: &Scene, log: &DirtyLog, must: &Pages, may: &Pages, what: &str) -> Result<()> {
    let mut noted = log.take();
    let start = Instant::now();
    // The used index is noted when it was written.
    while !must.is_subset(&noted) {
        let missing: Vec<_> = must.difference(&noted).collect();
        ensure!(start.elapsed() < PATIENCE, "{what}: pages {missing:x?} were written and not noted");
        std::thread::sleep(Duration::from_millis(1));
        noted.extend(log.take());
    }
    scene.back_end.stats();
    noted.extend(log.take());
    let extra: Vec<_> = noted.difference(may).collect();
    ensure!(extra.is_empty(), "{what}: pages {extra:x?} were noted and not written; {must:x?} were");
    Ok(())
}

/// The same for what was given back from `from` on.
fn compare_given(scene: &Scene, log: &DirtyLog, from: usize, what: &str) -> Result<()> {
    let must = written(scene.guest.rx.ring(), &scene.given[from..]);
    compare(scene, log, &must, &must, what)
}

fn lengths(interface: &str) -> Result<String> {
    let mut scene = begin(interface)?;
    while scene.posted() > 0 {
        scene.deliver(60)?;
    }
    let log = scene.guest.transport.start_log()?;
    let before = scene.back_end.stats().receive.totals;
    let first = scene.given.len();
    let all: Vec<usize> = LENGTHS.collect();
    for lengths in all.chunks(BUFFERS) {
        let from = scene.given.len();
        post(&mut scene, lengths);
        let mut next = lengths.iter().cycle();
        while scene.posted() > 0 {
            scene.deliver(*next.next().context("no lengths")?)?;
        }
        compare_given(&scene, &log, from, &format!("frames of {} bytes and more", lengths[0]))?;
    }
    scene.guest.check("frames of every length");
    let frames = (scene.given.len() - first) as u64;
    let zero = scene.back_end.stats().receive.totals.zero_copied_frames - before.zero_copied_frames;
    ensure!(zero * 100 >= frames * 90, "{zero} of {frames} frames not copied");
    Ok(format!("{zero} of {frames} frames not copied"))
}

fn switched_on(interface: &str) -> Result<String> {
    let (mut frames, mut after) = (0, 0);
    for round in 0..ROUNDS {
        let what = format!("round {round}");
        let mut scene = begin(interface)?;
        let from = scene.given.len();
        // At the same time; the last ones come after the log.
        let pause = Duration::from_millis((1 << round) - 1);
        let (log, on) = scene.log_under(1514, 8, pause)?;
        while scene.given.len() < from + 8 && scene.take(ONCE)? {}
        // What was given back while the log came may be noted.
        let given = &scene.given[from..];
        let early = given.iter().take_while(|g| (g.at.wrapping_sub(on) as i16) < 0).count();
        frames += given.len();
        after += given.len() - early;
        let ring = scene.guest.rx.ring();
        let (must, may) = (written(ring, &given[early..]), written(ring, given));
        compare(&scene, &log, &must, &may, &what)?;
        // The others were posted before there was a log, too.
        for len in [60, 1513, 1514].into_iter().cycle().take(2 * BUFFERS) {
            if scene.posted() > 0 {
                let from = scene.given.len();
                scene.deliver(len)?;
                compare_given(&scene, &log, from, &what)?;
            }
        }
        ensure!(scene.posted() == 0, "{what}: {} buffers are left", scene.posted());
        scene.guest.check(&what);
    }
    ensure!(after > 0, "no frame came after the log");
    Ok(format!("{after} of {frames} frames after it"))
}

fn stopped(interface: &str) -> Result<String> {
    let mut left = 0;
    for round in 0..ROUNDS {
        let what = format!("round {round}");
        let mut scene = begin(interface)?;
        let log = scene.guest.transport.start_log()?;
        let from = scene.given.len();
        let before = Copy::of(&scene)?;
        scene.ask(1514, 8)?;
        std::thread::sleep(Duration::from_millis(u64::from(round)));
        let base = scene.guest.transport.stop_queue(0)?;
        // All is noted when the answer comes.
        let noted = log.take();
        ensure!(scene.guest.rx.ring().used_idx() == base, "{what}: {base} is not what was given back");
        let unused = scene.take_rest()?;
        let mut must = written(scene.guest.rx.ring(), &scene.given[from..]);
        let reached = scene.open().chain(&unused).flatten().flat_map(|(at, _)| pages(*at, REACH));
        let used = scene.guest.rx.ring().setup(0).used.guest.0;
        let may: Pages =
            must.iter().copied().chain(reached).chain(pages(used, 6 + 8 * u64::from(SIZE))).collect();
        must.extend(before.changed(&scene)?);
        ensure!(must.is_subset(&noted), "{what}: {:x?} not noted", must.difference(&noted));
        ensure!(noted.is_subset(&may), "{what}: {:x?} noted", noted.difference(&may));
        left += scene.posted();
        scene.forgive_posted()?;
        scene.guest.check(&what);
        // The guest's stack has what comes now.
        let come = received(interface)?;
        let begin = Instant::now();
        scene.ask(1400, 12)?;
        while received(interface)? < come + 12 {
            ensure!(begin.elapsed() < PATIENCE, "{what}: frames don't come");
            std::thread::sleep(Duration::from_millis(5));
        }
        scene.guest.check(&format!("{what}, after the ring had stopped"));
        let late = log.take();
        ensure!(late.is_empty(), "{what}: {late:x?} noted after the ring had stopped");
        // The same buffers go on.
        let from = scene.given.len();
        let setup = scene.guest.rx.ring().setup(base);
        let handle = scene.guest.transport.start_queue(0, &setup)?;
        scene.guest.transport.enable_queue(0, true)?;
        handle.doorbell.ring()?;
        while scene.posted() > 0 {
            scene.deliver(1514)?;
        }
        compare_given(&scene, &log, from, &format!("{what}, when it goes on"))?;
        scene.guest.check(&format!("{what}, when it goes on"));
    }
    ensure!(left > 0, "the device never had a buffer when the ring stopped");
    Ok(format!("{left} buffers were with the device at {ROUNDS} stops"))
}

/// All of the VM's memory above the rings, as it was.
struct Copy(Vec<(u64, Vec<u8>)>);

impl Copy {
    fn of(scene: &Scene) -> Result<Self> {
        let regions = [(DATA, HUGE - DATA), (HUGE, HUGE), (FAR, HUGE)];
        let read = |(at, len): (u64, u64)| {
            let mut bytes = Vec::new();
            scene.guest.memory.at(GuestAddr(at), len as usize)?.append_to(0, len as usize, &mut bytes);
            Ok((at, bytes))
        };
        regions.into_iter().map(read).collect::<Result<_>>().map(Self)
    }

    /// Pages that are not as they were.
    fn changed(&self, scene: &Scene) -> Result<Pages> {
        let mut all = Pages::new();
        for ((at, before), (_, now)) in self.0.iter().zip(Self::of(scene)?.0) {
            let each = before.chunks(LOG_PAGE as usize).zip(now.chunks(LOG_PAGE as usize));
            all.extend((at / LOG_PAGE..).zip(each).filter(|(_, (a, b))| a != b).map(|(page, _)| page));
        }
        Ok(all)
    }
}

/// Frames that the interface has received.
fn received(interface: &str) -> Result<u64> {
    let path = format!("/sys/class/net/{interface}/statistics/rx_packets");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    text.trim().parse().with_context(|| format!("{path}: {text}"))
}

/// Sent frames are not written to; those that are lent come back before the ring's answer, and are
/// not read after it.
fn transmit(interface: &str) -> Result<String> {
    let mut frames = 0;
    for round in 0..ROUNDS {
        let what = format!("round {round}");
        let mut scene = Scene::start(interface, 0)?;
        let mut queue = RawQueue::start(&scene.guest.memory, &mut scene.guest.transport, 1, SIZE)?;
        let log = scene.guest.transport.start_log()?;
        let lengths = LENGTHS.step_by(31);
        let buffers: Vec<Place> = (0..)
            .zip(lengths)
            .map(|(i, len)| (FAR + 0x10_0000 + i * 0x1001, (HEADER + len) as u32))
            .collect();
        for (n, &(addr, len)) in (0..).zip(&buffers) {
            let bytes = [&[0; HEADER][..], &sent(n, len as usize - HEADER)].concat();
            scene.guest.memory.at(GuestAddr(addr), bytes.len())?.write(0, &bytes);
            queue.write_desc(n as u16, RawDesc { addr, len, flags: 0, next: 0 });
            queue.offer(n as u16);
        }
        queue.kick()?;
        std::thread::sleep(Duration::from_millis(u64::from(round)));
        let base = scene.guest.transport.stop_queue(1)?;
        let noted = log.take();
        let ring = queue.ring();
        ensure!(ring.used_idx() == base, "{what}: {} of {base} chains are back", ring.used_idx());
        let mut back: Vec<u32> = (0..base).map(|at| ring.used_entry(at).0).collect();
        back.sort_unstable();
        ensure!(back.into_iter().eq(0..u32::from(base)), "{what}: other chains are back than were taken");
        let given: Vec<_> = (0..base).map(|at| Given { at, places: Vec::new(), len: 0 }).collect();
        let must = written(ring, &given);
        // The back end writes the flags when it reads the ring, whether or not it gives anything
        // back.
        let used = ring.setup(0).used.guest.0;
        let may: Pages = must.iter().copied().chain(pages(used, 2)).collect();
        ensure!(must.is_subset(&noted), "{what}: {:x?} not noted", must.difference(&noted));
        ensure!(noted.is_subset(&may), "{what}: {:x?} noted", noted.difference(&may));
        // Who still read them would send these; the wire's end compares.
        for &(addr, len) in &buffers {
            let bytes = vec![0xee; len as usize - HEADER - 18];
            scene.guest.memory.at(GuestAddr(addr + HEADER as u64 + 18), bytes.len())?.write(0, &bytes);
        }
        let totals = scene.back_end.stats().transmit.totals;
        let counted = totals.frames + totals.dropped_total();
        ensure!(counted == u64::from(base), "{what}: {counted} of {base} frames are counted");
        frames += totals.frames;
    }
    ensure!(frames > 0, "no frame was sent");
    Ok(format!("{frames} frames at {ROUNDS} stops"))
}
