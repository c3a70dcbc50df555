//! A confined process that serves one VM.
//!
//! It gets its VM from the supervisor, with all that is open for it, by the socket that is its
//! standard input. Then it gives up all rights, and only then it listens. It ends when the
//! supervisor is gone.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zerowire_capture::Capture;
use zerowire_cli::logging::{self, LogFormat};
use zerowire_confine::{ConfinePlan, ConfineReport, KnownUsers, confine_threads};
use zerowire_metadata::{MAX_TREE_BYTES, MetadataTree};
use zerowire_net::port::{PortKeeper, PortParts, PortText};
use zerowire_net::{FrontEndWatch, Handed, MetadataSource, Server, ToldLink};
use zerowire_vhost::files;
use zerowire_vhost::serve::{Listener, SocketKeeper};

use super::message::{ChildOrder, ChildSetup, ChildStats, ChildWord, guard};
use crate::pcap;
use crate::sandbox::channel::Channel;
use crate::sandbox::child;
use crate::sandbox::lock;
use crate::sandbox::sessions::Teller;
use crate::serving::block_signals;

/// How long an answer of the supervisor may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Threads at most: one for each of 128 queue pairs, and a few.
const THREADS: u64 = 512;

/// Descriptors at most. 509 memory regions, 128 queue pairs and packet sockets take 2000.
const DESCRIPTORS: u64 = 4096;

/// How often a child whose front end is the last one looks whether that has left.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The program as a child.
pub(in crate::net) fn main() -> ExitCode {
    child::run(ChildWord::Failed, serve)
}

fn serve(channel: &Arc<Channel>) -> Result<(), String> {
    block_signals().map_err(|e| e.to_string())?;
    let (setup, snaplen, mut fds) = match channel.receive().map_err(|e| e.to_string())? {
        Some((ChildOrder::Start(setup, snaplen), fds)) => (setup, snaplen, fds),
        _ => return Err("its first message is none".to_owned()),
    };
    let stream = snaplen.and_then(|snaplen| Some((snaplen, fds.pop()?)));
    let kept = match channel.receive().map_err(|e| e.to_string())? {
        Some((ChildOrder::Session(kept), fds)) => kept.map(|image| (image, fds)),
        _ => return Err("its second message is none".to_owned()),
    };
    let (answers, answered) = mpsc::channel();
    let keeper = Arc::new(SupervisorLink { channel: channel.clone(), answered: Mutex::new(answered) });
    let mut handed = handed(&setup, fds, keeper)?;
    let (lasting, link) = (handed.listener.is_lasting(), handed.link.clone());
    let config = setup.config()?;
    zerowire_vhost::memory::catch_lost_pages();
    let plan = ConfinePlan { owner: setup.owner, calls: config.port.system_calls(), without: &[] };
    bound_descriptors();
    let report: ConfineReport =
        confine_threads(&plan, THREADS, KnownUsers::Own).map_err(|e| e.to_string())?;
    // From here on there are threads, and nothing else can be opened.
    let word = |_, word| ChildWord::Session(word);
    let teller = Arc::new(Teller { channel: channel.clone(), vm: 0, word });
    let log = logging::serve(&setup.log, Some(LogFormat::Text)).map_err(|e| format!("{e:#}"))?;
    handed.session = kept.and_then(|(image, fds)| teller.take_up(&setup.name, &image, fds));
    handed.sessions = Some(teller);
    let capture = stream.map(|(snaplen, to)| Capture::stream(to, snaplen).map(Arc::new)).transpose();
    let capture = capture.map_err(|e| e.to_string())?;
    let server = Server::start_handed(config, handed, capture).map_err(|e| e.to_string())?;
    channel.send(&ChildWord::Ready(report), &[]).map_err(|e| e.to_string())?;
    Loop { channel, server: &server, setup: &setup, link, answers, is_last: !lasting || setup.drains }
        .run()?;
    let _ = channel.send(&ChildWord::Last(Box::new(ChildStats::of(&server.stats()))), &[]);
    server.stop();
    pcap::finish(server.set_capture(None).as_ref());
    drop(log);
    Ok(())
}

/// A child that puts descriptors under way in sockets until it may have no more leaves room for
/// those that its supervisor sends.
fn bound_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let most = Some(limit.maximum.unwrap_or(DESCRIPTORS).min(DESCRIPTORS));
    // A lower limit is always allowed.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
}

/// What came with the first message.
fn handed(setup: &ChildSetup, fds: Vec<OwnedFd>, keeper: Arc<SupervisorLink>) -> Result<Handed, String> {
    let mut fds = fds.into_iter();
    let missing = || "a descriptor is missing".to_owned();
    // One that listens does not wait: the child before this one may have changed that.
    let socket = fds.next().ok_or_else(missing)?;
    let listener = Listener::kept(socket, keeper.clone()).map_err(|e| e.to_string())?;
    let parts = PortParts { facts: &setup.port.facts, fds: &mut fds, keeper: keeper.clone() };
    let port = setup.port.spec()?.take_over(parts)?;
    let link = setup.port.link.map(|state| ToldLink::new(state).map(Arc::new));
    let link = link.transpose().map_err(|e| e.to_string())?;
    let metadata = match setup.tokens {
        Some(_) => Some(tree(fds.next().ok_or_else(missing)?)?),
        None => None,
    };
    let (sessions, session, drains) = (None, None, setup.drains);
    Ok(Handed { listener, port, link, metadata, watch: Some(keeper), sessions, session, drains })
}

/// The metadata in a file of the supervisor's.
fn tree(file: OwnedFd) -> Result<Arc<MetadataTree>, String> {
    let text = files::text_of(File::from(file), MAX_TREE_BYTES).map_err(|e| format!("metadata: {e}"))?;
    MetadataTree::from_json_str(&text).map(Arc::new).map_err(|e| format!("metadata: {e}"))
}

