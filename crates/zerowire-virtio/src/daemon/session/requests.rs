//! Requests that change the device while it runs.

use zerowire_vhost_user::{Message, Request, protocol as p};

use super::memory::MemoryChange;
use super::migration::take_over;
use super::{Answer, Session, SessionError, not_offered, protocol, refused};
use crate::memory::{GuestMemory, LogError};

impl Session<'_> {
    /// SET_MEM_TABLE, ADD_MEM_REG, REM_MEM_REG, or the front end's word on what it was told then.
    pub(super) fn change_memory(
        &mut self,
        request: Request,
        message: &mut Message,
    ) -> Result<Answer, SessionError> {
        let (memory, postcopy) = (&mut self.memory, &mut self.postcopy);
        let change = match request {
            _ if postcopy.is_confirmation(message) => postcopy.confirm(request, message)?,
            Request::SetMemTable => memory.set(message, postcopy)?,
            Request::AddMemReg => memory.add(message, postcopy)?,
            _ => memory.remove(message, postcopy)?,
        };
        match change {
            MemoryChange::None => Ok(Answer::None),
            MemoryChange::Tell(body) => Ok(Answer::Bytes(body)),
            MemoryChange::Use(memory) => self.replace_memory(request, memory).map(|()| Answer::None),
        }
    }

    /// The device has the new memory when this returns, and the old one is unmapped. Memory that
    /// the dirty log does not cover is refused.
    fn replace_memory(&mut self, request: Request, memory: GuestMemory) -> Result<(), SessionError> {
        let log = self
            .migration
            .log_for(self.acked, &memory, &self.rings)
            .map_err(|e| refused(request, e.to_string()))?;
        let old = self.memory.replace(memory.with_log(log));
        self.device.set_memory(self.memory.current());
        take_over(&old, self.memory.current());
        Ok(())
    }

    /// Another log.
    pub(super) fn set_log_base(&mut self, message: &mut Message) -> Result<Answer, SessionError> {
        let request = Request::SetLogBase;
        if self.protocol & p::LOG_SHMFD == 0 {
            let text = "it needs protocol feature LOG_SHMFD, which is not in force".to_owned();
            return Err(protocol(request, text));
        }
        let answer = self.migration.set_base(message, self.memory.current(), &self.rings)?;
        self.renew_log().map_err(|e| refused(request, e.to_string()))?;
        Ok(answer)
    }

    /// Another descriptor that is notified of the log's changes.
    pub(super) fn set_log_fd(&mut self, message: &mut Message) -> Result<(), SessionError> {
        self.migration.set_signal(message)?;
        self.renew_log().map_err(|e| refused(Request::SetLogFd, e.to_string()))
    }

    /// The device notes its writes as it is to from now on.
    pub(super) fn renew_log(&mut self) -> Result<(), LogError> {
        let memory = self.memory.current();
        let log = self.migration.log_for(self.acked, memory, &self.rings)?;
        if log.is_none() && memory.log().is_none() {
            return Ok(());
        }
        let old = self.memory.replace(memory.with_log(log));
        self.device.set_log(self.memory.current());
        take_over(&old, self.memory.current());
        Ok(())
    }

    /// Announces the guest with this MAC address, which are the first six bytes of the payload.
    pub(super) fn send_rarp(&mut self, message: &Message) -> Result<(), SessionError> {
        let request = Request::SendRarp;
        if self.device.protocol_features() & p::RARP == 0 {
            return Err(not_offered(request));
        }
        message.u64()?;
        let mut mac = [0; 6];
        mac.copy_from_slice(&message.body()[..6]);
        self.device.announce(mac)
    }
}
