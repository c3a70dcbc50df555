//! The reader behind a veth pair: a thread in a network namespace of its own with one UDP socket.
//!
//! It counts bytes, not datagrams: the kernel joins or cuts frames that it carries as one
//! (UDP_GRO).

use std::fs::File;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Inbox, Sender as Outbox, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use zerowire_sys::socket::set_int;

use super::lab::{INTERFACE, TARGET, TARGET_PORT, TxLab};
use super::links;
use crate::cpu::{Placement, ThreadClock};
use crate::netns::enter_new_namespace;

/// The receiver's end of the pair.
const PEER: &str = "zwrx";
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
    listen: Outbox<()>,
    ready: Inbox<Result<[u8; 6]>>,
    thread: Option<JoinHandle<()>>,
}

impl SinkReceiver {
    /// Starts the thread in a new namespace, and makes the veth pair between it and the caller's.
    pub fn start(placement: &Placement) -> Result<Self> {
        let (namespaces, namespace) = channel::<Result<(File, ThreadClock)>>();
        let (listen, begin) = channel::<()>();
        let (outbox, ready) = channel();
        let bytes = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let (count, end, placement) = (bytes.clone(), stop.clone(), placement.clone());
        let thread = std::thread::Builder::new().name("receiver".into()).spawn(move || {
            let entered = enter(&placement);
            let sound = entered.is_ok();
            // The other side is gone when it gave up: then there is nothing to do either.
            if namespaces.send(entered).is_err() || !sound || begin.recv().is_err() {
                return;
            }
            match socket() {
                Ok((socket, mac)) => {
                    let _ = outbox.send(Ok(mac));
                    read(&socket, &count, &end);
                }
                Err(error) => drop(outbox.send(Err(error))),
            }
        })?;
        let (namespace, clock) =
            namespace.recv().map_err(|_| anyhow!("the receiver's thread ended early"))??;
        links::add_veth(INTERFACE, PEER, namespace.as_fd())?;
        Ok(Self { bytes, stop, clock, listen, ready, thread: Some(thread) })
    }

    /// Makes the thread set up its end and read; its Ethernet address.
    pub fn listen(&mut self) -> Result<[u8; 6]> {
        self.listen.send(()).map_err(|_| anyhow!("the receiver's thread ended early"))?;
        self.ready.recv().map_err(|_| anyhow!("the receiver's thread ended early"))?
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
        // A thread that never began to listen waits for its order, which this ends.
        let (closed, _) = channel();
        self.listen = closed;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn enter(placement: &Placement) -> Result<(File, ThreadClock)> {
    placement.pin_driver()?;
    enter_new_namespace()?;
    let namespace = File::open("/proc/thread-self/ns/net").context("the receiver's namespace")?;
    Ok((namespace, ThreadClock::own()))
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
