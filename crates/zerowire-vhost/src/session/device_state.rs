//! Messages about the device's state (vhost-user, "Migrating back-end state").
//!
//! The state of both devices is empty: no byte goes either way. What a guest's device needs
//! elsewhere lies in the guest's memory and in the rings' bases, and connections of a vsock device
//! do not move. The feature is offered since cloud-hypervisor asks for the rings' bases
//! (GET_VRING_BASE) only of back ends that have it.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, preadv2, retry_on_intr};
use zerowire_vhost_user::{Message, StateTransfer};

use super::{Answer, SessionError};

/// In the answer to SET_DEVICE_STATE_FD: the back end goes on with the front end's descriptor.
const NO_FD: u64 = 1 << 8;

/// How long the front end's end may stay open after it asks for the outcome. It has closed its own
/// descriptor by then; a child that it forks at that moment holds another until it executes.
const CLOSED_WITHIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The transfer of the device's state.
#[derive(Debug, Default)]
pub(super) struct DeviceState {
    /// Where the state that the front end loads comes from, until it asks whether that went well.
    pub(super) loading: Option<Arc<OwnedFd>>,
}

impl DeviceState {
    /// SET_DEVICE_STATE_FD: a descriptor to write the state to, or to read it from. Closing one
    /// that is written to says that this is all. `running` is a queue whose ring runs.
    pub(super) fn transfer(
        &mut self,
        message: &mut Message,
        running: Option<usize>,
    ) -> Result<Answer, SessionError> {
        let transfer = message.state_transfer()?;
        let file = message.take_fd()?;
        if let Some(i) = running {
            return Ok(Answer::Failed(format!("sent while queue {i} runs")));
        }
        self.loading = (transfer == StateTransfer::Load).then(|| Arc::new(file));
        Ok(Answer::u64(NO_FD))
    }

    /// CHECK_DEVICE_STATE: whether the transfer went well. The front end has written all before it
    /// asks.
    pub(super) fn check(&mut self, message: &Message) -> Result<Answer, SessionError> {
        message.empty()?;
        Ok(match self.loading.take().map_or(Ok(()), |file| is_empty(&file)) {
            Ok(()) => Answer::u64(0),
            Err(text) => Answer::Failed(text),
        })
    }
}

/// Whether nothing was written to the other end of `file`, and that is closed.
fn is_empty(file: &OwnedFd) -> Result<(), String> {
    let mut fds = [PollFd::new(file, PollFlags::IN)];
    // What the wait could not find out, the read does.
    let _ = retry_on_intr(|| poll(&mut fds, Some(&CLOSED_WITHIN)));
    let mut bytes = [0; 64];
    // At the file's own position: a pipe or a socket has no other.
    match preadv2(file, &mut [IoSliceMut::new(&mut bytes)], u64::MAX, ReadWriteFlags::NOWAIT) {
        Ok(0) => Ok(()),
        Ok(_) => {
            Err("the front end has a state to load, and this device has none: it was saved by another back \
                      end, or by another version"
                .to_owned())
        }
        Err(Errno::AGAIN) => {
            Err("the front end asks for the outcome and does not close its end of the transfer".to_owned())
        }
        Err(e) => Err(format!("the state can't be read: {e}")),
    }
}
