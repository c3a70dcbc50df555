//! Messages of post-copy: the guest runs here before its memory has come (vhost-user, PAGEFAULT).
//!
//! ```text
//! front end                                  back end
//! POSTCOPY_ADVISE                 ->         opens a userfaultfd
//!                                 <-         the same descriptor
//! POSTCOPY_LISTEN                 ->
//! SET_MEM_TABLE, or ADD_MEM_REG   ->         maps the regions, and touches nothing
//!                                 <-         the regions, with the addresses that they have here
//! a u64 of 0 (same request)       ->         registers the mappings, and uses them
//! POSTCOPY_END                    ->         every page has come: registers nothing any more
//! ```
//! In between a thread that needs a missing page sleeps until the front end has brought it. That
//! is the worker of the queue pair, or this VM's control thread. When the front end leaves, a
//! thread of this module's own ends these waits: the others may be the ones that sleep.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::retry_on_intr;
use zerowire_vhost_user::{MemoryRegion, Message, MessageSocket, Request, protocol as p};

use super::{Answer, Session, SessionError, not_offered, protocol, refused};
use crate::memory::{GuestMemory, Userfault};

/// A front end that brings pages when they are asked for.
pub(super) struct Postcopy {
    faults: Arc<Userfault>,
    /// POSTCOPY_LISTEN has come: memory that is set from now on has missing pages.
    listening: bool,
    /// Memory whose addresses the front end was told, until it says that it answers faults there.
    told: Option<GuestMemory>,
    end: Arc<OwnedFd>,
    watch: Option<std::thread::JoinHandle<()>>,
}

impl Postcopy {
    fn start(name: &str, connection: &MessageSocket) -> std::io::Result<Self> {
        let (faults, stream) = (Arc::new(Userfault::open()?), connection.stream().try_clone()?);
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (for_thread, told_to_end) = (faults.clone(), end.clone());
        let watch = std::thread::Builder::new().name(format!("{name}-page")).stack_size(64 << 10).spawn(
            move || {
                let mut fds =
                    [PollFd::new(&stream, PollFlags::RDHUP), PollFd::new(&told_to_end, PollFlags::IN)];
                // Whatever else fails ends the waits, too.
                let _ = retry_on_intr(|| poll(&mut fds, None));
                for_thread.release();
            },
        )?;
        Ok(Self { faults, listening: false, told: None, end, watch: Some(watch) })
    }
}

impl Drop for Postcopy {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

impl Session<'_> {
    /// Opens a userfaultfd, and gives it to the front end.
    pub(super) fn postcopy_advise(
        &mut self,
        message: &Message,
        connection: &MessageSocket,
    ) -> Result<Answer, SessionError> {
        let request = Request::PostcopyAdvise;
        message.empty()?;
        if self.protocol & p::PAGEFAULT == 0 {
            return Err(not_offered(request));
        }
        let failed = |e: std::io::Error| {
            let remedy = "it needs CAP_SYS_PTRACE, or the right to open /dev/userfaultfd";
            refused(request, format!("no userfaultfd: {e}; {remedy}"))
        };
        let postcopy = Postcopy::start(&self.vm.control().name, connection).map_err(failed)?;
        let fd = postcopy.faults.descriptor().map_err(failed)?;
        self.postcopy = Some(postcopy);
        Ok(Answer::WithFile(Vec::new(), Some(fd)))
    }

    /// Memory that is set from now on has missing pages.
    pub(super) fn postcopy_listen(&mut self, message: &Message) -> Result<(), SessionError> {
        let request = Request::PostcopyListen;
        message.empty()?;
        if self.memory.end() != 0 {
            let text = "memory was set before it: what was mapped then can't be waited for".to_owned();
            return Err(protocol(request, text));
        }
        let Some(postcopy) = &mut self.postcopy else {
            return Err(protocol(request, "without POSTCOPY_ADVISE".to_owned()));
        };
        postcopy.listening = true;
        let name = &self.vm.control().name;
        tracing::info!("{name}: post-copy: the guest's memory comes as it is needed");
        Ok(())
    }

    /// Every page has come.
    pub(super) fn postcopy_end(&mut self, message: &Message) -> Result<(), SessionError> {
        message.empty()?;
        if self.postcopy.take().is_none() {
            return Err(protocol(Request::PostcopyEnd, "without POSTCOPY_ADVISE".to_owned()));
        }
        tracing::info!("{}: post-copy has ended: all memory is there", self.vm.control().name);
        Ok(())
    }

    pub(super) fn listening(&self) -> Option<&Postcopy> {
        self.postcopy.as_ref().filter(|p| p.listening)
    }

    /// The memory that a region is added to, or taken from.
    pub(super) fn latest_memory(&self) -> &GuestMemory {
        self.listening().and_then(|p| p.told.as_ref()).unwrap_or(&self.memory)
    }

    /// Whether the message is the front end's word that it answers faults.
    pub(super) fn is_confirmation(&self, message: &Message) -> bool {
        self.listening().is_some() && message.body().len() == 8
    }

    /// The front end answers faults at the addresses that it was told: uses the memory.
    pub(super) fn confirm_memory(&mut self, request: Request, message: &Message) -> Result<(), SessionError> {
        let code = message.u64()?;
        if code != 0 {
            return Err(protocol(request, format!("code {code}: the front end can't bring missing pages")));
        }
        let Some(postcopy) = &mut self.postcopy else { return Ok(()) };
        let Some(memory) = postcopy.told.take() else { return Ok(()) };
        postcopy.faults.register(&memory).map_err(|e| {
            refused(request, format!("missing pages of guest memory can't be waited for: {e}"))
        })?;
        self.replace_memory(request, memory)
    }

    /// Uses `memory`, or keeps it until the front end answers faults there. Returns whether it
    /// keeps it.
    pub(super) fn keep_or_use(
        &mut self,
        request: Request,
        memory: GuestMemory,
    ) -> Result<bool, SessionError> {
        match self.postcopy.as_mut().filter(|p| p.listening) {
            Some(postcopy) => {
                postcopy.told = Some(memory);
                Ok(true)
            }
            None => self.replace_memory(request, memory).map(|()| false),
        }
    }

    /// `region` with the address that it has in this process.
    pub(super) fn with_own_address(&self, region: MemoryRegion) -> MemoryRegion {
        let at = self.latest_memory().contiguous(region.guest_addr, 1, &mut 0);
        MemoryRegion { user_addr: at.map_or(0, |at| at.addr() as u64), ..region }
    }
}
