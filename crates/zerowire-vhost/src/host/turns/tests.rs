use std::collections::VecDeque;
use std::ops::Range;

use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::host::mailbox::{Mailbox, mailbox};
use crate::host::{At, HostRing, RingSetup};
use crate::memory::GuestMemory;

const BUSY: Worked = Worked::Busy { lingers: true, knows_events: true };

/// What epoll gives for a kick.
const KICK: u64 = 8;

/// A thread that does what a script says, and notes the calls it gets.
struct Thread {
    epoll: OwnedFd,
    worked: VecDeque<Worked>,
    armed: VecDeque<Armed>,
    released: bool,
    seen: Vec<&'static str>,
}

impl Thread {
    fn new() -> (Self, TurnLoop<u8>, Mailbox<RingCommand<u8>>) {
        let (commands, queue, wake) = mailbox().expect("a mailbox");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll set");
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(Self::WAKE), flags).expect("it is watched");
        let (worked, armed) = (VecDeque::new(), VecDeque::new());
        let thread = Self { epoll, worked, armed, released: false, seen: Vec::new() };
        (thread, TurnLoop::new(queue, wake, 4), commands)
    }

    fn seen(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.seen)
    }
}

impl RingThread for Thread {
    type Device = u8;

    fn queues(&self) -> Range<u16> {
        0..0
    }

    fn ring_mut(&mut self, _at: At) -> Option<&mut HostRing> {
        None
    }

    fn memory(&mut self, _vm: usize) -> &mut Arc<GuestMemory> {
        unreachable!("it has none")
    }

    fn epoll(&self) -> (&OwnedFd, fn(At) -> u64) {
        (&self.epoll, |_| 0)
    }

    fn install(&mut self, _at: At, _setup: RingSetup) -> Result<(), String> {
        Err("it serves none".to_owned())
    }

    fn remove(&mut self, _at: At) -> Option<HostRing> {
        None
    }

    fn release(&mut self, _vm: usize) {
        self.released = true;
    }

    fn set_memory(&mut self, _vm: usize, _memory: Arc<GuestMemory>) {
        self.released = false;
    }

    fn changed(&mut self, _at: At) {}

    fn left(&mut self, _vm: usize) {}

    fn device(&mut self, _command: u8) {
        self.seen.push("command");
    }
}

impl Turns for Thread {
    const LINGER: u32 = 3;
    const TURNS_UNASKED: u32 = 4;
    const LOOKS_UNASKED: Option<u32> = None;
    const WAKE: u64 = 7;

    fn is_released(&self) -> bool {
        self.released
    }

    fn turn(&mut self, woke: Woke) -> Worked {
        self.seen.push(match woke {
            Woke::ByEvent => "turn",
            Woke::ByTime => "turn by time",
        });
        self.worked.pop_front().unwrap_or(Worked::Idle)
    }

    fn ask(&mut self) {
        self.seen.push("ask");
    }

    fn arm(&mut self) -> Armed {
        self.seen.push("arm");
        self.armed.pop_front().unwrap_or(Armed::Rest(Some(Duration::from_millis(1))))
    }

    fn sleeps(&mut self) {
        self.seen.push("sleep");
    }

    fn is_kick(token: u64) -> bool {
        token == KICK
    }

    fn kicked(&mut self, _at: Instant) {
        self.seen.push("kicked");
    }

    fn event(&mut self, _token: u64, _flags: epoll::EventFlags) -> bool {
        self.seen.push("event");
        true
    }

    fn woken(&mut self) {
        self.seen.push("woken");
    }

    fn slept(&mut self, _limit: Option<Duration>) -> bool {
        self.seen.push("slept");
        false
    }
}

#[test]
fn a_thread_that_works_takes_commands_now_and_then() {
    let (mut thread, mut turns, commands) = Thread::new();
    assert!(commands.send(RingCommand::Device(1)));
    thread.worked.extend([BUSY; 8]);
    for _ in 0..8 {
        assert!(turns.step(&mut thread, None), "there is more to do");
    }
    let seen = ["turn", "turn", "turn", "turn", "ask"];
    assert_eq!(thread.seen(), [&seen[..], &["command", "woken"], &seen].concat());
    // Where events may say more, the thread asks for them at once.
    thread.worked.push_back(Worked::Busy { lingers: false, knows_events: false });
    assert!(turns.step(&mut thread, None));
    assert_eq!(thread.seen(), ["turn", "ask"]);
}

