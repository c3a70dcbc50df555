//! One connection with a front end: the vhost-user state machine, for any device (`Device`).
//!
//! Two kinds of failure. A message that breaks the protocol (wrong size, wrong descriptors, out of
//! order, a ring that does not exist) ends the connection: nothing that follows it can be trusted.
//! A request that is well-formed and can't be carried out (memory that can't be mapped) is answered
//! with an error if the front end asked for an answer, and ends the connection if it did not, since
//! it would go on as if all were well. Either way rings stop and all that the connection held is
//! closed.

mod device_state;
mod eventfd;
mod inflight;
mod memory;
mod migration;
mod postcopy;
mod requests;
mod vring;
mod vrings;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use thiserror::Error;
use zerowire_vhost_user::{
    Config, LogRegion, Message, MessageSocket, Request, WireError, features as f, protocol as p,
};

use super::control::Backing;
use super::device::Device;
use super::pace::Progress;
use crate::memory::MAX_REGIONS;
use device_state::DeviceState;
use inflight::InflightTracking;
use memory::SessionMemory;
use migration::Migration;
use postcopy::Postcopy;
use vrings::{Notifier, Vrings};

/// Why a message was not carried out.
#[derive(Debug, Error)]
pub(super) enum SessionError {
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

/// The state of one connection.
pub(super) struct Session<'a> {
    vm: &'a dyn Backing,
    device: Box<dyn Device + 'a>,
    acked: u64,
    protocol: u64,
    memory: SessionMemory,
    migration: Migration,
    rings: Vrings,
    inflight: InflightTracking,
    state: DeviceState,
    postcopy: Postcopy,
    status: u64,
    progress: Progress,
    /// The channel for requests to the front end; held open, never written.
    backend_channel: Option<OwnedFd>,
}

impl<'a> Session<'a> {
    pub(super) fn new(vm: &'a dyn Backing) -> Self {
        let device = vm.device();
        Self {
            vm,
            acked: 0,
            protocol: 0,
            memory: SessionMemory::default(),
            migration: Migration::default(),
            rings: Vrings::new(device.queues(), device.queue_hint()),
            device,
            inflight: InflightTracking::default(),
            state: DeviceState::default(),
            postcopy: Postcopy::default(),
            status: 0,
            progress: Progress::default(),
            backend_channel: None,
        }
    }

    /// The control thread was woken.
    pub(super) fn attend(&mut self) {
        self.device.attend();
    }

    /// How far the front end came.
    pub(super) fn progress(&self) -> Progress {
        self.progress
    }

    /// What a front end that asks for more queues than there are should be given.
    pub(super) fn queues(&self) -> String {
        self.rings.describe()
    }

    /// Carries out one message and answers it. An error ends the connection.
    pub(super) fn handle(
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
        let acknowledge = self.protocol & p::REPLY_ACK != 0 && message.wants_reply();
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
        tracing::error!("{}: {request} refused: {text}", self.vm.control().name);
        self.vm.set_error(format!("{request}: {text}"));
    }

    /// Fails where a protocol feature is not in force that the request needs.
    fn require(&self, feature: u64, request: Request) -> Result<(), SessionError> {
        if self.protocol & feature == 0 { Err(not_offered(request)) } else { Ok(()) }
    }

