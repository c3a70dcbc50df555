//! Each error's text has its cause in it, for programs that print only that; so its `source()` must not give the cause
//! again. A field `r#source` is none for `thiserror`, one named `source` would be.

mod walk;

use std::error::Error;
use std::io;

use crate::area::AreaError;
use crate::netlink::{ConfigureError, NetlinkError};
use crate::packet::OpenError;
use crate::recv::{ListenerId, RecvError};
use crate::send::frame::FrameError;
use crate::send::uring::EngineError;
use crate::send::{CloseError, Closed, Payload, Refused, SendError};
use crate::uring::UringProbeError;
use crate::xdp::XdpError;

use walk::{told_once, told_once_with};

fn cause() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOBUFS)
}

fn netlink() -> NetlinkError {
    NetlinkError::System { what: "a question", source: cause() }
}

fn interface() -> String {
    "eth7".to_owned()
}

#[test]
fn no_cause_is_told_twice() {
    let errors: [Box<dyn Error>; 32] = [
        Box::new(AreaError::Map { len: 1, source: cause() }),
        Box::new(AreaError::File { path: "file".to_owned(), source: cause() }),
        Box::new(UringProbeError::Other(cause())),
        Box::new(RecvError::from(AreaError::Map { len: 1, source: cause() })),
        Box::new(RecvError::from(UringProbeError::Other(cause()))),
        Box::new(RecvError::ZeroCopy { message: format!("refused: {}", cause()), source: cause() }),
        Box::new(RecvError::NotASocket(cause())),
        Box::new(RecvError::Accept { listener: ListenerId::SOME, source: cause() }),
        Box::new(RecvError::System { call: "socket", source: cause() }),
        Box::new(crate::recv::vsock::Error::System { call: "mmap", errno: rustix::io::Errno::NOBUFS }),
        Box::new(SendError::Disconnected(cause())),
        Box::new(SendError::System { call: "socket", source: cause() }),
        Box::new(Refused {
            payload: Payload::from(vec![1]),
            error: SendError::System { call: "socket", source: cause() },
        }),
        Box::new(CloseError {
            closed: Closed::default(),
            error: SendError::System { call: "socket", source: cause() },
        }),
        Box::new(EngineError::from(UringProbeError::Other(cause()))),
        Box::new(EngineError::Register { len: 1, source: cause() }),
        Box::new(EngineError::Watch(cause())),
        Box::new(FrameError::Refused {
            interface: interface(),
            number: 1,
            slot: 2,
            frame_bytes: 3,
            source: cause(),
        }),
        Box::new(FrameError::System { interface: interface(), call: "send", source: cause() }),
        Box::new(OpenError::NotPermitted { source: cause() }),
        Box::new(OpenError::NoInterface { interface: interface(), source: cause() }),
        Box::new(OpenError::NoMemory { bytes: 1, source: cause() }),
        Box::new(OpenError::NoRing { v3: cause(), v2: cause() }),
        Box::new(OpenError::Option { option: "PACKET_LOSS", source: cause() }),
        Box::new(OpenError::System { interface: interface(), call: "bind", source: cause() }),
        Box::new(XdpError::System { what: "a socket".to_owned(), call: "bind", source: cause() }),
        Box::new(netlink()),
        Box::new(ConfigureError::Refused { interface: interface(), step: "header split", source: netlink() }),
        Box::new(ConfigureError::NotSetBack {
            interface: interface(),
            source: netlink(),
            commands: "ethtool".to_owned(),
        }),
        Box::new(ConfigureError::Interface { interface: interface(), source: netlink() }),
        Box::new(io::Error::from(crate::recv::vsock::Error::System {
            call: "mmap",
            errno: rustix::io::Errno::NOBUFS,
        })),
        Box::new(io::Error::other(RecvError::System { call: "socket", source: cause() })),
    ];
    for error in &errors {
        told_once_with(error.as_ref(), &cause().to_string());
    }
}

#[test]
#[should_panic(expected = "told twice")]
fn a_cause_that_is_told_twice_is_found() {
    #[derive(Debug, thiserror::Error)]
    #[error("twice: {source}")]
    struct Twice {
        source: io::Error,
    }
    told_once(&Twice { source: cause() });
}
