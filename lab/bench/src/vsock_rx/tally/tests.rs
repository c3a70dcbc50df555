use std::cell::Cell;

use super::*;
use crate::vsock_rx::options::{PORT, RxPlace};

#[test]
fn pieces_longer_than_the_buffer_are_copied_out_whole() {
    let options = ClientOptions {
        place: RxPlace::Kernel,
        cid: 2,
        port: PORT,
        mode: ReceiveMode::Mapped,
        pages: 1,
        lowat: 0,
        credit: 0,
        windows: 0,
        copy_out: true,
        check: false,
    };
    let mut tally = Tally::begin(&options).unwrap();
    let long = vec![7; 3 * options.buffer_bytes() + 1];
    tally.look(&long);
    assert_eq!(tally.private.as_ref().unwrap()[..], long);

    let copied = Cell::new(0);
    tally.look_at(long.len() + 1, |_| panic!("it is not read in place"), |to| copied.set(to.len()));
    assert_eq!(copied.get(), long.len() + 1);
    assert_eq!((tally.bytes, tally.direct_bytes), (2 * long.len() as u64 + 1, long.len() as u64 + 1));
}
