use super::*;

#[test]
fn a_device_that_can_not_be_opened_is_named_with_the_remedy() {
    for (errno, word) in [
        (libc::EACCES, "run as root"),
        (libc::EPERM, "10:200"),
        (libc::ENOENT, "modprobe tun"),
        (libc::ENODEV, "modprobe tun"),
    ] {
        let text = TapError::Device(io::Error::from_raw_os_error(errno)).to_string();
        assert!(text.starts_with("/dev/net/tun can't be opened: ") && text.contains(word), "{text}");
    }
}

/// Nobody is sent from one port that is refused to another one.
#[test]
fn another_interface_of_the_name_is_told_apart_by_what_it_can_be() {
    for (header, words) in [
        (Some(libc::ARPHRD_ETHER), "packet:there"),
        (None, "packet:there"),
        (Some(libc::ARPHRD_LOOPBACK), "ip link add zw0 type veth"),
        (Some(libc::ARPHRD_NONE), "no Ethernet header"),
    ] {
        let text = no_tap("there", header);
        assert!(text.contains(words) && text.contains("or of none yet"), "{text}");
        assert_eq!(text.contains(":there"), words == "packet:there", "{text}");
    }
}
