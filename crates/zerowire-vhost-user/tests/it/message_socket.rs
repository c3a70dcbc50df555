//! Messages over a socket pair: whole, in pieces, with descriptors, broken.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;

use zerowire_vhost_user::*;

fn pair() -> (MessageSocket, MessageSocket) {
    let (a, b) = UnixStream::pair().unwrap();
    (MessageSocket::new(a), MessageSocket::new(b))
}

/// A pipe whose read end tells when every write end is closed. These tests see leaked descriptors
/// by it, without a look at the whole process.
fn pipe() -> (File, OwnedFd) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    (File::from(read), write)
}

fn assert_all_closed(mut read: File) {
    use std::io::Read;
    let mut rest = Vec::new();
    rustix::fs::fcntl_setfl(&read, rustix::fs::OFlags::NONBLOCK).unwrap();
    read.read_to_end(&mut rest).expect("a write end is still open");
}

#[test]
fn a_message_arrives_whole_with_its_descriptors() {
    let (mut a, mut b) = pair();
    let (read, write) = pipe();
    let state = VringState { index: 2, num: 1 };
    a.send_request(Request::SetVringEnable, true, &state.encode(), &[]).unwrap();
    a.send_request(Request::SetVringKick, false, &2u64.to_ne_bytes(), &[write.as_fd()]).unwrap();
    drop(write);

    let message = b.recv().unwrap().unwrap();
    assert_eq!(message.request().unwrap(), Request::SetVringEnable);
    assert!(message.wants_reply() && !message.is_reply());
    assert_eq!(message.vring_state().unwrap(), state);
    message.no_fds().unwrap();

    let mut message = b.recv().unwrap().unwrap();
    assert!(!message.wants_reply());
    let kick = message.vring_fd().unwrap();
    assert_eq!(kick.index, 2);
    let fd = kick.fd.unwrap();
    let flags = rustix::io::fcntl_getfd(&fd).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    drop(fd);
    assert_all_closed(read);
}

#[test]
fn requests_and_acknowledgements() {
    let (mut a, mut b) = pair();
    for (code, accepted) in [(0u64, true), (5, false)] {
        a.send_request(Request::NetSetMtu, true, &1500u64.to_ne_bytes(), &[]).unwrap();
        let message = b.recv().unwrap().unwrap();
        assert_eq!(message.u64().unwrap(), 1500);
        b.send_reply(&message, &code.to_ne_bytes(), &[]).unwrap();
        let ack = a.recv_ack(Request::NetSetMtu);
        match ack {
            Ok(()) => assert!(accepted),
            Err(WireError::Refused { code: 5, .. }) => assert!(!accepted),
            Err(other) => panic!("{other}"),
        }
    }
    // An answer to something else is refused.
    a.send_request(Request::GetFeatures, false, &[], &[]).unwrap();
    let message = b.recv().unwrap().unwrap();
    b.send_reply(&message, &[0; 8], &[]).unwrap();
    assert!(matches!(a.recv_reply(Request::GetQueueNum), Err(WireError::UnexpectedReply { .. })));
}

#[test]
fn pieces_are_put_together_and_nothing_is_lost_while_waiting() {
    let (a, b) = UnixStream::pair().unwrap();
    b.set_nonblocking(true).unwrap();
    let mut b = MessageSocket::new(b);
    let mut a = MessageSocket::new(a);
    let (read, write) = pipe();
    let header = Header { request: 12, flags: VERSION, size: 8 }.encode();
    let bytes = [header.as_slice(), 7u64.to_ne_bytes().as_slice()].concat();
    for (at, byte) in bytes.iter().enumerate() {
        assert!(matches!(b.recv(), Err(WireError::WouldBlock)), "byte {at}");
        let fds: &[BorrowedFd] = if at == 0 { &[write.as_fd()] } else { &[] };
        a.send_raw(&[*byte], fds).unwrap();
    }
    drop(write);
    let mut message = b.recv().unwrap().unwrap();
    assert_eq!(message.fd_count(), 1);
    assert_eq!(message.vring_fd().unwrap().index, 7);
    assert_all_closed(read);
}

