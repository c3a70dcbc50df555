//! Buffers of every kind in zero-copy mode. Whatever is posted and whatever comes, no frame changes
//! a byte outside of the posted buffers. The ledger says of each whether it was copied, and why.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use zerowire_guest::misbehave::RawDesc;
use zerowire_guest::misbehave::patterned::DATA;
use zerowire_guest::ring::DESC_WRITE;
use zerowire_guest::{Transport, features as f};

use super::PATIENCE;
use super::scene::{FAR, HEADER, HUGE, Place, Scene};

/// The longest frame at MTU 1500 with what drivers round it up to, and the least buffer that takes
/// it without a copy.
const LONGEST: usize = 1536;
const LEAST: u32 = (HEADER + LONGEST) as u32;

/// Bytes from the begin of a chunk to that of the buffer in it. As many bytes of a page lie before
/// the first buffer that is safe.
const BEFORE: u64 = 4096 - LEAST as u64;

/// Chains that are kept for frames that come over private memory, and those frames' places, from
/// the start.
const KEPT: u64 = 4;

/// Around all limits.
const LENGTHS: [usize; 14] = [60, 61, 64, 255, 1499, 1513, 1514, 1515, 1517, 1518, 1519, 1534, 1535, LONGEST];

const SMALL: &str = "bounce_small_buffer";
const UNSAFE: &str = "bounce_unsafe_buffer";

