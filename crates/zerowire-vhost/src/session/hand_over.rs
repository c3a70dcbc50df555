//! A session goes to another process, or comes from one.
//!
//! ```text
//! predecessor                                     successor
//! checks that each ring can be started again
//! makes the image; stops the rings, whose
//!   bases go into the image
//! drops the session                          ->   checks the image as it checks messages
//!                                                 tells a new device what the front end has said
//!                                                 starts the rings where they stopped
//! ```
//! A ring that has stopped has nothing in flight, so no chain is lost or used twice. Messages of
//! the front end wait in its socket meanwhile, and frames for the guest in the port. A frame that
//! was read and waits for more buffers of the guest's is dropped, as whenever a ring stops.
//!
//! A process that dies stops no ring. Its successor has an image from before
//! ([`Session::snapshot`]), and takes the rings up as those of a front end that has connected
//! again: from the used index on, and by the in-flight region.
//!
//! What is not in the image: the port, statistics, and connections of a vsock device.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};
use thiserror::Error;
use zerowire_vhost_user::{MessageSocket, Request, features as f};

use super::front_end::FrontEnd;
use super::image::{ConnectionImage, DriverImage, File, Parts};
use super::inflight::InflightTracking;
use super::migration::{Migration, open};
use super::{ImageError, Session, SessionError, SessionImage};
use crate::host::RingState;
use crate::memory::DirtyLog;
use crate::ring::SplitRing;
use crate::serve::Backing;

/// Why a session stays where it is. The text says what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandOverError {
    /// Nobody is connected.
    #[error("VM {0}: no front end is connected: there is no session to hand over")]
    NoFrontEnd(String),
    /// No such VM.
    #[error("no VM is named '{0}'")]
    UnknownVm(String),
    /// Missing pages come to this process alone.
    #[error(
        "post-copy goes on, and the guest's missing pages come to this process: hand over when it has ended"
    )]
    Postcopy,
    /// A ring could not be started again, here or elsewhere.
    #[error("{0}: the front end is about to change its memory; hand over a little later")]
    Ring(String),
    /// The image can't be made.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// No answer came in time, and the session goes on here.
    #[error("VM {0}: its thread is busy with its front end: hand over a little later")]
    Busy(String),
}

