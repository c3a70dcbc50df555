use super::*;

#[test]
fn the_loopback_tells() {
    let socket = socket().expect("a socket");
    let text = std::fs::read_to_string("/sys/class/net/lo/mtu").expect("sysfs");
    assert_eq!(mtu(&socket, "lo").expect("its MTU"), text.trim().parse::<usize>().expect("a number"));
    let text = std::fs::read_to_string("/sys/class/net/lo/ifindex").expect("sysfs");
    assert_eq!(index(&socket, "lo").expect("its index"), text.trim().parse::<u32>().expect("a number"));
    assert_ne!(flags(&socket, "lo").expect("its flags") & libc::IFF_LOOPBACK, 0);
    assert_eq!(hardware_kind(&socket, "lo").expect("its kind"), libc::ARPHRD_LOOPBACK);
    assert!(is_ethernet(&socket, "lo").expect("its kind"));
    // It has neither a driver nor queues to tell of (EOPNOTSUPP).
    let errors = [driver(&socket, "lo").map(drop), queues(&socket, "lo").map(drop)];
    for e in errors.map(|r| r.expect_err("nothing to tell")) {
        assert_eq!(e.raw_os_error(), Some(libc::EOPNOTSUPP), "{e}");
    }
}

#[test]
fn names_are_checked_and_looked_up() {
    let socket = socket().expect("a socket");
    for name in ["", "sixteen-bytes-xx", "l\0"] {
        let e = mtu(&socket, name).expect_err("no such name");
        assert_eq!(e.kind(), io::ErrorKind::InvalidInput, "{e}");
        assert!(e.to_string().contains("give 1 to 15"), "{e}");
        assert_eq!(index(&socket, name).expect_err("no such name").kind(), io::ErrorKind::InvalidInput);
    }
    let e = flags(&socket, "none-here").expect_err("no such interface");
    assert_eq!(e.raw_os_error(), Some(libc::ENODEV), "{e}");
    let e = index(&socket, "none-here").expect_err("no such interface");
    assert_eq!(e.raw_os_error(), Some(libc::ENODEV), "{e}");
}
