//! Post-copy: the guest runs before its memory has come, and the front end brings each page when
//! the back end asks for it.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::support::attack::PLAIN;
use crate::support::vsock::VsockBackend;
use crate::support::{Backend, PATIENCE, Peer, Vm, frames, in_netns, wait_until};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::FallocateFlags;
use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::ring::DESC_WRITE;
use zerowire_guest::{GuestAddr, GuestMemory, Region, Transport, VhostUser, VhostUserOptions};
use zerowire_testkit::net::veth::veth;
use zerowire_testkit::random::Random;
use zerowire_vhost_user::{MemoryRegion, Request, SingleRegion, VringAddr, VringState, protocol as p};

/// Rings and headers lie here, and are there from the start.
const PRESENT: GuestAddr = GuestAddr(0);
/// Data lies here, and comes later.
const LATER: GuestAddr = GuestAddr(1 << 32);
const PAGE: usize = 4096;
const PAGES: usize = 4096;

/// linux/userfaultfd.h
const UFFDIO_WAKE: libc::c_ulong = 0x8010_aa02;
const EVENT_PAGEFAULT: u8 = 0x12;

/// What page `page` holds after it was given away and written anew `generation` times.
fn content(page: usize, generation: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PAGE);
    frames::fill(&mut bytes, (page as u32).wrapping_mul(0x0101_0101) ^ generation << 13, PAGE);
    bytes
}

/// Where the pages are that have not come.
struct Source {
    faults: OwnedFd,
    region: Arc<Region>,
    /// Where the back end has the region.
    base: u64,
    generations: Vec<AtomicU32>,
    brought: AtomicU64,
}

impl Source {
    /// The page that a thread of the back end waits for; None if `end` comes first.
    fn next_fault(&self, end: Option<&OwnedFd>) -> Option<usize> {
        let mut fds = vec![PollFd::new(&self.faults, PollFlags::IN)];
        fds.extend(end.map(|end| PollFd::new(end, PollFlags::IN)));
        loop {
            let mut event = [0u8; 32];
            match rustix::io::read(&self.faults, &mut event) {
                Ok(n) => {
                    assert_eq!((n, event[0]), (32, EVENT_PAGEFAULT));
                    let at = u64::from_ne_bytes(event[16..24].try_into().expect("eight bytes"));
                    let page = (at - self.base) as usize / PAGE;
                    assert!(page < PAGES, "a fault at {at:#x}, outside of what was registered");
                    return Some(page);
                }
                Err(rustix::io::Errno::AGAIN) => {}
                Err(e) => panic!("reading the userfaultfd: {e}"),
            }
            poll(&mut fds, None).expect("a poll");
            if fds.get(1).is_some_and(|end| !end.revents().is_empty()) {
                return None;
            }
        }
    }

    /// Brings a page and wakes who waits for it.
    fn bring(&self, page: usize) {
        let bytes = content(page, self.generations[page].load(Ordering::Acquire));
        let at = self.region.file_offset() + (page * PAGE) as u64;
        assert_eq!(rustix::io::pwrite(self.region.file(), &bytes, at), Ok(PAGE));
        self.brought.fetch_add(1, Ordering::Release);
        let mut range = [self.base + (page * PAGE) as u64, PAGE as u64];
        // SAFETY: the request takes a range of two words.
        let r = unsafe { libc::ioctl(self.faults.as_raw_fd(), UFFDIO_WAKE, range.as_mut_ptr()) };
        assert_eq!(r, 0, "UFFDIO_WAKE: {}", std::io::Error::last_os_error());
    }

    /// The page goes, and there is something else in its place when it comes again.
    fn take_away(&self, page: usize) {
        self.generations[page].fetch_add(1, Ordering::Release);
        let at = self.region.file_offset() + (page * PAGE) as u64;
        punch(self.region.file(), at);
    }

