//! The other end of the card's wire.

use std::collections::VecDeque;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zerowire_net::port::packet::{Frames, PacketSocket};
use zerowire_vmtest::xdp::{ADDRESSES_BYTES, Ask, HERE, THERE, number_of, sent};

/// For a frame to come back; then it is sent once more.
const ONCE: Duration = Duration::from_millis(500);
const TRIES: usize = 60;
/// Where it may be that none comes.
const FEW: usize = 6;

/// For a frame to arrive, before the test checks the wire in another way.
const PAUSE: Duration = Duration::from_millis(50);

/// Bytes of another frame, for an error.
const SHOWN: usize = 64;

/// Frames that may still come back late.
const REMEMBERED: usize = 64;

/// Bytes of the virtio-net header in front of a packet socket's frames, all zero: nothing is left
/// to anybody.
const PACKET_HEADER: [u8; 10] = [0; 10];

/// For QEMU to take a frame.
const TAKEN: Duration = Duration::from_secs(5);

/// What QEMU has at the other end of the card.
#[derive(Debug)]
enum WireEnd {
    /// A frame in a datagram each.
    Datagrams(UnixDatagram),
    /// A tap, which can have several queues.
    Tap(PacketSocket),
}

/// The wire.
#[derive(Debug)]
pub struct Wire {
    end: WireEnd,
    /// What was sent last, newest first.
    sent: Mutex<VecDeque<Vec<u8>>>,
}

impl Wire {
    /// A socket at `here`, for a card at the other end that is connected to later.
    pub fn of_datagrams(here: &Path) -> Result<Self> {
        let socket = UnixDatagram::bind(here).context("a socket")?;
        socket.set_nonblocking(true)?;
        Ok(Self { end: WireEnd::Datagrams(socket), sent: Mutex::default() })
    }

    /// The card is at `there`.
    pub fn connect(&self, there: &Path) -> Result<()> {
        match &self.end {
            WireEnd::Datagrams(socket) => socket.connect(there).context("connect to the card"),
            WireEnd::Tap(_) => Ok(()),
        }
    }

    /// The tap `name` of this thread's network namespace, which is up.
    pub fn of_tap(name: &str) -> Result<Self> {
        let socket = PacketSocket::open(name, Frames::Untagged, PACKET_HEADER.len())?;
        socket.bind()?;
        Ok(Self { end: WireEnd::Tap(socket), sent: Mutex::default() })
    }

    fn send(&self, frame: &[u8]) -> Result<()> {
        let what = || format!("send {} bytes to the card", frame.len());
        loop {
            let sent = match &self.end {
                WireEnd::Datagrams(socket) => rustix::io::write(socket, frame),
                WireEnd::Tap(socket) => rustix::io::write(socket, &[&PACKET_HEADER, frame].concat()),
            };
            match sent {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => {}
                Err(e) => return Err(e).with_context(what),
            }
            ensure!(self.wait(PollFlags::OUT, TAKEN)?, "QEMU takes no more frames");
        }
    }

    /// The next frame; None where none comes soon.
    fn recv<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>> {
        let (received, header) = match &self.end {
            WireEnd::Datagrams(socket) => (rustix::io::read(socket, &mut *buffer), 0),
            WireEnd::Tap(socket) => (rustix::io::read(socket, &mut *buffer), PACKET_HEADER.len()),
        };
        match received {
            Ok(n) => Ok(buffer.get(header..n)),
            Err(Errno::AGAIN | Errno::INTR) => {
                self.wait(PollFlags::IN, PAUSE)?;
                Ok(None)
            }
            Err(e) => Err(e).context("receive from the card"),
        }
    }

    fn wait(&self, what: PollFlags, limit: Duration) -> Result<bool> {
        let mut fd = match &self.end {
            WireEnd::Datagrams(socket) => [PollFd::new(socket, what)],
            WireEnd::Tap(socket) => [PollFd::new(socket, what)],
        };
        let limit = Timespec::try_from(limit).context("a time limit")?;
        match poll(&mut fd, Some(&limit)) {
            Ok(n) => Ok(n > 0),
            Err(Errno::INTR) => Ok(true),
            Err(e) => Err(e).context("poll"),
        }
    }

    /// Sends a frame until a VM has sent it back, byte for byte. Returns that VM's name.
    pub fn round_trip(&self, frame: &[u8]) -> Result<u8> {
        self.attempts(frame, TRIES)?.map_err(|last| {
            let begin = &last[..last.len().min(SHOWN)];
            anyhow!(
                "a frame of {} bytes never came back; last came {} bytes: {begin:02x?}",
                frame.len(),
                last.len()
            )
        })
    }

    /// The same a few times; whether it came back.
    pub fn comes_back(&self, frame: &[u8]) -> Result<bool> {
        Ok(self.attempts(frame, FEW)?.is_ok())
    }

    /// The VM's name; where none sends the frame back, the last of other frames that came.
    fn attempts(&self, frame: &[u8], tries: usize) -> Result<std::result::Result<u8, Vec<u8>>> {
        {
            let mut sent = self.sent();
            sent.truncate(REMEMBERED - 1);
            sent.push_front(frame.to_vec());
        }
        let mut buffer = vec![0; 4096];
        let mut last = Vec::new();
        for _ in 0..tries {
            self.send(frame)?;
            let start = Instant::now();
            while start.elapsed() < ONCE {
                let Some(got) = self.recv(&mut buffer)? else { continue };
                match self.answer(got)? {
                    Some(name) if got[ADDRESSES_BYTES..] == frame[ADDRESSES_BYTES..] => return Ok(Ok(name)),
                    _ => last = got.to_vec(),
                }
            }
        }
        Ok(Err(last))
    }

    /// The name of the VM that sent this; None where it was none of them. What is not the answer to
    /// a frame that was sent is an error.
    fn answer(&self, got: &[u8]) -> Result<Option<u8>> {
        let Some((addresses, rest)) = got.split_first_chunk::<ADDRESSES_BYTES>() else { return Ok(None) };
        if addresses[..6] != HERE || addresses[6..11] != THERE[..5] {
            return Ok(None);
        }
        // An answer may be late, to a frame that was sent again.
        let known = self.sent().iter().any(|frame| frame[ADDRESSES_BYTES..] == *rest);
        ensure!(known, "a frame of {} bytes came back changed: {got:02x?}", got.len());
        Ok(Some(addresses[11]))
    }

    /// Gives VMs in the guest the frames that they ask for, until `done`. Others that they send
    /// have to be as [`sent`] makes them.
    pub fn serve(&self, done: &AtomicBool) -> Result<()> {
        let mut buffer = vec![0; 4096];
        while !done.load(Ordering::Relaxed) {
            let Some(got) = self.recv(&mut buffer)? else { continue };
            if let Some(n) = number_of(got) {
                ensure!(
                    got == sent(n, got.len()),
                    "frame {n} of {} bytes came changed: {got:02x?}",
                    got.len()
                );
            }
            let Some(ask) = Ask::from_frame(got) else { continue };
            ask.frames().try_for_each(|frame| self.send(&frame))?;
        }
        Ok(())
    }

    /// The next frame of `zw-xdp send`, with its number; None where none comes in time.
    pub fn next_sent(&self, patience: Duration) -> Result<Option<(u32, Vec<u8>)>> {
        let mut buffer = vec![0; 4096];
        let start = Instant::now();
        while start.elapsed() < patience {
            if let Some(got) = self.recv(&mut buffer)?
                && let Some(n) = number_of(got)
            {
                return Ok(Some((n, got.to_vec())));
            }
        }
        Ok(None)
    }

    fn sent(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
