//! What a VM's control thread does: it listens for its front end and serves one after another.
//!
//! On an order it hands the session over to another process, which serves the VM then. It waits
//! for the order to go on with the session. It looks at its orders between two messages.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tracing::Level;
use zerowire_vhost_user::{Message, MessageSocket, Request, WireError};

use super::admission::Admission;
use super::closer::{Closer, TakenFiles};
use super::control::{Backing, Control};
use super::listen::Listener;
use super::orders::{self, HandOverReply, Order, refusal};
use super::pace::{Pace, Progress};
use super::visits::{VisitEnd, Visits, write};
use super::watch::WatchedSession;
use crate::queue::QueueOutlet;
use crate::session::{Session, SessionError, SessionImage};

/// How long to wait before a retry of what the system refused.
const RETRY: Duration = Duration::from_millis(500);

/// Time for a front end that connected by the socket to send its first message. All of them begin
/// at once; one that does not keeps the VM from its own front end.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);

/// The control thread: one front end after another. It begins with a session that a process has
/// left which died, if there is one.
pub(super) fn run(
    vm: &dyn Backing,
    listener: Listener,
    link: Option<Box<dyn Admission>>,
    orders: QueueOutlet<Order>,
    session: Option<SessionImage>,
) {
    let control = vm.control();
    let _lines = tracing::error_span!("vm", name = control.name).entered();
    let mut seat = Seat::new(vm, listener, link, orders);
    seat.back = session;
    while !control.stopped() && (seat.back.is_some() || !control.is_draining()) {
        control.answer();
        if let Some((session, connection)) = seat.take_up() {
            tracing::info!("{}: goes on with the session of a process before", control.name);
            seat.visits.go_on();
            seat.serve(session, connection, None);
        } else if seat.away {
            sleep(control, None, None, None);
            continue;
        } else {
            let patience = seat.admit();
            if let Some(wait) = seat.wait() {
                let patience = patience.map_or(wait, |p| p.min(wait));
                sleep(control, None, seat.link.as_deref(), Some(patience));
                continue;
            }
            let Some(stream) = seat.accept() else {
                if seat.listener.poll_fd().is_none() && !seat.listener.is_lasting() {
                    return;
                }
                sleep(control, seat.listener.poll_fd(), seat.link.as_deref(), patience);
                continue;
            };
            // A connection that was handed over may wait for its front end to be started.
            let first = seat.listener.is_lasting().then(|| Instant::now() + FIRST_MESSAGE);
            control.connections.fetch_add(1, Ordering::Relaxed);
            seat.serve(Session::new(vm), MessageSocket::new(stream), first);
        }
        if !seat.away && !seat.listener.is_lasting() {
            return;
        }
    }
}

/// How a session ended.
enum End {
    /// The connection ends with it.
    Closed(Result<&'static str, SessionError>),
    /// Another process goes on with it.
    HandedOver(SessionImage, HandOverReply),
}

/// What a control thread has beside its VM: who may connect, and when.
struct Seat<'a> {
    vm: &'a dyn Backing,
    listener: Listener,
    link: Option<Box<dyn Admission>>,
    orders: QueueOutlet<Order>,
    pace: Pace,
    visits: Visits,
    /// Why the socket can't be opened or closed, as the log has said.
    refused: Option<String>,
    /// No front end is accepted before.
    not_before: Option<Instant>,
    /// True: another process has the session. No front end is accepted.
    away: bool,
    /// A session that nobody took, or that a process has left which died.
    back: Option<SessionImage>,
    closer: Closer,
    /// True: the log has said that the closer is busy.
    told: bool,
    /// True: the closer has taken a descriptor of the message that is read.
    replaced: bool,
}

impl<'a> Seat<'a> {
    fn new(
        vm: &'a dyn Backing,
        listener: Listener,
        link: Option<Box<dyn Admission>>,
        orders: QueueOutlet<Order>,
    ) -> Self {
        Self {
            vm,
            listener,
            link,
            orders,
            pace: Pace::default(),
            visits: Visits::default(),
            refused: None,
            not_before: None,
            away: false,
            back: None,
            closer: Closer::default(),
            told: false,
            replaced: false,
        }
    }

    /// Listens where the link has it so. Returns when to look again.
    fn admit(&mut self) -> Option<Duration> {
        let control = self.vm.control();
        let (mut patience, mut admits) = (None, true);
        if let Some(link) = &mut self.link {
            link.look();
            (patience, admits) = (link.due(false), link.admits());
        }
        let done = if admits { self.listener.reopen() } else { self.listener.shut() };
        let Err(e) = done else {
            self.refused = None;
            return patience;
        };
        let text = e.to_string();
        if self.refused.as_ref() != Some(&text) {
            tracing::error!("{}: {text}; tried again", control.name);
            self.vm.set_error(text.clone());
            self.refused = Some(text);
        }
        Some(RETRY)
    }

