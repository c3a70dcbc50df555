//! Requests that reach the device: features, status, memory, the log, rings.

use std::sync::atomic::Ordering;

use zerowire_vhost_user::{Config, Message, Request, WireError, features as f, protocol as p};

use super::memory::MemoryChange;
use super::migration::take_over;
use super::vrings::Kick;
use super::{Answer, Session, SessionError, not_offered, protocol, refused};
use crate::host::RingSetup;
use crate::memory::{GuestMemory, LogError};
use crate::ring::SplitRing;

/// `DEVICE_NEEDS_RESET` (virtio 1.3 §2.1).
const DEVICE_NEEDS_RESET: u64 = 64;

impl Session<'_> {
    pub(super) fn set_features(&mut self, bits: u64) -> Result<(), SessionError> {
        let request = Request::SetFeatures;
        self.check_offered(bits)?;
        if let Some(i) = self.rings.any_started() {
            // Logging goes on and off while rings run.
            if (bits ^ self.driver.acked) & !f::VHOST_LOG_ALL == 0 {
                return self.set_acked(bits);
            }
            return Err(protocol(request, format!("features changed to {bits:#x} while queue {i} runs")));
        }
        self.set_acked(bits)?;
        // Without the bit a front end can't send SET_VRING_ENABLE: rings are enabled from the start
        // (vhost-user, "Ring states"). With it they keep their state: QEMU enables the rings of a
        // device with one queue pair before it sets features.
        if bits & f::VHOST_USER_PROTOCOL_FEATURES == 0 {
            self.rings.enable_all();
        }
        self.device.set_features(bits).map_err(|text| refused(request, text))
    }

    /// Features that a driver acknowledges must have been offered.
    pub(super) fn check_offered(&self, bits: u64) -> Result<(), SessionError> {
        match bits & !self.device.offered() {
            0 => Ok(()),
            unknown => {
                let names = self.device.feature_names(unknown).join(", ");
                Err(protocol(Request::SetFeatures, format!("features {names} were not offered")))
            }
        }
    }

    pub(super) fn set_acked(&mut self, bits: u64) -> Result<(), SessionError> {
        let before = std::mem::replace(&mut self.driver.acked, bits);
        if let Err(e) = self.renew_log() {
            self.driver.acked = before;
            return Err(refused(Request::SetFeatures, e.to_string()));
        }
        if before & !bits & f::VHOST_LOG_ALL != 0 {
            self.migration.end();
        }
        self.vm.control().acked_features.store(bits, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn set_protocol_features(&mut self, bits: u64) -> Result<(), SessionError> {
        let unknown = bits & !self.device.protocol_features();
        if unknown != 0 {
            let text = format!("protocol features {unknown:#x} were not offered");
            return Err(protocol(Request::SetProtocolFeatures, text));
        }
        self.front_end.protocol = bits;
        self.vm.control().protocol_features.store(bits, Ordering::Relaxed);
        Ok(())
    }

    /// A part of configuration space. An error is signalled by an answer without payload
    /// (vhost-user GET_CONFIG).
    pub(super) fn get_config(&mut self, message: &Message) -> Result<Answer, SessionError> {
        let Some(space) = self.device.config() else { return Err(not_offered(Request::GetConfig)) };
        let part = match message.config() {
            Ok(part) => part,
            Err(WireError::BadValue { .. }) => return Ok(Answer::Bytes(Vec::new())),
            Err(e) => return Err(e.into()),
        };
        // The sum is at most MAX_CONFIG.
        let (from, to) = (part.offset as usize, part.offset as usize + part.data.len());
        Ok(Answer::Bytes(match space.get(from..to) {
            Some(data) => Config { data: data.to_vec(), ..part }.encode(),
            None => Vec::new(),
        }))
    }

    pub(super) fn set_config(&mut self, message: &Message) -> Result<(), SessionError> {
        let request = Request::SetConfig;
        if self.device.config().is_none() {
            return Err(not_offered(request));
        }
        message.config()?;
        Err(refused(request, "all of the configuration space is read-only".to_owned()))
    }

    /// With DEVICE_NEEDS_RESET where a ring broke (virtio 1.3 §2.1.2).
    pub(super) fn reported_status(&self) -> u64 {
        if self.device.needs_reset() { self.driver.status | DEVICE_NEEDS_RESET } else { self.driver.status }
    }

    pub(super) fn set_status(&mut self, status: u64) {
        if status == 0 {
            self.stop_all();
            self.device.was_reset();
            self.inflight.clear();
        }
        // The device's own to say.
        self.driver.status = status & 0xff & !DEVICE_NEEDS_RESET;
        self.vm.control().status.store(self.driver.status, Ordering::Relaxed);
    }

    pub(super) fn stop_all(&mut self) {
        for queue in 0..self.rings.count() {
            self.stop_ring(queue as u16);
        }
    }

    /// All rings stop and forget what the front end said of them; the memory stays (vhost-user
    /// RESET_DEVICE).
    pub(super) fn reset_device(&mut self) {
        self.stop_all();
        self.rings.forget();
        self.device.reset(self.memory.current());
        self.driver.acked = 0;
        self.vm.control().acked_features.store(0, Ordering::Relaxed);
        self.migration.end();
        self.memory.replace(self.memory.current().with_log(None));
        self.device.set_log(self.memory.current());
        self.set_status(0);
    }

    /// SET_MEM_TABLE, ADD_MEM_REG, REM_MEM_REG, or the front end's confirmation of the answer.
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
    pub(super) fn replace_memory(
        &mut self,
        request: Request,
        memory: GuestMemory,
    ) -> Result<(), SessionError> {
        let log = self
            .migration
            .log_for(self.driver.acked, &memory, &self.rings)
            .map_err(|e| refused(request, e.to_string()))?;
        let old = self.memory.replace(memory.with_log(log));
        self.device.set_memory(self.memory.current());
        take_over(&old, self.memory.current());
        Ok(())
    }

    /// Another log.
    pub(super) fn set_log_base(&mut self, message: &mut Message) -> Result<Answer, SessionError> {
        let request = Request::SetLogBase;
        if !self.front_end.has(p::LOG_SHMFD) {
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
        let log = self.migration.log_for(self.driver.acked, memory, &self.rings)?;
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
        ring.kick = None;
        if std::mem::take(&mut ring.started)
            && let Some(base) = self.device.stop(queue)
        {
            ring.base = base;
        }
        ring.base
    }

    /// SET_VRING_KICK: starts a ring, or changes the descriptor of one that runs.
    pub(super) fn set_vring_kick(&mut self, message: &mut Message) -> Result<(), SessionError> {
        match self.rings.kick(message, self.driver.acked)? {
            Kick::Replace(queue, kick) => {
                let replaced = self.device.kick(queue, kick.clone());
                replaced.map_err(|text| refused(Request::SetVringKick, text))?;
                if let Some(ring) = self.rings.get_mut(queue) {
                    ring.kick = Some(kick);
                }
                Ok(())
            }
            Kick::Start(setup) => self.start_ring(setup),
        }
    }

    /// Starts a ring that was described but for its marks in an in-flight region.
    pub(super) fn start_ring(&mut self, mut setup: RingSetup) -> Result<(), SessionError> {
        let refuse = |text| refused(Request::SetVringKick, text);
        let (queue, kick) = (setup.queue, setup.kick.clone());
        let marks = !self.device.takes_again(queue);
        if marks && self.vm.watch().is_some() {
            self.inflight.keep_own(queue, self.rings.count(), setup.size);
        }
        setup.inflight = self.inflight.tracker(queue, setup.size, marks);
        if setup.log_at.is_some() {
            // The front end may have set its size after its addresses.
            self.renew_log().map_err(|e| refuse(e.to_string()))?;
        }
        setup.base = self.first_entry(&setup).map_err(refuse)?;
        self.device.start(setup).map_err(refuse)?;
        if let Some(ring) = self.rings.get_mut(queue) {
            (ring.started, ring.kick) = (true, Some(kick));
        }
        Ok(())
    }

    /// Where a ring that starts takes its first available entry.
    ///
    /// A ring that has stopped has nothing in flight: all entries before the used index are used,
    /// and none behind it. So it begins at the used index, whatever base the front end gives. A
    /// cloud-hypervisor that did not stop the ring itself gives the *available* index. With that
    /// base, all buffers that the driver has posted would be skipped. The same holds after a back
    /// end that died, where chains are used in the order in which they became available.
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
