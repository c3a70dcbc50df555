//! Messages about rings, and the workers that serve them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;

use zerowire_vhost_user::{Message, Request};

use super::{Answer, Ring, Session, SessionError, protocol, refused, wait};
use crate::daemon::command::{Command, Direction, RingStart};
use crate::daemon::metadata::{MetadataDetour, Service};
use crate::daemon::worker::{WorkerHandle, WorkerSetup};
use crate::ring::RingAddresses;

impl Session<'_> {
    pub(super) fn ring(&mut self, request: Request, index: usize) -> Result<&mut Ring, SessionError> {
        let count = self.rings.len();
        self.rings.get_mut(index).ok_or_else(|| {
            protocol(
                request,
                format!("queue {index} of {count}: give --port tap:NAME,queues=N as many queue pairs as the VMM uses"),
            )
        })
    }

    pub(super) fn set_vring_num(&mut self, message: &Message) -> Result<(), SessionError> {
        let state = message.vring_state()?;
        let ring = self.ring(Request::SetVringNum, state.index as usize)?;
        let size = u16::try_from(state.num).ok().filter(|n| n.is_power_of_two() && *n <= 32768);
        match size {
            None => Err(protocol(
                Request::SetVringNum,
                format!(
                    "queue {}: size {} is not a power of two up to 32768 (virtio 1.3 §2.7)",
                    state.index, state.num
                ),
            )),
            Some(n) if ring.started && n != ring.size => Err(protocol(
                Request::SetVringNum,
                format!("queue {}: size changed from {} to {n} while it runs", state.index, ring.size),
            )),
            Some(n) => {
                ring.size = n;
                Ok(())
            }
        }
    }

    pub(super) fn set_vring_addr(&mut self, message: &Message) -> Result<(), SessionError> {
        let a = message.vring_addr()?;
        let ring = self.ring(Request::SetVringAddr, a.index as usize)?;
        let addresses = RingAddresses { desc: a.desc, avail: a.avail, used: a.used };
        // A front end may send the same again, with another log flag.
        if ring.started && ring.addresses != Some(addresses) {
            let text = format!("queue {}: addresses changed while it runs", a.index);
            return Err(protocol(Request::SetVringAddr, text));
        }
        ring.addresses = Some(addresses);
        Ok(())
    }

    pub(super) fn set_vring_base(&mut self, message: &Message) -> Result<(), SessionError> {
        let state = message.vring_state()?;
        let ring = self.ring(Request::SetVringBase, state.index as usize)?;
        let base = u16::try_from(state.num).map_err(|_| {
            protocol(
                Request::SetVringBase,
                format!("queue {}: base {} is more than 65535", state.index, state.num),
            )
        })?;
        if ring.started {
            let text = format!("queue {}: base set while it runs", state.index);
            return Err(protocol(Request::SetVringBase, text));
        }
        ring.base = base;
        Ok(())
    }

    /// Stops the ring and answers where it has to go on.
    pub(super) fn get_vring_base(&mut self, message: &Message) -> Result<Answer, SessionError> {
        let state = message.vring_state()?;
        let index = state.index as usize;
        self.ring(Request::GetVringBase, index)?;
        let base = self.stop_ring(index);
        let mut body = state.index.to_le_bytes().to_vec();
        body.extend_from_slice(&u32::from(base).to_le_bytes());
        Ok(Answer::Bytes(body))
    }

    pub(super) fn stop_ring(&mut self, index: usize) -> u16 {
        let worker = self.workers.get(index / 2).and_then(Option::as_ref);
        let Some(ring) = self.rings.get_mut(index) else { return 0 };
        if ring.started {
            ring.started = false;
            let direction = Direction::of(index);
            if let Some(Some(base)) =
                worker.and_then(|w| wait(|reply| w.commands.send(Command::Stop { direction, reply })))
            {
                ring.base = base;
            }
            self.attach_queue(index / 2);
        }
        self.rings.get(index).map_or(0, |r| r.base)
    }

    pub(super) fn set_vring_kick(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let request = Request::SetVringKick;
        let v = message.vring_fd()?;
        self.ring(request, v.index)?;
        let Some(kick) = v.fd else {
            return Err(refused(
                request,
                format!(
                    "queue {}: no kick descriptor, so that the ring would have to be polled: not supported",
                    v.index
                ),
            ));
        };
        let direction = Direction::of(v.index);
        if self.rings[v.index].started {
            if let Some(Some(w)) = self.workers.get(v.index / 2) {
                wait(|reply| w.commands.send(Command::Kick { direction, fd: kick, reply }));
            }
            return Ok(());
        }
        let ring = &mut self.rings[v.index];
        let Some(addresses) = ring.addresses else {
            return Err(protocol(request, format!("queue {}: started without SET_VRING_ADDR", v.index)));
        };
        if ring.size == 0 {
            return Err(protocol(request, format!("queue {}: started without SET_VRING_NUM", v.index)));
        }
        let start = RingStart {
            queue: v.index as u16,
            size: ring.size,
            addresses,
            base: ring.base,
            acked: self.acked,
            enabled: ring.enabled,
            discards: ring.discards,
            mtu: self.mtu.unwrap_or_else(|| self.vm.tap.mtu()).max(self.vm.tap.mtu()),
            kick,
            call: duplicate(&ring.call),
            err: duplicate(&ring.err),
        };
        let worker = self.worker(v.index / 2).map_err(|e| refused(request, e.to_string()))?;
        let ring = Box::new(start);
        let commands = worker.commands.clone();
        // The tap's queue takes part before the worker looks at it.
        self.rings[v.index].started = true;
        self.attach_queue(v.index / 2);
        let problem = match wait(|reply| commands.send(Command::Start { direction, ring, reply })) {
            Some(Ok(())) => return Ok(()),
            Some(Err(text)) => text,
            None => format!("queue {}: its thread has ended", v.index),
        };
        self.rings[v.index].started = false;
        self.attach_queue(v.index / 2);
        Err(refused(request, problem))
    }

    /// The worker of a queue pair; started with its first ring.
    pub(super) fn worker(&mut self, pair: usize) -> io::Result<&WorkerHandle> {
        // The service runs in the first pair's worker, so that one comes first.
        if pair > 0 && self.workers[0].is_none() {
            self.start_worker(0)?;
        }
        if self.workers[pair].is_none() {
            self.start_worker(pair)?;
        }
        self.workers[pair].as_ref().ok_or_else(|| io::Error::other("no worker"))
    }

    pub(super) fn start_worker(&mut self, pair: usize) -> io::Result<()> {
        let detour = match (&self.vm.metadata(), pair) {
            (None, _) => None,
            (Some((tree, tokens)), 0) => {
                let service = Service::new(tree.clone(), *tokens).map_err(io::Error::other)?;
                Some(MetadataDetour::Service(Box::new(service)))
            }
            (Some(_), _) => self.workers[0]
                .as_ref()
                .map(|w| MetadataDetour::Forward { to: w.commands.clone(), pending: self.forwarded.clone() }),
        };
        let worker = WorkerHandle::spawn(WorkerSetup {
            name: self.vm.name.clone(),
            pair,
            port_queue: self.vm.tap.queue(pair)?,
            engine: self.vm.engine,
            policy: self.vm.policy,
            memory: self.memory.clone(),
            shared: self.vm.shared.clone(),
            detour,
            forwarded: self.forwarded.clone(),
        })?;
        self.workers[pair] = Some(worker);
        Ok(())
    }

    pub(super) fn set_vring_call(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let v = message.vring_fd()?;
        let ring = self.ring(Request::SetVringCall, v.index)?;
        check_notifier(Request::SetVringCall, v.index, &v.fd)?;
        ring.call = v.fd;
        if ring.started {
            let fd = duplicate(&ring.call);
            self.tell(v.index, |direction, reply| Command::Call { direction, fd, reply });
        }
        Ok(())
    }

    pub(super) fn set_vring_err(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let v = message.vring_fd()?;
        let ring = self.ring(Request::SetVringErr, v.index)?;
        check_notifier(Request::SetVringErr, v.index, &v.fd)?;
        ring.err = v.fd;
        if ring.started {
            let fd = duplicate(&ring.err);
            self.tell(v.index, |direction, reply| Command::Err { direction, fd, reply });
        }
        Ok(())
    }

    /// Gives a worker a command and waits until it was carried out, so that a front end can't pile them up.
    fn tell(&self, index: usize, command: impl FnOnce(Direction, SyncSender<()>) -> Command) {
        if let Some(Some(w)) = self.workers.get(index / 2) {
            wait(|reply| w.commands.send(command(Direction::of(index), reply)));
        }
    }

    /// A queue of the tap takes part while one of its rings is in use: the kernel spreads flows over all queues that are
    /// attached, and nobody would read the others. The first one always takes part.
    pub(super) fn attach_queue(&self, pair: usize) {
        let used = |i: usize| self.rings.get(i).is_some_and(|r| r.started && r.enabled);
        let on = pair == 0 || used(2 * pair) || used(2 * pair + 1);
        if let Err(e) = self.vm.tap.attach_queue(pair, on) {
            tracing::error!("{}: {e}", self.vm.name);
        }
    }

    pub(super) fn set_vring_enable(&mut self, message: &Message) -> Result<(), SessionError> {
        let request = Request::SetVringEnable;
        let state = message.vring_state()?;
        let index = state.index as usize;
        let on = match state.num {
            0 => false,
            1 => true,
            n => return Err(protocol(request, format!("queue {index}: {n} is neither 0 nor 1"))),
        };
        let ring = self.ring(request, index)?;
        ring.enabled = on;
        ring.discards = !on;
        let started = ring.started;
        if on {
            self.attach_queue(index / 2);
        }
        if started && let Some(Some(w)) = self.workers.get(index / 2) {
            let direction = Direction::of(index);
            wait(|reply| w.commands.send(Command::Enable { direction, on, reply }));
        }
        if !on {
            self.attach_queue(index / 2);
        }
        Ok(())
    }
}

/// A descriptor that a worker writes to must neither block it nor keep what is written: only an eventfd will do, in its
/// mode that does not wait. A file, a pipe or a socket has a file type; an eventfd has none (fs/anon_inodes.c).
///
/// Accepted risk: the front end shares the open file and can turn waiting on again. It holds up its own queues then.
fn check_notifier(request: Request, queue: usize, fd: &Option<OwnedFd>) -> Result<(), SessionError> {
    let Some(fd) = fd else { return Ok(()) };
    let failed =
        |e: rustix::io::Errno| refused(request, format!("queue {queue}: its descriptor can't be used: {e}"));
    let mode = rustix::fs::fstat(fd).map_err(failed)?.st_mode;
    if mode & libc::S_IFMT != 0 {
        return Err(protocol(
            request,
            format!("queue {queue}: the descriptor is not an eventfd (file mode {mode:#o})"),
        ));
    }
    let flags = rustix::fs::fcntl_getfl(fd).map_err(failed)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK).map_err(failed)
}

fn duplicate(fd: &Option<OwnedFd>) -> Option<OwnedFd> {
    fd.as_ref().and_then(|fd| fd.try_clone().ok())
}
