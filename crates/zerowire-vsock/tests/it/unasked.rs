//! Guests that never ask for credit, as Linux. The credit that they get unasked must be enough for
//! them to go on.

use std::io::Read;

use crate::support::vsock::{Vm, VsockBackend};
use zerowire_guest::vsock::*;
#[test]
fn streams_without_asking() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).buffer(4096)]);
    let mut guest = backend.guest_with(
        "vm",
        &VsockOptions::default(),
        StackOptions { ask_credit: false, ..StackOptions::default() },
    );
    let (conn, mut stream) = backend.open("vm", &mut guest, 1234);
    let reader = std::thread::spawn(move || {
        let mut b = vec![0; 1000];
        let mut n = 0usize;
        while n < 3_000_000 {
            n += stream.read(&mut b).unwrap();
        }
    });
    for i in 0..1000 {
        guest.send(conn, &vec![i as u8; 3000]);
    }
    reader.join().unwrap();
}

/// A message that is not complete holds credit, so that news of other bytes must not be withheld.
#[test]
fn messages_without_asking() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).buffer(4096)]);
    let mut guest = backend.guest_with(
        "vm",
        &VsockOptions::default(),
        StackOptions { ask_credit: false, ..StackOptions::default() },
    );
    let listener = backend.listen_messages("vm", 1234);
    let conn = guest.connect_to(2, 1234, SocketType::SeqPacket);
    let messages = listener.accept();
    assert!(guest.stack.wait_connected(conn, crate::support::PATIENCE).unwrap());
    let reader = std::thread::spawn(move || {
        for i in 0..500usize {
            assert_eq!(messages.recv().len(), 1 + i * 977 % 4096, "{i}");
        }
        // It stays open for the guest's last message.
        messages
    });
    for i in 0..500usize {
        guest.send(conn, &vec![i as u8; 1 + i * 977 % 4096]);
    }
    guest.stack.flush(crate::support::PATIENCE).unwrap();
    guest.until("all out", |s| s.send_message(conn, &[0], false).unwrap());
    reader.join().unwrap();
}
