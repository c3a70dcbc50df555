//! The thread that serves a group of VMs.

mod kicked;
mod review;

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use zerowire_vhost::answer::Reply;
use zerowire_vhost::host::mailbox::{Mailbox, mailbox};
use zerowire_vhost::host::turns::{Armed, TurnLoop, Turns, Woke, Worked};
use zerowire_vhost::host::{At, HostRing, RingClient, RingCommand, RingSetup, RingThread};
use zerowire_vhost::memory::GuestMemory;
use zerowire_vhost::serve::{STOP_PATIENCE, ends_in_time};

use super::capture::PacketCapture;
use super::queues::Receive;
use super::switch::{Event, Switch, Watch, take_back_all, token, wait_for_chains};
pub(crate) use super::vm::GroupVm;
use super::{EVENT_QUEUE, RX_QUEUE, TX_QUEUE};
use kicked::Kicked;
use review::Review;

#[cfg(feature = "testing")]
pub mod testing;

/// Stack of the thread, bytes. Untouched pages cost nothing.
const STACK_BYTES: usize = 512 * 1024;

/// How long a group waits:
///
/// - for a starved guest to post a good part of its ring, before any buffer will do,
/// - for a program to release all that is lent to it,
/// - for a guest to send more, before it hears of credit below half of what it may use.
const SETTLE_AFTER: Duration = Duration::from_millis(1);

/// Events taken at once.
const EVENTS: usize = 128;

/// The rings of one VM, for its control thread.
pub(crate) type GroupRings = RingClient<GroupCommand>;

type Command = RingCommand<GroupCommand>;

/// Commands of a group beside those about rings.
#[derive(Debug)]
pub(crate) enum GroupCommand {
    /// The answer to the question of this number: a socket that is connected to a host program, or
    /// why there is none.
    Answered { number: u64, outcome: io::Result<OwnedFd> },
    /// Serve this VM at a place that none has.
    Join { place: usize, vm: Box<GroupVm>, reply: Reply<io::Result<()>> },
    /// Drop the VM at a place. Its rings have stopped.
    Leave { place: usize, reply: Reply<()> },
    /// All rings of a VM's session run that did in another process.
    TakenUp { place: usize },
    /// Have a VM's packets go there as well, or nowhere else.
    Capture { place: usize, capture: Option<Box<PacketCapture>> },
}

/// A running group. Dropping it ends the thread and waits for it.
#[derive(Debug)]
pub(crate) struct Group {
    commands: Mailbox<Command>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// True: the thread did not come to an order in time.
    late: AtomicBool,
}

impl Group {
    /// The rings of the VM that has this place.
    pub(crate) fn rings(&self, place: usize) -> GroupRings {
        RingClient::new(self.commands.clone(), place)
    }

    /// Whether the thread still serves.
    pub(crate) fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    /// Gives the thread an order, and does not wait.
    pub(crate) fn give(&self, order: GroupCommand) {
        self.commands.send(Command::Device(order));
    }

    /// Whether the thread came to an order in time: if not, nobody waits long for the next one.
    pub(crate) fn answers(&self, in_time: bool) {
        self.late.store(!in_time, Ordering::Relaxed);
    }

    /// How long to wait for an order: `late` behind one to which the thread did not come.
    pub(crate) fn patience(&self, usual: Duration, late: Duration) -> Duration {
        if self.late.load(Ordering::Relaxed) { late } else { usual }
    }

    /// Starts the thread, without VMs yet.
    pub(crate) fn spawn(name: String) -> io::Result<Self> {
        let (commands, queue, wake) = mailbox()?;
        let watch = Watch::new()?;
        watch.add(&wake, Event::Wake)?;
        let review = Review::new()?;
        watch.add(&review.timer, Event::Review)?;
        let thread = std::thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(move || {
            let switch = Switch::new(watch);
            let mut group = Loop::new(switch, review, false);
            TurnLoop::new(queue, wake, EVENTS).run(&mut group);
            for v in 0..group.switch.vms.len() {
                group.switch.drop_connections(v);
            }
        })?;
        Ok(Self { commands, thread: Some(thread), late: AtomicBool::new(false) })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.commands.send(Command::Quit);
        let Some(thread) = self.thread.take() else { return };
        if ends_in_time(&thread, Instant::now()) {
            let _ = thread.join();
        } else {
            tracing::error!("the thread of a group did not stop within {STOP_PATIENCE:?}");
        }
    }
}

struct Loop {
    switch: Switch,
    /// A sleep ended by itself: whoever holds chains is to tell of each that it releases.
    impatient: bool,
    review: Review,
    /// Its turns come from a harness, which lets the time of a review pass, too.
    stepped: bool,
    kicked: Kicked,
}

impl Turns for Loop {
    const LINGER: u32 = 64;
    const TURNS_UNASKED: u32 = 4;
    const LOOKS_UNASKED: Option<u32> = Some(16);
    const WAKE: u64 = 0;

