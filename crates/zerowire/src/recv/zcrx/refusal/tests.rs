use super::*;
use zerowire_sys::uring::zcrx::ZcrxSource;

fn said(errno: i32, queue: Option<(String, u32)>, change: impl FnOnce(&mut ZcrxRequest)) -> String {
    let mut request = ZcrxRequest {
        source: ZcrxSource::NoDevice,
        area: std::ptr::null_mut(),
        area_bytes: 8192,
        dmabuf: None,
        entries: 2,
        kernel_ring: false,
        buffer_bytes: 0,
        event_data: 0,
    };
    change(&mut request);
    explained(io::Error::from_raw_os_error(errno), &queue, &request).to_string()
}

#[test]
fn what_was_asked_for_is_named() {
    let queue = || Some(("nowhere0".to_owned(), 3));
    let long = said(libc::EINVAL, queue(), |r| r.buffer_bytes = 65536);
    assert!(long.contains("queue 3 of nowhere0") && long.contains("65536"), "{long}");
    let scattered = said(libc::ERANGE, queue(), |r| r.buffer_bytes = 65536);
    assert!(scattered.contains("huge pages"), "{scattered}");
    let nodev = said(libc::EOPNOTSUPP, None, |r| r.buffer_bytes = 8192);
    assert!(nodev.contains("rx_buf_len") && nodev.contains("8192"), "{nodev}");
    let dmabuf = said(libc::EINVAL, queue(), |r| r.dmabuf = Some(3));
    assert!(dmabuf.contains("DMA buffer") && dmabuf.contains("8192"), "{dmabuf}");
    assert!(said(libc::EPERM, None, |_| ()).contains("CAP_NET_ADMIN"));
}

#[test]
fn what_keeps_an_area_away_is_named() {
    for (errno, word) in [
        (libc::EOPNOTSUPP, "boot Linux 7.3"),
        (libc::EINVAL, "DMA buffer"),
        (libc::ERANGE, "huge pages"),
        (libc::EFAULT, "interface"),
        (libc::ENOMEM, "RLIMIT_MEMLOCK"),
        (libc::EPERM, "Operation not permitted"),
    ] {
        let error = not_added(&io::Error::from_raw_os_error(errno), 8192);
        let text = error.to_string();
        assert!(text.contains(word) && text.contains("8192") && error.errno() == Some(errno), "{text}");
    }
}

#[test]
fn a_refused_import_says_what_to_do() {
    let of = |errno| import_refused(io::Error::from_raw_os_error(errno));
    for (errno, words) in [
        (libc::EPERM, ["CAP_NET_ADMIN", "setcap", "Linux"]),
        (libc::EINVAL, ["area that several rings use", "boot Linux 7.0", "newer"]),
        (libc::EBADF, ["area of another receiver", "export it again", "Linux"]),
        (libc::ENOMEM, ["area of another receiver", "no memory", "fewer receivers"]),
        (libc::EIO, ["ZCRX_REG_IMPORT", "failed", "os error 5"]),
    ] {
        let text = of(errno).to_string();
        assert!(words.iter().all(|w| text.contains(w)), "{errno}: {text}");
    }
    assert_eq!(of(libc::EPERM).errno(), Some(libc::EPERM));
}
