//! Plays a front end of any kind against a session without threads: for the fuzz target, behind the
//! feature `testing`.

use std::cell::RefCell;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use zerowire_vhost_user::{FLAG_NEED_REPLY, Header, MessageSocket, VERSION, features as f, protocol as p};

use crate::host::RingSetup;
use crate::memory::GuestMemory;
use crate::ring::SplitRing;
use crate::serve::{Backing, Control, Device};
use crate::session::{Session, SessionImage};

const QUEUES: usize = 4;

/// Messages of a script at most.
const MESSAGES: usize = 200;

/// In place of a request: the session goes to another process, and on.
const HAND_OVER: u8 = u8::MAX;

/// In place of a request: the process that serves the session dies, and another one goes on.
const DIE: u8 = u8::MAX - 1;

/// Bytes of a memory file.
const FILE_BYTES: u64 = 0x4_0000;

/// What the device has heard; it checks that the session tells it nothing out of order.
#[derive(Default)]
struct Told {
    memory: Arc<GuestMemory>,
    rings: [Option<SplitRing>; QUEUES],
    /// True: it can watch no further descriptor.
    full: bool,
}

struct Vm {
    control: Control,
}

/// A VM whose device checks what it is told.
pub(crate) fn model() -> impl Backing {
    Vm { control: Control::new("model".to_owned()).expect("an eventfd") }
}

struct Model(Rc<RefCell<Told>>);

impl Backing for Vm {
    fn control(&self) -> &Control {
        &self.control
    }

    fn set_error(&self, _text: String) {}

    fn device(&self) -> Box<dyn Device + '_> {
        Box::new(Model(TOLD.with(Rc::clone)))
    }
}

thread_local! {
    static TOLD: Rc<RefCell<Told>> = Rc::default();
}

impl Model {
    fn is_running(&self, queue: u16) -> bool {
        self.0.borrow().rings[usize::from(queue)].is_some()
    }
}

impl Device for Model {
    fn queues(&self) -> usize {
        QUEUES
    }

    fn queue_hint(&self) -> &'static str {
        "there are four"
    }

    fn offered(&self) -> u64 {
        f::VERSION_1
            | f::RING_INDIRECT_DESC
            | f::RING_EVENT_IDX
            | f::VHOST_USER_PROTOCOL_FEATURES
            | f::VHOST_LOG_ALL
    }

    fn feature_names(&self, mask: u64) -> Vec<String> {
        vec![format!("{mask:#x}")]
    }

    fn protocol_features(&self) -> u64 {
        p::MQ
            | p::LOG_SHMFD
            | p::REPLY_ACK
            | p::CONFIG
            | p::CONFIGURE_MEM_SLOTS
            | p::RESET_DEVICE
            | p::STATUS
            | p::INFLIGHT_SHMFD
            | p::BACKEND_REQ
    }

    fn config(&self) -> Option<Vec<u8>> {
        Some((0..8).collect())
    }

    fn set_features(&mut self, acked: u64) -> Result<(), String> {
        assert_eq!(acked & !self.offered(), 0);
        Ok(())
    }

    fn set_memory(&mut self, memory: &Arc<GuestMemory>) {
        // Rings go on in the new memory, or stop: what is no more may not be touched.
        self.0.borrow_mut().memory = memory.clone();
    }

    fn set_log(&mut self, memory: &Arc<GuestMemory>) {
        self.0.borrow_mut().memory = memory.clone();
    }

    fn log_ring(&mut self, queue: u16, _at: Option<u64>) {
        assert!(self.is_running(queue), "the log of a ring that does not run");
    }

    /// Chains of the even queues are marked.
    fn takes_again(&self, queue: u16) -> bool {
        !queue.is_multiple_of(2)
    }

    fn start(&mut self, ring: RingSetup) -> Result<(), String> {
        assert!(!self.is_running(ring.queue), "a ring that runs is started");
        assert!(ring.size.is_power_of_two());
        let mut told = self.0.borrow_mut();
        let event_idx = ring.acked & f::RING_EVENT_IDX != 0;
        let side = SplitRing::new(ring.queue, ring.size, ring.addresses, ring.base, event_idx, &told.memory)
            .map_err(|e| e.to_string())?;
        told.rings[usize::from(ring.queue)] = Some(side);
        Ok(())
    }

    fn stop(&mut self, queue: u16) -> Option<u16> {
        let side = self.0.borrow_mut().rings[usize::from(queue)].take();
        assert!(side.is_some(), "a ring that does not run is stopped");
        side.map(|s| s.next_avail())
    }

    fn enable(&mut self, queue: u16, _on: bool, runs: bool) {
        assert_eq!(self.is_running(queue), runs);
    }

    fn kick(&mut self, queue: u16, _fd: Arc<OwnedFd>) -> Result<(), String> {
        assert!(self.is_running(queue));
        if self.0.borrow().full { Err("no room".to_owned()) } else { Ok(()) }
    }

    fn call(&mut self, queue: u16, _fd: Option<Arc<OwnedFd>>) {
        assert!(self.is_running(queue));
    }

    fn err(&mut self, queue: u16, _fd: Option<Arc<OwnedFd>>) {
        assert!(self.is_running(queue));
    }

    fn reset(&mut self, memory: &Arc<GuestMemory>) {
        let mut told = self.0.borrow_mut();
        assert!(told.rings.iter().all(Option::is_none), "a ring runs on through a reset");
        told.memory = memory.clone();
    }
}

