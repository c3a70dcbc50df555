//! The other end of a connection.

use zerowire_vhost_user::Request;

use super::image::{File, FrontEndImage};
use super::{SessionError, not_offered};
use crate::serve::Progress;

/// What is known of a front end, as an image has it.
pub(super) type FrontEnd = FrontEndImage<File>;

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

    /// Whether a protocol feature is in force.
    pub(super) fn has(&self, feature: u64) -> bool {
        self.protocol & feature != 0
    }

    /// Fails where a protocol feature is not in force that the request needs.
    pub(super) fn require(&self, feature: u64, request: Request) -> Result<(), SessionError> {
        if self.has(feature) { Ok(()) } else { Err(not_offered(request)) }
    }

    /// The front end of an image. Protocol features and MTU are put in force elsewhere.
    pub(super) fn restore(image: &Self) -> Self {
        Self { protocol: 0, mtu: None, ..image.clone() }
    }
}
