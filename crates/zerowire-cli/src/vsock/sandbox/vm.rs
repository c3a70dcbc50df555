//! A VM of a supervisor: what is open for it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use zerowire_capture::{Capture, LINKTYPE_VSOCK};
use zerowire_vhost::serve::{Listener, ServedStats, VmProcess};
use zerowire_vsock::packet::Kind;
use zerowire_vsock::{
    HostSockets, Limits, OwnEntry, OwnSockets, PathConnector, RequestRate, VsockConfig, VsockVmStats,
    names_file,
};

use super::members::GivenSetup;
use super::message::{VmSetup, VmTold};
use crate::sandbox::capture::{CaptureRelay, KeptCapture};
use crate::sandbox::lock;
use crate::sandbox::sessions::KeptSession;
use crate::sandbox::sums::Sums;

/// Stack of a thread that closes descriptors.
const STACK_BYTES: usize = 64 * 1024;

/// The sockets of a VM, which are removed with it.
pub(super) struct OpenVsock {
    listener: Listener,
    sockets: HostSockets,
    /// Behind the sockets: no guest is connected to one of them.
    _own: OwnEntry,
}

impl OpenVsock {
    /// Enters the sockets of `config`, which are there, among the `own` ones.
    pub(super) fn new(
        config: &VsockConfig,
        listener: Listener,
        sockets: HostSockets,
        own: &OwnSockets,
    ) -> Self {
        Self { listener, sockets, _own: own.enter(&config.paths()) }
    }
}

/// What changes while a VM is served.
pub(super) struct VsockState {
    /// None: its sockets are closed.
    open: Option<OpenVsock>,
    pub rates: Limits,
    pub capture: Option<KeptCapture>,
    /// True: its present front end is the last one.
    pub drains: bool,
    /// True: it is being removed, and no further child gets it.
    pub leaves: bool,
}

/// A VM, and what is open for it.
pub(super) struct KeptVsock {
    /// No other VM has it, also none of the same name.
    pub number: usize,
    /// With the limits that it had at first.
    pub config: VsockConfig,
    /// Memory for the names of its connections, which one child has after the other.
    names: OwnedFd,
    /// How its guest reaches host programs, and how often.
    connector: PathConnector,
    rate: Mutex<RequestRate>,
    pub state: Mutex<VsockState>,
    /// That of its front end. The thread of its child alone locks it: to close the descriptors of a
    /// front end may take long.
    pub session: Mutex<KeptSession>,
    /// What its children have told.
    pub sums: Mutex<Sums<VmTold>>,
}

impl Drop for KeptVsock {
    /// Whoever lets go of a VM last may not wait: see [`Self::session`].
    fn drop(&mut self) {
        let session = std::mem::take(self.session.get_mut().unwrap_or_else(PoisonError::into_inner));
        if session.is_kept() {
            let closes = std::thread::Builder::new().name("session".to_owned()).stack_size(STACK_BYTES);
            // Without a thread this one closes them.
            let _ = closes.spawn(move || drop(session));
        }
    }
}

impl KeptVsock {
    pub(super) fn new(
        number: usize,
        config: VsockConfig,
        open: OpenVsock,
        own: &OwnSockets,
        capture: Option<&Capture>,
    ) -> io::Result<Self> {
        let capture = captured(capture, &config);
        let rates = config.rates;
        let state = VsockState { open: Some(open), rates, capture, drains: false, leaves: false };
        Ok(Self {
            number,
            names: names_file(config.limits.max_connections)?,
            connector: PathConnector::new(&config.uds, own.clone()),
            rate: Mutex::new(RequestRate::new(config.limits.request_rate)),
            state: Mutex::new(state),
            session: Mutex::default(),
            sums: Mutex::default(),
            config,
        })
    }

    /// As it was configured, with the limits that it has now.
    pub(super) fn config(&self) -> VsockConfig {
        self.config.clone().rates(lock(&self.state).rates)
    }

    /// Connects its guest to a program of the host's, without waiting. The path is that of this VM,
    /// so a child reaches no other one.
    pub(super) fn connect(&self, port: u32, kind: Kind) -> io::Result<OwnedFd> {
        // A child keeps to the rate by itself, but for those that it tries again.
        if !lock(&self.rate).take(Instant::now()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.connector.connect(port, kind)
    }

    /// What a child gets of the VM: copies of what is open for it.
    pub(super) fn setup(&self) -> Result<GivenSetup, String> {
        let config = self.config();
        let mut state = lock(&self.state);
        let VsockState { open, capture, drains, .. } = &mut *state;
        let OpenVsock { listener, sockets, .. } = open.as_ref().ok_or("its sockets are closed")?;
        let listener = listener.socket().ok_or("nobody listens")?;
        let stream = capture.as_mut().map(|capture| capture.begin(&config.name)).transpose();
        let stream = stream.map_err(|e| format!("its capture: {e}"))?;
        let [streams, messages, mapped] = sockets.fds();
        let fds = [listener, streams, messages, mapped, self.names.as_fd()];
        let fds = fds.into_iter().map(|fd| fd.try_clone_to_owned()).chain(stream.map(Ok));
        let fds = fds.collect::<io::Result<_>>().map_err(|e| e.to_string())?;
        let snaplen = capture.as_ref().map(|capture| capture.snaplen);
        Ok((Box::new(VmSetup::of(self.number, &config, snaplen, *drains)), fds))
    }

    /// Its present front end is the last one: others are refused. The child has a copy of the
    /// socket.
    pub(super) fn drain(&self) {
        let mut state = lock(&self.state);
        state.drains = true;
        if let Some(open) = &mut state.open {
            open.listener.refuse();
        }
    }

    /// Whether it is being removed, and no further child gets it.
    pub(super) fn leaves(&self) -> bool {
        lock(&self.state).leaves
    }

    /// Takes its packets to another capture from now on, or to none. Returns what takes those that
    /// are under way to the one before.
    pub(super) fn set_capture(&self, capture: Option<&Capture>) -> Option<CaptureRelay> {
        let mut state = lock(&self.state);
        let before = state.capture.take().and_then(|mut capture| capture.take_relay());
        state.capture = captured(capture, &self.config);
        before
    }

    /// What takes the packets of the last child to the capture.
    pub(super) fn take_relay(&self) -> Option<CaptureRelay> {
        lock(&self.state).capture.as_mut().and_then(KeptCapture::take_relay)
    }

    /// Closes and removes its sockets, and writes what was captured.
    pub(super) fn close(&self, deadline: Instant) {
        CaptureRelay::finish(self.take_relay(), deadline);
        let open = lock(&self.state).open.take();
        drop(open);
    }

    /// What it has moved so far. `answered` are the numbers of VMs whose children have answered.
    pub(super) fn stats(&self, answered: &[usize]) -> ServedStats<VsockVmStats> {
        let capture = lock(&self.state).capture.as_ref().map(KeptCapture::stats);
        let sums = lock(&self.sums);
        let child_answers = answered.contains(&self.number);
        let process = VmProcess { restarts: sums.restarts, child_answers };
        ServedStats { vm: sums.stats(&self.config, capture), process }
    }
}

/// A VM's part of a capture, if it is captured.
fn captured(capture: Option<&Capture>, vm: &VsockConfig) -> Option<KeptCapture> {
    KeptCapture::new(capture, LINKTYPE_VSOCK, &vm.name, &format!("CID {}", vm.cid))
}
