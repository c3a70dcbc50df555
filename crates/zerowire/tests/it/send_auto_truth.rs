//! What `SendMode::Auto` chooses, and that its ledger says what really goes out. Payloads are held
//! in a queue behind the sender, their memory is changed after the call, and the peer looks. New
//! bytes: nothing was copied. Needs root.
//!
//! One sink takes lent memory as it is (ifb). The kernel copies for the other one (a socket at the
//! other end of a veth). A route changes from one to the other under the same socket.

use crate::support::sockets::{area, datagram, lease, set_int};
use std::io::Read;
use std::net::{TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use zerowire::area::{Area, Frozen};
use zerowire::send::testing::{BLOCK, FIRST_RUN, KNOCK, scribble};
use zerowire::send::{
    Because, Choice, Payload, Segment, SendBackend, SendMode, SendOptions, SendWay, Sender,
};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{self, Lab, in_lab};
use zerowire_testkit::net::run;

const BACK_ENDS: [SendBackend; 2] = [SendBackend::Socket, SendBackend::Uring];
const LEN: usize = 1200;
const AT: usize = 100;

fn auto_sender(socket: OwnedFd, backend: SendBackend, area: &Area) -> Sender {
    // Room for all that a queue may hold.
    set_int(&socket, libc::SO_SNDBUFFORCE, 16 << 20);
    let options = SendOptions::default().mode(SendMode::Auto).backend(backend);
    Sender::with_areas(socket, options, std::slice::from_ref(area)).expect("a sender")
}

/// The only class of lengths that was used.
fn choice(s: &Sender) -> Choice {
    let choices = s.choices();
    assert_eq!(choices.len(), 1, "{choices:?}");
    choices[0].clone()
}

/// Sends these payloads into a held queue, changes their bytes, and lets them go. Says of each
/// whether it was lent, with what has to arrive. `kept`: buffers of the area that the test keeps.
fn change_behind_the_call(
    lab: &Lab,
    s: &mut Sender,
    area: &Area,
    kept: usize,
    payloads: &[Vec<u8>],
) -> Vec<(bool, Vec<u8>)> {
    let tickets: Vec<_> = payloads.iter().map(|bytes| s.send(lease(area, bytes)).expect("sent")).collect();
    s.poll().expect("polled");
    let sent = tickets.into_iter().zip(payloads).map(|(ticket, bytes)| {
        let mut bytes = bytes.clone();
        let is_lent = scribble(s, ticket, AT, &[0xee; 300]);
        if is_lent {
            bytes[AT..AT + 300].fill(0xee);
        }
        (is_lent, bytes)
    });
    let sent: Vec<_> = sent.collect();
    let lent = sent.iter().filter(|(is_lent, _)| *is_lent).count();
    assert_eq!(s.outstanding(), lent, "the queue holds all that is lent");
    lab.release(lab::HERE);
    s.wait_all(PATIENCE).expect("all back");
    assert_eq!(area.free(), area.buffers() - kept);
    sent
}

/// A trial: blocks that copy and blocks that lend take turns. What each did is what arrives, and
/// what the ledger says.
fn a_trial_behind_a_queue(backend: SendBackend, tcp: bool) {
    in_lab(move |lab| {
        let what = format!("{backend:?}, tcp: {tcp}");
        lab.veth();
        let area = area(64, 2048);
        let (socket, mut next): (OwnedFd, Box<dyn FnMut() -> Vec<u8>>) = if tcp {
            let (listener, address) = lab.tcp();
            let socket = TcpStream::connect(address).unwrap();
            socket.set_nodelay(true).unwrap();
            let (mut peer, _) = listener.accept().unwrap();
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            let next = move || {
                let mut got = vec![0; LEN];
                peer.read_exact(&mut got).expect("bytes");
                got
            };
            (socket.into(), Box::new(next))
        } else {
            let (peer, address) = lab.udp();
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect(address).unwrap();
            let next = move || {
                let mut got = vec![0; 2048];
                let len = datagram(&peer, &mut got);
                got.truncate(len);
                got
            };
            (socket.into(), Box::new(next))
        };
        let mut s = auto_sender(socket, backend, &area);
        lab.hold(lab::HERE);
        let payloads: Vec<_> = (0..2 * BLOCK + 5).map(|n| lab::pattern(n, LEN)).collect();
        let sent = change_behind_the_call(lab, &mut s, &area, 0, &payloads);
        let lent = sent.iter().filter(|(is_lent, _)| *is_lent).count();
        assert_eq!(lent, BLOCK as usize, "{what}: a block of the trial lends");
        for (n, (is_lent, want)) in sent.iter().enumerate() {
            assert!(next() == *want, "{what}: payload {n}, lent: {is_lent}");
        }
        let t = s.counters().snapshot();
        let (copied, lent) = ((payloads.len() - lent) * LEN, lent * LEN);
        // The peer's socket is on this machine: the kernel copies what was lent when it gets there.
        assert_eq!(t.copied_bytes, [("trial", copied as u64), ("kernel", lent as u64)].into(), "{what}");
        assert_eq!((t.zero_copied_bytes, t.frames), (0, payloads.len() as u64), "{what}: {t:?}");
        let choice = choice(&s);
        assert_eq!(choice.sends, payloads.len() as u64, "{what}: {choice}");
    });
}

#[test]
fn a_trial_sends_old_bytes_where_it_copies_and_new_ones_where_it_lends() {
    for backend in BACK_ENDS {
        for tcp in [false, true] {
            a_trial_behind_a_queue(backend, tcp);
        }
    }
}

/// Where a route goes.
#[derive(Clone, Copy, Debug)]
enum Sink {
    /// Takes lent memory as it is.
    Ifb,
    /// To a socket on this machine: the kernel copies.
    Veth,
}

const IFB: &str = "ifb77";
const TARGET: &str = "10.79.0.2";
const LARGE: usize = 65_000;
/// Payloads of the one kind that the peer examines begin with this.
const MARK: &[u8] = b"look at this";
/// After this many sends a choice must be made anew. The runs between trials grow, but only to the
/// double in these tests.
const ENOUGH: u32 = 8 * FIRST_RUN;

/// Payloads in a call.
const BATCHES: [u32; 2] = [1, 10];

/// Datagrams of 65 000 bytes to an address whose route changes.
struct Route<'a> {
    lab: &'a Lab,
    area: Area,
    /// Far more than a processor's own cache holds: copying reads memory.
    cold: Vec<Frozen>,
    peer: UdpSocket,
    sender: Sender,
    /// Payloads in a call.
    batch: u32,
    sent: usize,
}

