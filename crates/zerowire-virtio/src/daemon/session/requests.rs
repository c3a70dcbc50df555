//! Requests that change the device while it runs.

use zerowire_vhost_user::{Message, Request, protocol as p};

use super::memory::MemoryChange;
use super::migration::take_over;
use super::vrings::Kick;
use super::{Answer, Session, SessionError, not_offered, protocol, refused};
use crate::host::RingSetup;
use crate::memory::{GuestMemory, LogError};
use crate::ring::SplitRing;

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

    /// SET_VRING_ADDR.
    pub(super) fn set_vring_addr(&mut self, message: &Message) -> Result<(), SessionError> {
        let Some(log) = self.rings.set_addresses(message)? else { return Ok(()) };
        // A log of this process's own reaches as far as it has to, the front end's is checked.
        if let Err(e) = self.renew_log() {
            if let Some(ring) = self.rings.get_mut(log.queue) {
                ring.log_at = log.before;
            }
            return Err(refused(Request::SetVringAddr, e.to_string()));
        }
        if log.runs {
            self.device.log_ring(log.queue, log.now);
        }
        Ok(())
    }

    /// GET_VRING_BASE: stops the ring and answers where it has to go on.
    pub(super) fn get_vring_base(&mut self, message: &Message) -> Result<Answer, SessionError> {
        let state = message.vring_state()?;
        self.rings.named(Request::GetVringBase, state.index as usize)?;
        let base = self.stop_ring(state.index as u16);
        let mut body = state.index.to_le_bytes().to_vec();
        body.extend_from_slice(&u32::from(base).to_le_bytes());
        Ok(Answer::Bytes(body))
    }

    /// Stops a ring, if it runs. Returns where it has to go on.
    pub(super) fn stop_ring(&mut self, queue: u16) -> u16 {
        let Some(ring) = self.rings.get_mut(queue) else { return 0 };
        if std::mem::take(&mut ring.started)
            && let Some(base) = self.device.stop(queue)
        {
            ring.base = base;
        }
        ring.base
    }

    /// SET_VRING_KICK: starts a ring, or changes the descriptor of one that runs.
    pub(super) fn set_vring_kick(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let refuse = |text| refused(Request::SetVringKick, text);
        let mut setup = match self.rings.kick(message, self.acked)? {
            Kick::Replace(queue, kick) => {
                self.device.kick(queue, kick);
                return Ok(());
            }
            Kick::Start(setup) => setup,
        };
        let queue = setup.queue;
        setup.inflight = self.inflight.tracker(queue);
        if setup.log_at.is_some() {
            // Its size may have been told behind its addresses.
            self.renew_log().map_err(|e| refuse(e.to_string()))?;
        }
        setup.base = self.first_entry(&setup).map_err(refuse)?;
        self.device.start(setup).map_err(refuse)?;
        if let Some(ring) = self.rings.get_mut(queue) {
            ring.started = true;
        }
        Ok(())
    }

    /// Where a ring that starts takes its first available entry.
    ///
    /// A ring that has stopped has nothing in flight: all entries before the used index are used,
    /// and none behind it. So it begins at the used index, whatever base the front end gives:
    /// cloud-hypervisor gives the *available* index where it did not stop the ring itself, and all
    /// buffers that the driver has posted would be skipped. The same holds after a back end that
    /// died, where chains are used in the order in which they became available.
    ///
    /// Where they are not, and no in-flight region says which ones are out, the used index says how
    /// many came back and not which. Then the base is taken as it was given: to skip chains is
    /// better than to return some twice.
    fn first_entry(&self, setup: &RingSetup) -> Result<u16, String> {
        let &RingSetup { queue, size, addresses, base, .. } = setup;
        let used = SplitRing::new(queue, size, addresses, base, false, self.memory.current())?.next_used();
        if used == base || !(setup.inflight.is_some() || self.device.uses_in_order(queue)) {
            return Ok(base);
        }
        tracing::info!(
            "{}: queue {queue} begins at its used index {used}, not at the base {base} that the front end gives",
            self.vm.control().name
        );
        Ok(used)
    }
}