    /// How long the next front end has to wait, if it has to.
    fn wait(&mut self) -> Option<Duration> {
        let told = std::mem::replace(&mut self.told, !self.closer.becomes_idle());
        if self.told {
            if !told {
                let name = &self.vm.control().name;
                tracing::error!("{name}: {UNCLOSED}; the next front end waits for it");
                self.vm.set_error(UNCLOSED.to_owned());
            }
            return Some(RETRY);
        }
        let wait = self.not_before?.saturating_duration_since(Instant::now());
        (!wait.is_zero()).then_some(wait)
    }

    /// The next front end, if there is one.
    fn accept(&mut self) -> Option<UnixStream> {
        let control = self.vm.control();
        match self.listener.accept() {
            Ok(stream) => {
                let stream = stream?;
                control.lines().begin(!self.visits.begin(Instant::now()));
                control.log(Level::INFO, "front end connected".to_owned());
                match stream.set_nonblocking(true) {
                    Ok(()) => return Some(stream),
                    Err(e) => tracing::error!("{}: {e}", control.name),
                }
            }
            Err(e) => {
                // Out of descriptors, most likely: try again a little later.
                tracing::error!("{}: accept failed: {e}", control.name);
                std::thread::park_timeout(Duration::from_millis(100));
            }
        }
        None
    }

    /// The session to go on with, if there is one.
    fn take_up(&mut self) -> Option<(Session<'a>, MessageSocket)> {
        let (vm, control) = (self.vm, self.vm.control());
        if let Some(image) = self.back.take() {
            self.away = false;
            return Session::restore(vm, &image)
                .inspect_err(|e| {
                    vm.set_error(e.to_string());
                    control.connection_errors.fetch_add(1, Ordering::Release);
                    tracing::error!("{}: the session can't go on: {e}", control.name);
                    if let Some(watch) = vm.watch() {
                        watch.ended();
                    }
                })
                .ok();
        }
        let Some(Order::TakeUp(image, reply)) = orders::next(vm, &self.orders, false) else { return None };
        match Session::restore(vm, &image) {
            Ok(session) => {
                self.away = false;
                control.connections.fetch_add(1, Ordering::Relaxed);
                // Who asked may be gone: the session goes on all the same.
                let _ = reply.send(Ok(()));
                Some(session)
            }
            Err(e) => {
                let _ = reply.send(Err(refusal(&control.name, e.into(), Some(image))));
                None
            }
        }
    }

    /// Serves one connection until it ends, whatever the reason. Its first message has to come by
    /// `first`.
    fn serve(&mut self, mut session: Session<'a>, mut connection: MessageSocket, first: Option<Instant>) {
        let control = self.vm.control();
        self.set_connected(true);
        if let Some(link) = &mut self.link {
            link.connected();
        }
        let end = self.exchange(&mut session, &mut connection, first);
        // Only a front end that left by itself says by that what it wants.
        let left = matches!(end, End::Closed(Ok(LEFT)));
        let progress = if left { session.progress() } else { Progress::default() };
        let queues = self.pace.leaves_at_queues(progress).then(|| session.queues());
        drop(session);
        drop(connection);
        match end {
            End::Closed(how) => self.report_end(how),
            End::HandedOver(image, reply) => {
                control.lines().tell(&control.name);
                self.give(image, reply);
            }
        }
        control.lines().begin(false);
        if let Some(queues) = queues {
            let text = format!(
                "front ends leave before they set up a queue. They may want more: there are {queues}. Or their guest has features \
                 that this device does not offer: start the guest anew"
            );
            tracing::warn!("{}: {text}", control.name);
            self.vm.set_error(text);
        }
        if self.away {
            return;
        }
        self.set_connected(false);
        let ended = Instant::now();
        self.not_before = Some(ended + self.pace.ended(ended));
        if self.pace.begins_to_wait() {
            tracing::warn!(
                "{}: front ends connect and leave without a pause: the next ones wait, longer and longer",
                control.name
            );
        }
    }

    /// A connection has ended.
    fn report_end(&mut self, how: Result<&'static str, SessionError>) {
        let control = self.vm.control();
        let (text, level) = match how {
            Ok(why) => (why.to_owned(), Level::INFO),
            Err(e) => (e.to_string(), Level::ERROR),
        };
        let mut lines = control.lines();
        let next = match self.visits.end(&(lines.texts() + &text), Instant::now()) {
            VisitEnd::Told => Some(""),
            VisitEnd::ToldLast => Some("; the next ones like this are told of once a minute"),
            VisitEnd::Untold => None,
        };
        if let Some(next) = next {
            lines.tell(&control.name);
            write(&control.name, level, &format!("connection ended: {text}{next}"));
        }
        drop(lines);
        if level == Level::ERROR {
            self.vm.set_error(text);
            control.connection_errors.fetch_add(1, Ordering::Release);
        }
    }

    /// A front end has come, or gone.
    fn set_connected(&self, now: bool) {
        self.vm.control().connected.store(now, Ordering::Relaxed);
        self.vm.connected(now);
    }