#[test]
fn the_end_of_the_stream_is_told_from_a_cut_message() {
    let header = Header { request: 1, flags: VERSION, size: 8 }.encode();
    let bytes = [header.as_slice(), &[0; 8]].concat();
    for cut in 0..bytes.len() {
        let (mut a, mut b) = pair();
        let (read, write) = pipe();
        if cut > 0 {
            a.send_raw(&bytes[..cut], &[write.as_fd()]).unwrap();
        }
        drop((a, write));
        match b.recv() {
            Ok(None) => assert_eq!(cut, 0),
            Err(WireError::CutOff { got, .. }) => assert_eq!(got, cut),
            other => panic!("cut at {cut}: {other:?}"),
        }
        // The connection itself still lives: only its error path may have closed.
        assert_all_closed(read);
    }
}

#[test]
fn too_many_descriptors_are_all_closed() {
    for count in [MAX_FDS + 1, MAX_FDS + 2, 30] {
        let (mut a, mut b) = pair();
        let (read, write) = pipe();
        let fds = vec![write.as_fd(); count];
        a.send_request(Request::SetMemTable, false, &[0; 8], &fds).unwrap();
        drop(fds);
        drop(write);
        assert!(matches!(b.recv(), Err(WireError::TooManyFds)), "{count}");
        assert_all_closed(read);
    }
    // Spread over header and payload they are too many as well.
    let (mut a, mut b) = pair();
    let (read, write) = pipe();
    let header = Header { request: 5, flags: VERSION, size: 8 }.encode();
    a.send_raw(&header, &[write.as_fd(); 5]).unwrap();
    a.send_raw(&[0; 8], &[write.as_fd(); 5]).unwrap();
    drop(write);
    assert!(matches!(b.recv(), Err(WireError::TooManyFds)));
    assert_all_closed(read);
}

#[test]
fn eight_descriptors_fit_and_stay_in_order() {
    let (mut a, mut b) = pair();
    let files: Vec<OwnedFd> = (0..MAX_FDS)
        .map(|i| {
            let fd = rustix::fs::memfd_create("region", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&fd, 4096 * (i as u64 + 1)).unwrap();
            fd
        })
        .collect();
    let regions = (0..MAX_FDS as u64)
        .map(|i| MemoryRegion {
            guest_addr: i << 20,
            size: 4096 * (i + 1),
            user_addr: i << 20,
            mmap_offset: 0,
        })
        .collect();
    let fds: Vec<BorrowedFd> = files.iter().map(|f| f.as_fd()).collect();
    let table = MemoryTable { regions };
    a.send_request(Request::SetMemTable, false, &table.encode(), &fds).unwrap();
    let mut message = b.recv().unwrap().unwrap();
    for (region, fd) in message.memory_table().unwrap() {
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_size as u64, region.size);
        assert!(files.iter().all(|f| f.as_raw_fd() != fd.as_raw_fd()));
    }
}

#[test]
fn descriptors_must_match_the_payload() {
    let (mut a, mut b) = pair();
    let (read, write) = pipe();
    let w = write.as_fd();
    let one =
        MemoryTable { regions: vec![MemoryRegion { guest_addr: 0, size: 1, user_addr: 0, mmap_offset: 0 }] };
    for fds in [&[][..], &[w, w]] {
        a.send_request(Request::SetMemTable, false, &one.encode(), fds).unwrap();
        let mut message = b.recv().unwrap().unwrap();
        assert!(matches!(message.memory_table(), Err(WireError::BadFdCount { .. })));
    }
    for (value, fds) in [(0u64, &[][..]), (0, &[w, w]), (0x100, &[w])] {
        a.send_request(Request::SetVringCall, false, &value.to_ne_bytes(), fds).unwrap();
        let mut message = b.recv().unwrap().unwrap();
        assert!(matches!(message.vring_fd(), Err(WireError::BadFdCount { .. })), "{value:#x}");
    }
    for value in [0x200u64, u64::MAX] {
        a.send_request(Request::SetVringCall, false, &value.to_ne_bytes(), &[w]).unwrap();
        let mut message = b.recv().unwrap().unwrap();
        assert!(matches!(message.vring_fd(), Err(WireError::BadValue { .. })), "{value:#x}");
    }
    a.send_request(Request::SetVringCall, false, &0x103u64.to_ne_bytes(), &[]).unwrap();
    let call = b.recv().unwrap().unwrap().vring_fd().unwrap();
    assert!(call.index == 3 && call.fd.is_none());
    drop(write);
    assert_all_closed(read);
}

#[test]
fn a_size_beyond_the_limit_takes_no_memory_and_ends_it() {
    let (mut a, mut b) = pair();
    let header = Header { request: 24, flags: VERSION, size: u32::MAX }.encode();
    a.send_raw(&header, &[]).unwrap();
    assert!(matches!(b.recv(), Err(WireError::TooLong { .. })));
    assert!(matches!(a.send(1, VERSION, &vec![0; MAX_BODY + 1], &[]), Err(WireError::TooLong { .. })));
}