/// Numbers and descriptors that a front end sends, as the script's bytes choose them.
struct Script<'a> {
    rest: &'a [u8],
    files: [OwnedFd; 4],
}

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    /// One that makes sense somewhere, or any.
    fn number(&mut self) -> u64 {
        const SENSE: [u64; 14] =
            [0, 1, 2, 3, 16, 256, 0x1000, 0x2000, 0x3000, 0x1_0000, FILE_BYTES, 0x10_0000, u64::MAX, 1 << 63];
        let n = self.byte();
        match SENSE.get(usize::from(n & 15)) {
            Some(n) => *n,
            None if n & 16 == 0 => u64::from(n),
            None => {
                let mut bytes = [0; 8];
                bytes.iter_mut().for_each(|b| *b = self.byte());
                u64::from_le_bytes(bytes)
            }
        }
    }

    /// The body of a request and how many descriptors go with it, of the form that it has; some
    /// bytes of it may be others.
    fn body(&mut self, request: u32) -> (Vec<u8>, usize) {
        let mut body: Vec<u8> = Vec::new();
        let mut fds = 0;
        let mut words = |s: &mut Self, n: usize| {
            for _ in 0..n {
                let n = s.number();
                body.extend(n.to_le_bytes());
            }
        };
        match request {
            2 | 16 | 19 | 20 | 39 => words(self, 1),
            5 => {
                let count = usize::from(self.byte() % 4);
                words(self, 1 + 4 * count);
                body[..8].copy_from_slice(&(count as u64).to_le_bytes());
                fds = count;
            }
            6 => {
                words(self, 2);
                fds = 1;
            }
            8 | 10 | 11 | 18 => {
                let (index, n) = (self.byte() % 5, self.number());
                body.extend(u32::from(index).to_le_bytes());
                body.extend((n as u32).to_le_bytes());
            }
            9 => {
                let (index, flags) = (self.byte() % 5, self.byte() & 1);
                body.extend(u32::from(index).to_le_bytes());
                body.extend(u32::from(flags).to_le_bytes());
                // Somewhere in the first region, as a rule.
                let at = if self.byte() & 15 == 0 { self.number() } else { 0x10_0000 };
                for offset in [0, 0x1_0000, 0x8000] {
                    body.extend(at.wrapping_add(offset).to_le_bytes());
                }
                body.extend(self.number().to_le_bytes());
            }
            12..=14 => {
                let none = self.byte() & 15 == 0;
                body.extend((u64::from(self.byte() % 5) | u64::from(none) << 8).to_le_bytes());
                fds = usize::from(!none);
            }
            7 | 21 => fds = 1,
            24 | 25 => {
                let (offset, len) = (self.byte() % 10, self.byte() % 10);
                for n in [offset, len, 0] {
                    body.extend(u32::from(n).to_le_bytes());
                }
                body.resize(12 + usize::from(len), 0);
            }
            31 | 32 => {
                words(self, 2);
                body.extend([QUEUES as u8, 0, 16, 0]);
                body.resize(24, 0);
                fds = usize::from(request == 32);
            }
            37 | 38 => {
                words(self, 5);
                fds = usize::from(request == 37);
            }
            _ => {}
        }
        let odd = self.byte();
        if odd & 0xf0 == 0xf0 {
            body.push(odd);
        } else if odd & 0xf0 == 0xe0
            && let Some(b) = body.get_mut(usize::from(odd & 15))
        {
            *b ^= self.byte();
        }
        (body, if odd & 0xf0 == 0xd0 { usize::from(odd & 15) % 5 } else { fds })
    }
}