impl<'a> Route<'a> {
    fn new(lab: &'a Lab, backend: SendBackend, batch: u32, to: Sink) -> Self {
        lab.veth();
        lab.ifb(IFB, false);
        // A datagram that must be fragmented is copied (net/ipv4/ip_output.c, __ip_append_data).
        run("ip", &["link", "set", IFB, "mtu", "65535"]);
        lab.mtu(lab::HERE, 65_535);
        run("ip", &["neigh", "replace", TARGET, "lladdr", "02:00:00:00:79:02", "dev", IFB]);
        let peer = lab.at_peer(|| {
            run("ip", &["addr", "add", TARGET, "dev", lab::THERE]);
            UdpSocket::bind((TARGET, 0)).expect("a socket of the peer")
        });
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        set_int(&peer, libc::SO_RCVBUFFORCE, 64 << 20);
        goes(to);
        let socket = UdpSocket::bind((lab::HERE_IP, 0)).unwrap();
        socket.connect(peer.local_addr().unwrap()).unwrap();
        let area = area(512, 65_536);
        let cold = (0..480).map(|n| {
            let mut lease = area.lease().expect("a free buffer");
            lease.copy_from_slice(&lab::pattern(n, 65_536));
            lease.freeze()
        });
        let cold = cold.collect();
        let sender = auto_sender(socket.into(), backend, &area);
        Self { lab, area, cold, peer, sender, batch, sent: 0 }
    }