    fn carry_out(
        &mut self,
        request: Request,
        message: &mut Message,
        connection: &MessageSocket,
    ) -> Result<Answer, SessionError> {
        if !takes_descriptors(request) {
            message.no_fds()?;
        }
        match request {
            Request::GetQueueNum if self.progress == Progress::Asked => {
                self.progress = Progress::CountedQueues;
            }
            Request::SetMemTable | Request::AddMemReg | Request::SetVringKick => {
                self.progress = Progress::SetUp
            }
            _ => {}
        }
        let name = &self.vm.control().name;
        match request {
            Request::GetFeatures => return Ok(Answer::u64(self.device.offered())),
            Request::SetFeatures => self.set_features(message.u64()?)?,
            Request::GetProtocolFeatures => return Ok(Answer::u64(self.device.protocol_features())),
            Request::SetProtocolFeatures => self.set_protocol_features(message.u64()?)?,
            Request::SetOwner | Request::ResetOwner => message.empty()?,
            Request::GetQueueNum => return Ok(Answer::u64(self.rings.count() as u64)),
            Request::SetMemTable | Request::AddMemReg | Request::RemMemReg => {
                return self.change_memory(request, message);
            }
            Request::GetMaxMemSlots => return Ok(Answer::u64(MAX_REGIONS as u64)),
            Request::PostcopyAdvise => {
                message.empty()?;
                self.require(p::PAGEFAULT, request)?;
                return self.postcopy.advise(connection, name);
            }
            Request::PostcopyListen => self.postcopy.listen(message, self.memory.current(), name)?,
            Request::PostcopyEnd => self.postcopy.end(message, name)?,
            Request::SetLogBase => return self.set_log_base(message),
            Request::SetLogFd => self.set_log_fd(message)?,
            Request::SendRarp => self.send_rarp(message)?,
            Request::SetVringNum => self.rings.set_size(message)?,
            Request::SetVringAddr => self.set_vring_addr(message)?,
            Request::SetVringBase => self.rings.set_base(message)?,
            Request::GetVringBase => return self.get_vring_base(message),
            Request::SetVringKick => self.set_vring_kick(message)?,
            Request::SetVringCall => {
                if let Some(Notifier { queue, fd }) = self.rings.set_call(message)? {
                    self.device.call(queue, fd);
                }
            }
            Request::SetVringErr => {
                if let Some(Notifier { queue, fd }) = self.rings.set_err(message)? {
                    self.device.err(queue, fd);
                }
            }
            Request::SetVringEnable => {
                let (queue, on, runs) = self.rings.enable(message)?;
                self.device.enable(queue, on, runs);
            }
            Request::NetSetMtu => self.device.set_mtu(message.u64()?)?,
            Request::GetInflightFd => {
                self.require(p::INFLIGHT_SHMFD, request)?;
                return self.inflight.create(message, &self.rings, name);
            }
            Request::SetInflightFd => {
                self.require(p::INFLIGHT_SHMFD, request)?;
                self.inflight.open(message, &self.rings)?;
            }
            Request::SetDeviceStateFd => {
                self.require(p::DEVICE_STATE, request)?;
                return self.state.transfer(message, self.rings.any_started());
            }
            Request::CheckDeviceState => {
                self.require(p::DEVICE_STATE, request)?;
                return self.state.check(message);
            }
            Request::GetConfig => return self.get_config(message),
            Request::SetConfig => return self.set_config(message),
            Request::SetBackendReqFd => self.backend_channel = Some(message.take_fd()?),
            Request::ResetDevice => {
                message.empty()?;
                self.reset_device();
            }
            Request::SetStatus => self.set_status(message.u64()?),
            Request::GetStatus => return Ok(Answer::u64(self.reported_status())),
            other => return Err(not_offered(other)),
        }
        Ok(Answer::None)
    }

    fn set_features(&mut self, bits: u64) -> Result<(), SessionError> {
        let request = Request::SetFeatures;
        let unknown = bits & !self.device.offered();
        if unknown != 0 {
            return Err(protocol(
                request,
                format!("features {} were not offered", self.device.feature_names(unknown).join(", ")),
            ));
        }
        if let Some(i) = self.rings.any_started() {
            // Logging goes on and off while rings run.
            if (bits ^ self.acked) & !f::VHOST_LOG_ALL == 0 {
                return self.set_acked(bits);
            }
            return Err(protocol(request, format!("features changed to {bits:#x} while queue {i} runs")));
        }
        self.set_acked(bits)?;
        // Without the bit there is no SET_VRING_ENABLE: rings are enabled from the start
        // (vhost-user, "Ring states"). With it they keep their state: QEMU enables the rings of a
        // device with one queue pair before it sets features.
        if bits & f::VHOST_USER_PROTOCOL_FEATURES == 0 {
            self.rings.enable_all();
        }
        self.device.set_features(bits).map_err(|text| refused(request, text))
    }

