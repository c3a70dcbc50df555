//! A VM whose whole memory is known, on a back end of this process, and frames that it asks the
//! wire's end for.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use zerowire::packet::{PacketOptions, PacketSocket};
use zerowire_guest::misbehave::patterned::Patterned;
use zerowire_guest::{DirtyLog, GuestAddr, GuestMemory, VhostUser};
use zerowire_vmtest::xdp::{Ask, frame};

use super::PATIENCE;
use super::back_end::BackEnd;

/// Bytes of a huge page.
pub const HUGE: u64 = 2 << 20;

/// Where memory begins that touches no other.
pub const FAR: u64 = 1 << 32;

/// Bytes of the virtio-net header, and where it has the number of buffers (virtio 1.3 §5.1.6).
pub const HEADER: usize = 12;
const BUFFERS_AT: usize = 10;

/// For a requested frame to come, before the program requests it again.
const ONCE: Duration = Duration::from_secs(1);
const TRIES: usize = 30;

/// Frames that may still come: one can be late, and come twice then.
const REMEMBERED: usize = 64;

/// Address and bytes of a piece of memory.
pub type Place = (u64, u32);

/// A chain that the device gave back.
#[derive(Debug)]
pub struct Given {
    /// Its place in the used ring, free-running.
    pub at: u16,
    pub places: Vec<Place>,
    /// Bytes that were used of it.
    pub len: usize,
}

/// The whole.
pub struct Scene {
    pub guest: Patterned,
    pub back_end: BackEnd,
    socket: PacketSocket,
    /// Number and bytes of what was asked for last, newest first.
    asked: VecDeque<(u32, usize)>,
    next: u32,
    /// Chains that the device has, by head.
    open: HashMap<u16, Vec<Place>>,
    /// The device may have written more into a chain than the frame that it was used for: one that
    /// was dropped lay there before.
    pub reuses: bool,
    /// All that was given back, oldest first.
    pub given: Vec<Given>,
}

impl Scene {
    /// Starts a VM with these features in zero-copy mode, three huge pages of memory, two of which
    /// touch.
    pub fn start(interface: &str, features: u64) -> Result<Self> {
        let back_end = BackEnd::start(&format!("xdp:{interface},mode=zerocopy"))?;
        let regions = [0, HUGE, FAR].map(|at| (GuestAddr(at), HUGE as usize));
        let memory = GuestMemory::with_huge_pages(&regions, true)?;
        let transport = VhostUser::connect(back_end.socket(), PATIENCE)?;
        let guest = Patterned::over(transport, memory, features);
        let socket = PacketSocket::open(interface, &PacketOptions::default())?;
        let scene = Self {
            guest,
            back_end,
            socket,
            asked: VecDeque::new(),
            next: 0,
            open: HashMap::new(),
            reuses: false,
            given: Vec::new(),
        };
        scene.until("zero copy", |s| s.path.contains(", zero copy"))?;
        Ok(scene)
    }

    /// Posts a chain of these places.
    pub fn post(&mut self, places: &[Place]) {
        let head = self.guest.post(places);
        self.open.insert(head, places.to_vec());
    }

    /// Chains that the device has.
    pub fn posted(&self) -> usize {
        self.open.len()
    }

    /// Asks for frames of this length; returns at once.
    pub fn ask(&mut self, len: usize, count: u16) -> Result<()> {
        let ask = self.next_ask(len, count);
        send(&mut self.socket, ask)
    }

    /// Starts the log of writes, and requests frames after `pause`: while the back end gets that
    /// message or later. Returns the log, and the used index when the back end had answered.
    pub fn log_under(&mut self, len: usize, count: u16, pause: Duration) -> Result<(DirtyLog, u16)> {
        let ask = self.next_ask(len, count);
        let Self { guest, socket, .. } = self;
        let (transport, ring) = (&mut guest.transport, guest.rx.ring());
        std::thread::scope(|scope| {
            let logging = scope.spawn(|| transport.start_log().map(|log| (log, ring.used_idx())));
            std::thread::sleep(pause);
            send(socket, ask)?;
            Ok(logging.join().map_err(|_| anyhow!("the front end's thread panicked"))??)
        })
    }

    fn next_ask(&mut self, len: usize, count: u16) -> Ask {
        let ask = Ask { first: self.next, len: len as u16, count };
        for n in (self.next..).take(count.into()) {
            self.asked.push_front((n, len));
        }
        self.asked.truncate(REMEMBERED);
        self.next += u32::from(count);
        ask
    }

    /// Asks for a frame of this length until one has come.
    pub fn deliver(&mut self, len: usize) -> Result<()> {
        for _ in 0..TRIES {
            self.ask(len, 1)?;
            if self.take(ONCE)? {
                return Ok(());
            }
        }
        bail!(
            "a frame of {len} bytes never comes; {} chains are posted: {:?}",
            self.posted(),
            self.back_end.stats()
        );
    }

