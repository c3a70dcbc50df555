//! One connection with a front end: the vhost-user state machine, for any device (`Device`).
//!
//! One object each holds what the front end has said of its memory, its rings, its dirty log and so
//! on. It checks a message and says what follows: an answer, memory to use, a ring to start. The
//! session carries that out, so no object knows the device or another one's fields.
//!
//! There are two kinds of failure. A message that breaks the protocol ends the connection, since
//! nothing that follows it can be trusted. It has a wrong size, wrong descriptors, comes out of
//! order, or names a ring that does not exist. A well-formed request that can't be carried out
//! (memory that can't be mapped) gets an error if the front end asked for an answer. If it did not,
//! the connection ends, since the front end would go on as if all were well. Either way rings stop
//! and all that the connection held is closed.

mod device_state;
mod eventfd;
mod front_end;
mod hand_over;
mod image;
mod inflight;
mod memory;
mod migration;
mod postcopy;
mod requests;
mod vring;
mod vrings;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use thiserror::Error;
use tracing::Level;
use zerowire_vhost_user::{LogRegion, Message, MessageSocket, Request, WireError, protocol as p};

use crate::memory::MAX_REGIONS;
use crate::serve::{Backing, Device, Progress};
use device_state::DeviceState;
use front_end::FrontEnd;
pub use hand_over::HandOverError;
pub use image::{ImageError, SessionImage};
use inflight::InflightTracking;
use memory::SessionMemory;
use migration::Migration;
use postcopy::Postcopy;
use vrings::{Notifier, Vrings};

/// Why a message was not carried out.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant says what it means; its text names its fields")]
pub enum SessionError {
    /// The message breaks the protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The message breaks the protocol in what it means.
    #[error("{request}: {text}")]
    Protocol { request: &'static str, text: String },
    /// The request is sound and can't be carried out.
    #[error("{request}: {text}")]
    Refused { request: &'static str, text: String },
}

/// What the guest's driver has chosen.
#[derive(Debug, Default)]
struct DriverState {
    /// Features that it acknowledged, and those that the front end did.
    acked: u64,
    /// Device status (virtio 1.3 §2.1), without `DEVICE_NEEDS_RESET`.
    status: u64,
}

/// The state of one connection.
pub(crate) struct Session<'a> {
    vm: &'a dyn Backing,
    device: Box<dyn Device + 'a>,
    front_end: FrontEnd,
    driver: DriverState,
    memory: SessionMemory,
    migration: Migration,
    rings: Vrings,
    inflight: InflightTracking,
    state: DeviceState,
    postcopy: Postcopy,
}

impl<'a> Session<'a> {
    pub(crate) fn new(vm: &'a dyn Backing) -> Self {
        let device = vm.device();
        Self {
            vm,
            front_end: FrontEnd::default(),
            driver: DriverState::default(),
            memory: SessionMemory::default(),
            migration: Migration::default(),
            rings: Vrings::new(device.queues(), device.queue_hint()),
            device,
            inflight: InflightTracking::default(),
            state: DeviceState::default(),
            postcopy: Postcopy::default(),
        }
    }

    /// The control thread was woken.
    pub(crate) fn attend(&mut self) {
        self.device.attend();
    }

    /// How far the front end came.
    pub(crate) fn progress(&self) -> Progress {
        self.front_end.progress
    }

    /// What a front end that asks for more queues than there are should be given.
    pub(crate) fn queues(&self) -> String {
        self.rings.describe()
    }

    /// Carries out one message and answers it. An error ends the connection.
    pub(crate) fn handle(
        &mut self,
        connection: &mut MessageSocket,
        mut message: Message,
    ) -> Result<(), SessionError> {
        if message.is_reply() {
            let text = "a reply, where a request was due".to_owned();
            return Err(SessionError::Protocol { request: "message", text });
        }
        // QEMU confirms memory that has not changed under the number 0.
        if message.header().request == 0 && self.postcopy.is_confirmation(&message) {
            return Ok(());
        }
        let request = message.request()?;
        let is_log = request == Request::SetLogBase;
        let outcome = self.carry_out(request, &mut message, connection);
        // Who asks for an acknowledgement waits for it. QEMU 10 also asks on a connection that it
        // has made anew and not set up (vsock with `reconnect`), and stands still meanwhile.
        let acknowledge = message.wants_reply();
        match outcome {
            Ok(Answer::Bytes(body)) => Ok(connection.send_reply(&message, &body, &[])?),
            Ok(Answer::WithFile(body, file)) => {
                let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
                Ok(connection.send_reply(&message, &body, &files)?)
            }
            Ok(Answer::None) if acknowledge => {
                Ok(connection.send_reply(&message, &0u64.to_le_bytes(), &[])?)
            }
            Ok(Answer::None) => Ok(()),
            Ok(Answer::Failed(text)) => {
                self.report_refusal(request.name(), &text);
                Ok(connection.send_reply(&message, &FAILED.to_le_bytes(), &[])?)
            }
            Err(SessionError::Refused { request, text }) if acknowledge => {
                self.report_refusal(request, &text);
                // A log of no bytes is none.
                let none = LogRegion { size: 0, mmap_offset: 0 }.encode();
                let body = if is_log { &none[..] } else { &FAILED.to_le_bytes() };
                Ok(connection.send_reply(&message, body, &[])?)
            }
            Err(e) => Err(e),
        }
    }

    fn report_refusal(&self, request: &str, text: &str) {
        self.vm.control().log(Level::ERROR, format!("{request} refused: {text}"));
        self.vm.set_error(format!("{request}: {text}"));
    }

