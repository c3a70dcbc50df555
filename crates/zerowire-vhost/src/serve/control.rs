//! A VM's control thread, as those who start, stop and ask it see it. What it does is in `seat`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use tracing::Level;
use zerowire_sys::lock;

use super::admission::Admission;
use super::device::Device;
use super::listen::Listener;
use super::orders::{Order, Orders};
use super::seat;
use super::visits::VisitLines;
use super::watch::SessionWatch;
use crate::queue::{QueueInlet, queue};
use crate::session::SessionImage;

/// How long a control thread may take for a sign of life.
const SIGN_PATIENCE: Duration = Duration::from_secs(1);

/// How long a server waits for its threads to stop.
pub const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Threads at most that end VMs at once.
const ENDING: usize = 64;

/// Stack of a control thread, bytes. Untouched pages cost nothing.
const STACK_BYTES: usize = 256 * 1024;

/// What a VM's control thread shares with whoever stops it or asks for statistics.
#[derive(Debug)]
pub struct Control {
    /// The VM's name.
    pub name: String,
    /// Whether a front end is connected.
    pub connected: AtomicBool,
    /// Connections so far.
    pub connections: AtomicU64,
    /// Connections that ended by a protocol error.
    pub connection_errors: AtomicU64,
    /// Features that the guest acknowledged.
    pub acked_features: AtomicU64,
    /// vhost-user protocol features that the front end acknowledged.
    pub protocol_features: AtomicU64,
    /// Device status as the front end last set it (virtio 1.3 §2.1).
    pub status: AtomicU64,
    stop: AtomicBool,
    log: VisitLog,
    /// Its front end is the last one.
    draining: AtomicBool,
    /// How often the thread was asked for a sign of life.
    asked: AtomicU64,
    /// The last of these questions that it has answered. The highest number when it serves nobody
    /// any more: then it answers none.
    answered: AtomicU64,
    wake: Waker,
}

/// Wakes a control thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes the thread look for something new ([`Device::attend`]).
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// Lines of the log about the present front end, from any thread.
#[derive(Clone, Debug, Default)]
pub struct VisitLog {
    name: String,
    lines: Arc<Mutex<VisitLines>>,
}

impl VisitLog {
    /// A line as that of [`Control::log`].
    pub fn add(&self, level: Level, text: String) {
        self.lines().add(&self.name, level, text);
    }

    fn lines(&self) -> MutexGuard<'_, VisitLines> {
        lock(&self.lines)
    }
}

impl Control {
    /// Of a VM that has no control thread yet.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(name: String) -> io::Result<Self> {
        Ok(Self {
            log: VisitLog { name: name.clone(), lines: Arc::default() },
            name,
            connected: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            connection_errors: AtomicU64::new(0),
            acked_features: AtomicU64::new(0),
            protocol_features: AtomicU64::new(0),
            status: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            wake: Waker(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)),
        })
    }

    /// Makes the thread look for something new ([`Device::attend`]).
    pub fn wake(&self) {
        self.wake.wake();
    }

    /// What wakes the thread.
    pub fn waker(&self) -> Waker {
        self.wake.clone()
    }

    /// What wakes the thread, to be waited for.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.0.as_fd()
    }

    /// The thread is awake.
    pub(super) fn drain_wake(&self) {
        let mut n = [0u8; 8];
        let _ = rustix::io::read(&self.wake.0, &mut n);
    }

    /// The thread gives its sign of life.
    pub(super) fn answer(&self) {
        self.answered.store(self.asked.load(Ordering::Acquire), Ordering::Release);
    }

    /// The thread serves nobody any more, and owes no sign of life.
    fn serves_nobody(&self) {
        self.answered.store(u64::MAX, Ordering::Release);
    }

    /// Whether the thread has to end.
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The thread takes no new front end, and ends when the present one has left.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether a front end is connected.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// A line of the log about the present front end. It waits while that one comes like those
    /// before it, of which the log has heard: until it stays, or leaves otherwise than they did.
    pub fn log(&self, level: Level, text: String) {
        self.log.add(level, text);
    }

    /// The same for other threads that serve it.
    pub fn visit_log(&self) -> VisitLog {
        self.log.clone()
    }

    pub(super) fn lines(&self) -> MutexGuard<'_, VisitLines> {
        self.log.lines()
    }

    /// Whether [`Self::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}

