//! What the receiver asks of zero-copy receive.

use super::{CANCEL_TRIES, CANCEL_WAIT, SharedArea, Zcrx, state};
use crate::area::AreaOptions;
use crate::recv::backend::Engine;
use crate::recv::core::RecvState;
use crate::recv::{RecvError, ZeroCopied};
use rustix::net::{SocketType, ipproto, sockopt};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use zerowire_sys::uring::wide::{Completions, Entry};

impl Zcrx {
    /// Cancels all requests; sockets and the bell are let go of.
    fn end_all(&mut self) {
        for _ in 0..CANCEL_TRIES {
            while let Some(cqe) = self.ring.pop() {
                self.state.discard(cqe);
            }
            if self.state.requests.armed == 0
                && !self.state.bell_armed
                && self.ring.held() == 0
                && !self.ring.has_overflowed()
            {
                return;
            }
            self.ring.push(Entry::cancel_all(state::CANCEL_ALL));
            if self.ring.enter(1, Some(CANCEL_WAIT)).is_err_and(|e| e.raw_os_error() == Some(libc::EEXIST)) {
                return;
            }
        }
    }
}

impl Engine for Zcrx {
    fn path(&self) -> String {
        let from = match &self.shared.queue {
            Some((interface, queue)) => format!("queue {queue} of {interface}"),
            None => "no device, the kernel copies (ZCRX_REG_NODEV)".to_owned(),
        };
        let ring = match self.ring.kind() {
            Completions::Wide => "CQE32",
            Completions::Mixed => "CQE_MIXED",
        };
        let events = match self.shared.zero_copied() {
            ZeroCopied::Exact => "",
            ZeroCopied::AtMost => "; the kernel doesn't count what it copies from beside the headers",
            ZeroCopied::Unknown => {
                "; this kernel doesn't tell what it copies (Linux 7.2 does), so that it can't be told what the NIC placed"
            }
        };
        let (buffers, bytes, room) =
            (self.shared.areas.buffers(), self.shared.areas.buffer_bytes(), self.ring.completions());
        let areas = match self.shared.areas.count() {
            1 => String::new(),
            count => format!(" in {count} areas"),
        };
        let of = if self.shared.is_exported() { " that other receivers use, too" } else { "" };
        format!(
            "io_uring zero-copy receive, {from}: {buffers} buffers of {bytes} bytes{areas}{of}, {room} completions ({ring}){events}"
        )
    }

    fn zero_copied(&self) -> ZeroCopied {
        self.shared.zero_copied()
    }

    fn add(&mut self, _core: &mut RecvState, place: u32, socket: BorrowedFd<'_>) -> Result<(), RecvError> {
        check_tcp(socket)?;
        self.state.requests.add(place);
        Ok(())
    }

    fn stop(&mut self, core: &mut RecvState, place: u32) -> Result<(), RecvError> {
        let mut result = Ok(());
        let mut tries = 0;
        while result.is_ok() && self.state.unwant(place) {
            result = self.queue_entries(core).and_then(|()| self.enter(core, 1, Some(CANCEL_WAIT)));
            let is_blocked = !self.drain(core);
            tries += 1;
            if result.is_ok() && self.state.is_armed(place) && (is_blocked || tries == CANCEL_TRIES) {
                let why = if is_blocked { "too many leases are out: drop some" } else { "it doesn't end" };
                result = Err(RecvError::system("stopping a receive")(std::io::Error::other(why)));
            }
        }
        self.state.unwant(place);
        result
    }

    fn resume(&mut self, _core: &mut RecvState, place: u32) {
        self.state.requests.queue(place);
    }

    fn listen(&mut self, _index: u32, socket: BorrowedFd<'_>) -> Result<(), RecvError> {
        check_tcp(socket)
    }

    fn unlisten(&mut self, core: &mut RecvState, index: u32) -> Result<(), RecvError> {
        let (mut result, mut tries) = (Ok(()), 0);
        while result.is_ok() && core.listeners.is_asked(index) {
            result = self.queue_accepts(core).and_then(|()| self.enter(core, 1, Some(CANCEL_WAIT)));
            let is_blocked = !self.drain(core);
            tries += 1;
            if result.is_ok() && core.listeners.is_asked(index) && (is_blocked || tries == CANCEL_TRIES) {
                let why = if is_blocked { "too many leases are out: drop some" } else { "it doesn't end" };
                result = Err(RecvError::system("stopping an accept")(std::io::Error::other(why)));
            }
        }
        result
    }

    fn returned(&mut self, slot: u32) {
        self.state.returned(slot);
    }

    fn close(&mut self, core: &mut RecvState) {
        // What came back goes to those who share the area.
        core.arrivals.clear();
        core.collect(|slot| self.state.returned(slot));
    }

    fn export(&mut self, core: &mut RecvState) -> Result<SharedArea, RecvError> {
        core.called();
        match self.zcrx.export() {
            Ok(fd) => Ok(SharedArea::new(Arc::clone(&self.shared), fd)),
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Err(RecvError::WrongThread),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                Err(RecvError::TooOld { what: "area that several rings use", since: "Linux 7.0" })
            }
            Err(e) => Err(RecvError::system("io_uring_register(ZCRX_CTRL_EXPORT)")(e)),
        }
    }

    fn add_area(&mut self, core: &mut RecvState, area: AreaOptions) -> Result<(), RecvError> {
        self.append(core, area)
    }

    fn turn(&mut self, core: &mut RecvState, timeout: Option<Duration>) -> Result<(), RecvError> {
        self.turns = self.turns.wrapping_add(1);
        let unlent = core.holdings.free();
        self.feed(core)?;
        self.drain(core);
        if core.arrivals.is_empty() && !core.listeners.is_due() {
            self.wait(core, timeout)?;
            self.drain(core);
        }
        match unlent.saturating_sub(core.holdings.free()) {
            0 => {}
            came => self.came = came as u32,
        }
        if !core.arrivals.is_empty()
            && let Some(dmabuf) = &self.dmabuf
        {
            core.called();
            dmabuf.begin_read().map_err(RecvError::system("ioctl(DMA_BUF_IOCTL_SYNC)"))?;
        }
        Ok(())
    }
}

impl Drop for Zcrx {
    fn drop(&mut self) {
        self.end_all();
        let (lent, free) = self.state.leave();
        self.left.set(lent, free);
    }
}

/// Zero-copy receive is for TCP.
fn check_tcp(socket: BorrowedFd<'_>) -> Result<(), RecvError> {
    let is_stream = sockopt::socket_type(socket).is_ok_and(|t| t == SocketType::STREAM);
    match is_stream && sockopt::socket_protocol(socket).ok().flatten() == Some(ipproto::TCP) {
        true => Ok(()),
        false => Err(RecvError::NotTcp),
    }
}
