use clap::{Args as _, FromArgMatches as _};

use super::*;

/// The VM of `--vm`.
fn vm_of(text: &str) -> Result<VsockConfig> {
    let (access, uds_access) = (SocketAccess::default(), SocketAccess::default());
    let (limits, map, control) = (VsockLimits::default(), MapPolicy::default(), Some("/run/control".into()));
    let defaults = Defaults { access, uds_access, limits, map, control };
    parse_vm(text).and_then(|(name, vm)| Ok(defaults.vm(&name, vm)?))
}

#[test]
fn vm_specs_are_parsed_and_errors_name_what_is_missing() {
    let v = vm_of("name=a,cid=3,socket=/run/a,uds=/run/a.host,groups=x+y").unwrap();
    assert_eq!((v.name.as_str(), v.cid), ("a", 3));
    assert_eq!(v.groups, ["x", "y"]);
    let alone = vm_of("name=a,cid=3,socket=/s,uds=/u").unwrap();
    assert_eq!(alone.groups, [DEFAULT_GROUP]);
    let v = vm_of("name=a,cid=3,socket=/s,uds=/u,socket-owner=7,uds-group=8,uds-mode=0666").unwrap();
    assert_eq!(v.access, SocketAccess { owner: Some(7), group: None, mode: None });
    assert_eq!(v.uds_access, SocketAccess { owner: None, group: Some(8), mode: Some(0o666) });
    assert_eq!(v.rates, Limits::default());
    let v = vm_of("name=a,cid=3,socket=/s,uds=/u,tx-limit=1M/s+ops=10/s,rx-limit=8bit/s").unwrap();
    let texts = [v.rates.transmit, v.rates.receive].map(|limit| limit.map(|limit| limit.to_string()));
    let words = ["1000000/s,burst=100000,ops=10/s,ops-burst=1", "1/s,burst=1"];
    assert_eq!(texts, words.map(|text| Some(text.to_owned())));
    for (bad, word) in [
        ("name=a,cid=3,socket=/s,uds=/u,tx-limit=1M", "limit '1M': '1M': give BYTES/s"),
        ("name=a,cid=3,socket=/s", "uds=PATH"),
        ("name=a,cid=3,uds=/u", "socket=PATH"),
        ("name=a,socket=/s,uds=/u", "cid=N"),
        ("cid=3,socket=/s,uds=/u", "name=NAME"),
        ("name=a,cid=three", "cid=three"),
        ("name=a,cid=-1", "cid=-1"),
        ("x", "'x'"),
        ("name=a,cid=3,cid=4,socket=/s,uds=/u", "cid=3 and cid=4"),
        ("name=a,port=tap:t", "'port'"),
        (
            "name=a,cid=3,socket=/s,uds=/u,uds-owner=no-such",
            "uds-owner: user 'no-such' is not in /etc/passwd",
        ),
        ("name=a,cid=3,socket=/s,uds=/u,groups=x++y", "x++y"),
    ] {
        assert!(vm_of(bad).unwrap_err().to_string().contains(word), "{bad}");
    }
}

#[test]
fn groups_have_names() {
    let groups = |text| checked_groups(split_groups(text));
    assert_eq!(groups("a").unwrap(), ["a"]);
    assert!(groups("").is_err());
    assert!(groups("a+").unwrap_err().to_string().contains("'a+'"));
    assert!(checked_groups(Vec::new()).unwrap_err().to_string().contains("group of its own"));
    assert!(checked_groups(vec!["a+b".to_owned()]).is_err());
}

#[test]
fn options_of_a_vm_are_refused_where_there_is_none() {
    let vms = |more: &[&str]| {
        let command = VsockArgs::augment_args(clap::Command::new("vsock"));
        let matches = command.try_get_matches_from([&["vsock", "--control", "/c"], more].concat());
        let args = VsockArgs::from_arg_matches(&matches.expect("good options")).expect("arguments");
        vms(&args, file::text_at_start, &HandedSockets::default())
    };
    let values = [
        ("--cid", "3"),
        ("--uds", "/u"),
        ("--groups", "a"),
        ("--name", "a"),
        ("--tx-limit", "1M/s"),
        ("--rx-limit", "1M/s"),
    ];
    assert_eq!(serving::options_of_a_vm::<VsockArgs>(), values.map(|(option, _)| option));
    for (option, value) in values {
        let said = vms(&[option, value]).expect_err("there is no VM").to_string();
        assert!(said.starts_with(&format!("{option} needs --socket PATH or --fd N")), "{said}");
    }
    assert_eq!(vms(&[]).expect("none yet"), []);
}