/// A VM as its control thread sees it.
pub trait Backing: Send + Sync + 'static {
    /// What its control thread shares.
    fn control(&self) -> &Control;

    /// Keeps the text of an error for the statistics.
    fn set_error(&self, text: String);

    /// The device for a new connection.
    fn device(&self) -> Box<dyn Device + '_>;

    /// A front end has come, or gone.
    fn connected(&self, _now: bool) {}

    /// Keeps what another process needs to go on with a session if this one dies.
    fn watch(&self) -> Option<&dyn SessionWatch> {
        None
    }

    /// The VM goes, and its socket is gone: waits until other threads have let go of it.
    fn leave(&self) {}

    /// The control thread ends; its socket is gone.
    fn ended(self: Arc<Self>) {}
}

/// A VM with its running control thread.
pub struct Served<B> {
    /// The VM.
    pub vm: Arc<B>,
    thread: Option<JoinHandle<()>>,
    orders: QueueInlet<Order>,
    /// When [`Self::answers`] asked last.
    asked: Mutex<Instant>,
}

impl<B: Backing> Served<B> {
    /// Serves one front end after another, all of them if nobody decides who is let in. It begins
    /// with the session that a process has left which died, if there is one.
    pub fn spawn(
        vm: Arc<B>,
        listener: Listener,
        link: Option<Box<dyn Admission>>,
        session: Option<SessionImage>,
    ) -> io::Result<Self> {
        let (thread, orders) = spawn(vm.clone(), listener, link, session)?;
        Ok(Self { vm, thread: Some(thread), orders, asked: Mutex::new(Instant::now()) })
    }

    /// What gives orders to the control thread.
    pub fn orders(&self) -> Orders {
        let control = self.vm.control();
        Orders::new(control.name.clone(), control.waker(), self.orders.clone())
    }

    /// Whether a connection is there or may still come.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    /// Asks the control thread for a sign of life, see [`Self::is_silent`].
    pub fn ask(&self) {
        let control = self.vm.control();
        control.asked.fetch_add(1, Ordering::AcqRel);
        control.wake();
    }

    /// Whether the control thread serves the VM and has not answered since it was asked last. A
    /// message that takes long keeps it from that, such as the first one about much memory.
    pub fn is_silent(&self) -> bool {
        let control = self.vm.control();
        let answered = control.answered.load(Ordering::Acquire) >= control.asked.load(Ordering::Acquire);
        !answered && self.is_alive()
    }

    /// Asks for a sign of life. False: the one that was asked for before has not come within 1 s.
    pub fn answers(&self) -> bool {
        let mut asked = lock(&self.asked);
        if self.is_silent() {
            return asked.elapsed() < SIGN_PATIENCE;
        }
        *asked = Instant::now();
        self.ask();
        true
    }

    /// Ends the control thread with its connection. False: it did not end in time, and
    /// [`Self::stop`] can be called again. A front end can hold up its own VM's threads (a
    /// descriptor that blocks), not the end of the process.
    pub fn stop(&mut self) -> bool {
        self.ask_to_stop();
        self.wait(Instant::now())
    }

    fn ask_to_stop(&self) {
        let control = self.vm.control();
        control.stop.store(true, Ordering::Release);
        control.wake();
    }

