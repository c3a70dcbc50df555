//! The interface is promiscuous while there is a socket, so that frames for the guest's address
//! pass a filter in the NIC.

use zerowire_sys::xdp::Interface;

use crate::port::xdp::promiscuous::Promiscuous;

/// Whether the interface should be promiscuous, and is.
#[derive(Debug)]
pub(super) struct Promiscuity {
    wanted: bool,
    held: Option<Promiscuous>,
    /// Why it is not, although it should be.
    problem: Option<&'static str>,
}

impl Promiscuity {
    /// Not yet.
    pub(super) fn new(wanted: bool) -> Self {
        Self { wanted, held: None, problem: None }
    }

    /// Begins with this interface. The port does without where that fails: not each NIC filters,
    /// and the rest of its frames come all the same.
    pub(super) fn begin(&mut self, interface: &Interface) {
        if !self.wanted {
            return;
        }
        match Promiscuous::hold(interface.index()) {
            Ok(held) => (self.held, self.problem) = (Some(held), None),
            Err(e) => {
                // Once, and not with each socket.
                if self.problem.is_none() {
                    let name = interface.name();
                    tracing::warn!(
                        "interface {name} can't be made promiscuous ({e}): if it filters, frames for the guest's address don't \
                         come; grant CAP_NET_RAW and packet sockets (RestrictAddressFamilies=… AF_PACKET in a unit), or \
                         'ip link set {name} promisc on'; promisc=off says that it is not to be"
                    );
                }
                self.problem = Some("; not promiscuous: no packet socket");
            }
        }
    }

    /// Leaves the interface as it was.
    pub(super) fn end(&mut self) {
        self.held = None;
    }

    /// What is wrong, for the statistics.
    pub(super) fn problem(&self) -> &'static str {
        self.problem.unwrap_or_default()
    }
}