    fn content(&self, page: usize) -> Vec<u8> {
        content(page, self.generations[page].load(Ordering::Acquire))
    }
}

fn punch(file: impl AsFd, at: u64) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, at, PAGE as u64).expect("punched");
}

fn guest_memory() -> GuestMemory {
    GuestMemory::new(&[(PRESENT, 4 << 20), (LATER, PAGES * PAGE)]).expect("guest memory")
}

fn connect(backend: &Backend, vm: &str) -> VhostUser {
    let all = VhostUserOptions::default();
    let options = VhostUserOptions { protocol: all.protocol | p::PAGEFAULT, ..all };
    VhostUser::connect_with(backend.socket(vm), PATIENCE, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// Asks for the back end's userfaultfd.
fn advise(transport: &mut VhostUser) -> OwnedFd {
    let (request, connection) = (Request::PostcopyAdvise, transport.connection());
    connection.send_request(request, false, &[], &[]).expect("sent");
    let mut reply = connection.recv_reply(request).expect("an answer");
    assert!(reply.body().is_empty());
    reply.take_fd().expect("a userfaultfd")
}

/// Shares a region, and returns where the back end has it.
fn share(transport: &mut VhostUser, region: &Region) -> u64 {
    let sent = MemoryRegion {
        guest_addr: region.guest_addr().0,
        size: region.len() as u64,
        user_addr: region.user_addr(),
        mmap_offset: region.file_offset(),
    };
    let (request, connection) = (Request::AddMemReg, transport.connection());
    let body = SingleRegion(sent).encode();
    connection.send_request(request, false, &body, &[region.file()]).expect("sent");
    let reply = connection.recv_reply(request).expect("an answer").single_region().expect("a region");
    assert_eq!(MemoryRegion { user_addr: sent.user_addr, ..reply }, sent);
    reply.user_addr
}

/// A front end with a guest whose data has not come, as QEMU does it.
fn front_end(backend: &Backend, vm: &str) -> (VhostUser, GuestMemory, Source) {
    let (memory, mut transport) = (guest_memory(), connect(backend, vm));
    transport.negotiate(PLAIN).expect("features");
    let faults = advise(&mut transport);
    transport.tell(Request::PostcopyListen, &[], &[]).expect("listening");
    let bases: Vec<u64> = memory.regions().iter().map(|r| share(&mut transport, r)).collect();
    transport.connection().send_request(Request::AddMemReg, false, &[0; 8], &[]).expect("sent");
    transport.barrier().expect("the connection goes on");
    let source = Source {
        faults,
        region: memory.regions()[1].clone(),
        base: bases[1],
        generations: (0..PAGES).map(|_| AtomicU32::new(0)).collect(),
        brought: AtomicU64::new(0),
    };
    (transport, memory, source)
}

/// A VM that is offered post-copy.
fn late(vm: Vm) -> Vm {
    Vm { postcopy: true, ..vm }
}

/// Different pages.
fn pages(random: &mut Random, count: usize) -> Vec<usize> {
    let mut pages: Vec<usize> = Vec::with_capacity(count);
    while pages.len() < count {
        let page = random.below(PAGES);
        if !pages.contains(&page) {
            pages.push(page);
        }
    }
    pages
}

fn piece(page: usize, flags: u16) -> RawDesc {
    RawDesc { addr: LATER.0 + (page * PAGE) as u64, len: PAGE as u32, flags, next: 0 }
}

/// Sends the pages as one frame.
fn send(tx: &mut RawQueue, head: &RawDesc, pages: &[usize], sent: &mut u16) {
    let chain: Vec<_> = [*head].into_iter().chain(pages.iter().map(|page| piece(*page, 0))).collect();
    tx.write_chain(0, &chain);
    tx.offer(0);
    tx.kick().expect("a kick");
    *sent = sent.wrapping_add(1);
}

/// The virtio-net header and the Ethernet header of each frame.
fn head(queue: &mut RawQueue) -> RawDesc {
    let bytes = [&[0; 12][..], &frames::frame(1, 60)[..14]].concat();
    RawDesc::readable(&queue.place(&bytes).expect("guest memory"))
}

/// Pages are missing at random, come when the back end touches them, are given away and are missing
/// again. What goes out is what the front end brought, and what is received lies in it.
#[test]
fn every_page_that_is_missing_is_waited_for_and_no_byte_is_wrong() {
    // Each page is brought more than twice.
    const FAULTS: u64 = 10_000;
    in_netns(|| {
        veth("v0", "v1", 1, 9000);
        let cases = [
            (Vm::new("zwlate"), "zwlate", 8),
            (Vm::on("zwlatep", "packet:v0,rings=off"), "v1", 2),
            (Vm::on("zwlatepr", "packet:v0,rings=on"), "v1", 2),
        ];
        for (vm, far, pieces) in cases {
            let name = vm.name;
            let backend = Backend::start(&[late(vm)]);
            let mut peer = Peer::new(far);
            let (mut transport, memory, source) = front_end(&backend, name);
            let mut tx = RawQueue::start(&memory, &mut transport, 1, 64).expect("a queue");
            let mut rx = RawQueue::start(&memory, &mut transport, 0, 64).expect("a queue");
            let head = head(&mut tx);
            let end = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while let Some(page) = source.next_fault(Some(&end)) {
                        source.bring(page);
                    }
                });
                let (mut random, mut sent, mut received) = (Random::new(7), 0u16, 0u16);
                while source.brought.load(Ordering::Acquire) < FAULTS {
                    let pages = pages(&mut random, pieces + 1);
                    let (into, out) = pages.split_last().expect("pages");
                    pages.iter().for_each(|page| source.take_away(*page));
                    rx.write_chain(received % 64, &[piece(*into, DESC_WRITE)]);
                    rx.offer(received % 64);
                    rx.kick().expect("a kick");
                    received = received.wrapping_add(1);
                    send(&mut tx, &head, out, &mut sent);
                    let number = u32::from(sent);
                    let frame = frames::frame(number, 60 + random.below(1400));
                    peer.send(&frame);
                    assert!(tx.wait_used(sent, PATIENCE), "{name}: frame {sent} is sent");
                    let got = peer.expect().bytes;
                    let expected = out.iter().map(|page| source.content(*page)).collect::<Vec<_>>().concat();
                    assert!(got[14..] == expected, "{name}: frame {sent} of pages {out:?}");
                    assert!(rx.wait_used(received, PATIENCE), "{name}: frame {received} is received");
                    let mut page = source.content(*into);
                    page[..12].fill(0);
                    page[10] = 1;
                    page[12..12 + frame.len()].copy_from_slice(&frame);
                    let view = memory.at(GuestAddr(piece(*into, 0).addr), PAGE).expect("memory");
                    let mut got = Vec::new();
                    view.append_to(0, PAGE, &mut got);
                    assert!(got == page, "{name}: frame {received} into page {into}");
                }
                rustix::io::write(&end, &1u64.to_ne_bytes()).expect("told");
            });
            transport.tell(Request::PostcopyEnd, &[], &[]).expect("ended");
            // From now on a page that nobody has brought is one of zeros.
            let page = 17;
            source.take_away(page);
            let before = tx.ring().used_idx();
            send(&mut tx, &head, &[page], &mut before.clone());
            assert!(tx.wait_used(before.wrapping_add(1), PATIENCE));
            assert!(peer.expect().bytes[14..].iter().all(|byte| *byte == 0));
            let stats = backend.stats(name);
            assert_eq!((stats.ring_errors, stats.last_error), (0, None), "{name}");
        }
    });
}

