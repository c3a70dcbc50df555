use super::*;

#[test]
fn vm_specs_are_parsed_and_errors_name_what_is_missing() {
    let v = parse_vm("name=a,cid=3,socket=/run/a,uds=/run/a.host,groups=x+y").unwrap();
    assert_eq!((v.name.as_str(), v.cid), ("a", 3));
    assert_eq!(v.groups, ["x", "y"]);
    let alone = parse_vm("name=a,cid=3,socket=/s,uds=/u").unwrap();
    assert_eq!(alone.groups, [DEFAULT_GROUP]);
    let v = parse_vm("name=a,cid=3,socket=/s,uds=/u,socket-owner=7,uds-group=8,uds-mode=0666").unwrap();
    assert_eq!(v.access, SocketAccess { owner: Some(7), group: None, mode: None });
    assert_eq!(v.uds_access, SocketAccess { owner: None, group: Some(8), mode: Some(0o666) });
    assert_eq!(v.rates, Limits::default());
    let v = parse_vm("name=a,cid=3,socket=/s,uds=/u,tx-limit=1M/s+ops=10/s,rx-limit=8bit/s").unwrap();
    let texts = [v.rates.transmit, v.rates.receive].map(|limit| limit.map(|limit| limit.to_string()));
    let words = ["1000000/s,burst=100000,ops=10/s,ops-burst=1", "1/s,burst=1"];
    assert_eq!(texts, words.map(|text| Some(text.to_owned())));
    for (bad, word) in [
        ("name=a,tx-limit=1M", "limit '1M': '1M': give BYTES/s"),
        ("name=a,cid=3,socket=/s", "uds=PATH"),
        ("name=a,cid=3,uds=/u", "socket=PATH"),
        ("name=a,socket=/s,uds=/u", "cid=N"),
        ("cid=3,socket=/s,uds=/u", "name=NAME"),
        ("name=a,cid=three", "cid=three"),
        ("name=a,cid=-1", "cid=-1"),
        ("x", "'x'"),
        ("name=a,cid=3,cid=4,socket=/s,uds=/u", "cid=3 and cid=4"),
        ("name=a,port=tap:t", "'port'"),
        ("name=a,uds-owner=no-such", "uds-owner: user 'no-such' is not in /etc/passwd"),
        ("name=a,groups=x++y", "x++y"),
    ] {
        assert!(parse_vm(bad).unwrap_err().to_string().contains(word), "{bad}");
    }
}

#[test]
fn groups_have_names() {
    assert_eq!(parse_groups("a").unwrap(), ["a"]);
    assert!(parse_groups("").is_err());
    assert!(parse_groups("a+").unwrap_err().to_string().contains("'a+'"));
    assert!(checked_groups(Vec::new()).unwrap_err().to_string().contains("group of its own"));
    assert!(checked_groups(vec!["a+b".to_owned()]).is_err());
}
