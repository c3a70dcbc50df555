//! The other end of a connection.

use std::os::fd::OwnedFd;

use zerowire_vhost_user::Request;

use super::{SessionError, not_offered};
use crate::serve::Progress;

/// What is known of a front end.
#[derive(Debug, Default)]
pub(super) struct FrontEnd {
    /// Protocol features in force.
    protocol: u64,
    progress: Progress,
    /// For requests to it; held open, never written.
    channel: Option<OwnedFd>,
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
        self.channel = Some(channel);
    }
}