/// The worker of its queue pair waits. The control thread, the statistics and other VMs go on.
#[test]
fn a_page_that_does_not_come_holds_up_its_vm_alone() {
    in_netns(|| {
        let backend = Backend::start(&[late(Vm::new("zwheld")), Vm::new("zwother")]);
        let mut peer = Peer::new("zwheld");
        let (mut transport, memory, source) = front_end(&backend, "zwheld");
        let mut tx = RawQueue::start(&memory, &mut transport, 1, 16).expect("a queue");
        let first = head(&mut tx);
        source.take_away(5);
        send(&mut tx, &first, &[5], &mut 0);
        assert_eq!(source.next_fault(None), Some(5));

        let mut other =
            backend.guest("zwother", &crate::support::options(0, zerowire_guest::net::Layout::Split));
        let mut far = Peer::new("zwother");
        for n in 0..50 {
            other.ping(&mut far, n);
            transport.barrier().expect("the control thread goes on");
        }
        assert_eq!((tx.ring().used_idx(), backend.stats("zwheld").connected), (0, true));
        source.bring(5);
        assert!(tx.wait_used(1, PATIENCE));
        assert!(peer.expect().bytes[14..] == source.content(5));
    });
}

/// A front end that leaves while its VM's threads wait brings nothing any more, even if somebody
/// still holds the userfaultfd.
#[test]
fn nothing_waits_for_a_front_end_that_has_left() {
    in_netns(|| {
        let backend = Backend::start(&[late(Vm::new("zwleft"))]);
        let mut peer = Peer::new("zwleft");
        let ended = || wait_until("the connection has ended", || !backend.stats("zwleft").connected);
        for worker_waits in [true, false, true] {
            let (mut transport, memory, source) = front_end(&backend, "zwleft");
            let queue = if worker_waits {
                let mut tx = RawQueue::start(&memory, &mut transport, 1, 16).expect("a queue");
                let first = head(&mut tx);
                send(&mut tx, &first, &[9], &mut 0);
                Some(tx)
            } else {
                // The used ring is missing: the control thread looks where it begins.
                start_ring_in_missing_page(&mut transport, &memory, &source);
                None
            };
            assert!(source.next_fault(None).is_some());
            drop((transport, queue));
            ended();
        }
        let _ = peer.drain();
        let mut guest =
            backend.guest("zwleft", &crate::support::options(0, zerowire_guest::net::Layout::Split));
        guest.ping(&mut peer, 1);
    });
}

