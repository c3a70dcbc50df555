use super::*;

#[test]
fn users_and_groups_have_names_or_numbers() {
    assert_eq!(owner("root"), Ok(0));
    assert_eq!(group("root"), Ok(0));
    assert_eq!(owner("64055"), Ok(64055));
    for (said, words) in [
        (
            owner("no-such"),
            "user 'no-such' is not in /etc/passwd: give one that is, or a number (id -u no-such)",
        ),
        (group("no-such"), "group 'no-such' is not in /etc/group"),
        (owner("4294967295"), "4294967295"),
        (owner(""), "''"),
        (owner("-1"), "'-1'"),
    ] {
        assert!(said.as_ref().unwrap_err().contains(words), "{said:?}");
    }
}

#[test]
fn modes_are_octal() {
    for (text, want) in [("660", 0o660), ("0660", 0o660), ("000", 0), ("0777", 0o777)] {
        assert_eq!(mode(text), Ok(want), "{text}");
    }
    for bad in ["", "66", "888", "1777", "00660", "+66", "0o660", "rw-", "6€"] {
        assert!(mode(bad).unwrap_err().contains("0660"), "{bad}");
    }
}

#[test]
fn keys_of_a_vm_go_before_those_of_all() {
    let mut own = SocketAccess::default();
    assert!(take(&mut own, "uds", "uds-mode", "0666").unwrap());
    assert!(!take(&mut own, "uds", "socket-mode", "0666").unwrap());
    assert!(!take(&mut own, "uds", "uds", "/run/a").unwrap());
    let e = take(&mut own, "uds", "uds-group", "no-such").unwrap_err().to_string();
    assert!(e.starts_with("uds-group: group 'no-such'"), "{e}");
    let all = SocketAccess { owner: Some(1), group: None, mode: Some(0o600) };
    assert_eq!(or(own, all), SocketAccess { owner: Some(1), group: None, mode: Some(0o666) });
    assert_eq!(
        parse(Some("7"), None, Some("0640")).unwrap(),
        SocketAccess { owner: Some(7), group: None, mode: Some(0o640) }
    );
}