/// A front end that sends what the bytes say until the session has enough of it. Nothing is out of
/// order for the device, and every ring stops at the end. The session may change hands meanwhile.
///
/// # Panics
/// When one of these does not hold, or the system has no descriptors or memory for it.
pub fn play_session(script: &[u8]) {
    {
        let memfd = || {
            let file = rustix::fs::memfd_create("front", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .expect("a file");
            rustix::fs::ftruncate(&file, FILE_BYTES).expect("its length");
            file
        };
        let signal = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let (pipe, _end) = rustix::pipe::pipe().expect("a pipe");
        let script = Script { rest: script, files: [memfd(), signal(), memfd(), pipe] };
        play(script);
    }
    TOLD.with(|told| {
        let told = &mut *told.borrow_mut();
        assert!(told.rings.iter().all(Option::is_none), "a ring runs on after its connection");
        *told = Told::default();
    });
}

/// Hands a session over. None where that is refused, or the session can't go on.
fn pass_on<'a>(
    vm: &'a impl Backing,
    mut session: Session<'a>,
    connection: MessageSocket,
) -> Option<(Session<'a>, MessageSocket)> {
    let image = session.hand_over(&connection).ok()?;
    drop((session, connection));
    let (bytes, files) = image.encode().expect("an image within its bounds");
    let image = SessionImage::decode(&bytes, files).expect("the same image");
    Session::restore(vm, &image).ok()
}

/// Goes on with a session whose process stopped no ring. None where it can't go on.
fn survive<'a>(
    vm: &'a impl Backing,
    session: Session<'a>,
    connection: MessageSocket,
) -> Option<(Session<'a>, MessageSocket)> {
    let image = session.snapshot(&connection).ok()?;
    drop((session, connection));
    let (bytes, files) = image.encode().expect("an image within its bounds");
    let image = SessionImage::decode(&bytes, files).expect("the same image");
    Session::restore(vm, &image).ok()
}

fn play(mut script: Script<'_>) {
    let (near, far) = UnixStream::pair().expect("sockets");
    near.set_nonblocking(true).expect("a socket that does not block");
    far.set_nonblocking(true).expect("a socket that does not block");
    let mut connection = MessageSocket::new(near);
    let mut front = MessageSocket::new(far.try_clone().expect("a descriptor"));
    let vm = model();
    let mut session = Session::new(&vm);
    for _ in 0..MESSAGES {
        if script.rest.is_empty() {
            return;
        }
        let request = match script.byte() {
            HAND_OVER => {
                let Some(next) = pass_on(&vm, session, connection) else { return };
                (session, connection) = next;
                continue;
            }
            DIE => {
                let Some(next) = survive(&vm, session, connection) else { return };
                (session, connection) = next;
                continue;
            }
            byte => u32::from(byte % 46),
        };
        let (body, fds) = script.body(request);
        let flags = VERSION | if script.byte() & 1 == 0 { FLAG_NEED_REPLY } else { 0 };
        let header = Header { request, flags, size: body.len() as u32 };
        let choice = if matches!(request, 12..=14) { 1 } else { script.byte() };
        let files: Vec<BorrowedFd<'_>> =
            (0..fds).map(|i| script.files[(usize::from(choice) + 2 * i) % 4].as_fd()).collect();
        if front.send_raw(&[&header.encode()[..], &body].concat(), &files).is_err() {
            return;
        }
        match connection.recv() {
            Ok(Some(message)) => {
                if session.handle(&mut connection, message).is_err() {
                    return;
                }
            }
            Ok(None) | Err(_) => return,
        }
        // Answers are read and forgotten, with the files that come along.
        let mut answer = [0; 4096];
        while matches!((&far).read(&mut answer), Ok(1..)) {}
    }
}

