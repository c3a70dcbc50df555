//! Errors of servers name what the system said, once.

use std::error::Error;
use std::io;

use zerowire_net::ServerError;
use zerowire_net::port::PortError;
use zerowire_net::port::packet::PacketError;
use zerowire_net::port::tap::TapError;
use zerowire_sys::xdp::XdpError;
use zerowire_testkit::told_once;
use zerowire_vhost::memory::{LogError, MemoryError, NotMemory};
use zerowire_vhost::serve::{ListenError, StartError};
use zerowire_vhost::session::{ImageError, SessionError};
use zerowire_vhost_user::WireError;

fn cause() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

fn tap() -> TapError {
    TapError::Setup { name: "tap7".to_owned(), what: "dup", cause: cause() }
}

#[test]
fn no_cause_is_told_twice() {
    let (vm, interface) = ("vm7".to_owned(), "eth7".to_owned());
    let listen = || ListenError::Bind { path: "/run/vm7".into(), cause: cause() };
    let start = || StartError::Listen { vm: "vm7".to_owned(), cause: listen() };
    let xdp = XdpError::System { what: "interface eth7".to_owned(), call: "bind", cause: cause() };
    let packet = || PacketError::System { interface: "eth7".to_owned(), call: "bind", cause: cause() };
    let errors: [Box<dyn Error>; 18] = [
        Box::new(TapError::Device(cause())),
        Box::new(TapError::Attach { name: "tap7".to_owned(), cause: cause(), hint: "do this".to_owned() }),
        Box::new(tap()),
        Box::new(PortError::from(tap())),
        Box::new(PortError::from(xdp)),
        Box::new(PortError::from(packet())),
        Box::new(PacketError::NotPermitted { interface: interface.clone(), cause: cause() }),
        Box::new(PacketError::Kernel { interface, header_bytes: 12, cause: cause() }),
        Box::new(ServerError::Port { vm: vm.clone(), cause: PortError::from(packet()) }),
        Box::new(ServerError::from(start())),
        Box::new(StartError::Resources { vm, cause: cause() }),
        Box::new(listen()),
        Box::new(ListenError::BadFd { fd: 7, cause: cause() }),
        Box::new(MemoryError::Map { guest_addr: 0, cause: cause() }),
        Box::new(LogError::from(cause())),
        Box::new(ImageError::System { what: "send", cause: cause() }),
        Box::new(SessionError::from(WireError::Io(cause()))),
        Box::new(WireError::Io(cause())),
    ];
    for error in &errors {
        told_once(error.as_ref(), &cause().to_string());
    }
    told_once(&LogError::from(NotMemory), &NotMemory.to_string());
    let syntax = || serde_json::from_str::<u32>("?").expect_err("no JSON");
    told_once(&ImageError::from(syntax()), &syntax().to_string());
}