    #[inline]
    fn turn(&mut self, _woke: Woke) -> Worked {
        let mut busy = false;
        for v in 0..self.switch.vms.len() {
            busy |= self.switch.turn(v);
        }
        self.switch.publish();
        self.kicked.served(&self.switch.vms);
        if !busy {
            return Worked::Idle;
        }
        self.review.moved = true;
        Worked::Busy { lingers: true, knows_events: true }
    }

    fn ask(&mut self) {
        // A VM that is never idle must not stop the clock of the others.
        self.switch.scan();
        if !self.stepped && self.switch.has_quiet() {
            self.review.begin();
        }
    }

    fn guest_must_wait(&mut self) -> bool {
        self.switch.guest_must_wait()
    }

    fn arm(&mut self) -> Armed {
        let patience = self.switch.scan();
        self.switch.publish();
        if self.arm_rings() {
            return Armed::Work;
        }
        let waits = |vm: &GroupVm| vm.rings.state.waits_for_batch() || (vm.loans.any() && !self.impatient);
        let quiet = self.switch.has_quiet();
        if !self.stepped && quiet {
            self.review.begin();
        }
        let settle = (self.stepped && quiet) || self.switch.vms.iter().any(waits);
        let limits = self.nap();
        Armed::Rest([patience, limits, settle.then_some(SETTLE_AFTER)].into_iter().flatten().min())
    }

    fn is_kick(token: u64) -> bool {
        matches!(token::event(token), Event::Kick { .. })
    }

    fn kicked(&mut self, at: Instant) {
        self.kicked.came(at);
    }

    fn event(&mut self, token: u64, flags: epoll::EventFlags) -> bool {
        let event = token::event(token);
        match event {
            // Commands are the loop's.
            Event::Wake => {}
            Event::Kick { vm, queue } => {
                self.switch.vms[vm].kicked(queue);
                self.kicked.add(vm, queue);
            }
            Event::Review => {
                if self.review.is_due() {
                    self.switch.review_quiet();
                }
            }
            event => self.switch.event(event, flags),
        }
        event != Event::Review
    }

    fn woken(&mut self) {
        self.impatient = false;
    }

    fn slept(&mut self, limit: Option<Duration>) -> bool {
        if limit.is_none_or(|t| t.is_zero()) {
            return false;
        }
        self.impatient = true;
        self.switch.vms.iter_mut().for_each(|vm| vm.rings.give_up_waiting());
        self.stepped && self.switch.review_quiet()
    }
}

impl Loop {
    fn new(switch: Switch, review: Review, stepped: bool) -> Self {
        Self { switch, impatient: false, review, stepped, kicked: Kicked::new() }
    }

    /// How long the limits of VMs let the thread sleep; None where nothing waits for one.
    fn nap(&mut self) -> Option<Duration> {
        let Switch { vms, io } = &mut self.switch;
        let now = || io.timers.now();
        let running = vms.iter_mut().filter(|vm| vm.is_running());
        let nap = |vm: &mut GroupVm| {
            let limiters = &vm.counters.limiters;
            vm.paces.nap(limiters, vm.rings.state.is_starved(), now)
        };
        running.filter_map(nap).min()
    }

    /// Asks the drivers for notifications before sleeping. Returns whether there is work after all.
    fn arm_rings(&mut self) -> bool {
        let mut work = false;
        for v in 0..self.switch.vms.len() {
            let vm = &mut self.switch.vms[v];
            work |= wait_for_chains(vm, self.impatient);
            let mut error = None;
            let takes = vm.resets.len() < super::vm::MAX_RESETS && !vm.paces.transmit.is_waiting();
            work |= vm.doors.listening.iter().any(|l| l.called);
            // Patience that has ended may have left something to say.
            let released = !vm.lists.limited.is_empty() && !vm.paces.receive.is_waiting();
            let has_work = !vm.lists.ready.is_empty() || !vm.resets.is_empty() || released;
            work |= !vm.rings.state.is_starved() && has_work && vm.is_running();
            if let Some(tx) = vm.rings.tx.as_mut().filter(|t| t.is_active() && vm.rings.kicked && takes) {
                match tx.ring.arm() {
                    Ok(true) => {
                        tx.ring.disarm();
                        work = true;
                    }
                    Ok(false) => vm.rings.kicked = false,
                    Err(e) => {
                        tx.fail();
                        error = Some(e);
                    }
                }
            }
            let starved = vm.rings.state.is_starved();
            let wanted = vm.rings.wanted();
            if let Some(rx) = vm.rings.rx.as_mut().filter(|r| r.queue.is_active() && starved) {
                match rx.queue.ring.arm_for(wanted) {
                    Ok(true) => {
                        vm.rings.state.feed();
                        work = true;
                    }
                    Ok(false) => {}
                    Err(e) => {
                        rx.queue.fail();
                        error = Some(e);
                    }
                }
            }
            if let Some(e) = error {
                vm.ring_failed(&e);
            }
        }
        work
    }

    /// Something about a VM's rings is new: both need a look.
    fn look(&mut self, vm: usize) {
        let vm = &mut self.switch.vms[vm];
        vm.rings.kicked = true;
        vm.rings.state.feed();
    }
}

