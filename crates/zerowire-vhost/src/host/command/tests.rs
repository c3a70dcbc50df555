use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fs::MemfdFlags;

use super::*;
use crate::answer::one_answer;
use crate::memory::RegionConfig;
use crate::ring::RingAddresses;

const SIZE: u16 = 8;
const USER: u64 = 0x7000_0000;
const QUEUES: Range<u16> = 2..4;

fn at(queue: u16) -> At {
    At { vm: 1, queue }
}

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

fn rung(bell: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(bell, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}

fn file() -> OwnedFd {
    let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).expect("a file");
    rustix::fs::ftruncate(&file, 0x4000).expect("its length");
    file
}

fn guest() -> Arc<GuestMemory> {
    let region = RegionConfig { guest_addr: 0, len: 0x4000, user_addr: USER, offset: 0, file: file() };
    Arc::new(GuestMemory::new(vec![region]).expect("memory"))
}

fn setup(queue: u16, kick: &OwnedFd) -> RingSetup {
    RingSetup {
        queue,
        size: SIZE,
        addresses: RingAddresses { desc: USER, avail: USER + 0x1000, used: USER + 0x2000 },
        base: 0,
        acked: 0,
        state: RingState::Waiting,
        log_at: None,
        inflight: None,
        kick: Arc::new(kick.try_clone().expect("a duplicate")),
        call: None,
        err: None,
    }
}

/// A thread with two queues of one VM, which notes the commands that it gets.
struct Thread {
    rings: [Option<HostRing>; 2],
    memory: Arc<GuestMemory>,
    epoll: OwnedFd,
    told: Vec<String>,
}

impl Thread {
    fn new() -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll set");
        Self { rings: [None, None], memory: guest(), epoll, told: Vec::new() }
    }

    fn carry_out<A>(&mut self, command: impl FnOnce(Reply<A>) -> RingCommand<u8>) -> A {
        let (reply, answer) = one_answer();
        assert!(carry_out(self, command(reply)).is_continue());
        answer.wait(Duration::ZERO).expect("it is answered when it has been carried out")
    }

    fn set_memory(&mut self, memory: Arc<GuestMemory>) {
        self.carry_out(|reply| RingCommand::Memory { vm: 1, memory, reply });
    }

    fn start(&mut self, setup: RingSetup) -> Result<(), String> {
        let at = at(setup.queue);
        self.carry_out(|reply| RingCommand::Start { at, ring: Box::new(setup), reply })
    }

    fn stop(&mut self, queue: u16) -> Option<u16> {
        self.carry_out(|reply| RingCommand::Stop { at: at(queue), reply })
    }

    fn kick(&mut self, queue: u16, fd: OwnedFd) -> Result<(), String> {
        self.carry_out(|reply| RingCommand::Kick { at: at(queue), fd: Arc::new(fd), reply })
    }

    fn host(&mut self, queue: u16) -> &mut HostRing {
        self.ring_mut(at(queue)).expect("it runs")
    }

    /// What woke it since this was asked last.
    fn events(&self) -> Vec<u64> {
        let mut events = Vec::with_capacity(8);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now)).expect("events");
        events.iter().map(|e| e.data.u64()).collect()
    }

    fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told)
    }
}

impl RingThread for Thread {
    type Device = u8;

    fn queues(&self) -> Range<u16> {
        QUEUES
    }

    fn ring_mut(&mut self, at: At) -> Option<&mut HostRing> {
        self.rings[usize::from(at.queue - QUEUES.start)].as_mut()
    }

    fn memory(&mut self, _vm: usize) -> &mut Arc<GuestMemory> {
        &mut self.memory
    }

    fn epoll(&self) -> (&OwnedFd, fn(At) -> u64) {
        (&self.epoll, |at| u64::from(at.queue))
    }

    fn install(&mut self, at: At, setup: RingSetup) -> Result<(), String> {
        let mut ring = HostRing::new(setup, &self.memory)?;
        ring.resume()?;
        self.rings[usize::from(at.queue - QUEUES.start)] = Some(ring);
        Ok(())
    }