impl From<SessionError> for ImageError {
    fn from(error: SessionError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl<'a> Session<'a> {
    /// All that is known, for a successor. With it, where to copy a log of this process's own, if
    /// it has one.
    fn image(&self, connection: &MessageSocket) -> Result<(SessionImage, Option<DirtyLog>), ImageError> {
        let early = self.memory.current().log().filter(|log| log.place().is_none());
        let early = early.map(DirtyLog::in_file).transpose();
        let early = early.map_err(|e| ImageError::Refused(e.to_string()))?;
        let duplicate = |fd: BorrowedFd<'_>| {
            let copy = fd.try_clone_to_owned().map(Arc::new);
            copy.map_err(|e| ImageError::system("duplicating a descriptor", e))
        };
        let (received, files) = connection.unfinished();
        let parts = Parts {
            connection: ConnectionImage {
                socket: duplicate(connection.as_fd())?,
                received,
                received_files: files.iter().map(|f| duplicate(f.as_fd())).collect::<Result<_, _>>()?,
            },
            front_end: self.front_end.clone(),
            driver: DriverImage {
                acked: self.driver.acked,
                status: self.driver.status,
                needs_reset: self.device.needs_reset(),
            },
            memory: self.memory.image().map_err(|e| ImageError::system("duplicating a region's file", e))?,
            migration: self.migration.image(early.as_ref()),
            inflight: self.inflight.image(),
            loading: self.state.loading.clone(),
            rings: self.rings.image(),
        };
        Ok((SessionImage(Box::new(parts)), early))
    }

    /// What a process goes on with if this one dies. Rings run on.
    pub(crate) fn snapshot(&self, connection: &MessageSocket) -> Result<SessionImage, String> {
        if self.postcopy.is_advised() {
            return Err("post-copy goes on".to_owned());
        }
        // A process that dies may have written what it does not come to note.
        if self.driver.acked & f::VHOST_LOG_ALL != 0 {
            return Err("the guest migrates".to_owned());
        }
        let (image, _) = self.image(connection).map_err(|e| e.to_string())?;
        if image.0.loading.is_some() {
            return Err("the device's state is transferred".to_owned());
        }
        Ok(image)
    }

    /// Stops the rings and returns what a successor goes on with. Drop the session then, and its
    /// connection. On an error nothing has changed.
    pub(crate) fn hand_over(&mut self, connection: &MessageSocket) -> Result<SessionImage, HandOverError> {
        if self.postcopy.is_advised() {
            return Err(HandOverError::Postcopy);
        }
        let memory = self.memory.current();
        for (queue, size, addresses, base) in self.rings.started() {
            SplitRing::new(queue, size, addresses, base, false, memory).map_err(HandOverError::Ring)?;
        }
        let (mut image, early) = self.image(connection)?;
        let parts = &mut image.0;
        for (queue, ring) in parts.rings.iter_mut().enumerate() {
            ring.base = self.stop_ring(queue as u16);
        }
        // A ring may have broken, and may have been written to, until it stopped.
        parts.driver.needs_reset = self.device.needs_reset();
        if let (Some(early), Some(log)) = (early, self.memory.current().log()) {
            early.take_over(log);
        }
        self.device.hand_over();
        Ok(image)
    }

    /// The session of an image, and its connection. Rings run that did.
    pub(crate) fn restore(
        vm: &'a dyn Backing,
        image: &SessionImage,
    ) -> Result<(Self, MessageSocket), ImageError> {
        let parts = &image.0;
        // First: the device hears of a session that can't go on, too.
        let mut session = Self::new(vm);
        let connection = restore_connection(&parts.connection)?;
        let queues = session.rings.count();
        if parts.rings.len() > queues {
            let text = format!("{} queues, where this device has {queues}", parts.rings.len());
            return Err(ImageError::Refused(text));
        }
        session.front_end = FrontEnd::restore(&parts.front_end);
        session.set_protocol_features(parts.front_end.protocol)?;
        session.state.loading.clone_from(&parts.loading);
        session.migration = Migration::restore(&parts.migration)?;
        session.inflight = InflightTracking::restore(&parts.inflight)
            .map_err(|text| ImageError::Refused(format!("its in-flight region: {text}")))?;
        session.restore_driver(parts)?;
        session.restore_memory(parts)?;
        session.restore_rings(parts)?;
        Ok((session, connection))
    }

    fn restore_driver(&mut self, parts: &Parts<File>) -> Result<(), ImageError> {
        if let Some(mtu) = parts.front_end.mtu {
            self.device.set_mtu(mtu)?;
            self.front_end.mtu = Some(mtu);
        }
        let DriverImage { acked, status, needs_reset } = parts.driver;
        self.check_offered(acked)?;
        self.set_acked(acked)?;
        self.device.resume_features(acked).map_err(ImageError::Refused)?;
        if status != 0 {
            self.set_status(status);
        }
        if needs_reset {
            self.device.set_needs_reset();
        } else {
            self.device.was_reset();
        }
        Ok(())
    }

    /// The memory with its log, in which what was noted before is noted.
    fn restore_memory(&mut self, parts: &Parts<File>) -> Result<(), ImageError> {
        let memory = self.memory.restore(&parts.memory).map_err(ImageError::Refused)?;
        self.replace_memory(Request::SetMemTable, memory)?;
        if let (Some(early), Some(log)) = (&parts.migration.early, self.memory.current().log()) {
            let early = open(early).map_err(|e| ImageError::Refused(e.to_string()))?;
            log.take_over(&early);
            log.notify();
        }
        Ok(())
    }

    fn restore_rings(&mut self, parts: &Parts<File>) -> Result<(), ImageError> {
        self.rings.restore(&parts.rings)?;
        for (queue, image) in parts.rings.iter().enumerate() {
            let queue = queue as u16;
            if image.state != RingState::Waiting {
                self.device.enable(queue, image.state == RingState::Enabled, false);
            }
            let Some(kick) = &image.kick else { continue };
            let Some(ring) = self.rings.get_mut(queue) else { continue };
            let setup = ring.setup(queue, kick.clone(), parts.driver.acked)?;
            self.start_ring(setup)?;
        }
        self.device.was_taken_up();
        Ok(())
    }
}

/// The front end's socket, which must be one.
fn restore_connection(image: &ConnectionImage<File>) -> Result<MessageSocket, ImageError> {
    let kind = |socket: &File| Ok((sockopt::socket_domain(socket)?, sockopt::socket_type(socket)?));
    let is_right = match kind(&image.socket) {
        Ok(kind) => kind == (AddressFamily::UNIX, SocketType::STREAM),
        // A confined process may not ask. The first message is an error if it is another one.
        Err(Errno::NOSYS) => true,
        Err(e) => return Err(ImageError::system("the front end's socket", e)),
    };
    if !is_right {
        return Err(ImageError::Refused("the front end's socket is not a unix stream socket".to_owned()));
    }
    let duplicate =
        |fd: &OwnedFd| fd.try_clone().map_err(|e| ImageError::system("duplicating a descriptor", e));
    let stream = UnixStream::from(duplicate(&image.socket)?);
    stream.set_nonblocking(true).map_err(|e| ImageError::system("the front end's socket", e))?;
    let files = image.received_files.iter().map(|f| duplicate(f)).collect::<Result<_, _>>()?;
    MessageSocket::resume(stream, &image.received, files)
        .map_err(|e| ImageError::Refused(format!("its unfinished message: {e}")))
}