fn start_ring_in_missing_page(transport: &mut VhostUser, memory: &GuestMemory, source: &Source) {
    let (present, later) = (memory.regions()[0].user_addr(), source.region.user_addr());
    let connection = transport.connection();
    let mut say = |request, body: &[u8], fds: &[_]| {
        connection.send_request(request, false, body, fds).expect("sent");
    };
    say(Request::SetVringNum, &VringState { index: 1, num: 16 }.encode(), &[]);
    let at =
        VringAddr { index: 1, desc: present, avail: present + 4096, used: later, ..VringAddr::default() };
    say(Request::SetVringAddr, &at.encode(), &[]);
    let kick = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    say(Request::SetVringKick, &1u64.to_ne_bytes(), &[kick.as_fd()]);
}

/// A userfaultfd belongs to a mapping, not to a file. That of the front end's own mapping says
/// nothing of what the back end touches.
#[test]
fn without_postcopy_the_back_end_reads_zeros_where_the_file_has_no_page() {
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
    in_netns(|| {
        let backend = Backend::start(&[late(Vm::new("zwzero"))]);
        let mut peer = Peer::new("zwzero");
        let (memory, mut transport) = (guest_memory(), connect(&backend, "zwzero"));
        // SAFETY: takes flags and no pointer.
        let own = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        assert!(own >= 0, "userfaultfd: {}", std::io::Error::last_os_error());
        // SAFETY: made above.
        let own = unsafe { OwnedFd::from_raw_fd(own as i32) };
        let region = memory.regions()[1].clone();
        let ioctl = |request, words: &mut [u64]| {
            // SAFETY: as many words as the request takes.
            let r = unsafe { libc::ioctl(own.as_raw_fd(), request, words.as_mut_ptr()) };
            assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
        };
        ioctl(UFFDIO_API, &mut [0xaa, 0, 0]);
        ioctl(UFFDIO_REGISTER, &mut [region.user_addr(), region.len() as u64, 1, 0]);
        transport.negotiate(PLAIN).expect("features");
        transport.share_memory(&memory).expect("shared");
        let mut tx = RawQueue::start(&memory, &mut transport, 1, 16).expect("a queue");
        let first = head(&mut tx);
        send(&mut tx, &first, &[3], &mut 0);
        assert!(tx.wait_used(1, PATIENCE), "nobody is asked for the page");
        assert!(peer.expect().bytes[14..].iter().all(|byte| *byte == 0));
        let mut event = [0; 32];
        assert_eq!(rustix::io::read(&own, &mut event), Err(rustix::io::Errno::AGAIN));
    });
}

