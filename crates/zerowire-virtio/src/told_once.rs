//! No error's text is told twice; see the module of this name in the library.

#[path = "../../zerowire/src/told_once/walk.rs"]
mod walk;

use std::error::Error;
use std::io;

use zerowire::xdp::XdpError;

use crate::daemon::{ListenError, PortError, ServerError};
use crate::memory::{LogError, MemoryError};
use crate::port::{PacketError, TapError};

fn cause() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOBUFS)
}

fn tap() -> TapError {
    TapError::Setup { name: "tap7".to_owned(), what: "TUNSETOFFLOAD", source: cause() }
}

#[test]
fn no_cause_is_told_twice() {
    let (vm, interface) = ("vm7".to_owned(), "eth7".to_owned());
    let bind = || ListenError::Bind { path: "/run/vm7".into(), source: cause() };
    let xdp = XdpError::System { what: "interface eth7".to_owned(), call: "bind", source: cause() };
    let packet = PacketError::System { interface: interface.clone(), call: "bind", source: cause() };
    let errors: [Box<dyn Error>; 14] = [
        Box::new(TapError::Device(cause())),
        Box::new(TapError::Attach { name: "tap7".to_owned(), source: cause(), hint: "do this".to_owned() }),
        Box::new(tap()),
        Box::new(PortError::from(tap())),
        Box::new(PortError::from(xdp)),
        Box::new(PortError::from(packet)),
        Box::new(PacketError::NotPermitted { interface: interface.clone(), source: cause() }),
        Box::new(PacketError::Kernel { interface, header_bytes: 12, source: cause() }),
        Box::new(ServerError::Port { vm: vm.clone(), source: PortError::from(tap()) }),
        Box::new(ServerError::Listen { vm: vm.clone(), source: bind() }),
        Box::new(ServerError::Resources { vm, source: cause() }),
        Box::new(ListenError::BadFd { fd: 7, source: cause() }),
        Box::new(MemoryError::Map { guest_addr: 0, source: cause() }),
        Box::new(LogError::from(cause())),
    ];
    for error in &errors {
        walk::told_once_with(error.as_ref(), &cause().to_string());
    }
}