/// The supervisor, as the port and the socket ask it.
#[derive(Debug)]
struct SupervisorLink {
    channel: Arc<Channel>,
    answered: Mutex<Receiver<Result<PortText, String>>>,
}

impl SupervisorLink {
    /// Asks, and waits for the answer.
    fn question(&self, word: &ChildWord, fds: &[BorrowedFd<'_>]) -> Result<PortText, String> {
        let answered = lock(&self.answered);
        // One to a question before this one came too late.
        while answered.try_recv().is_ok() {}
        let deadline = Instant::now() + PATIENCE;
        self.channel.send_when_few(word, fds, deadline).map_err(|e| e.to_string())?;
        let left = deadline.saturating_duration_since(Instant::now());
        answered.recv_timeout(left).map_err(|_| "the supervisor does not answer".to_owned())?
    }
}

impl SocketKeeper for SupervisorLink {
    fn refuse(&self) -> Result<(), String> {
        self.question(&ChildWord::Listen(false), &[]).map(drop)
    }

    fn listen(&self) -> Result<OwnedFd, String> {
        let (_, fds) = self.question(&ChildWord::Listen(true), &[])?;
        fds.into_iter().next().ok_or_else(|| "a descriptor is missing".to_owned())
    }
}

impl PortKeeper for SupervisorLink {
    fn socket(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    fn ask(&self, verb: String, fds: &[BorrowedFd<'_>]) -> Result<PortText, String> {
        self.question(&ChildWord::Port(verb), fds)
    }

    fn tell(&self, verb: String) {
        // Without a supervisor there is nobody to tell.
        let _ = self.channel.send(&ChildWord::Port(verb), &[]);
    }

    fn has_left(&self) -> bool {
        self.channel.is_left()
    }
}

impl FrontEndWatch for SupervisorLink {
    fn connected(&self, now: bool) {
        let _ = self.channel.send(&ChildWord::Connected(now), &[]);
    }
}

/// Carries out what the supervisor says.
struct Loop<'a> {
    channel: &'a Channel,
    server: &'a Server,
    setup: &'a ChildSetup,
    link: Option<Arc<ToldLink>>,
    answers: Sender<Result<PortText, String>>,
    /// True: the present front end is the last one.
    is_last: bool,
}

impl Loop<'_> {
    /// Returns when the supervisor is gone, or the last front end.
    fn run(&mut self) -> Result<(), String> {
        loop {
            if self.is_last && !self.server.is_alive() {
                return Ok(());
            }
            if self.is_last {
                let mut fds = [PollFd::new(self.channel, PollFlags::IN)];
                if !poll(&mut fds, Some(&TICK)).is_ok_and(|n| n > 0) {
                    continue;
                }
            }
            let Some((order, fds)) = self.channel.receive().map_err(|e| e.to_string())? else {
                return Ok(());
            };
            if let Some(word) = self.carry_out(order, fds) {
                child::answer(self.channel, &word)?;
            }
        }
    }

    /// Does what the supervisor says. Returns what it asked for.
    fn carry_out(&mut self, order: ChildOrder, fds: Vec<OwnedFd>) -> Option<ChildWord> {
        match order {
            ChildOrder::Statistics(number) => {
                let mut stats = ChildStats::of(&self.server.stats());
                stats.state.hangs = !self.server.answers();
                stats.state.captures = self.server.captures();
                return Some(ChildWord::Statistics(number, Box::new(stats)));
            }
            ChildOrder::Metadata(number, file) => {
                return Some(ChildWord::Metadata(number, self.set_metadata(file, fds).err()));
            }
            ChildOrder::Drain => {
                self.is_last = true;
                // It has gone by itself, if it is not there.
                let _ = self.server.drain(&self.setup.name);
            }
            ChildOrder::Done(answer) => drop(self.answers.send(answer.map(|answer| (answer, fds)))),
            ChildOrder::Link(state) => self.link.iter().for_each(|link| link.tell(state)),
            ChildOrder::Limits(limits) => {
                // They are gone with the VM.
                let _ = self.server.set_limits(&self.setup.name, limits);
            }
            ChildOrder::Guard(text) => {
                // It names the guest's address where it needs it.
                if let Ok(guard) = guard(text.as_deref(), None) {
                    let _ = self.server.set_guard(&self.setup.name, guard);
                }
            }
            ChildOrder::Capture(snaplen) => self.capture(snaplen, fds),
            ChildOrder::EndCapture => pcap::finish(self.server.set_capture(None).as_ref()),
            ChildOrder::Start(..) | ChildOrder::Session(_) => {}
        }
        None
    }

    fn capture(&self, snaplen: u32, fds: Vec<OwnedFd>) {
        let begun = fds.into_iter().next().map(|to| Capture::stream(to, snaplen));
        match begun {
            Some(Ok(capture)) => pcap::finish(self.server.set_capture(Some(Arc::new(capture))).as_ref()),
            Some(Err(e)) => tracing::error!("{}: {e}", self.setup.name),
            None => {}
        }
    }

    /// `file` is for the log.
    fn set_metadata(&self, file: String, fds: Vec<OwnedFd>) -> Result<(), String> {
        let text = fds.into_iter().next().ok_or("a descriptor is missing")?;
        let source: Option<MetadataSource> = self.setup.config()?.metadata;
        let tokens = source.ok_or("the VM has no metadata")?.tokens;
        let source = MetadataSource { file: file.into(), tokens };
        self.server.set_tree(&self.setup.name, source, tree(text)?).map_err(|e| e.to_string())
    }
}
