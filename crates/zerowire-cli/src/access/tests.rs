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
    let keys = ["uds-owner", "uds-group", "uds-mode"];
    let some = |text: &str| Some(text.to_owned());
    let own = of_keys(keys, [&None, &None, &some("0666")]).unwrap();
    let e = of_keys(keys, [&None, &some("no-such"), &None]).unwrap_err();
    assert_eq!(e.key, "uds-group");
    assert!(e.to_string().starts_with("uds-group: group 'no-such'"), "{e}");
    let all = SocketAccess { owner: Some(1), group: None, mode: Some(0o600) };
    assert_eq!(or(own, all), SocketAccess { owner: Some(1), group: None, mode: Some(0o666) });
    assert_eq!(
        of_keys(keys, [&some("7"), &None, &some("0640")]).unwrap(),
        SocketAccess { owner: Some(7), group: None, mode: Some(0o640) }
    );
}