    /// Sends a batch.
    fn send(&mut self) {
        let mut payloads: Vec<Payload> = (0..self.batch)
            .map(|_| {
                self.sent += 1;
                Segment::Frozen(self.cold[self.sent % self.cold.len()].clone(), 0..LARGE).into()
            })
            .collect();
        match payloads.len() {
            1 => drop(payloads.pop().map(|p| self.sender.send(p).expect("sent"))),
            _ => drop(self.sender.send_many(&mut payloads).expect("sent")),
        }
        assert!(payloads.is_empty());
    }

    /// Sends until the choice is this one.
    fn until(&mut self, way: SendWay, because: Because) -> Choice {
        for _ in 0..ENOUGH {
            self.send();
            let choice = choice(&self.sender);
            if (choice.way, choice.because) == (way, because) {
                self.sender.wait_all(PATIENCE).expect("all back");
                return choice;
            }
        }
        panic!("{ENOUGH} sends, and not {way:?}, {because:?}: {:?}", choice(&self.sender));
    }

    fn bytes(&self) -> Bytes {
        let t = self.sender.counters().snapshot();
        let copied = |reason| t.copied_bytes.get(reason).copied().unwrap_or(0);
        let bytes = Bytes {
            zero_copied: t.zero_copied_bytes,
            cheaper: copied("cheaper"),
            trial: copied("trial"),
            kernel_copies: copied("kernel_copies"),
            kernel: copied("kernel"),
        };
        assert_eq!(t.bytes, bytes.all(), "{t:?}");
        bytes
    }

    /// Sends `sends` payloads, and returns what the ledger says of them.
    fn bytes_of(&mut self, sends: u32) -> Bytes {
        let before = self.bytes();
        (0..sends / self.batch).for_each(|_| self.send());
        self.sender.wait_all(PATIENCE).expect("all back");
        let all = self.bytes().since(before);
        assert_eq!(all.all(), of(sends), "{all:?}");
        all
    }

    /// Sends five into a held queue, changes them, and looks what arrives and what the ledger says.
    fn look(&mut self, way: SendWay) {
        let mut got = vec![0; 65_536];
        self.peer.set_nonblocking(true).unwrap();
        while self.peer.recv(&mut got).is_ok() {}
        self.peer.set_nonblocking(false).unwrap();
        self.lab.hold_long(lab::HERE, 65_549);
        let mut payloads: Vec<_> = (0..5).map(|n| lab::pattern(n, LARGE)).collect();
        payloads.iter_mut().for_each(|p| p[..MARK.len()].copy_from_slice(MARK));
        let before = self.bytes();
        for (is_lent, want) in
            change_behind_the_call(self.lab, &mut self.sender, &self.area, self.cold.len(), &payloads)
        {
            assert_eq!(is_lent, way == SendWay::Lend);
            let len = loop {
                let len = datagram(&self.peer, &mut got);
                if got[..len].starts_with(MARK) {
                    break len;
                }
            };
            assert!(got[..len] == want, "{way:?}: {len} other bytes");
        }
        let want = match way {
            SendWay::Copy => Bytes { kernel_copies: of(5), ..Bytes::default() },
            SendWay::Lend => Bytes { kernel: of(5), ..Bytes::default() },
        };
        assert_eq!(self.bytes().since(before), want, "{way:?}");
        run("tc", &["qdisc", "del", "dev", lab::HERE, "root"]);
    }
}

/// Bytes in the ledger: sent without a copy, copied by choice, lent and copied by the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bytes {
    zero_copied: u64,
    cheaper: u64,
    trial: u64,
    kernel_copies: u64,
    kernel: u64,
}

impl Bytes {
    fn all(self) -> u64 {
        self.zero_copied + self.cheaper + self.trial + self.kernel_copies + self.kernel
    }