    fn remove(&mut self, at: At) -> Option<HostRing> {
        self.told.push(format!("remove {}", at.queue));
        self.rings[usize::from(at.queue - QUEUES.start)].take()
    }

    fn release(&mut self, vm: usize) {
        self.told.push(format!("release {vm}"));
    }

    fn set_memory(&mut self, vm: usize, memory: Arc<GuestMemory>) {
        self.told.push(format!("memory {vm}"));
        for ring in self.rings.iter_mut().flatten() {
            let _ = ring.move_to(&memory);
        }
        self.memory = memory;
    }

    fn changed(&mut self, at: At) {
        self.told.push(format!("changed {}", at.queue));
    }

    fn left(&mut self, vm: usize) {
        self.told.push(format!("left {vm}"));
    }

    fn device(&mut self, command: u8) {
        self.told.push(format!("device {command}"));
    }
}

#[test]
fn a_ring_goes_on_when_its_memory_is_back_and_a_broken_one_does_not() {
    let mut thread = Thread::new();
    let call = bell();
    let by_call = call.try_clone().ok().map(Arc::new);
    thread.start(RingSetup { call: by_call, ..setup(2, &bell()) }).expect("started");
    assert_eq!(rung(&call), 1, "a process before may have used chains and said nothing");
    thread.carry_out(|reply| RingCommand::State { at: at(2), state: RingState::Enabled, reply });
    assert!(thread.host(2).is_active());
    thread.set_memory(Arc::default());
    assert!(thread.host(2).is_unmapped() && !thread.host(2).is_active());
    assert_eq!(rung(&call), 0);
    thread.set_memory(guest());
    assert!(thread.host(2).is_active());
    assert_eq!(rung(&call), 1, "what the driver was told of last is not known any more");
    // What breaks a rule is over until it is started anew, whatever its memory does.
    assert!(thread.host(2).set_broken() && !thread.host(2).set_broken());
    for memory in [Arc::default(), guest()] {
        thread.set_memory(memory);
        assert!(!thread.host(2).is_sound() && !thread.host(2).is_unmapped());
    }
    assert_eq!(thread.stop(2), Some(0));
    thread.start(setup(2, &bell())).expect("started");
    assert!(thread.host(2).is_sound() && !thread.host(2).is_drained(), "it waits to be enabled");
    // Nor does a rule that is broken heal a ring that has no memory.
    thread.set_memory(Arc::default());
    assert!(!thread.host(2).set_broken() && thread.host(2).is_unmapped());
}

#[test]
fn a_ring_that_was_disabled_is_drained_and_not_active() {
    let mut thread = Thread::new();
    thread.start(setup(3, &bell())).expect("started");
    for (on, state) in [(false, RingState::Discarding), (true, RingState::Enabled)] {
        assert_eq!(RingState::set(on), state);
        thread.carry_out(|reply| RingCommand::State { at: at(3), state, reply });
        assert_eq!((thread.host(3).is_active(), thread.host(3).is_drained()), (on, true));
    }
}

#[test]
fn descriptors_are_replaced_while_a_ring_runs() {
    let mut thread = Thread::new();
    let [old, new, call, err] = [bell(), bell(), bell(), bell()];
    thread.start(setup(3, &old)).expect("started");
    rustix::io::write(&old, &1u64.to_ne_bytes()).expect("a kick");
    assert_eq!(thread.events(), [3]);
    assert_eq!(thread.kick(3, new.try_clone().expect("a duplicate")), Ok(()));
    rustix::io::write(&old, &1u64.to_ne_bytes()).expect("a kick");
    assert!(thread.events().is_empty(), "nobody listens to the old one");
    rustix::io::write(&new, &1u64.to_ne_bytes()).expect("a kick");
    assert_eq!(thread.events(), [3]);
    let fd = call.try_clone().ok().map(Arc::new);
    thread.carry_out(|reply| RingCommand::Call { at: at(3), fd, reply });
    assert_eq!(rung(&call), 1, "the driver may have missed a notification");
    let fd = err.try_clone().ok().map(Arc::new);
    thread.carry_out(|reply| RingCommand::Err { at: at(3), fd, reply });
    assert_eq!(rung(&err), 0);
    thread.host(3).fail();
    assert_eq!((rung(&err), rung(&call)), (1, 0));
    assert_eq!(thread.stop(3), Some(0));
    rustix::io::write(&new, &1u64.to_ne_bytes()).expect("a kick");
    assert!(thread.events().is_empty());
    // What comes for a ring that has stopped is answered all the same.
    assert_eq!(thread.kick(3, new), Ok(()));
    thread.carry_out(|reply| RingCommand::Call { at: at(3), fd: None, reply });
    assert_eq!(thread.stop(3), None);
}

