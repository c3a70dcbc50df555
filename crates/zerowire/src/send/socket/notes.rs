//! Reads what comes back over the error queue, translates it into ids, and passes these to the
//! window.

use super::super::backend::NoLoan;
use super::super::kind::SocketFamily;
use super::super::{SendError, Window};
use super::SocketBackend;
use super::errno::from_errno;
use crate::ledger::CopyReason;
use std::os::fd::AsFd;
use zerowire_sys::socket::Charges;
use zerowire_sys::socket::error_queue::{self, Note};

impl SocketBackend {
    /// Reads up to `N` messages of the error queue, and tells the window. Whether there may be
    /// more.
    #[inline]
    pub(super) fn read_notes<const N: usize>(
        &mut self,
        window: &mut Window,
        first_error: &mut Option<SendError>,
    ) -> Result<bool, SendError> {
        let mut notes = [None; N];
        let mut n = 0;
        let read = error_queue::read::<N>(self.socket.as_fd(), |note| {
            if let Some(slot) = notes.get_mut(n) {
                *slot = Some(note);
                n += 1;
            }
        })
        .map_err(SendError::system("recvmmsg(MSG_ERRQUEUE)"))?;
        self.idle &= read == 0;
        for note in notes.into_iter().flatten() {
            let told = match note {
                Note::Back { copied, .. } if self.kind.kind == SocketFamily::Vsock => {
                    self.copied_unbooked |= copied;
                    Ok(())
                }
                Note::Back { lo, hi, copied } => self.ours(lo, hi).map(|ours| {
                    let Some((lo, hi)) = ours else { return };
                    let told = window.notified(lo, hi, copied);
                    if !self.elders.is_empty() {
                        self.tell_elders(lo, hi, copied);
                    } else if let Err(unknown) = told {
                        tracing::warn!(%unknown, "notification ignored");
                    }
                }),
                Note::Error { errno } => Err(from_errno(errno)),
            };
            if let Err(e) = told {
                first_error.get_or_insert(e);
            }
        }
        Ok(read == N)
    }

    /// The ids of ours that a notification names.
    pub(super) fn ours(&mut self, lo: u32, hi: u32) -> Result<Option<(u32, u32)>, SendError> {
        self.numbering.ours(lo, hi).map_err(|_| self.found_foreign(lo, hi))
    }

    #[cold]
    fn found_foreign(&mut self, lo: u32, hi: u32) -> SendError {
        let why = "another handle of this socket lends memory".to_owned();
        self.cannot_lend = Some(NoLoan { reason: CopyReason::Numbering, why });
        SendError::Foreign { lo, hi }
    }

    #[cold]
    fn tell_elders(&mut self, lo: u32, hi: u32, copied: bool) {
        // Ids that are another window's are unknown to each.
        for elder in &mut self.elders {
            let _ = elder.notified(lo, hi, copied);
        }
        self.elders.retain(|elder| elder.outstanding() > 0);
    }

    /// One call on AF_VSOCK may use several numbers. The kernel begins a new packet, with the next
    /// number, when credit comes in the middle of the call (vsock_connectible_sendmsg,
    /// net/vmw_vsock/af_vsock.c), and doesn't say so. So numbers tell nothing of a single payload;
    /// all are back when the socket is charged for no notification. Nothing else tells how many a
    /// call used. The sender can't query the peer's credit, and what the socket is charged changes
    /// while notifications join in its queue. A number that was guessed too low would give memory
    /// back that is still read.
    pub(super) fn reap_vsock(&mut self, window: &mut Window) -> Result<(), SendError> {
        if window.ids_out() == 0 && self.elders.is_empty() {
            return Ok(());
        }
        let charges = Charges::of(&self.socket).map_err(SendError::system("getsockopt(SO_MEMINFO)"))?;
        if charges.options() == 0 {
            let copied = std::mem::take(&mut self.copied_unbooked);
            window.all_back_as(copied);
            for mut elder in self.elders.drain(..) {
                elder.all_back_as(copied);
            }
        }
        Ok(())
    }
}
