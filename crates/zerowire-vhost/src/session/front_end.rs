//! The other end of a connection.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerowire_vhost_user::Request;

use super::image::{File, FrontEndImage};
use super::{SessionError, not_offered};
use crate::serve::Progress;

/// What is known of a front end.
#[derive(Debug, Default)]
pub(super) struct FrontEnd {
    /// Protocol features in force.
    protocol: u64,
    progress: Progress,
    /// For requests to it; held open, never written.
    channel: Option<Arc<OwnedFd>>,
    /// The guest's MTU in bytes, if the front end gave it.
    mtu: Option<u64>,
}

impl FrontEnd {
    /// It has sent this request.
    pub(super) fn asks(&mut self, request: Request) {
        match request {
            Request::GetQueueNum if self.progress == Progress::Asked => {
                self.progress = Progress::CountedQueues;
            }
            Request::SetMemTable | Request::AddMemReg | Request::SetVringKick => {
                self.progress = Progress::SetUp
            }
            _ => {}
        }
    }

    /// How far it came.
    pub(super) fn progress(&self) -> Progress {
        self.progress
    }

    /// These protocol features are in force.
    pub(super) fn set_protocol_features(&mut self, bits: u64) {
        self.protocol = bits;
    }

    /// Whether a protocol feature is in force.
    pub(super) fn has(&self, feature: u64) -> bool {
        self.protocol & feature != 0
    }

    /// Fails where a protocol feature is not in force that the request needs.
    pub(super) fn require(&self, feature: u64, request: Request) -> Result<(), SessionError> {
        if self.has(feature) { Ok(()) } else { Err(not_offered(request)) }
    }

    /// The channel for requests to it.
    pub(super) fn keep_channel(&mut self, channel: OwnedFd) {
        self.channel = Some(Arc::new(channel));
    }

    /// It gave this MTU, which the device has taken.
    pub(super) fn keep_mtu(&mut self, mtu: u64) {
        self.mtu = Some(mtu);
    }

    /// What is known of it, for an image.
    pub(super) fn image(&self) -> FrontEndImage<File> {
        let Self { protocol, progress, ref channel, mtu } = *self;
        FrontEndImage { protocol, progress, channel: channel.clone(), mtu }
    }

    /// The front end of an image. Protocol features and MTU are put in force elsewhere.
    pub(super) fn restore(image: &FrontEndImage<File>) -> Self {
        Self { progress: image.progress, channel: image.channel.clone(), ..Self::default() }
    }
}