/// The back end offers post-copy with the option for it and without registered memory. Its messages
/// have an order.
#[test]
fn what_can_not_wait_for_pages_says_so() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[
            Vm::new("zwunasked"),
            late(Vm::new("zwcan")),
            late(Vm { queues: 2, ..Vm::new("zwtwo") }),
            late(Vm::on("zwcanp", "packet:v0")),
            late(Vm::on("zwxdp", "xdp:v0,mode=copy")),
        ]);
        for (name, offered) in
            [("zwunasked", false), ("zwcan", true), ("zwtwo", false), ("zwcanp", true), ("zwxdp", false)]
        {
            let offers = connect(&backend, name).protocol() & p::PAGEFAULT != 0;
            assert_eq!(offers, offered, "{name}");
        }
        let vsock = VsockBackend::one();
        let all = VhostUserOptions::default();
        let options = VhostUserOptions { protocol: all.protocol | p::PAGEFAULT, ..all };
        let front = VhostUser::connect_with(vsock.vhost_path("vm"), PATIENCE, &options).expect("connected");
        assert_eq!(front.protocol() & p::PAGEFAULT, 0, "a group's thread is that of other VMs, too");
        drop(front);

        type Steps = fn(&mut VhostUser);
        let wrong: [(Steps, &str); 4] = [
            (|t| drop(t.tell(Request::PostcopyListen, &[], &[])), "POSTCOPY_LISTEN: without POSTCOPY_ADVISE"),
            (|t| drop(t.tell(Request::PostcopyEnd, &[], &[])), "POSTCOPY_END: without POSTCOPY_ADVISE"),
            (
                |t| {
                    t.share_memory(&guest_memory()).expect("shared");
                    advise(t);
                    drop(t.tell(Request::PostcopyListen, &[], &[]));
                },
                "POSTCOPY_LISTEN: memory was set before it",
            ),
            (
                |t| {
                    advise(t);
                    t.tell(Request::PostcopyListen, &[], &[]).expect("listening");
                    share(t, &guest_memory().regions()[0]);
                    drop(t.tell(Request::AddMemReg, &1u64.to_ne_bytes(), &[]));
                },
                "ADD_MEM_REG: code 1: the front end can't bring missing pages",
            ),
        ];
        for (steps, rule) in wrong {
            let errors = backend.stats("zwcan").connection_errors;
            let mut transport = connect(&backend, "zwcan");
            steps(&mut transport);
            wait_until(rule, || backend.stats("zwcan").connection_errors > errors);
            let error = backend.stats("zwcan").last_error.expect("an error");
            assert!(error.starts_with(rule), "{error}");
        }
        let errors = backend.stats("zwcan").connection_errors;
        let mut transport = backend.connect("zwcan");
        drop(transport.tell(Request::PostcopyAdvise, &[], &[]));
        wait_until("it was not agreed on", || backend.stats("zwcan").connection_errors > errors);
    });
}