    /// Gives a session to who asked for it. Nothing of it is in use here any more.
    fn give(&mut self, image: SessionImage, reply: HandOverReply) {
        let control = self.vm.control();
        let name = &control.name;
        self.set_connected(false);
        self.away = true;
        match reply.send(Ok(image)) {
            Ok(()) => tracing::info!("{name}: the session was handed over"),
            Err(back) => {
                tracing::warn!("{name}: nobody took the session any more, so it goes on here");
                self.back = back.ok();
            }
        }
    }

    /// The next message. Of its descriptors, and of those of an unfinished one, the closer takes
    /// those that hold up who closes them.
    fn receive(&mut self, connection: &mut MessageSocket) -> Result<Option<Message>, SessionError> {
        let mut taken = TakenFiles::Nothing;
        let received = connection.recv_replacing(|descriptors, stream| {
            taken = self.closer.take(descriptors, stream);
        });
        if taken == TakenFiles::Busy {
            return Err(SessionError::Protocol { request: "front end", text: UNCLOSED.to_owned() });
        }
        self.replaced |= taken == TakenFiles::Some;
        let message = received?;
        let replaced = message.is_some() && std::mem::take(&mut self.replaced);
        let request = message.as_ref().and_then(|message| message.request().ok());
        // Others refuse what stands in a file's place.
        match request {
            Some(request @ (Request::SetDeviceStateFd | Request::SetBackendReqFd)) if replaced => {
                Err(SessionError::Protocol { request: request.name(), text: FOREIGN.to_owned() })
            }
            _ => Ok(message),
        }
    }

    /// Carries out a front end's messages until the session ends.
    fn exchange(
        &mut self,
        session: &mut Session<'a>,
        connection: &mut MessageSocket,
        mut first: Option<Instant>,
    ) -> End {
        let control = self.vm.control();
        let mut watched = WatchedSession::new(self.vm.watch());
        // Of a message that the front end before did not end.
        self.replaced = false;
        loop {
            control.answer();
            if control.stopped() {
                return End::Closed(Ok("server stops"));
            }
            // A VM that is drained lets no other front end in.
            if control.is_draining() {
                self.listener.close();
            }
            if let Some(link) = &mut self.link {
                link.look();
                if link.ends() {
                    return End::Closed(Ok(link.turn_away(connection.stream())));
                }
            }
            if let Some(Order::HandOver(reply)) = orders::next(self.vm, &self.orders, true) {
                match session.hand_over(connection) {
                    Ok(image) => return End::HandedOver(image, reply),
                    Err(e) => drop(reply.send(Err(e))),
                }
            }
            session.attend();
            let received = match watched.may_read(connection) {
                Ok(true) => self.receive(connection),
                Ok(false) => Err(WireError::WouldBlock.into()),
                Err(_) => return End::Closed(Ok("nobody keeps the session any more")),
            };
            match received {
                Ok(Some(message)) => {
                    first = None;
                    if let Err(e) = session.handle(connection, message) {
                        return End::Closed(Err(e));
                    }
                }
                Ok(None) => return End::Closed(Ok(LEFT)),
                Err(SessionError::Wire(WireError::WouldBlock)) => {
                    watched.settle(session, connection);
                    if self.visits.stays(Instant::now()) {
                        control.lines().tell(&control.name);
                    }
                    let link = self.link.as_deref();
                    let left = first.map(|at| at.saturating_duration_since(Instant::now()));
                    if left == Some(Duration::ZERO) {
                        let text = format!("no message within {FIRST_MESSAGE:?} of its connection");
                        return End::Closed(Err(SessionError::Protocol { request: "front end", text }));
                    }
                    let due = self.visits.due(Instant::now());
                    let patience = [link.and_then(|l| l.due(true)), left, due].into_iter().flatten().min();
                    sleep(control, Some(connection.stream().as_fd()), link, patience);
                }
                Err(e) => return End::Closed(Err(e)),
            }
        }
    }
}

/// What the log says of a front end whose descriptors can't be closed.
const UNCLOSED: &str = "a descriptor that a front end has sent can't be closed: its file system does not answer, or it is a socket that lingers";

/// A file came where a unix socket or a pipe is expected.
const FOREIGN: &str = "its descriptor may never close: use a pipe, a unix socket or a memfd";

/// Why most sessions end.
const LEFT: &str = "front end left";

/// Sleeps until the descriptor is readable, or there is something else to look at.
fn sleep(
    control: &Control,
    fd: Option<BorrowedFd<'_>>,
    link: Option<&dyn Admission>,
    patience: Option<Duration>,
) {
    let links = link.map(Admission::wakers).unwrap_or_default();
    let mut fds: Vec<_> = [control.wake_fd()]
        .into_iter()
        .chain(fd)
        .chain(links)
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    // A little later rather than a little sooner, and once more.
    let patience = patience.and_then(|p| (p + Duration::from_millis(1)).try_into().ok());
    let _ = poll(&mut fds, patience.as_ref());
    control.drain_wake();
}

#[cfg(test)]
mod tests;
