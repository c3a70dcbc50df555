//! What arrived is given although something failed behind it. The descriptors of the process run
//! out.

use crate::support::streams::{ALL, LONG, Reader, pattern, receiver, tcp_pair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use zerowire::recv::{RecvBackend, RecvError, What};
use zerowire_testkit::own_process;
use zerowire_testkit::refuse::{Argument, refuse_if};

const LEN: usize = 100_000;

/// The descriptors that the next two calls get.
fn next_descriptors() -> [u32; 2] {
    let open = || File::open("/dev/null").unwrap();
    let all = [open(), open()];
    all.each_ref().map(|file| file.as_raw_fd() as u32)
}

/// Waits until `connections` connections can be accepted at once.
fn wait_for_backlog(listener: &TcpListener, connections: u32) {
    let end = Instant::now() + LONG;
    loop {
        // SAFETY: all zeros is a value of this structure of integers.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&info) as libc::socklen_t;
        // SAFETY: both pointers are valid for writes, and len is the length of info.
        let r = unsafe {
            let to = (&raw mut info).cast();
            libc::getsockopt(listener.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut len)
        };
        assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
        // Of a listening socket this is the length of its backlog.
        if info.tcpi_unacked == connections {
            return;
        }
        assert!(Instant::now() < end, "{} of {connections} connections", info.tcpi_unacked);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Two connections come at once. The kernel refuses to watch the second one.
fn a_connection_that_can_not_be_added() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut r = receiver(RecvBackend::Plain, |_| {});
    let id = r.listen(listener.try_clone().unwrap().into()).unwrap();
    let mut far = [(); 2].map(|()| TcpStream::connect(address).unwrap());
    wait_for_backlog(&listener, 2);
    refuse_if(libc::SYS_epoll_ctl, 2, Argument::Is(next_descriptors()[1]), libc::EPERM);
    let mut batch = Vec::new();
    assert_eq!(r.recv(&mut batch, Some(LONG)).unwrap(), 1);
    assert!(matches!(batch[0].what, What::Accepted(from) if from == id), "{batch:?}");
    let e = r.recv(&mut batch, Some(LONG)).unwrap_err();
    assert!(matches!(e, RecvError::System { call: "epoll_ctl", .. }), "{e}");
    assert_eq!((e.errno(), batch.len(), r.connections()), (Some(libc::EPERM), 1, 1));
    // The first one works, the second one was closed.
    let mut reader = Reader::default();
    reader.expect(batch[0].connection, 0);
    far[0].write_all(&pattern(0, 0, LEN)).unwrap();
    reader.until(&mut r, |x| x.bytes() == LEN);
    far[1].set_read_timeout(Some(LONG)).unwrap();
    let end = far[1].read(&mut [0]).map_err(|e| e.raw_os_error());
    assert!(matches!(end, Ok(0) | Err(Some(libc::ECONNRESET))), "{end:?}");
}

/// No descriptor is free for a connection that waits, while data comes on another one.
fn accepting_without_descriptors(backend: RecvBackend) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut r = receiver(backend, |_| {});
    let (mut a, b) = tcp_pair();
    let mut reader = Reader::default();
    reader.expect(r.add(b.into()).unwrap(), 0);
    let id = r.listen(listener.try_clone().unwrap().into()).unwrap();
    let mut far = TcpStream::connect(address).unwrap();
    wait_for_backlog(&listener, 1);
    let usual = getrlimit(Resource::Nofile);
    let none = Rlimit { current: Some(next_descriptors()[0].into()), ..usual };
    setrlimit(Resource::Nofile, none).unwrap();
    assert_eq!(File::open("/dev/null").unwrap_err().raw_os_error(), Some(libc::EMFILE));
    let half = LEN / 2;
    for part in [0, half] {
        a.write_all(&pattern(0, part, half)).unwrap();
        reader.until(&mut r, |x| x.bytes() == part + half);
    }
    assert_eq!((r.events().accepted, r.connections()), (0, 1));
    setrlimit(Resource::Nofile, usual).unwrap();
    let end = Instant::now() + LONG;
    while reader.batch.is_empty() {
        assert!(Instant::now() < end, "hangs: {:?}", r.events());
        r.recv(&mut reader.batch, Some(LONG)).unwrap();
    }
    assert!(matches!(reader.batch[0].what, What::Accepted(from) if from == id), "{:?}", reader.batch);
    let new = reader.batch.remove(0).connection;
    reader.expect(new, 1);
    reader.check(0);
    far.write_all(&pattern(1, 0, 1)).unwrap();
    drop((a, far));
    reader.until(&mut r, Reader::all_ended);
    assert_eq!(reader.bytes(), LEN + 1);
}

/// Descriptors for two of four connections that wait. Both are given, and the others come when the
/// program has closed these.
fn descriptors_for_some_connections(backend: RecvBackend) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut r = receiver(backend, |_| {});
    let far = [(); 4].map(|()| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    wait_for_backlog(&listener, 4);
    r.listen(listener.into()).unwrap();
    let usual = getrlimit(Resource::Nofile);
    let two = u64::from(next_descriptors()[1]) + 1;
    setrlimit(Resource::Nofile, Rlimit { current: Some(two), ..usual }).unwrap();
    let (mut batch, end) = (Vec::new(), Instant::now() + LONG);
    for accepted in [2, 4] {
        while r.events().accepted < accepted || batch.len() < 2 {
            assert!(Instant::now() < end, "hangs: {:?}", r.events());
            r.recv(&mut batch, Some(Duration::from_millis(200))).unwrap();
        }
        assert_eq!((r.connections(), r.events().accepted), (2, accepted), "{batch:?}");
        for arrival in batch.drain(..) {
            assert!(matches!(arrival.what, What::Accepted(_)), "{arrival:?}");
            drop(r.remove(arrival.connection).unwrap());
        }
    }
    setrlimit(Resource::Nofile, usual).unwrap();
    drop(far);
}

#[test]
fn arrivals_are_given_before_the_error_behind_them() {
    own_process!();
    for backend in ALL {
        accepting_without_descriptors(backend.clone());
        descriptors_for_some_connections(backend);
    }
    // The last one: this thread's calls are refused from then on.
    a_connection_that_can_not_be_added();
}
