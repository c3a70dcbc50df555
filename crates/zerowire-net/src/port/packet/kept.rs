//! Sockets of a packet port that one process keeps open for another one. Each child has its own.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use zerowire_sys::lock;

use super::handed::{PacketSockets, PacketVerb};
use super::spec::LEAST_DESCRIPTORS;
use super::{PacketError, PacketPort, PacketReceive, PacketSpec};
use crate::port::kept::text;
use crate::port::{KeptPort, OpenPort, PortAnswer, PortParts, PortText};

/// The sockets of the child that runs.
pub(super) struct KeptPacket {
    spec: PacketSpec,
    sockets: Mutex<PacketSockets>,
}

impl KeptPacket {
    pub(super) fn open(spec: &PacketSpec) -> Result<Self, PacketError> {
        Ok(Self { spec: spec.clone(), sockets: Mutex::new(PacketSockets::open(spec)?) })
    }
}

impl KeptPort for KeptPacket {
    fn hand(&self) -> Result<PortText, String> {
        let (new, _) = PacketSockets::open_or_wait(&self.spec).map_err(|e| e.to_string())?;
        let handed = new.parts().map_err(|e| e.to_string())?;
        let facts = text(&new.facts)?;
        *lock(&self.sockets) = new;
        Ok((facts, handed))
    }

    fn carry_out(&self, verb: &str, _fds: &[BorrowedFd<'_>]) -> PortAnswer {
        PortAnswer::to(verb, |verb| {
            if verb == PacketVerb::ReceiveRing(true) && self.spec.receive == PacketReceive::Socket {
                return PortAnswer::Done(Err("no receive ring, as asked".to_owned()));
            }
            let sockets = lock(&self.sockets);
            let done = sockets.carry_out(verb);
            match verb {
                PacketVerb::End => PortAnswer::Nothing,
                _ if done.is_err() && sockets.are_outdated() => {
                    PortAnswer::Replace(format!("interface {} is another one now", sockets.interface()))
                }
                _ => PortAnswer::done(done, Vec::new()),
            }
        })
    }

    /// The one that was given while the sockets are in use.
    fn interface(&self) -> String {
        match self.sockets.try_lock() {
            Ok(sockets) => sockets.interface(),
            Err(_) => self.spec.interface.clone(),
        }
    }
}

/// Sockets of another process.
pub(super) fn take_over(spec: &PacketSpec, mut parts: PortParts<'_>) -> Result<OpenPort, String> {
    let sockets = [parts.fd()?, parts.fd()?, parts.fd()?, parts.fd()?];
    let sockets = PacketSockets::take_over(&spec.interface, parts.facts()?, sockets, parts.keeper);
    let sockets = sockets.map_err(|e| {
        format!("the numbers of its sockets are too high: 'ulimit -n {LEAST_DESCRIPTORS}' allows them: {e}")
    })?;
    let (spec, sockets) = (spec.clone(), Arc::new(sockets));
    Ok(OpenPort::new(|policy| PacketPort::take_over(spec, sockets, policy)))
}
