//! The port of a VM in the supervisor, which keeps it open and carries out what the child asks of
//! it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use zerowire_capture::{Capture, LINKTYPE_ETHERNET};
use zerowire_net::port::{KeptPort, PortAnswer, PortSpec};
use zerowire_net::{LinkObserver, PortState, VmConfig};
use zerowire_vhost::serve::Listener;

use super::message::ChildOrder;
use super::vm::NetVm;
use crate::sandbox::capture::KeptCapture;
use crate::sandbox::channel::{Channel, SEND_PATIENCE, timespec};
use crate::sandbox::keeper::Keeper;
use crate::sandbox::lock;

/// Stack of the thread, bytes.
const STACK_BYTES: usize = 64 * 1024;

/// A VM's part of a capture, if it is captured.
pub(super) fn captured(capture: Option<&Capture>, vm: &VmConfig) -> Option<KeptCapture> {
    KeptCapture::new(capture, LINKTYPE_ETHERNET, &vm.name, &vm.port.to_string())
}

/// Carries out what a child asks, and tells it.
///
/// # Errors
/// It is gone, or why another child has to take its place.
pub(super) fn answer(
    port: &dyn KeptPort,
    verb: &str,
    fds: Vec<OwnedFd>,
    channel: &Channel,
) -> Result<(), Option<String>> {
    let answer = port.carry_out(verb, &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>());
    // What came along is the child's alone again.
    drop(fds);
    match answer {
        PortAnswer::Done(Ok((answer, fds))) => {
            tell(Ok(answer), &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>(), channel)
        }
        PortAnswer::Done(Err(refused)) => tell(Err(refused), &[], channel),
        PortAnswer::Nothing => return Ok(()),
        PortAnswer::Replace(why) => return Err(Some(why)),
    }
    .map_err(|_| None)
}

/// Has the socket of a VM listen, or refuse connections, and tells the child that asked for it.
///
/// # Errors
/// It is gone.
pub(super) fn listen(listener: &mut Listener, listens: bool, channel: &Channel) -> io::Result<()> {
    let done = if listens { listener.reopen() } else { listener.shut() };
    let socket = listener.socket().filter(|_| done.is_ok());
    tell(done.map(|()| String::new()).map_err(|e| e.to_string()), socket.as_slice(), channel)
}

/// Answers a child that waits for it.
fn tell(done: Result<String, String>, fds: &[BorrowedFd<'_>], channel: &Channel) -> io::Result<()> {
    let sent = channel.send_when_few(&ChildOrder::Done(done), fds, Instant::now() + SEND_PATIENCE);
    sent.or_else(|e| channel.send(&ChildOrder::Done(Err(e.to_string())), &[]))
}

/// What the statistics have of it.
pub(super) fn state(port: &dyn KeptPort, spec: &PortSpec) -> PortState {
    let interface = port.interface();
    let interface_state = port.link_state();
    PortState { interface, interface_state, link: None, kernel_copies: spec.kernel_copies(), capture: None }
}

/// How long until a child that took no order gets it again.
const AGAIN: Duration = Duration::from_secs(1);

/// Has a thread tell the child of a VM what the state of its interface is, as long as the VM is
/// there.
pub(super) fn follow(keeper: &Arc<Keeper<NetVm>>, name: &str, mut observer: LinkObserver) -> io::Result<()> {
    let (gone, there) = io::pipe()?;
    *lock(&keeper.charge.follower) = Some(there.into());
    let keeper = Arc::downgrade(keeper);
    let thread = std::thread::Builder::new().name(format!("{name}-link")).stack_size(STACK_BYTES);
    let name = name.to_owned();
    thread.spawn(move || {
        let mut is_told = true;
        loop {
            // The pipe's other end goes with the VM.
            let mut fds = [PollFd::new(&observer, PollFlags::IN), PollFd::new(&gone, PollFlags::IN)];
            let again = (!is_told).then(|| timespec(AGAIN));
            let _ = poll(&mut fds, again.as_ref());
            let state = observer.look();
            let Some(keeper) = keeper.upgrade() else { return };
            let told = keeper.charge.tell_link(state);
            if let Some(e) = told.as_ref().err().filter(|_| is_told) {
                tracing::warn!("{name}: its process is told of its interface's state later: {e}");
            }
            is_told = told.is_ok();
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use zerowire_net::LinkState;
    use zerowire_net::port::PortText;

    use super::*;

    struct WithoutInterface;

    impl KeptPort for WithoutInterface {
        fn hand(&self) -> Result<PortText, String> {
            Ok((String::new(), Vec::new()))
        }

        fn carry_out(&self, _verb: &str, _fds: &[BorrowedFd<'_>]) -> PortAnswer {
            PortAnswer::Nothing
        }

        fn interface(&self) -> String {
            "none-is-so-named".to_owned()
        }

        fn link_state(&self) -> LinkState {
            LinkState::Up
        }
    }

    #[test]
    fn a_port_has_the_state_that_it_says() {
        let spec: PortSpec = "tap:zwstate".parse().expect("a port");
        assert_eq!(state(&WithoutInterface, &spec).interface_state, LinkState::Up);
    }
}
