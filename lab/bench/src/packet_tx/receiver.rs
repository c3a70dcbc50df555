//! The reader behind a veth pair: a thread with one UDP socket of another network namespace.
//!
//! It counts bytes, not datagrams: the kernel joins or cuts frames that it carries as one
//! (UDP_GRO).

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use zerowire_sys::socket::set_int;

use super::lab::{TARGET, TARGET_PORT, TxLab};
use crate::cpu::{Placement, ThreadClock};
use crate::netns::OtherNamespace;

/// The receiver's end of the pair.
pub(super) const PEER: &str = "zwrx";
/// Room for what waits: the sender stays within it.
const RECEIVE_BUFFER: i32 = 256 << 20;
/// How often the thread looks whether it shall end.
const LOOK: Duration = Duration::from_millis(50);
/// How long the sender sleeps when it is too far ahead.
const NAP: Duration = Duration::from_micros(50);

/// The thread that reads.
pub struct SinkReceiver {
    bytes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    clock: ThreadClock,
    thread: Option<JoinHandle<()>>,
}

impl SinkReceiver {
    /// Sets up the interface [`PEER`] of the namespace `far`, and reads what comes there; its
    /// Ethernet address. The socket keeps the namespace.
    pub(super) fn listen(far: &OtherNamespace, placement: &Placement) -> Result<(Self, [u8; 6])> {
        let (socket, mac) = far.run(socket)?;
        let (bytes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end, placement) = (bytes.clone(), stop.clone(), placement.clone());
        let (clocks, clock) = channel();
        let thread = std::thread::Builder::new().name("receiver".into()).spawn(move || {
            let pinned = placement.pin_driver();
            let sound = pinned.is_ok();
            if clocks.send(pinned.map(|()| ThreadClock::own())).is_ok() && sound {
                read(&socket, &count, &end);
            }
        })?;
        let clock = clock.recv().map_err(|_| anyhow!("the receiver's thread ended early"))??;
        Ok((Self { bytes, stop, clock, thread: Some(thread) }, mac))
    }

    /// Bytes of payload read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// CPU time of the thread so far; exact while it sleeps.
    pub fn cpu(&self) -> Result<Duration> {
        self.clock.now().context("the receiver's clock")
    }

    /// Waits until `bytes` have been read in all; fails when nothing more comes for `patience`.
    pub fn wait_for(&self, bytes: u64, patience: Duration) -> Result<()> {
        let (mut last, mut since) = (self.bytes(), Instant::now());
        while last < bytes {
            std::thread::sleep(NAP);
            let now = self.bytes();
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > patience {
                bail!("the receiver has {last} of {bytes} bytes and nothing more comes: the run is void");
            }
        }
        Ok(())
    }
}

impl Drop for SinkReceiver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn socket() -> Result<(UdpSocket, [u8; 6])> {
    let mac = TxLab::set_up_peer(PEER)?;
    let socket = UdpSocket::bind((TARGET, TARGET_PORT))?;
    socket.set_read_timeout(Some(LOOK))?;
    set_int(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)?;
    // A frame that is carried as one is read as one (udp(7)).
    set_int(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    Ok((socket, mac))
}

fn read(socket: &UdpSocket, count: &AtomicU64, end: &AtomicBool) {
    let mut buffer = vec![0; 1 << 16];
    while !end.load(Ordering::Relaxed) {
        match socket.recv(&mut buffer) {
            Ok(len) => count.store(count.load(Ordering::Relaxed) + len as u64, Ordering::Release),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            // The sender finds that bytes are missing, and says how many.
            Err(_) => return,
        }
    }
}
