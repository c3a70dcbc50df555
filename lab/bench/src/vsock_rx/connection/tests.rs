use std::io::Write;
use std::os::unix::net::UnixStream;

use super::*;
use crate::vsock_rx::options::{PORT, RxPlace};

#[test]
fn every_byte_is_counted_and_the_low_water_mark_is_kept() {
    let (mut writer, reader) = UnixStream::pair().unwrap();
    let sent: Vec<u8> = (0..100_000u32).map(|n| (n * 7) as u8).collect();
    let mut sum = zerowire_guest::vsock::StreamSum::default();
    sum.update(&sent);
    let thread = std::thread::spawn(move || {
        for piece in sent.chunks(1000) {
            writer.write_all(piece).unwrap();
        }
    });
    let options = ClientOptions {
        place: RxPlace::Kernel,
        cid: 2,
        port: PORT,
        mode: ReceiveMode::Copy,
        pages: 2,
        lowat: 8192,
        credit: 0,
        windows: 0,
        copy_out: true,
        check: true,
    };
    let output = receive(&reader, &options).unwrap();
    thread.join().unwrap();
    assert_eq!((output.bytes, output.dequeues), (100_000, 13));
    assert_eq!(output.sum, Some(crate::vsock_rx::output::printed(sum.value())));
    assert_eq!(output.direct_bytes, 0);
}