    fn set_acked(&mut self, bits: u64) -> Result<(), SessionError> {
        let before = std::mem::replace(&mut self.acked, bits);
        if let Err(e) = self.renew_log() {
            self.acked = before;
            return Err(refused(Request::SetFeatures, e.to_string()));
        }
        if before & !bits & f::VHOST_LOG_ALL != 0 {
            self.migration.end();
        }
        self.vm.control().acked_features.store(bits, Ordering::Relaxed);
        Ok(())
    }

    fn set_protocol_features(&mut self, bits: u64) -> Result<(), SessionError> {
        let unknown = bits & !self.device.protocol_features();
        if unknown != 0 {
            let text = format!("protocol features {unknown:#x} were not offered");
            return Err(protocol(Request::SetProtocolFeatures, text));
        }
        self.protocol = bits;
        self.vm.control().protocol_features.store(bits, Ordering::Relaxed);
        Ok(())
    }

    /// A part of configuration space. An error is signalled by an answer without payload
    /// (vhost-user GET_CONFIG).
    fn get_config(&mut self, message: &Message) -> Result<Answer, SessionError> {
        let Some(space) = self.device.config() else { return Err(not_offered(Request::GetConfig)) };
        let part = match message.config() {
            Ok(part) => part,
            Err(WireError::BadValue { .. }) => return Ok(Answer::Bytes(Vec::new())),
            Err(e) => return Err(e.into()),
        };
        // The sum is at most MAX_CONFIG.
        let (from, to) = (part.offset as usize, part.offset as usize + part.data.len());
        Ok(Answer::Bytes(match space.get(from..to) {
            Some(data) => Config { data: data.to_vec(), ..part }.encode(),
            None => Vec::new(),
        }))
    }

    fn set_config(&mut self, message: &Message) -> Result<Answer, SessionError> {
        let request = Request::SetConfig;
        if self.device.config().is_none() {
            return Err(not_offered(request));
        }
        message.config()?;
        Err(refused(request, "all of the configuration space is read-only".to_owned()))
    }

    /// With DEVICE_NEEDS_RESET where a ring broke (virtio 1.3 §2.1.2).
    fn reported_status(&self) -> u64 {
        if self.device.needs_reset() { self.status | DEVICE_NEEDS_RESET } else { self.status }
    }

    fn set_status(&mut self, status: u64) {
        if status == 0 {
            self.stop_all();
            self.device.was_reset();
            self.inflight.clear();
        }
        // The device's own to say.
        self.status = status & 0xff & !DEVICE_NEEDS_RESET;
        self.vm.control().status.store(self.status, Ordering::Relaxed);
    }

    fn stop_all(&mut self) {
        for queue in 0..self.rings.count() {
            self.stop_ring(queue as u16);
        }
    }

    /// All rings stop and forget what they were told; the memory stays (vhost-user RESET_DEVICE).
    fn reset_device(&mut self) {
        self.stop_all();
        self.rings.forget();
        self.device.reset(self.memory.current());
        self.acked = 0;
        self.vm.control().acked_features.store(0, Ordering::Relaxed);
        self.migration.end();
        self.memory.replace(self.memory.current().with_log(None));
        self.device.set_log(self.memory.current());
        self.set_status(0);
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

/// `DEVICE_NEEDS_RESET` (virtio 1.3 §2.1).
const DEVICE_NEEDS_RESET: u64 = 64;

/// Answers a request that failed.
const FAILED: u64 = 1;

/// What is sent back.
enum Answer {
    None,
    Bytes(Vec<u8>),
    /// With a descriptor, which this side needs no more.
    WithFile(Vec<u8>, Option<OwnedFd>),
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
pub(super) fn not_offered(request: Request) -> SessionError {
    protocol(request, "not offered by this back end".to_owned())
}

pub(super) fn protocol(request: Request, text: String) -> SessionError {
    SessionError::Protocol { request: request.name(), text }
}

pub(super) fn refused(request: Request, text: String) -> SessionError {
    SessionError::Refused { request: request.name(), text }
}
