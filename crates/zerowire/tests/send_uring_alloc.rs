//! Sending over io_uring allocates nothing once it is under way.

#[allow(dead_code, unused_imports, reason = "the other tests use all of it")]
#[path = "it/support/sockets.rs"]
mod sockets;

use sockets::udp_pair;
use std::time::Duration;
use zerowire::area::{Area, AreaOptions};
use zerowire::send::uring::{Engine, EngineOptions};
use zerowire::send::{Payload, SendMode, SendOptions, Sender};
use zerowire_testkit::alloc::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn nothing_is_allocated_once_it_is_under_way() {
    let area = Area::new(AreaOptions::default().buffers(64).buffer_bytes(2048)).unwrap();
    let engine =
        Engine::new(&EngineOptions::default(), std::slice::from_ref(&area)).expect("io_uring is needed");
    for mode in [SendMode::ZeroCopy, SendMode::Copy] {
        let (a, b) = udp_pair();
        let mut s = Sender::on(&engine, a.into(), SendOptions::default().mode(mode)).unwrap();
        let mut batch: Vec<Payload> = Vec::with_capacity(16);
        let mut got = [0; 2048];
        let mut round = || {
            for _ in 0..16 {
                s.send(area.lease().expect("a free buffer")).unwrap();
                batch.push(area.lease().expect("a free buffer").into());
            }
            s.send_many(&mut batch).unwrap();
            for _ in 0..32 {
                b.recv(&mut got).unwrap();
            }
            s.wait_all(Duration::from_secs(20)).unwrap();
            while s.next_completion().is_some() {}
        };
        (0..20).for_each(|_| round());
        // The program's first thread notes meanwhile that it has begun this test, which allocates.
        let before = Counting::of_thread();
        (0..100).for_each(|_| round());
        let allocated = Counting::of_thread() - before;
        assert_eq!(allocated, 0, "{mode:?}: allocations in 3200 sends");
    }
}