    /// Takes the next frame, which has to be one that was asked for, to the byte. False where none
    /// comes.
    pub fn take(&mut self, patience: Duration) -> Result<bool> {
        let Some(first) = self.chain(patience)? else { return Ok(false) };
        ensure!(first.1.len() >= HEADER, "{} bytes are used of a frame's first chain", first.1.len());
        let number = u16::from_le_bytes([first.1[BUFFERS_AT], first.1[BUFFERS_AT + 1]]);
        let mut chains = vec![first];
        for _ in 1..number {
            // All chains of a frame are given back together (virtio 1.3 §5.1.6.4).
            chains.push(self.chain(Duration::ZERO)?.context("a chain of a frame that is not given back")?);
        }
        let whole: Vec<u8> = chains.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        let mut header = [0; HEADER];
        header[BUFFERS_AT..].copy_from_slice(&number.to_le_bytes());
        let is = |&&(n, len): &&(u32, usize)| whole == [&header[..], &frame(n, len)].concat();
        let (_, len) = *self.asked.iter().find(is).with_context(|| {
            format!(
                "{} bytes in {number} chains that were not asked for: {:02x?}",
                whole.len(),
                &whole[..40.min(whole.len())]
            )
        })?;
        ensure!(whole.len() == HEADER + len, "{} bytes for a frame of {len}", whole.len());
        for (places, bytes) in &chains {
            self.guest.expect_in(places, bytes);
        }
        Ok(true)
    }

    /// The next chain that is given back, with its bytes.
    fn chain(&mut self, patience: Duration) -> Result<Option<(Vec<Place>, Vec<u8>)>> {
        let at = self.guest.seen;
        let Some((head, len)) = self.guest.used(patience) else { return Ok(None) };
        let places = self
            .open
            .remove(&head)
            .with_context(|| format!("chain {head} is given back, which is not out"))?;
        let mut bytes = self.read(&places)?;
        ensure!(len as usize <= bytes.len(), "{len} bytes used of a chain of {}", bytes.len());
        if self.reuses {
            self.guest.expect_in(&places, &bytes);
        }
        bytes.truncate(len as usize);
        self.given.push(Given { at, places: places.clone(), len: len as usize });
        Ok(Some((places, bytes)))
    }

    /// What lies in these places now, read region by region.
    fn read(&self, places: &[Place]) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for &(addr, len) in places {
            let mut at = addr;
            let end = addr + u64::from(len);
            while at < end {
                let n = (end - at).min(HUGE - at % HUGE) as usize;
                self.guest.memory.at(GuestAddr(at), n)?.append_to(0, n, &mut bytes);
                at += n as u64;
            }
        }
        Ok(bytes)
    }

    /// Takes what was given back when the ring stopped: frames, and chains of which nothing was
    /// used, which the device may have written to. Returns those.
    pub fn take_rest(&mut self) -> Result<Vec<Vec<Place>>> {
        let mut unused = Vec::new();
        while self.guest.seen != self.guest.rx.ring().used_idx() {
            let (head, len) = self.guest.rx.ring().used_entry(self.guest.seen);
            if len > 0 {
                self.take(Duration::ZERO)?;
                continue;
            }
            self.guest.seen = self.guest.seen.wrapping_add(1);
            let places = self.open.remove(&(head as u16));
            let places = places.with_context(|| format!("chain {head} is given back, which is not out"))?;
            let bytes = self.read(&places)?;
            self.guest.expect_in(&places, &bytes);
            unused.push(places);
        }
        Ok(unused)
    }

    /// Chains that the device has.
    pub fn open(&self) -> impl Iterator<Item = &Vec<Place>> {
        self.open.values()
    }

    /// The device may have written to any chain that it has: what is in there is as good as
    /// anything else.
    pub fn forgive_posted(&mut self) -> Result<()> {
        for places in self.open.values() {
            let bytes = self.read(places)?;
            self.guest.expect_in(places, &bytes);
        }
        Ok(())
    }

    /// Waits until the back end has counted what it has to.
    pub fn until(&self, what: &str, mut done: impl FnMut(&zerowire_net::VmStats) -> bool) -> Result<()> {
        let start = std::time::Instant::now();
        loop {
            let stats = self.back_end.stats();
            if done(&stats) {
                return Ok(());
            }
            ensure!(start.elapsed() < PATIENCE, "still not: {what}: {stats:?}");
        }
    }
}

fn send(socket: &mut PacketSocket, ask: Ask) -> Result<()> {
    for _ in 0..TRIES {
        if socket.send(&ask.to_frame())? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("the interface takes no frame")
}