    fn since(self, before: Self) -> Self {
        Self {
            zero_copied: self.zero_copied - before.zero_copied,
            cheaper: self.cheaper - before.cheaper,
            trial: self.trial - before.trial,
            kernel_copies: self.kernel_copies - before.kernel_copies,
            kernel: self.kernel - before.kernel,
        }
    }
}

/// Bytes of `payloads` large payloads.
fn of(payloads: u32) -> u64 {
    u64::from(payloads) * LARGE as u64
}

/// Sends what goes to the target by this way from now on.
fn goes(to: Sink) {
    let via = lab::THERE_IP.to_string();
    let way: &[&str] = match to {
        Sink::Ifb => &["dev", IFB],
        Sink::Veth => &["via", &via, "dev", lab::HERE],
    };
    run("ip", &[&["route", "replace", &format!("{TARGET}/32")], way].concat());
}

#[test]
fn an_interface_that_takes_lent_memory_gets_it_and_a_route_that_changes_is_found() {
    for (backend, batch) in BACK_ENDS.into_iter().flat_map(|b| BATCHES.map(|n| (b, n))) {
        in_lab(move |lab| {
            let mut to = Route::new(lab, backend, batch, Sink::Ifb);
            let chosen = to.until(SendWay::Lend, Because::Measured);
            assert!(chosen.copy_ns > chosen.lend_ns, "{backend:?}: {chosen}");
            let tried = to.bytes();
            assert!(
                tried.zero_copied > 0 && tried.trial > 0 && tried.cheaper + tried.kernel == 0,
                "{backend:?}: {tried:?}"
            );
            let lent = Bytes { zero_copied: of(100), ..Bytes::default() };
            assert_eq!(to.bytes_of(100), lent, "{backend:?}");

            goes(Sink::Veth);
            // What is chosen serves on until the kernel says that it copied.
            to.look(SendWay::Lend);
            to.until(SendWay::Copy, Because::KernelCopied);
            let copied = Bytes { kernel_copies: of(100), ..Bytes::default() };
            assert_eq!(to.bytes_of(100), copied, "{backend:?}");
            to.look(SendWay::Copy);

            goes(Sink::Ifb);
            let trials = choice(&to.sender).trials;
            assert_eq!(to.until(SendWay::Lend, Because::Measured).trials, trials + 1, "{backend:?}");
            assert_eq!(to.bytes_of(100), lent, "{backend:?}");
        });
    }
}

#[test]
fn where_the_kernel_copies_lending_ends_and_is_tried_again_in_vain() {
    for (backend, batch) in BACK_ENDS.into_iter().flat_map(|b| BATCHES.map(|n| (b, n))) {
        in_lab(move |lab| {
            let mut to = Route::new(lab, backend, batch, Sink::Veth);
            let chosen = to.until(SendWay::Copy, Because::KernelCopied);
            assert!(chosen.to_string().contains("the kernel copied what was lent"), "{chosen}");
            let tried = to.bytes();
            assert!(
                tried.kernel > 0 && tried.trial > 0 && tried.cheaper + tried.zero_copied == 0,
                "{backend:?}: {tried:?}"
            );
            to.look(SendWay::Copy);
            // Lending gets another trial of a few payloads, and the choice stays as it was.
            let before = to.bytes();
            let mut sends = 0;
            while to.bytes().kernel == before.kernel {
                assert!(sends < ENOUGH, "{backend:?}: not tried again: {}", choice(&to.sender));
                to.send();
                sends += 1;
            }
            to.sender.wait_all(PATIENCE).expect("all back");
            let all = to.bytes().since(before);
            assert_eq!((all.zero_copied, all.kernel), (0, of(KNOCK)), "{backend:?}, {sends} sends");
            let again = choice(&to.sender);
            assert_eq!(
                (again.way, again.because),
                (SendWay::Copy, Because::KernelCopied),
                "{backend:?}: {again}"
            );
        });
    }
}
