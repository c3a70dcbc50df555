//! What a child carries out while it serves: VMs that come, go and change.
//!
//! A thread does it. A VM whose front end holds up its threads keeps no answer of the supervisor
//! from the other ones.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zerowire_capture::{Capture, CaptureInterface, LINKTYPE_VSOCK};
use zerowire_vsock::{HandedVsock, HostKeeper, HostSockets, VsockConfig, VsockServer};

use super::child::SupervisorLink;
use super::message::{GroupWord, VmChange, VmSetup};
use crate::pcap;
use crate::sandbox::channel::Channel;
use crate::sandbox::link::ANSWER_PATIENCE;
use crate::sandbox::sessions::{ImageText, Teller};

/// How often a child with a VM that is drained looks whether that has left.
const TICK: Duration = Duration::from_millis(100);

/// Stack of the thread, bytes.
const STACK_BYTES: usize = 256 * 1024;

/// A change, and the descriptors that came with it.
type Order = (VmChange, Vec<OwnedFd>);

/// The number and the name of a VM that is drained.
pub(super) type DrainedVm = (usize, String);

/// The captures of VMs, by their numbers.
pub(super) type Captures = HashMap<usize, Arc<Capture>>;

/// A VM as the supervisor gives it.
pub(super) struct GivenVm {
    pub setup: VmSetup,
    /// What is open for it.
    pub fds: Vec<OwnedFd>,
    /// The session that a child before has left, with its descriptors.
    pub kept: Option<(ImageText, Vec<OwnedFd>)>,
}

/// A VM that the server gets.
pub(super) struct ComingVm {
    number: usize,
    config: VsockConfig,
    handed: HandedVsock,
    capture: Option<Arc<Capture>>,
}

impl ComingVm {
    /// By which a child tells what the next one needs of its session.
    pub(super) fn new(given: GivenVm, channel: &Arc<Channel>) -> Result<Self, String> {
        let GivenVm { setup, mut fds, kept } = given;
        let VmSetup { number, snaplen, drains, .. } = setup;
        let config = setup.config();
        let stream = snaplen.and_then(|snaplen| Some((fds.pop()?, snaplen)));
        let capture = stream.map(|(to, snaplen)| begun(to, snaplen, &config.name)).transpose()?;
        let (capture, interface) = capture.unzip();
        let word = |vm, word| GroupWord::Session { vm, word };
        let teller = Arc::new(Teller { channel: channel.clone(), vm: number, word });
        let handed = HandedVsock {
            capture: interface.flatten(),
            session: kept.and_then(|(image, files)| teller.take_up(&config.name, &image, files)),
            sessions: Some(teller),
            drains,
            ..handed(number, fds).map_err(|e| e.to_string())?
        };
        Ok(Self { number, config, handed, capture })
    }

    /// Its number and its name, if its present front end is the last one.
    pub(super) fn drained(&self) -> Option<DrainedVm> {
        self.handed.drains.then(|| (self.number, self.config.name.clone()))
    }

    /// What the server gets. Its capture is kept.
    pub(super) fn split(self, captures: &mut Captures) -> (VsockConfig, HandedVsock) {
        captures.extend(self.capture.map(|capture| (self.number, capture)));
        (self.config, self.handed)
    }
}

/// A capture of one VM, which the supervisor reads.
fn begun(to: OwnedFd, snaplen: u32, vm: &str) -> Result<(Arc<Capture>, Option<CaptureInterface>), String> {
    let capture = Capture::stream(to, snaplen).map_err(|e| e.to_string())?;
    let interface = capture.interface(LINKTYPE_VSOCK, vm, "");
    Ok((Arc::new(capture), interface))
}

/// What is open for a VM.
fn handed(number: usize, mut fds: Vec<OwnedFd>) -> io::Result<HandedVsock> {
    let names = fds.pop();
    // The child before this one may have changed that.
    let waits_not = |fd: &OwnedFd| {
        let flags = rustix::fs::fcntl_getfl(fd)?;
        rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)
    };
    fds.iter().try_for_each(waits_not)?;
    let count = |_| io::Error::other("a VM has four sockets, and memory for names");
    let [listener, sockets @ ..]: [OwnedFd; 4] = fds.try_into().map_err(count)?;
    let (listener, sockets) = (UnixListener::from(listener), HostSockets::handed(sockets));
    Ok(HandedVsock {
        number,
        listener,
        sockets,
        capture: None,
        names,
        sessions: None,
        session: None,
        drains: false,
    })
}

/// Changes of the VMs of a child.
pub(super) struct Changes {
    orders: Sender<Order>,
    thread: JoinHandle<Captures>,
}

