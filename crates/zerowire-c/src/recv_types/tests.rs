use super::*;

fn read(set: impl FnOnce(&mut ReceiverOptions)) -> Result<RecvOptions, Failure> {
    let mut from = ReceiverOptions {
        size: size_of::<ReceiverOptions>(),
        backend: 0,
        flags: 0,
        buffer_bytes: 0,
        buffers: 0,
        share: 0,
        depth: 0,
        max_connections: 0,
        completions: 0,
        queue: 0,
        interface: std::ptr::null(),
        gather_us: 0,
        rx_buf_len: 0,
        dmabuf: std::ptr::null(),
    };
    set(&mut from);
    options(&from, None, None)
}

#[test]
fn zero_is_the_default_of_each_field() {
    assert_eq!(read(|_| ()).ok(), Some(RecvOptions::default()));
}

#[test]
fn each_field_means_what_it_says() {
    let options = read(|o| {
        o.gather_us = 250;
        o.rx_buf_len = 32768;
        o.flags = ZW_HUGE_PAGES | ZW_RECV_LAZY_FLUSH | ZW_RECV_MIXED | ZW_RECV_KERNEL_RING;
    });
    let options = options.expect("good options");
    assert_eq!((options.gather, options.pages), (Duration::from_micros(250), Pages::Huge));
    let zcrx = &options.zcrx;
    assert_eq!((zcrx.rx_buf_len, zcrx.flush), (Some(32768), Flush::Lazy));
    assert!(zcrx.mixed && zcrx.kernel_ring);
    for (flag, pages, flush, mixed, kernel_ring) in [
        (ZW_HUGE_PAGES, Pages::Huge, Flush::Eager, false, false),
        (ZW_RECV_LAZY_FLUSH, Pages::Normal, Flush::Lazy, false, false),
        (ZW_RECV_MIXED, Pages::Normal, Flush::Eager, true, false),
        (ZW_RECV_KERNEL_RING, Pages::Normal, Flush::Eager, false, true),
    ] {
        let got = read(|o| o.flags = flag).expect("a good flag");
        let zcrx = &got.zcrx;
        assert_eq!((got.pages, zcrx.flush, zcrx.mixed, zcrx.kernel_ring), (pages, flush, mixed, kernel_ring));
    }
    let nothing = read(|o| o.gather_us = ZW_RECV_GATHER_NOTHING).expect("good options");
    assert_eq!(nothing.gather, Duration::ZERO);
    assert!(read(|o| o.flags = 16).is_err());
}
