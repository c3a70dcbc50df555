//! What a front end may write to the control socket: any bytes in any pieces, with descriptors or
//! without. Every message that comes through is decoded by every decoder.
#![no_main]

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use libfuzzer_sys::fuzz_target;
use zerowire_vhost_user::{HEADER_LEN, Header, MAX_BODY, MAX_FDS, Message, MessageSocket};

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let (near, far) = UnixStream::pair().expect("sockets");
    near.set_nonblocking(true).expect("a socket that does not block");
    let mut connection = MessageSocket::new(near);
    let mut sender = MessageSocket::new(far.try_clone().expect("a descriptor"));
    for (i, piece) in rest.chunks(usize::from(*choice) + 1).enumerate().take(64) {
        let fd = far.as_fd();
        let fds = vec![fd; if i % 3 == 0 { usize::from(choice & 15) % (MAX_FDS + 1) } else { 0 }];
        if fds.is_empty() {
            let _ = (&far).write_all(piece);
        } else {
            let _ = sender.send_raw(piece, &fds);
        }
        loop {
            match connection.recv() {
                Ok(Some(m)) => decode(m),
                Ok(None) => return,
                Err(zerowire_vhost_user::WireError::WouldBlock) => break,
                Err(_) => return,
            }
        }
    }
    if let Some(head) = rest.first_chunk::<HEADER_LEN>()
        && let Ok(h) = Header::decode(head)
    {
        assert_eq!(h.encode(), *head);
        assert!(h.size as usize <= MAX_BODY);
    }
});

fn decode(mut m: Message) {
    assert_eq!(m.header().size as usize, m.body().len());
    assert!(m.fd_count() <= MAX_FDS);
    let _ = (m.request(), m.wants_reply(), m.is_reply(), m.empty(), m.u64(), m.vring_state(), m.vring_addr());
    let _ = (m.single_region(), m.config(), m.log_region(), m.inflight(), m.no_fds());
    let before = m.fd_count();
    if let Ok(regions) = m.memory_table() {
        assert_eq!(m.fd_count() + regions.len(), before, "each region has its descriptor");
    }
    let _ = m.vring_fd();
    let _ = m.take_fd();
    m.take_fds();
    assert_eq!(m.fd_count(), 0);
}
