//! A connection's end at a host program that takes payload in windows: windows out, a unix socket
//! in.

use std::os::fd::OwnedFd;

use rustix::net::Shutdown;

use super::Inlet;
use crate::credit::WindowCredit;
use crate::held::Held;
use crate::mapped::{AskedFor, Ended, Windows};
use crate::packet::Kind;

/// Windows, and the socket that comes with them.
#[derive(Debug)]
pub struct MappedEnd {
    /// From the program.
    pub inlet: Inlet,
    /// To the program.
    pub windows: Windowing,
    /// The windows' room, as credit for the guest.
    pub credit: WindowCredit,
    /// What the windows had no room for.
    pub held: Option<Box<Held>>,
    /// True: the socket was told that no more comes.
    write_shut: bool,
}

/// Whether the program has windows.
#[derive(Debug)]
pub enum Windowing {
    /// It waits for the guest's answer.
    Asked(Box<AskedFor>),
    /// It has some.
    Live(Box<Windows>),
    /// It has none yet, or has left.
    Without,
}

impl Windowing {
    /// The windows, if there are any.
    pub fn live(&mut self) -> Option<&mut Windows> {
        match self {
            Self::Live(windows) => Some(windows),
            Self::Asked(_) | Self::Without => None,
        }
    }
}

impl MappedEnd {
    /// A new socket's end.
    pub fn new(socket: OwnedFd, windows: Windowing) -> Box<Self> {
        Box::new(Self {
            inlet: Inlet::new(socket),
            windows,
            credit: WindowCredit::default(),
            held: None,
            write_shut: false,
        })
    }

    /// Takes out what the program asked for.
    pub fn take_asked(&mut self) -> Option<Box<AskedFor>> {
        match std::mem::replace(&mut self.windows, Windowing::Without) {
            Windowing::Asked(asked) => Some(asked),
            other => {
                self.windows = other;
                None
            }
        }
    }

    /// Takes the windows out: the program has none any more.
    pub fn take_windows(&mut self) -> Option<Box<Windows>> {
        match std::mem::replace(&mut self.windows, Windowing::Without) {
            Windowing::Live(windows) => Some(windows),
            other => {
                self.windows = other;
                None
            }
        }
    }

    /// Copies what waits into the windows, as far as there is room. Returns whether anything waited
    /// for windows that there are.
    pub fn flush(&mut self, kind: Kind) -> bool {
        let (Some(held), Some(windows)) = (&mut self.held, self.windows.live()) else { return false };
        let mut took = 0;
        while !held.is_empty() {
            let (n, end) = match kind {
                Kind::Stream => (held.len(), None),
                Kind::SeqPacket => match held.message() {
                    Some((n, flags)) => (n as usize, Some(flags)),
                    None => break,
                },
            };
            let done = windows.push_held(held, n, end);
            held.consume(done);
            took += done;
            if done < n && !windows.wait_for_room() {
                break;
            }
        }
        windows.tell();
        Held::settle(&mut self.held);
        self.credit.took(took);
        true
    }

    /// What waits is lost, and the program hears so with the end.
    pub fn cut_held(&mut self) {
        if self.held.take().is_some()
            && let Some(windows) = self.windows.live()
        {
            windows.cut_short();
        }
    }

    /// Whether bytes of the guest, or the news that no more come, wait for the program.
    pub(super) fn has_pending(&self) -> bool {
        let waits = |w: &Windows| w.ended == Ended::Due || w.lends();
        self.held.is_some() || matches!(&self.windows, Windowing::Live(w) if waits(w))
    }

    /// Tells the socket, once, that no more comes.
    pub(super) fn end_writing(&mut self) {
        if !std::mem::replace(&mut self.write_shut, true) {
            let _ = rustix::net::shutdown(&self.inlet.socket, Shutdown::Write);
        }
    }
}