impl RingThread for Loop {
    type Device = GroupCommand;

    fn queues(&self) -> Range<u16> {
        RX_QUEUE..EVENT_QUEUE + 1
    }

    fn ring_mut(&mut self, at: At) -> Option<&mut HostRing> {
        let vm = &mut self.switch.vms[at.vm];
        match at.queue {
            RX_QUEUE => vm.rings.rx.as_mut().map(|r| &mut r.queue),
            TX_QUEUE => vm.rings.tx.as_deref_mut(),
            _ => vm.rings.events.as_deref_mut(),
        }
    }

    fn memory(&mut self, vm: usize) -> &mut Arc<GuestMemory> {
        &mut self.switch.vms[vm].rings.memory
    }

    fn epoll(&self) -> (&OwnedFd, fn(At) -> u64) {
        (self.switch.io.watch.epoll(), |at| token::of(Event::Kick { vm: at.vm, queue: at.queue }))
    }

    fn install(&mut self, At { vm: v, queue }: At, setup: RingSetup) -> Result<(), String> {
        if queue == TX_QUEUE {
            // A driver that begins anew knows of no connection; one that was only paused goes on
            // where it was.
            let resumes = self.switch.vms[v].resume.take() == Some((setup.addresses, setup.base));
            if !resumes {
                self.switch.drop_connections(v);
                // One that has sent before, and not here, has connections that nobody here knows.
                let rx = self.switch.vms[v].rings.rx.as_ref();
                let lost = setup.base != 0 || rx.is_some_and(|r| r.queue.base != 0);
                self.switch.set_gate(v, lost);
            }
        }
        let vm = &mut self.switch.vms[v];
        let mut ring = HostRing::new(setup, &vm.rings.memory)?;
        ring.resume()?;
        match queue {
            TX_QUEUE => {
                vm.loans.owed.clear();
                vm.rings.tx = Some(Box::new(ring));
            }
            RX_QUEUE => {
                vm.rings.forget_posted();
                vm.rings.rx = Some(Box::new(Receive::new(ring)));
            }
            _ => vm.rings.events = Some(Box::new(ring)),
        }
        Ok(())
    }

    fn remove(&mut self, At { vm: v, queue }: At) -> Option<HostRing> {
        if queue == TX_QUEUE {
            take_back_all(&mut self.switch.vms[v]);
            self.switch.publish();
        }
        let vm = &mut self.switch.vms[v];
        match queue {
            RX_QUEUE => {
                let mut rx = vm.rings.rx.take()?;
                rx.release();
                rx.queue.publish();
                Some(rx.queue)
            }
            TX_QUEUE => {
                let tx = *vm.rings.tx.take()?;
                vm.resume = Some((tx.addresses, tx.ring.next_avail()));
                Some(tx)
            }
            _ => vm.rings.events.take().map(|events| *events),
        }
    }

    fn release(&mut self, v: usize) {
        // What an event before this command used is known to the driver before the ring moves: its
        // used index is read anew.
        self.switch.publish();
        if let Some(rx) = &mut self.switch.vms[v].rings.rx {
            rx.release();
        }
    }

    fn set_memory(&mut self, v: usize, memory: Arc<GuestMemory>) {
        let vm = &mut self.switch.vms[v];
        let mut problems = Vec::new();
        if let Some(rx) = &mut vm.rings.rx {
            problems.extend(rx.queue.move_to(&memory).err());
        }
        if let Some(tx) = &mut vm.rings.tx {
            problems.extend(tx.move_to(&memory).err());
            if tx.is_sound() {
                vm.loans.owed.drain(..).for_each(|head| tx.ring.push_used(head, 0));
            }
        }
        if let Some(events) = &mut vm.rings.events {
            problems.extend(events.move_to(&memory).err());
        }
        vm.rings.memory = memory;
        for p in problems {
            tracing::error!("{}: {p}; this queue waits until its memory comes back", vm.id.name);
            vm.counters.set_error(p);
            vm.counters.ring_errors.add(1);
        }
        self.look(v);
    }

    fn changed(&mut self, at: At) {
        self.look(at.vm);
    }

    fn left(&mut self, v: usize) {
        self.switch.set_gate(v, false);
        self.switch.drop_connections(v);
        let vm = &mut self.switch.vms[v];
        vm.doors.accept_those_that_wait();
        vm.names.forget_lost();
        (vm.resume, vm.rings.memory) = (None, Arc::default());
    }

    fn device(&mut self, command: GroupCommand) {
        match command {
            GroupCommand::Answered { number, outcome } => {
                self.switch.answered(token::event(number), outcome);
            }
            GroupCommand::Join { place, vm, reply } => {
                let _ = reply.send(self.switch.join(place, *vm));
            }
            GroupCommand::Leave { place, reply } => {
                self.switch.leave(place);
                let _ = reply.send(());
            }
            GroupCommand::TakenUp { place } => self.switch.taken_up(place),
            GroupCommand::Capture { place, capture } => {
                if let Some(vm) = self.switch.vms.get_mut(place) {
                    vm.rings.capture = capture;
                }
            }
        }
    }
}