#[test]
fn a_kick_that_can_not_be_watched_leaves_the_one_before() {
    let mut thread = Thread::new();
    let old = bell();
    thread.start(setup(3, &old)).expect("started");
    let why = thread.kick(3, file()).expect_err("a file has no events");
    assert!(why.contains("queue 3") && why.contains("can't be watched"), "{why}");
    rustix::io::write(&old, &1u64.to_ne_bytes()).expect("a kick");
    assert_eq!(thread.events(), [3], "the ring is served on");
    assert_eq!(thread.stop(3), Some(0));
}

#[test]
fn a_ring_whose_kick_can_not_be_watched_does_not_start() {
    let mut thread = Thread::new();
    let why = thread.start(setup(2, &file())).expect_err("a file has no events");
    assert!(why.contains("queue 2") && why.contains("can't be watched"), "{why}");
    assert!(thread.ring_mut(at(2)).is_none());
    assert_eq!(thread.told(), ["remove 2"]);
    thread.start(setup(2, &bell())).expect("started");
    assert_eq!(thread.told(), ["changed 2"]);
}

#[test]
fn a_front_end_that_leaves_leaves_no_ring() {
    let mut thread = Thread::new();
    for queue in QUEUES {
        thread.start(setup(queue, &bell())).expect("started");
    }
    thread.told();
    thread.carry_out(|reply| RingCommand::Left { vm: 1, reply });
    assert_eq!(thread.told(), ["remove 2", "remove 3", "left 1"]);
    assert!(thread.rings.iter().all(Option::is_none));
    assert!(carry_out(&mut thread, RingCommand::Device(7)).is_continue());
    assert_eq!(thread.told(), ["device 7"]);
    assert!(carry_out(&mut thread, RingCommand::Quit).is_break());
}

#[test]
fn memory_that_goes_is_released_first() {
    let mut thread = Thread::new();
    thread.carry_out(|reply| RingCommand::Release { vm: 1, reply });
    thread.set_memory(Arc::default());
    assert_eq!(thread.told(), ["release 1", "release 1", "memory 1"]);
    let memory = guest();
    thread.carry_out(|reply| RingCommand::Log { vm: 1, memory: memory.clone(), reply });
    thread.carry_out(|reply| RingCommand::LogRing { at: at(2), log_at: Some(0x2000), reply });
    assert!(thread.told().is_empty(), "another log moves nothing");
    assert!(Arc::ptr_eq(&thread.memory, &memory));
}

#[test]
fn a_thread_that_could_not_start_keeps_nobody_waiting() {
    let (commands, queue) = crate::queue::queue();
    let (started, start) = one_answer();
    let (stopped, stop) = one_answer();
    let (left, leave) = one_answer();
    for command in [
        RingCommand::Start { at: at(2), ring: Box::new(setup(2, &bell())), reply: started },
        RingCommand::Device(1),
        RingCommand::Stop { at: at(2), reply: stopped },
        RingCommand::Left { vm: 1, reply: left },
        RingCommand::Quit,
    ] {
        commands.send(command).expect("it is taken");
    }
    refuse_all(&queue, "no socket");
    assert_eq!(start.close(), Some(Err("no socket".to_owned())));
    assert_eq!((stop.close(), leave.close()), (Some(None), Some(())));
}