    fn wait(&mut self, since: Instant) -> bool {
        if !self.thread.as_ref().is_none_or(|thread| ends_in_time(thread, since)) {
            tracing::error!("{}: its threads did not stop within {STOP_PATIENCE:?}", self.vm.control().name);
            return false;
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        true
    }
}

/// Waits for the end of a thread that was told to end, [`STOP_PATIENCE`] at most. A front end can
/// hold it up (a descriptor that blocks), and must not hold up the process.
pub fn ends_in_time(thread: &JoinHandle<()>, since: Instant) -> bool {
    while !thread.is_finished() && since.elapsed() < STOP_PATIENCE {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    thread.is_finished()
}

/// Starts a control thread, whatever its VM is.
fn spawn(
    vm: Arc<dyn Backing>,
    listener: Listener,
    link: Option<Box<dyn Admission>>,
    session: Option<SessionImage>,
) -> io::Result<(JoinHandle<()>, QueueInlet<Order>)> {
    let (orders, receiver) = queue();
    let thread = std::thread::Builder::new().name(format!("{}-ctl", vm.control().name));
    let thread = thread.stack_size(STACK_BYTES).spawn(move || {
        seat::run(&*vm, listener, link, receiver, session);
        if vm.control().stopped() || vm.control().is_draining() {
            // While `leave` waits, who removes the VM hears that it is stuck.
            vm.control().serves_nobody();
            vm.leave();
        }
        vm.ended();
    })?;
    Ok((thread, orders))
}

/// Ends control threads, each with its connection, and lets go of their VMs.
pub fn stop_all<B: Backing>(mut served: Vec<Served<B>>) {
    served.iter().for_each(Served::ask_to_stop);
    let start = Instant::now();
    for s in &mut served {
        s.wait(start);
    }
    side_by_side(served, drop);
}

/// Ends each of `all`, several at once: the kernel takes some 30 ms to remove a tap, and removes
/// several in the same time.
pub fn side_by_side<T: Send>(all: Vec<T>, end: impl Fn(T) + Sync) {
    let (count, all) = (all.len(), Mutex::new(all.into_iter()));
    let next = || lock(&all).next();
    in_threads(count, &|| {
        while let Some(one) = next() {
            end(one);
        }
    });
}

/// Has up to [`ENDING`] threads `end_some` of this many.
fn in_threads(count: usize, end_some: &(dyn Fn() + Sync)) {
    std::thread::scope(|scope| {
        for _ in 1..count.min(ENDING) {
            // Without a further thread this one ends them.
            let _ = std::thread::Builder::new().name("end".to_owned()).spawn_scoped(scope, end_some);
        }
        end_some();
    });
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Condvar};

    use super::*;
    use crate::serve::{Endpoint, SocketAccess};

    /// How many VMs are being let go of.
    type Going = Arc<(Mutex<usize>, Condvar)>;

    /// A VM that takes its time to go: until another one goes.
    struct Slow(Control, Going);

    impl Backing for Slow {
        fn control(&self) -> &Control {
            &self.0
        }

        fn set_error(&self, _text: String) {}

        fn device(&self) -> Box<dyn Device + '_> {
            unreachable!("no front end connects")
        }
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            let (count, changed) = &*self.1;
            let mut count = count.lock().expect("no panic");
            *count += 1;
            changed.notify_all();
            let waited = changed.wait_timeout_while(count, Duration::from_secs(20), |count| *count < 2);
            assert!(!waited.expect("no panic").1.timed_out(), "one goes behind the other");
        }
    }

    #[test]
    fn vms_are_let_go_of_side_by_side() {
        let (dir, going) = (tempfile::tempdir().expect("a directory"), Going::default());
        let serve = |name: &str| {
            let listener = Listener::new(&Endpoint::Path(dir.path().join(name)), &SocketAccess::default());
            let vm = Slow(Control::new(name.to_owned()).expect("an eventfd"), going.clone());
            Served::spawn(Arc::new(vm), listener.expect("a socket"), None, None).expect("a thread")
        };
        stop_all(vec![serve("a"), serve("b")]);
        assert_eq!(*going.0.lock().expect("no panic"), 2);
    }

    #[test]
    fn each_is_ended_once() {
        let (ended, all) = (Mutex::new(Vec::new()), (0..100).collect::<Vec<_>>());
        let first = Barrier::new(ENDING);
        side_by_side(all.clone(), |n| {
            if n < ENDING {
                first.wait();
            }
            ended.lock().expect("no panic").push(n);
        });
        let mut ended = ended.into_inner().expect("no panic");
        ended.sort_unstable();
        assert_eq!(ended, all);
    }
}