#[test]
fn a_thread_without_work_lingers_and_sleeps_and_learns_what_woke_it() {
    let (mut thread, mut turns, _commands) = Thread::new();
    let bell = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&thread.epoll, &bell, epoll::EventData::new_u64(9), flags).expect("it is watched");
    thread.worked.push_back(BUSY);
    for _ in 0..4 {
        assert!(turns.step(&mut thread, None));
    }
    assert_eq!(thread.seen(), ["turn"; 4], "it looks three times more");
    assert!(!turns.step(&mut thread, None), "nothing has come");
    assert_eq!(thread.seen(), ["turn", "arm", "sleep", "slept"]);
    rustix::io::write(&bell, &1u64.to_ne_bytes()).expect("rung");
    assert!(turns.step(&mut thread, None), "an event has come");
    assert_eq!(thread.seen(), ["turn by time", "arm", "sleep", "event", "woken"]);
    thread.armed.push_back(Armed::Work);
    assert!(turns.step(&mut thread, None));
    assert_eq!(thread.seen(), ["turn", "arm"], "there was work after all");
    // Who steps it says how long it sleeps.
    assert!(!turns.step(&mut thread, Some(Duration::ZERO)));
    assert_eq!(thread.seen(), ["turn", "arm", "slept"]);
}

/// The clock is read for kicks alone.
#[test]
fn a_thread_hears_once_of_kicks_that_came_together_before_their_events() {
    let (mut thread, mut turns, commands) = Thread::new();
    let bells = [KICK, KICK, 9].map(|token| {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&thread.epoll, &bell, epoll::EventData::new_u64(token), flags).expect("it is watched");
        bell
    });
    let ring = |bell| rustix::io::write(bell, &1u64.to_ne_bytes()).expect("rung");
    bells.iter().map(ring).for_each(drop);
    assert!(turns.step(&mut thread, None));
    assert_eq!(thread.seen(), ["turn", "arm", "sleep", "kicked", "event", "event", "event", "woken"]);
    ring(&bells[2]);
    assert!(turns.step(&mut thread, None) && commands.send(RingCommand::Device(1)));
    assert_eq!(thread.seen(), ["turn", "arm", "sleep", "event", "woken"]);
    assert!(turns.step(&mut thread, None));
    assert_eq!(thread.seen(), ["turn", "arm", "sleep", "command", "woken"]);
}

#[test]
fn a_thread_that_can_move_nothing_sleeps_between_its_turns() {
    let (mut thread, mut turns, _commands) = Thread::new();
    thread.armed.extend([Armed::Blocked; 17]);
    for _ in 0..15 {
        assert!(turns.step(&mut thread, None));
        assert_eq!(thread.seen(), ["turn", "arm"]);
    }
    assert!(!turns.step(&mut thread, None));
    assert_eq!(thread.seen(), ["turn", "arm", "sleep", "slept"]);
    assert!(!turns.step(&mut thread, None));
    assert_eq!(thread.seen(), ["turn by time", "arm", "sleep", "slept"]);
}

#[test]
fn a_thread_without_memory_takes_commands_and_no_turns() {
    let (mut thread, mut turns, commands) = Thread::new();
    let (reply, answer) = crate::answer::one_answer();
    thread.released = true;
    assert!(commands.send(RingCommand::Device(1)));
    assert!(turns.step(&mut thread, None));
    assert_eq!(thread.seen(), ["sleep", "command"]);
    assert!(commands.send(RingCommand::Memory { vm: 0, memory: Arc::default(), reply }));
    assert!(turns.step(&mut thread, None) && !thread.released);
    assert_eq!((answer.close(), thread.seen()), (Some(()), vec!["sleep"]));
    // The next turn looks at what the command changed.
    assert!(turns.step(&mut thread, None));
    assert_eq!(thread.seen(), ["turn"]);
}

#[test]
fn a_loop_ends_when_it_is_told_to_or_when_nobody_is_left() {
    let (mut thread, mut turns, commands) = Thread::new();
    assert!(commands.send(RingCommand::Quit));
    turns.run(&mut thread);
    let (mut thread, mut turns, commands) = Thread::new();
    assert!(commands.send(RingCommand::Device(1)));
    drop(commands);
    turns.run(&mut thread);
    assert!(thread.seen().contains(&"command"), "what was sent before is carried out");
}