impl Changes {
    /// Begins with the captures of the VMs that are there, and those of them that are drained.
    pub(super) fn start(
        supervisor: &Arc<SupervisorLink>,
        server: &Arc<VsockServer>,
        captures: Captures,
        draining: Vec<DrainedVm>,
    ) -> io::Result<Self> {
        let (orders, receiver) = channel();
        let (supervisor, server) = (supervisor.clone(), server.clone());
        let changer = Changer { supervisor, server, captures, draining };
        let thread = std::thread::Builder::new().name("changes".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || changer.run(&receiver))?;
        Ok(Self { orders, thread })
    }

    /// Has a change carried out, without waiting.
    pub(super) fn carry_out(&self, change: VmChange, fds: Vec<OwnedFd>) {
        let _ = self.orders.send((change, fds));
    }

    /// Waits for those that are under way. Returns the captures.
    pub(super) fn end(self) -> Captures {
        drop(self.orders);
        self.thread.join().unwrap_or_default()
    }
}

struct Changer {
    supervisor: Arc<SupervisorLink>,
    server: Arc<VsockServer>,
    captures: Captures,
    draining: Vec<DrainedVm>,
}

impl Changer {
    fn run(mut self, orders: &Receiver<Order>) -> Captures {
        loop {
            let order = match self.draining.is_empty() {
                true => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => orders.recv_timeout(TICK),
            };
            match order {
                Ok((change, fds)) => self.carry_out(change, fds),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.captures,
            }
            self.tell_gone();
        }
    }

    fn tell(&self, word: &GroupWord) {
        // Without a supervisor there is nobody to tell.
        let _ = self.supervisor.channel.send_until(word, &[], Instant::now() + ANSWER_PATIENCE);
    }

    fn carry_out(&mut self, change: VmChange, fds: Vec<OwnedFd>) {
        match change {
            VmChange::Add(number, setup) => {
                let done = self.add(*setup, fds);
                self.tell(&GroupWord::Changed(number, done.err()));
            }
            VmChange::Remove(number, vm) => {
                let name = self.server.handed_name(vm);
                let done = name.map_or(Ok(()), |name| self.server.remove(&name));
                self.end_capture(vm);
                self.tell(&GroupWord::Changed(number, done.err().map(|e| e.to_string())));
            }
            VmChange::Drain(vm) => self.drain(vm),
            VmChange::Rates(number, vm, rates) => {
                // They are gone with the VM.
                if let Some(name) = self.server.handed_name(vm) {
                    let _ = self.server.set_rates(&name, rates);
                }
                self.tell(&GroupWord::Changed(number, None));
            }
            VmChange::Capture(number, vm, snaplen) => {
                let done = self.capture(vm, snaplen, fds);
                self.tell(&GroupWord::Changed(number, done.err()));
            }
            VmChange::EndCapture(vm) => {
                if let Some(name) = self.server.handed_name(vm) {
                    let _ = self.server.capture_vm(&name, None);
                }
                self.end_capture(vm);
            }
        }
    }

    fn add(&mut self, setup: VmSetup, fds: Vec<OwnedFd>) -> Result<(), String> {
        let number = setup.number;
        let given = GivenVm { setup, fds, kept: None };
        let coming = ComingVm::new(given, &self.supervisor.channel)?;
        let drained = coming.drained();
        let (config, handed) = coming.split(&mut self.captures);
        let keeper: Arc<dyn HostKeeper> = self.supervisor.clone();
        let added = self.server.add_handed(config, handed, &keeper).map_err(|e| e.to_string());
        match added {
            Ok(()) => self.draining.extend(drained),
            Err(_) => self.end_capture(number),
        }
        added
    }

    /// The present front end of a VM is the last one.
    fn drain(&mut self, vm: usize) {
        let Some(name) = self.server.handed_name(vm) else { return };
        // It has gone by itself, if it is not there.
        let _ = self.server.drain(&name);
        self.draining.push((vm, name));
    }

    /// Says which VMs have left that were drained.
    fn tell_gone(&mut self) {
        if self.draining.is_empty() {
            return;
        }
        let there = self.server.vms();
        let is_there = |(_, name): &mut DrainedVm| there.iter().any(|vm| vm.config.name == *name);
        let gone: Vec<_> = self.draining.extract_if(.., |vm| !is_there(vm)).collect();
        for (vm, _) in gone {
            self.end_capture(vm);
            self.tell(&GroupWord::Gone(vm));
        }
    }

    fn capture(&mut self, vm: usize, snaplen: u32, fds: Vec<OwnedFd>) -> Result<(), String> {
        // One that has left is captured no more.
        let Some(name) = self.server.handed_name(vm) else { return Ok(()) };
        let to = fds.into_iter().next().ok_or("a descriptor is missing")?;
        let (capture, interface) = begun(to, snaplen, &name)?;
        let _ = self.server.capture_vm(&name, interface);
        pcap::finish(self.captures.insert(vm, capture).as_ref());
        Ok(())
    }

    /// Writes what was captured of a VM, whose packets go there no more.
    fn end_capture(&mut self, vm: usize) {
        pcap::finish(self.captures.remove(&vm).as_ref());
    }
}