/// What a batch came to: frames without a copy, and bytes copied by reason.
type Came = (u64, BTreeMap<&'static str, u64>);

/// `posts INTERFACE`
pub fn run(interface: &str) -> Result<String> {
    let mut said = Vec::new();
    for (name, case) in [
        ("buffers that frames land in", direct as fn(&str) -> Result<String>),
        ("unsafe buffers", not_safe),
        ("small buffers", small),
        ("frames over several buffers", spread),
        ("frames that are too long", too_long),
        ("a ring that stops", stopped),
        ("bad buffers behind good ones", broken),
    ] {
        said.push(format!("{name}: {}", case(interface).context(name)?));
    }
    Ok(said.join("; "))
}

/// Posts chains of these places, has a frame come for each, and compares all memory.
fn batch(scene: &mut Scene, what: &str, chains: &[Vec<Place>], lengths: &[usize]) -> Result<Came> {
    let before = scene.back_end.stats().receive.totals;
    for places in chains {
        scene.post(places);
    }
    let mut lengths = lengths.iter().cycle();
    while scene.posted() > 0 {
        scene.deliver(*lengths.next().context("no lengths")?)?;
    }
    scene.guest.check(what);
    let after = scene.back_end.stats().receive.totals;
    let copied =
        after.copied_bytes.iter().map(|(why, n)| (*why, n - before.copied_bytes.get(why).unwrap_or(&0)));
    let zero = after.zero_copied_frames - before.zero_copied_frames;
    Ok((zero, copied.filter(|(_, n)| *n > 0).collect()))
}

/// Chains for the places that the device has from the start, which are copied from there.
fn kept() -> impl Iterator<Item = Vec<Place>> {
    (0..KEPT).map(|i| vec![(HUGE + 0x10_0000 + i * 0x1000, 4096)])
}

fn direct(interface: &str) -> Result<String> {
    let mut scene = Scene::start(interface, 0)?;
    // At every alignment of a few bytes, over the bounds of small pages, and from the first to the
    // last byte that there can be.
    let mut places: Vec<Place> =
        (0..8).map(|i| (DATA + i * 0x2000 + 0x1000 - 6 + i, LEAST + i as u32 % 3)).collect();
    places.extend([
        (HUGE - u64::from(LEAST), LEAST),
        (HUGE + BEFORE, LEAST),
        (2 * HUGE - 4096, 4096),
        (FAR + BEFORE, LEAST + 1),
        (FAR + 0x10_0001, 4096),
        (FAR + HUGE - u64::from(LEAST) - 1, LEAST + 1),
    ]);
    let chains: Vec<_> = kept().chain(places.iter().map(|p| vec![*p])).collect();
    let mut frames = 0;
    for turn in 0..LENGTHS.len() {
        let mut lengths = LENGTHS;
        lengths.rotate_left(turn);
        let came = batch(&mut scene, &format!("turn {turn}"), &chains, &lengths)?;
        // The first frames of all come to places of the back end's own. One more does where a frame
        // came before the back end had taken the chains.
        let kept = if turn == 0 { KEPT } else { 0 };
        ensure!(
            came.0 + kept + 1 >= chains.len() as u64,
            "turn {turn}: not copied {came:?} of {}",
            chains.len()
        );
        ensure!(turn > 0 || came.0 < chains.len() as u64, "turn {turn}: {came:?}");
        ensure!(came.1.keys().all(|why| *why == UNSAFE), "turn {turn}: {came:?}");
        frames += chains.len();
    }
    Ok(format!("{frames} frames"))
}

fn not_safe(interface: &str) -> Result<String> {
    let mut scene = Scene::start(interface, 0)?;
    let chains = [
        // A chunk would begin before the page, by all of what lies before the buffer or by a byte.
        vec![(FAR, BEFORE as u32 - 1)],
        vec![(FAR + BEFORE - 1, LEAST)],
        // From one page to the next, in one piece for the guest.
        vec![(HUGE - 700, 2000)],
        // In pieces: the header apart, without a gap, anywhere.
        vec![(DATA + 5, 12), (DATA + 0x2001, LONGEST as u32)],
        vec![(DATA + 0x4007, 700), (DATA + 0x4007 + 700, 848)],
        vec![(DATA + 0x8009, 13), (DATA + 0xa000, 1535)],
        vec![(DATA + 0x10009, 500), (DATA + 0x12000, 600), (DATA + 0x14000, 900)],
    ];
    let mut frames = 0;
    for turn in 0..4 {
        let mut lengths = LENGTHS;
        lengths.rotate_left(turn * 4);
        let came = batch(&mut scene, &format!("turn {turn}"), &chains, &lengths)?;
        ensure!(came.0 == 0 && came.1.keys().eq([&UNSAFE]), "turn {turn}: {came:?}");
        frames += chains.len();
    }
    Ok(format!("{frames} frames"))
}

fn small(interface: &str) -> Result<String> {
    let mut scene = Scene::start(interface, 0)?;
    // A byte less than the device may write, at even and odd addresses.
    let chains: Vec<_> = (0..8).map(|i| vec![(FAR + 0x1_0000 + i * 0x1001, LEAST - 1)]).collect();
    let came = batch(&mut scene, "a byte too small", &chains, &LENGTHS[..LENGTHS.len() - 1])?;
    ensure!(came.0 == 0 && came.1.keys().eq([&SMALL]), "a byte too small: {came:?}");
    // As long as the frame, up to the last byte of a region.
    for len in [60, 61, 700, 1514, 1518] {
        let room = (HEADER + len) as u32;
        for place in [(FAR + 0x3, room), (2 * HUGE - u64::from(room), room)] {
            let what = format!("{len} bytes into {place:x?}");
            let came = batch(&mut scene, &what, &[vec![place]], &[len])?;
            ensure!(came.0 == 0 && came.1.keys().eq([&SMALL]), "{what}: {came:?}");
        }
    }
    // Too long for the buffer that waits: it is dropped, the buffer waits on.
    let dropped = scene.back_end.stats().receive.totals.dropped_total();
    scene.post(&[(FAR + 0x3, 72)]);
    scene.ask(1514, 1)?;
    scene.until("a frame without room is dropped", |s| s.receive.totals.dropped_total() > dropped)?;
    scene.guest.check("a frame without room");
    scene.deliver(60)?;
    scene.guest.check("a frame with room");
    let totals = scene.back_end.stats().receive.totals;
    Ok(format!("{} frames", totals.frames))
}

fn spread(interface: &str) -> Result<String> {
    let mut scene = Scene::start(interface, f::NET_MRG_RXBUF)?;
    for (room, len) in [(300, 1514), (300, 60), (777, 1518), (LEAST as u64 - 1, LONGEST)] {
        let needed = (HEADER + len).div_ceil(room as usize) as u64;
        let chains: Vec<_> =
            (0..needed * 3).map(|i| vec![(FAR + 0x1_0000 + i * (room + 1), room as u32)]).collect();
        let what = format!("{len} bytes into buffers of {room}");
        let came = batch(&mut scene, &what, &chains, &[len])?;
        ensure!(came.0 == 0 && came.1.keys().eq([&SMALL]), "{what}: {came:?}");
    }
    Ok(format!("{} frames", scene.back_end.stats().receive.totals.frames))
}

fn too_long(interface: &str) -> Result<String> {
    let mut scene = Scene::start(interface, 0)?;
    // The driver drops them, and uses their buffers for the next ones.
    scene.reuses = true;
    let chains = |first: u64| (0..12).map(move |i| vec![(first + BEFORE + i * 0x1801, LEAST)]);
    let mut asked = 0;
    for turn in 0..3 {
        let what = format!("long frames, turn {turn}");
        let all: Vec<_> = kept().chain(chains(FAR)).chain(chains(HUGE)).collect();
        all.iter().for_each(|places| scene.post(places));
        // The driver looks for buffers when one is used. QEMU waits with a frame that needs more
        // than the driver has found by then, and with all frames behind it. Without this frame that
        // was seen to last, also where the driver is woken each time.
        scene.deliver(100)?;
        for len in [LONGEST + 1, 1548, 1549, 2000, 3000, 3800] {
            scene.ask(len, 3)?;
            asked += 3;
        }
        // The last one has come when one behind it has.
        scene.deliver(100)?;
        scene.forgive_posted()?;
        scene.guest.check(&what);
        while scene.posted() > 0 {
            scene.deliver(LONGEST)?;
        }
        scene.guest.check(&what);
    }
    Ok(format!("{asked} frames"))
}

fn stopped(interface: &str) -> Result<String> {
    let mut scene = Scene::start(interface, 0)?;
    let turns = 5;
    for turn in 0..turns {
        for i in 0..16 {
            scene.post(&[(FAR + BEFORE + i * 0x1801, LEAST)]);
        }
        scene.deliver(1000)?;
        // While frames come in.
        scene.ask(1514, 8)?;
        let next = scene.guest.transport.stop_queue(0)?;
        let what = format!("turn {turn}, stopped at {next}");
        scene.forgive_posted()?;
        scene.ask(1400, 12)?;
        std::thread::sleep(std::time::Duration::from_millis(50));
        scene.guest.check(&what);
        drop(scene);
        scene = Scene::start(interface, 0)?;
    }
    Ok(format!("{turns} times"))
}

fn broken(interface: &str) -> Result<String> {
    let write = DESC_WRITE;
    let cases = [
        ("outside", RawDesc { addr: 9 << 32, len: 2000, flags: write, next: 0 }, "not in the guest's memory"),
        (
            "beyond the end",
            RawDesc { addr: FAR + HUGE - 1547, len: LEAST, flags: write, next: 0 },
            "not in the guest's memory",
        ),
        ("huge", RawDesc { addr: DATA, len: u32::MAX, flags: write, next: 0 }, "not in the guest's memory"),
        ("empty", RawDesc { addr: DATA, len: 0, flags: write, next: 0 }, "has length 0"),
        ("readable", RawDesc { addr: DATA, len: 2000, flags: 0, next: 0 }, "device-readable"),
    ];
    for (name, desc, word) in cases {
        let mut scene = Scene::start(interface, 0)?;
        for i in 0..12 {
            scene.post(&[(FAR + BEFORE + i * 0x1801, LEAST)]);
        }
        scene.deliver(100)?;
        let rx = &mut scene.guest.rx;
        rx.write_desc(60, desc);
        rx.offer(60);
        rx.kick()?;
        ensure!(rx.wait_error(PATIENCE)?, "{name}: no error descriptor");
        scene.until("the error is counted", |s| s.ring_errors == 1)?;
        let error = scene.back_end.stats().last_error.unwrap_or_default();
        ensure!(error.contains(word), "{name}: {error}");
        // The device gave the good ones back before the error was told.
        scene.forgive_posted()?;
        let used = scene.guest.rx.ring().used_idx();
        scene.ask(1400, 16)?;
        std::thread::sleep(std::time::Duration::from_millis(50));
        scene.guest.check(name);
        ensure!(scene.guest.rx.ring().used_idx() == used, "{name}: the ring was written to");
    }
    Ok(format!("{} kinds", cases.len()))
}
