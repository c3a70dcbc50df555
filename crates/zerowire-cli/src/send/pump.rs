//! Moves everything from the source to the sender.

use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd as _;
use zerowire::send::{Payload, SendError, Sender};

use super::datagrams::Datagrams;
use super::source::{NextPayload, SendSource};
use super::stall::Stall;
use super::stop::Watched;
use crate::progress::TransferProgress;

/// A socket that reports an error which nobody can take away is always ready: this long is slept
/// instead of asking again at once.
const DEAD_PAUSE: Duration = Duration::from_millis(1);
/// How long to wait at a time while the peer sends.
const REPLYING_TICK: Duration = Duration::from_millis(1);

/// What moves, and what it is watched by.
pub struct Pump<'a> {
    pub sender: &'a mut Sender,
    pub watched: &'a mut Watched,
    pub stall: Stall,
    /// Over UDP: what is made of payloads.
    pub datagrams: Option<Datagrams>,
    /// Bytes that were taken.
    pub moved: u64,
}

impl Pump<'_> {
    /// Sends all there is, and waits until all memory is back. Ends early, without an error, at a
    /// signal.
    pub fn run(&mut self, source: &mut SendSource, progress: &mut TransferProgress) -> Result<()> {
        while self.watched.signal().is_none() {
            match source.next() {
                NextPayload::Payload(payload) => {
                    // Also when a datagram before this one found nobody: it is lost, so the whole
                    // can't arrive any more.
                    self.give(payload, progress).map_err(|e| source.explain(e))?;
                    progress.set(self.moved);
                }
                NextPayload::Nothing => self.wait_for_input(source)?,
                // All buffers are lent: the oldest comes back first.
                NextPayload::NoBuffer => self.wait_for_memory()?,
                NextPayload::End => break,
                NextPayload::Failed(e) => return Err(e),
            }
        }
        while self.sender.outstanding() > 0 && self.watched.signal().is_none() {
            self.wait_for_memory()?;
        }
        source.end()
    }

    fn give(&mut self, mut payload: Payload, progress: &TransferProgress) -> Result<(), SendError> {
        let len = payload.len() as u64;
        loop {
            if let Some(d) = self.datagrams.as_ref().filter(|d| d.cut_here()) {
                let bytes = d.bytes;
                return self.give_all(payload.split(bytes));
            }
            match self.sender.try_send(payload) {
                Ok(_) => {
                    self.moved += len;
                    self.stall.reset();
                    return Ok(());
                }
                Err(refused) if refused.error.is_would_block() => payload = refused.payload,
                Err(refused) => {
                    let Some(d) = &mut self.datagrams else { return Err(refused.error) };
                    if !d.give_up_segments(&refused.error) {
                        return Err(refused.error);
                    }
                    self.sender.set_segment_bytes(None)?;
                    progress.say(&d.to_string());
                    payload = refused.payload;
                    continue;
                }
            }
            if self.watched.signal().is_some() {
                return Ok(());
            }
            let tick = self.tick();
            self.sender.wait_room(tick)?;
            self.stall.check(self.sender)?;
        }
    }

    /// Sends each as a datagram, with few calls.
    fn give_all(&mut self, mut payloads: Vec<Payload>) -> Result<(), SendError> {
        let bytes = |payloads: &[Payload]| payloads.iter().map(|p| p.len() as u64).sum::<u64>();
        while !payloads.is_empty() && self.watched.signal().is_none() {
            let before = bytes(&payloads);
            let result = self.sender.send_many(&mut payloads);
            let taken = before - bytes(&payloads);
            self.moved += taken;
            if taken > 0 {
                self.stall.reset();
            }
            match result {
                Ok(_) => {}
                Err(SendError::TimedOut { .. }) => self.stall.check(self.sender)?,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// How long to wait at a time, once the peer's replies are dropped. The sender doesn't wait for
    /// those.
    fn tick(&mut self) -> Duration {
        let tick = self.stall.tick();
        if self.watched.drop_replies() { tick.min(REPLYING_TICK) } else { tick }
    }

    fn wait_for_memory(&mut self) -> Result<(), SendError> {
        let tick = self.tick();
        match self.sender.wait_any(tick) {
            Ok(()) | Err(SendError::TimedOut { .. }) => self.stall.check(self.sender),
            Err(e) => Err(e),
        }
    }

    /// Waits for the source, and looks after what is on its way meanwhile. It sends the rest of a
    /// payload when the socket has room, and reports the end of the connection.
    fn wait_for_input(&mut self, source: &SendSource) -> Result<()> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::OUT, self.sender.is_partly_sent());
        wanted.set(PollFlags::IN, self.watched.may_reply());
        let tick = Timespec { tv_sec: 0, tv_nsec: self.stall.tick().as_nanos() as _ };
        let got = {
            let socket = PollFd::from_borrowed_fd(self.sender.as_fd(), wanted);
            let Some(input) = source.input() else { return Ok(()) };
            let mut fds = [PollFd::from_borrowed_fd(input, PollFlags::IN), socket];
            match poll(&mut fds, Some(&tick)) {
                Ok(_) if !fds[0].revents().is_empty() => return Ok(()),
                Ok(_) => fds[1].revents(),
                Err(rustix::io::Errno::INTR) => PollFlags::empty(),
                Err(e) => return Err(e.into()),
            }
        };
        self.watched.drop_replies();
        let back = self.sender.poll()?;
        if self.watched.signal().is_some() {
            return Ok(());
        }
        if back == 0 && got.intersects(PollFlags::ERR | PollFlags::HUP) {
            std::thread::sleep(DEAD_PAUSE);
        }
        if self.sender.outstanding() == 0 {
            // Only the input is waited for, which may take as long as it likes.
            self.stall.reset();
            return Ok(());
        }
        Ok(self.stall.check(self.sender)?)
    }
}