#[cfg(test)]
mod tests {
    use zerowire_vhost_user::{MemoryRegion, MemoryTable, Request, VringAddr, VringState, WireError};

    use super::*;

    /// The order in which front ends begin, in the bytes of a script: it reaches rings that run.
    #[test]
    fn a_script_starts_rings_and_leaves_nothing_behind() {
        for seed in 0..200u32 {
            let mut state = seed.wrapping_mul(2_654_435_761) | 1;
            let bytes: Vec<u8> = (0..2000)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 17;
                    state ^= state << 5;
                    state as u8
                })
                .collect();
            play_session(&bytes);
        }
    }

    #[test]
    fn a_kick_that_the_device_can_not_watch_is_refused() {
        let (near, far) = UnixStream::pair().expect("sockets");
        near.set_nonblocking(true).expect("a socket that does not block");
        let (mut front, mut connection) = (MessageSocket::new(far), MessageSocket::new(near));
        let vm = model();
        let mut session = Session::new(&vm);
        let mut ask = |request: Request, body: &[u8], files: &[BorrowedFd<'_>]| {
            front.send_request(request, true, body, files).expect("sent");
            let message = connection.recv().expect("sound").expect("a message");
            session.handle(&mut connection, message).expect("the session goes on");
            front.recv_ack(request)
        };
        let file = rustix::fs::memfd_create("front", MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, FILE_BYTES).expect("its length");
        let region = MemoryRegion { guest_addr: 0, size: FILE_BYTES, user_addr: 0x10_0000, mmap_offset: 0 };
        let memory = MemoryTable { regions: vec![region] }.encode();
        let (desc, used, avail) = (0x10_0000, 0x11_0000, 0x10_8000);
        let ring = VringAddr { index: 0, flags: 0, desc, used, avail, log: 0 }.encode();
        let size = VringState { index: 0, num: 16 }.encode();
        let kick = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let (of_ring_0, kick): ([u8; 8], _) = ([0; 8], [kick.as_fd()]);
        ask(Request::SetProtocolFeatures, &p::REPLY_ACK.to_ne_bytes(), &[]).expect("taken");
        ask(Request::SetFeatures, &f::VERSION_1.to_ne_bytes(), &[]).expect("taken");
        ask(Request::SetMemTable, &memory, &[file.as_fd()]).expect("taken");
        ask(Request::SetVringNum, &size, &[]).expect("taken");
        ask(Request::SetVringAddr, &ring, &[]).expect("taken");
        ask(Request::SetVringKick, &of_ring_0, &kick).expect("the ring starts");
        TOLD.with(|told| told.borrow_mut().full = true);
        let refused = ask(Request::SetVringKick, &of_ring_0, &kick);
        assert!(matches!(refused, Err(WireError::Refused { .. })), "{refused:?}");
        TOLD.with(|told| told.borrow_mut().full = false);
        ask(Request::SetVringKick, &of_ring_0, &kick).expect("there is room again");
        drop(session);
        TOLD.with(|told| *told.borrow_mut() = Told::default());
    }

    #[test]
    fn who_asks_for_an_acknowledgement_gets_it_before_anything_is_negotiated() {
        let (near, far) = UnixStream::pair().expect("sockets");
        far.set_nonblocking(true).expect("a socket that does not block");
        let (mut front, mut connection) = (MessageSocket::new(far), MessageSocket::new(near));
        let vm = model();
        let mut session = Session::new(&vm);
        let off = VringState { index: 0, num: 0 }.encode();
        front.send_request(Request::SetVringEnable, true, &off, &[]).expect("sent");
        let message = connection.recv().expect("sound").expect("a message");
        session.handle(&mut connection, message).expect("the session goes on");
        front.recv_ack(Request::SetVringEnable).expect("an acknowledgement");
    }
}