    /// Carries out one request. Those that have no answer of their own are [`Self::obey`]'s.
    fn carry_out(
        &mut self,
        request: Request,
        message: &mut Message,
        connection: &MessageSocket,
    ) -> Result<Answer, SessionError> {
        if !takes_descriptors(request) {
            message.no_fds()?;
        }
        self.front_end.asks(request);
        let name = &self.vm.control().name;
        match request {
            Request::GetFeatures => Ok(Answer::u64(self.device.offered())),
            Request::GetProtocolFeatures => Ok(Answer::u64(self.device.protocol_features())),
            Request::GetQueueNum => Ok(Answer::u64(self.rings.count() as u64)),
            Request::GetMaxMemSlots => Ok(Answer::u64(MAX_REGIONS as u64)),
            Request::SetMemTable | Request::AddMemReg | Request::RemMemReg => {
                self.change_memory(request, message)
            }
            Request::PostcopyAdvise => {
                message.empty()?;
                self.front_end.require(p::PAGEFAULT, request)?;
                self.postcopy.advise(connection, name)
            }
            Request::SetLogBase => self.set_log_base(message),
            Request::GetVringBase => self.get_vring_base(message),
            Request::GetInflightFd => {
                self.front_end.require(p::INFLIGHT_SHMFD, request)?;
                self.inflight.create(message, &self.rings, name)
            }
            Request::SetDeviceStateFd => {
                self.front_end.require(p::DEVICE_STATE, request)?;
                self.state.transfer(message, self.rings.any_started())
            }
            Request::CheckDeviceState => {
                self.front_end.require(p::DEVICE_STATE, request)?;
                self.state.check(message)
            }
            Request::GetConfig => self.get_config(message),
            Request::GetStatus => Ok(Answer::u64(self.reported_status())),
            _ => self.obey(request, message).map(|()| Answer::None),
        }
    }

    /// Carries out a request whose only answer is an acknowledgement, if the front end wants one.
    fn obey(&mut self, request: Request, message: &mut Message) -> Result<(), SessionError> {
        let name = &self.vm.control().name;
        match request {
            Request::SetFeatures => self.set_features(message.u64()?),
            Request::SetProtocolFeatures => self.set_protocol_features(message.u64()?),
            Request::SetOwner | Request::ResetOwner => Ok(message.empty()?),
            Request::PostcopyListen => self.postcopy.listen(message, self.memory.current(), name),
            Request::PostcopyEnd => self.postcopy.end(message, name),
            Request::SetLogFd => self.set_log_fd(message),
            Request::SendRarp => self.send_rarp(message),
            Request::SetVringNum => self.rings.set_size(message),
            Request::SetVringAddr => self.set_vring_addr(message),
            Request::SetVringBase => self.rings.set_base(message),
            Request::SetVringKick => self.set_vring_kick(message),
            Request::SetVringCall => {
                if let Some(Notifier { queue, fd }) = self.rings.set_call(message)? {
                    self.device.call(queue, fd);
                }
                Ok(())
            }
            Request::SetVringErr => {
                if let Some(Notifier { queue, fd }) = self.rings.set_err(message)? {
                    self.device.err(queue, fd);
                }
                Ok(())
            }
            Request::SetVringEnable => {
                let (queue, on, runs) = self.rings.enable(message)?;
                self.device.enable(queue, on, runs);
                Ok(())
            }
            Request::NetSetMtu => {
                let mtu = message.u64()?;
                self.device.set_mtu(mtu)?;
                self.front_end.mtu = Some(mtu);
                Ok(())
            }
            Request::SetInflightFd => {
                self.front_end.require(p::INFLIGHT_SHMFD, request)?;
                self.inflight.open(message, &self.rings)
            }
            Request::SetConfig => self.set_config(message),
            Request::SetBackendReqFd => {
                self.front_end.channel = Some(Arc::new(message.take_fd()?));
                Ok(())
            }
            Request::ResetDevice => {
                message.empty()?;
                self.reset_device();
                Ok(())
            }
            Request::SetStatus => {
                self.set_status(message.u64()?);
                Ok(())
            }
            other => Err(not_offered(other)),
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // Nobody waits for pages any more.
        self.postcopy = Postcopy::default();
        self.stop_all();
    }
}

/// Whether descriptors may come along; how many is the request's own matter.
fn takes_descriptors(request: Request) -> bool {
    matches!(
        request,
        Request::SetMemTable
            | Request::AddMemReg
            | Request::RemMemReg
            | Request::SetVringKick
            | Request::SetVringCall
            | Request::SetVringErr
            | Request::SetBackendReqFd
            | Request::SetInflightFd
            | Request::SetLogBase
            | Request::SetLogFd
            | Request::SetDeviceStateFd
    )
}

/// Answers a request that failed.
const FAILED: u64 = 1;

/// What is sent back.
enum Answer {
    None,
    Bytes(Vec<u8>),
    /// With a descriptor.
    WithFile(Vec<u8>, Option<Arc<OwnedFd>>),
    /// The request failed for this reason. The front end hears that it did, whether it asked for
    /// acknowledgements or not.
    Failed(String),
}

impl Answer {
    fn u64(value: u64) -> Self {
        Self::Bytes(value.to_le_bytes().to_vec())
    }
}

/// A request of a protocol feature that this device does not have.
pub fn not_offered(request: Request) -> SessionError {
    protocol(request, "not offered by this back end".to_owned())
}

pub(crate) fn protocol(request: Request, text: String) -> SessionError {
    SessionError::Protocol { request: request.name(), text }
}

/// A sound request that can't be carried out.
pub fn refused(request: Request, text: String) -> SessionError {
    SessionError::Refused { request: request.name(), text }
}
