//! Errors of the library name what the system said, once.

use std::error::Error;
use std::io;

use zerowire::area::AreaError;
use zerowire::packet::OpenError;
use zerowire::recv::RecvError;
use zerowire::send::frame::FrameError;
use zerowire::send::uring::EngineError;
use zerowire::send::{Payload, Refused, SendError};
use zerowire::xdp::XdpError;
use zerowire_sys::uring::UringProbeError;
use zerowire_testkit::told_once;

fn cause() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

/// What a receiver stands on fails: the number is that of the part.
#[test]
fn errors_of_a_receivers_parts_have_numbers() {
    let cause = |errno| io::Error::from_raw_os_error(errno);
    let errors: [(RecvError, i32); 6] = [
        (AreaError::Map { len: 1, cause: cause(libc::ENOMEM) }.into(), libc::ENOMEM),
        (AreaError::HugePages { pages: 1, free: "0".to_owned() }.into(), libc::ENOMEM),
        (AreaError::Buffers(0).into(), libc::EINVAL),
        (UringProbeError::Missing.into(), libc::EOPNOTSUPP),
        (UringProbeError::Refused("2".to_owned()).into(), libc::EPERM),
        (UringProbeError::Other(cause(libc::EMFILE)).into(), libc::EMFILE),
    ];
    for (error, errno) in errors {
        assert_eq!(error.errno(), Some(errno), "{error}");
    }
}

#[test]
fn no_cause_is_told_twice() {
    let interface = || "eth7".to_owned();
    let send = || SendError::System { call: "socket", cause: cause() };
    let errors: [Box<dyn Error>; 21] = [
        Box::new(AreaError::Map { len: 1, cause: cause() }),
        Box::new(AreaError::File { path: "file".to_owned(), cause: cause() }),
        Box::new(UringProbeError::Other(cause())),
        Box::new(RecvError::from(AreaError::Map { len: 1, cause: cause() })),
        Box::new(RecvError::from(UringProbeError::Other(cause()))),
        Box::new(RecvError::ZeroCopy { message: format!("refused: {}", cause()), cause: cause() }),
        Box::new(RecvError::NotASocket(cause())),
        Box::new(RecvError::System { call: "socket", cause: cause() }),
        Box::new(SendError::Disconnected(cause())),
        Box::new(send()),
        Box::new(Refused { payload: Payload::from(vec![1]), error: send() }),
        Box::new(EngineError::from(UringProbeError::Other(cause()))),
        Box::new(EngineError::Register { len: 1, cause: cause() }),
        Box::new(EngineError::Watch(cause())),
        Box::new(FrameError::System { interface: interface(), call: "send", cause: cause() }),
        Box::new(OpenError::NotPermitted { cause: cause() }),
        Box::new(OpenError::NoInterface { interface: interface(), cause: cause() }),
        Box::new(OpenError::NoRing { v3: cause(), v2: cause() }),
        Box::new(OpenError::Option { option: "PACKET_LOSS", cause: cause() }),
        Box::new(OpenError::System { interface: interface(), call: "bind", cause: cause() }),
        Box::new(XdpError::System { what: "a socket".to_owned(), call: "bind", cause: cause() }),
    ];
    for error in &errors {
        told_once(error.as_ref(), &cause().to_string());
    }
}
