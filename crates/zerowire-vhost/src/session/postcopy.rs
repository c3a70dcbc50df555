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
use zerowire_vhost_user::{Message, MessageSocket, Request};

use super::memory::MemoryChange;
use super::{Answer, SessionError, protocol, refused};
use crate::memory::{GuestMemory, Userfault};

/// A front end that brings pages on request.
struct PageSource {
    faults: Arc<Userfault>,
    /// POSTCOPY_LISTEN has come: memory that is set from now on has missing pages.
    listening: bool,
    /// Memory whose addresses the front end has, until it says that it answers faults there.
    kept: Option<GuestMemory>,
    end: Arc<OwnedFd>,
    watch: Option<std::thread::JoinHandle<()>>,
}

impl PageSource {
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
        Ok(Self { faults, listening: false, kept: None, end, watch: Some(watch) })
    }
}

impl Drop for PageSource {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

/// Whether the front end brings pages, and which memory waits for its word.
#[derive(Default)]
pub(super) struct Postcopy {
    /// From POSTCOPY_ADVISE to POSTCOPY_END.
    source: Option<PageSource>,
}

impl Postcopy {
    /// POSTCOPY_ADVISE: opens a userfaultfd, and gives it to the front end of the VM `name`.
    pub(super) fn advise(&mut self, connection: &MessageSocket, name: &str) -> Result<Answer, SessionError> {
        let failed = |e: std::io::Error| {
            let remedy = "it needs CAP_SYS_PTRACE, or the right to open /dev/userfaultfd";
            refused(Request::PostcopyAdvise, format!("no userfaultfd: {e}; {remedy}"))
        };
        let source = PageSource::start(name, connection).map_err(failed)?;
        let fd = source.faults.descriptor().map_err(failed)?;
        self.source = Some(source);
        Ok(Answer::WithFile(Vec::new(), Some(Arc::new(fd))))
    }

    /// POSTCOPY_LISTEN: memory that is set from now on has missing pages; `memory` was set before.
    pub(super) fn listen(
        &mut self,
        message: &Message,
        memory: &GuestMemory,
        name: &str,
    ) -> Result<(), SessionError> {
        let request = Request::PostcopyListen;
        message.empty()?;
        if memory.end() != 0 {
            let text = "memory was set before it: what was mapped then can't be waited for".to_owned();
            return Err(protocol(request, text));
        }
        let Some(source) = &mut self.source else {
            return Err(protocol(request, "without POSTCOPY_ADVISE".to_owned()));
        };
        source.listening = true;
        tracing::info!("{name}: post-copy: the guest's memory comes as it is needed");
        Ok(())
    }

    /// POSTCOPY_END: every page has come.
    pub(super) fn end(&mut self, message: &Message, name: &str) -> Result<(), SessionError> {
        message.empty()?;
        if self.source.take().is_none() {
            return Err(protocol(Request::PostcopyEnd, "without POSTCOPY_ADVISE".to_owned()));
        }
        tracing::info!("{name}: post-copy has ended: all memory is there");
        Ok(())
    }

    /// Whether the front end brings pages, or may come to.
    pub(super) fn is_advised(&self) -> bool {
        self.source.is_some()
    }

    /// Whether memory that is set now has missing pages.
    pub(super) fn is_listening(&self) -> bool {
        self.source.as_ref().is_some_and(|s| s.listening)
    }

    /// Memory that waits until the front end answers faults there.
    pub(super) fn kept(&self) -> Option<&GuestMemory> {
        self.source.as_ref()?.kept.as_ref()
    }

    /// Keeps `memory` until the front end answers faults there. Returns it where its pages are not
    /// missing.
    pub(super) fn keep(&mut self, memory: GuestMemory) -> Option<GuestMemory> {
        match self.source.as_mut().filter(|s| s.listening) {
            Some(source) => {
                source.kept = Some(memory);
                None
            }
            None => Some(memory),
        }
    }

    /// Whether the message is the front end's word that it answers faults.
    pub(super) fn is_confirmation(&self, message: &Message) -> bool {
        self.is_listening() && message.body().len() == 8
    }

    /// The front end answers faults at the addresses that it got.
    pub(super) fn confirm(
        &mut self,
        request: Request,
        message: &Message,
    ) -> Result<MemoryChange, SessionError> {
        let code = message.u64()?;
        if code != 0 {
            return Err(protocol(request, format!("code {code}: the front end can't bring missing pages")));
        }
        let Some(source) = &mut self.source else { return Ok(MemoryChange::None) };
        let Some(memory) = source.kept.take() else { return Ok(MemoryChange::None) };
        source.faults.register(&memory).map_err(|e| {
            refused(request, format!("missing pages of guest memory can't be waited for: {e}"))
        })?;
        Ok(MemoryChange::Use(memory))
    }
}
