//! A guest's session goes from one server to another and back: its rings go on, its connections do
//! not.

use zerowire_guest::vsock::{ConnState, StackOptions, VsockDriver, VsockOptions, VsockStack};
use zerowire_guest::{VhostUser, VhostUserOptions, protocol};

use crate::support::vsock::{self, VsockBackend};
use crate::support::{PATIENCE, guest_memory, pass_on, wait_until};

#[test]
fn a_vsock_guest_goes_on_with_new_connections() {
    let (first, second) = (VsockBackend::one(), VsockBackend::one());
    let options = VhostUserOptions::default();
    for feature in [0, protocol::INFLIGHT_SHMFD] {
        let options = VhostUserOptions { protocol: options.protocol | feature, ..options };
        let transport = VhostUser::connect_with(first.vhost_path("vm"), PATIENCE, &options);
        let transport = transport.unwrap_or_else(|e| panic!("{e}"));
        let memory = guest_memory();
        let started = VsockDriver::start(transport, &memory, &VsockOptions::default());
        let (driver, queues) = started.unwrap_or_else(|e| panic!("{e}"));
        let stack = VsockStack::new(queues, StackOptions::default());
        let mut guest = vsock::Guest { stack, driver, memory };
        let (old, mut program) = first.open("vm", &mut guest, 1);
        guest.ping(old, &mut program);

        let image = first.server.hand_over("vm").unwrap_or_else(|e| panic!("{e}"));
        assert!(vsock::read_to_end(&mut program).is_empty(), "its connection has ended");
        second.server.take_up("vm", pass_on(image)).unwrap_or_else(|e| panic!("{e}"));
        assert!(guest.driver.transport().is_alive(), "the front end notices nothing");
        let (new, mut program) = second.open("vm", &mut guest, 1);
        guest.ping(new, &mut program);
        // The guest learns of the end when it sends.
        guest.stack.send(old, &[1; 100]).expect("it does not know yet");
        assert_eq!(guest.ended(old), ConnState::Reset);
        assert_eq!(second.stats("vm").connection_errors, 0);

        // And back, for the next round.
        let image = second.server.hand_over("vm").unwrap_or_else(|e| panic!("{e}"));
        first.server.take_up("vm", pass_on(image)).unwrap_or_else(|e| panic!("{e}"));
        let (conn, mut program) = first.open("vm", &mut guest, 2);
        guest.ping(conn, &mut program);
        let vsock::Guest { driver, .. } = guest;
        drop(driver);
        wait_until("the front end has left", || !first.stats("vm").connected);
    }
}
