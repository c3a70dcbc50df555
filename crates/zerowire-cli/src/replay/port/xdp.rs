//! AF_XDP.

use std::time::{Duration, Instant};

use zerowire::ledger::Totals;
use zerowire::send::frame::{FrameError, FrameSender as _};
use zerowire::xdp::{Resident, SenderOptions, XdpError, XdpSender};

use super::super::store::{ReplayFrame, Store};
use super::{NotResident, Outside, ReplayPort, sends_by};

/// How long to sleep between looks at a full ring: in copy mode frames come back without a word.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// Room for a frame at least, bytes.
const SHORT_BYTES: usize = 64;

/// Frames through AF_XDP.
pub struct XdpPort {
    sender: XdpSender,
    /// Frames of the capture in the socket's memory; empty where they are copied there as they
    /// come.
    resident: Vec<Resident>,
    outside: Outside,
}

impl XdpPort {
    /// Opens it; frames are copied into its memory as they come.
    pub fn open(interface: &str, queue: u32) -> Result<Self, XdpError> {
        let sender = XdpSender::open(options(interface, queue))?;
        Ok(Self { sender, resident: Vec::new(), outside: Outside::default() })
    }

    /// Opens it with all frames of `store` in its memory, of `memory` bytes at most.
    pub fn resident(interface: &str, queue: u32, store: &Store, memory: usize) -> Result<Self, NotResident> {
        let lengths = || (0..store.len()).filter_map(|i| store.get(i)).map(|f| f.len);
        let mut options = options(interface, queue);
        options.max_frame_bytes = lengths().max().unwrap_or(0).max(SHORT_BYTES);
        // Nothing is built beside the resident frames.
        options.frames = 1;
        let need = SenderOptions::resident_bytes_for(options.max_frame_bytes, lengths());
        options.resident_bytes = match need {
            Some(bytes) if bytes <= memory => bytes,
            need => {
                let bytes = need.map_or_else(String::new, |n| format!("{n} bytes of "));
                return Err(NotResident::Room(format!("{bytes}UMEM are more than --max-memory")));
            }
        };
        let mut sender = XdpSender::open(options).map_err(|e| match e {
            XdpError::Memlock { .. } | XdpError::NoMemory { .. } => NotResident::Room(e.to_string()),
            e => NotResident::Failed(e.into()),
        })?;
        let mut resident = Vec::with_capacity(store.len());
        for frame in (0..store.len()).filter_map(|i| store.get(i)) {
            resident.push(sender.load(frame.bytes).map_err(|e| NotResident::Failed(e.into()))?);
        }
        Ok(Self { sender, resident, outside: Outside::default() })
    }
}

fn options(interface: &str, queue: u32) -> SenderOptions {
    let mut options = SenderOptions::new(interface);
    options.queue = queue;
    options
}

impl ReplayPort for XdpPort {
    sends_by!(sender);

    #[inline]
    fn push(&mut self, frame: &ReplayFrame<'_>) -> Result<bool, FrameError> {
        if let Some(resident) = self.resident.get(frame.index) {
            return self.sender.send_resident(*resident);
        }
        let pushed = self.sender.push(frame.len, &mut |to| to.copy_from_slice(frame.bytes))?;
        if pushed {
            self.outside.count(frame.len);
        }
        Ok(pushed)
    }

    fn wait(&mut self, timeout: Duration) -> Result<bool, FrameError> {
        let start = Instant::now();
        loop {
            self.sender.flush()?;
            if self.sender.reap() > 0 {
                return Ok(true);
            }
            if start.elapsed() >= timeout {
                return Ok(false);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn totals(&self) -> Totals {
        self.outside.correct(self.sender.counters().snapshot())
    }
}