#[test]
fn the_longest_message_goes_through_a_full_socket() {
    let (mut a, b) = pair();
    a.stream().set_nonblocking(true).unwrap();
    let reader = thread::spawn(move || {
        let mut b = b;
        let mut count = 0;
        while let Some(message) = b.recv().unwrap() {
            assert_eq!(message.body().len(), MAX_BODY);
            count += 1;
        }
        count
    });
    let body = vec![7; MAX_BODY];
    for _ in 0..500 {
        a.send(25, VERSION, &body, &[]).unwrap();
    }
    drop(a);
    assert_eq!(reader.join().unwrap(), 500);
}

#[test]
fn unknown_numbers_arrive_and_are_named() {
    let (mut a, mut b) = pair();
    a.send(77, VERSION, &[1, 2, 3], &[]).unwrap();
    let message = b.recv().unwrap().unwrap();
    let error = message.request().unwrap_err().to_string();
    assert!(error.contains("77"), "{error}");
    assert!(matches!(message.u64(), Err(WireError::BadSize { got: 3, .. })));
}

#[test]
fn a_closed_peer_is_an_error_not_a_signal() {
    let (mut a, b) = pair();
    drop(b);
    assert!(matches!(a.send_request(Request::SetOwner, false, &[], &[]), Err(WireError::Io(_))));
    let (a, mut b) = UnixStream::pair().unwrap();
    b.write_all(&[1]).unwrap();
    drop(a);
    // A reset before any byte of a message counts as a closed socket.
    assert!(MessageSocket::new(b).recv().unwrap().is_none());
}

/// What one reader got of a message goes to the next one, which gets the rest.
#[test]
fn a_message_that_was_begun_elsewhere_is_finished() {
    let header = Header { request: Request::SetVringKick.number(), flags: VERSION, size: 8 };
    let bytes = [&header.encode()[..], &3u64.to_ne_bytes()].concat();
    for cut in 0..bytes.len() {
        let (mut a, mut b) = pair();
        b.stream().set_nonblocking(true).unwrap();
        let (read, write) = pipe();
        if cut > 0 {
            a.send_raw(&bytes[..cut], &[write.as_fd()]).unwrap();
        }
        assert!(matches!(b.recv(), Err(WireError::WouldBlock)));
        let (got, fds) = b.unfinished();
        assert_eq!((got.as_slice(), fds.len()), (&bytes[..cut], usize::from(cut > 0)));
        let fds = fds.iter().map(|fd| fd.try_clone().unwrap()).collect();
        let mut next = MessageSocket::resume(b.stream().try_clone().unwrap(), &got, fds).unwrap();
        drop(b);
        let with: &[BorrowedFd<'_>] = if cut > 0 { &[] } else { &[write.as_fd()] };
        a.send_raw(&bytes[cut..], with).unwrap();
        drop(write);
        let mut message = next.recv().unwrap().unwrap();
        let kick = message.vring_fd().unwrap();
        assert!(kick.index == 3 && kick.fd.is_some());
        drop(kick);
        assert_all_closed(read);
        assert_eq!(next.unfinished().0, []);
        // The next message is read from its beginning.
        a.send_request(Request::GetFeatures, false, &[], &[]).unwrap();
        assert_eq!(next.recv().unwrap().unwrap().request().unwrap(), Request::GetFeatures);
    }
}

#[test]
fn a_beginning_that_no_message_has_is_refused() {
    let stream = || UnixStream::pair().unwrap().0;
    let header = Header { request: 1, flags: VERSION, size: 2 };
    let bytes = [&header.encode()[..], &[0; 3]].concat();
    assert!(matches!(MessageSocket::resume(stream(), &bytes, vec![]), Err(WireError::BadSize { .. })));
    assert!(MessageSocket::resume(stream(), &bytes[..14], vec![]).is_ok());
    let bad = Header { request: 1, flags: 0, size: 0 }.encode();
    assert!(matches!(MessageSocket::resume(stream(), &bad, vec![]), Err(WireError::BadVersion { .. })));
    let fds = (0..=MAX_FDS).map(|_| OwnedFd::from(stream())).collect();
    assert!(matches!(MessageSocket::resume(stream(), &[], fds), Err(WireError::TooManyFds)));
}
