//! Zero-copy receive where it is refused: each reason is named, with what to do. What it does where
//! it works is tested in a guest (lab/vm, `zcrx`).

use zerowire::area::AreaOptions;
use zerowire::recv::{Dmabuf, Receiver, RecvBackend, RecvError, RecvOptions, ZcrxOptions};
use zerowire_testkit::net::lab::{HERE, in_lab};
use zerowire_testkit::net::run;
use zerowire_testkit::own_process;

fn refusal(options: RecvOptions) -> (Option<i32>, String) {
    let error = Receiver::new(options).expect_err("it can't be registered here");
    (error.errno(), error.to_string())
}

fn queue(name: &str, queue: u32) -> RecvOptions {
    RecvOptions::default().backend(RecvBackend::Queue { interface: name.to_owned(), queue })
}

#[test]
fn loopback_has_no_queue_management() {
    let (errno, text) = refusal(queue("lo", 0));
    assert_eq!(errno, Some(libc::EOPNOTSUPP), "{text}");
    assert!(text.contains("queue 0 of lo") && text.contains("mlx5"), "{text}");
}

#[test]
fn veth_tap_and_ifb_have_no_queue_management() {
    in_lab(|lab| {
        lab.veth();
        run("ip", &["tuntap", "add", "dev", "zwtap", "mode", "tap"]);
        run("ip", &["link", "set", "zwtap", "up"]);
        run("ip", &["link", "add", "zwifb", "type", "ifb"]);
        for name in [HERE, "zwtap", "zwifb"] {
            let (errno, text) = refusal(queue(name, 0));
            assert_eq!(errno, Some(libc::EOPNOTSUPP), "{text}");
            assert!(text.contains(&format!("queue 0 of {name}")) && text.contains("fbnic"), "{text}");
        }
    });
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    let (errno, text) = refusal(queue("nowhere0", 3));
    assert_eq!(errno, Some(libc::ENODEV), "{text}");
    assert!(text.contains("nowhere0") && text.contains("ip link"), "{text}");
}

#[test]
fn without_a_device_an_older_kernel_is_named() {
    match Receiver::new(RecvOptions::default().backend(RecvBackend::NoDevice)) {
        Ok(receiver) => assert!(receiver.path().contains("ZCRX_REG_NODEV"), "{}", receiver.path()),
        Err(error) => {
            let text = error.to_string();
            assert_eq!(error.errno(), Some(libc::EINVAL), "{text}");
            let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
            assert!(text.contains("Linux 7.1") && text.contains(release.trim()), "{text}");
        }
    }
}

#[test]
fn areas_and_buffers_out_of_range_are_refused_before_the_kernel_is_asked() {
    let base = || RecvOptions::default().backend(RecvBackend::NoDevice).buffer_bytes(4096).buffers(2);
    for options in [
        base().buffer_bytes(64),
        base().zcrx(ZcrxOptions::default().rx_buf_len(Some(5000))),
        base().zcrx(ZcrxOptions::default().rx_buf_len(Some(2048))),
        base().zcrx(ZcrxOptions::default().rx_buf_len(Some(8192))),
    ] {
        let error = Receiver::new(options).expect_err("out of range");
        assert!(matches!(error, RecvError::ZeroCopyArea { .. }), "{error}");
    }
}

#[test]
fn an_ordinary_user_is_told_the_capability() {
    own_process!();
    if !rustix::process::geteuid().is_root() {
        let (errno, text) = refusal(queue("lo", 0));
        assert!(errno == Some(libc::EPERM) && text.contains("CAP_NET_ADMIN"), "{text}");
        return;
    }
    // Of this thread only: the ids are each thread's own to the kernel.
    std::thread::spawn(|| {
        let nobody = rustix::fs::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        for options in [
            queue("lo", 0).buffer_bytes(4096).buffers(16).completions(16),
            RecvOptions::default()
                .buffer_bytes(4096)
                .buffers(16)
                .completions(16)
                .backend(RecvBackend::NoDevice),
        ] {
            let (errno, text) = refusal(options);
            assert_eq!(errno, Some(libc::EPERM), "{text}");
            assert!(text.contains("CAP_NET_ADMIN"), "{text}");
        }
    })
    .join()
    .unwrap();
}

#[test]
fn a_dma_buffer_must_be_one() {
    let memory = rustix::fs::memfd_create("zerowire", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    // SAFETY: the call refuses it, since a memfd isn't a DMA buffer.
    let error = unsafe { Dmabuf::new(memory) }.expect_err("a memfd is none");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
}

#[test]
fn the_area_of_another_way_is_not_shared() {
    for backend in [RecvBackend::Plain, RecvBackend::Multishot] {
        let mut receiver = Receiver::new(RecvOptions::default().backend(backend)).unwrap();
        let error = receiver.export().expect_err("its area is its own");
        assert!(matches!(error, RecvError::NotShareable), "{error}");
        let area = AreaOptions::default().buffers(16).buffer_bytes(4096);
        let error = receiver.add_area(area).expect_err("it has one area");
        assert!(matches!(error, RecvError::OneArea), "{error}");
        assert!(error.to_string().contains("zero-copy receive"), "{error}");
        let error = receiver.add_area(area.buffers(1)).expect_err("one buffer");
        assert!(matches!(error, RecvError::Buffers(1)), "{error}");
    }
}

#[test]
fn long_buffers_and_a_kernel_ring_change_nothing_in_the_refusal() {
    for zcrx in [ZcrxOptions::default().kernel_ring(true), ZcrxOptions::default().rx_buf_len(Some(65536))] {
        let (errno, text) = refusal(queue("lo", 0).zcrx(zcrx.clone()));
        // Kernels before 7.0 refuse a length before they look at the device.
        let is_old = errno == Some(libc::EINVAL) && zcrx.rx_buf_len.is_some() && text.contains("rx_buf_len");
        assert!(is_old || errno == Some(libc::EOPNOTSUPP), "{text}");
    }
}
