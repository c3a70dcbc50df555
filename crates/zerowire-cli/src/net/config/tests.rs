use clap::{Args as _, FromArgMatches as _};

use super::*;

fn defaults() -> Defaults {
    let (access, policy) = (SocketAccess::default(), Policy::default());
    Defaults { access, metadata: None, tokens: TokenPolicy::Optional, policy, postcopy: false }
}

/// The VM of `--vm`.
fn vm_of(text: &str) -> Result<VmConfig> {
    parse_vm(text).and_then(|(name, vm)| Ok(defaults().vm(&name, vm)?))
}

#[test]
fn a_vm_is_the_same_by_its_own_table() {
    let defaults = Defaults {
        access: SocketAccess { owner: None, group: Some(7), mode: None },
        metadata: Some("/all.json".into()),
        ..defaults()
    };
    let bare = file::Net { socket: "/s".into(), port: "tap:a".to_owned(), ..file::Net::default() };
    for net in [
        bare.clone(),
        file::Net {
            port: "xdp:e0,queue=3,queues=2,match=mac:52:54:00:00:00:01,pin=off".to_owned(),
            metadata: Some("/own.json".into()),
            metadata_token: Some("required".to_owned()),
            mac: Some("52:54:00:00:00:02".to_owned()),
            guard: Some("mac+vlan=off+ip=10.0.0.2+fd00::/64+arp+nd".to_owned()),
            tx_limit: Some("1Gbit/s,burst=1M,once=5M".to_owned()),
            rx_limit: Some("ops=10k/s".to_owned()),
            socket_owner: Some("root".to_owned()),
            socket_mode: Some("0640".to_owned()),
            ..bare
        },
    ] {
        let vm = defaults.vm("a", net).expect("a VM");
        let mut again = defaults.vm("a", table_of(&vm)).expect("the same VM");
        // What the mode is by default is said there.
        assert_eq!(again.access.mode(), vm.access.mode());
        again.access.mode = vm.access.mode;
        assert_eq!(again, vm);
    }
}

#[test]
fn a_wrong_value_has_its_key() {
    let good = || file::Net { socket: "/s".into(), port: "tap:a".to_owned(), ..file::Net::default() };
    let bad = || Some("?".to_owned());
    for (net, key) in [
        (file::Net { port: "?".to_owned(), ..good() }, "port"),
        (file::Net { metadata_token: bad(), ..good() }, "metadata-token"),
        (file::Net { metadata_token: Some("required".to_owned()), ..good() }, "metadata-token"),
        (file::Net { mac: bad(), ..good() }, "mac"),
        (file::Net { guard: bad(), ..good() }, "guard"),
        (file::Net { guard: Some("mac".to_owned()), ..good() }, "guard"),
        (file::Net { tx_limit: bad(), ..good() }, "tx-limit"),
        (file::Net { rx_limit: bad(), ..good() }, "rx-limit"),
        (file::Net { socket_owner: bad(), ..good() }, "socket-owner"),
        (file::Net { socket_group: bad(), ..good() }, "socket-group"),
        (file::Net { socket_mode: bad(), ..good() }, "socket-mode"),
    ] {
        assert_eq!(defaults().vm("a", net).expect_err(key).key, key);
    }
}

#[test]
fn vm_specs_are_parsed_and_errors_name_what_is_missing() {
    let v =
        vm_of("name=a,socket=/run/a,port=tap:t0,queues=2,metadata=m.json,metadata-token=optional").unwrap();
    assert_eq!((v.name.as_str(), v.port.queues()), ("a", 2));
    assert_eq!(v.metadata.map(|source| source.tokens), Some(TokenPolicy::Optional));
    let v = vm_of("name=a,socket=/s,port=tap:t,socket-owner=7,socket-group=8,socket-mode=0640").unwrap();
    assert_eq!(v.access, SocketAccess { owner: Some(7), group: Some(8), mode: Some(0o640) });
    assert_eq!(v.mac, None);
    let m = vm_of("name=a,socket=/s,port=tap:t,mac=52:54:00:00:00:01").unwrap();
    assert_eq!(m.mac.map(|m| m.to_string()).as_deref(), Some("52:54:00:00:00:01"));
    let g = vm_of("name=a,guard=mac+ip=10.0.0.2,socket=/s,port=tap:t,mac=52:54:00:00:00:01").unwrap();
    let guard = g.guard.map(|g| g.to_string());
    assert_eq!(guard.as_deref(), Some("mac=52:54:00:00:00:01+ip=10.0.0.2"), "the order does not matter");
    assert_eq!(m.limits, Limits::default());
    let l =
        vm_of("name=a,socket=/s,port=tap:t,tx-limit=100M/s+burst=10M+ops=10k/s,rx-limit=1Gbit/s").unwrap();
    let texts = [l.limits.transmit, l.limits.receive].map(|limit| limit.map(|limit| limit.to_string()));
    let words = ["100000000/s,burst=10000000,ops=10000/s,ops-burst=1000", "125000000/s,burst=12500000"];
    assert_eq!(texts, words.map(|text| Some(text.to_owned())));
    let x = vm_of("name=a,port=xdp:e0,socket=/run/a,mode=copy,queue=3,offloads=off").unwrap();
    assert_eq!(x.port.to_string(), "xdp:e0,queue=3,queues=1,mode=copy,offloads=off");
    let partial = vm_of("name=a,port=xdp:e0,socket=/run/a,pin=partial").unwrap();
    assert_eq!(partial.port.to_string(), "xdp:e0,queue=0,queues=1,pin=partial");
    let p = vm_of("name=a,port=packet:e0,socket=/run/a,rings=on").unwrap();
    assert_eq!(p.port.to_string(), "packet:e0,rings=on");
    let p = vm_of("name=a,port=packet:e0,receive=socket,socket=/run/a").unwrap();
    assert_eq!(p.port.to_string(), "packet:e0,receive=socket");
    for (bad, word) in [
        ("name=a,port=packet:e0,socket=/s,receive=tap", "receive=tap: give ring, socket or auto"),
        ("name=a,port=xdp:e0,socket=/s,pin=half", "partial or off"),
        ("name=a,socket=/s,port=tap:t,mac=ff:ff:ff:ff:ff:ff", "'ff:ff:ff:ff:ff:ff': give six bytes"),
        ("name=a,port=tap:t,socket=/s,pin=on", "'pin=on' is not known"),
        ("name=a,socket=/s,port=tap:t,guard=mac", "'mac' needs the VM's address: give mac=MAC"),
        ("name=a,socket=/s,port=tap:t,tx-limit=fast", "limit 'fast': 'fast': give BYTES/s"),
        ("name=a,socket=/s,port=tap:t,rx-limit=0/s", "limit '0/s': a rate of 0"),
        ("name=a,socket=/s", "port"),
        ("socket=/s,port=tap:t", "name"),
        ("name=a,socket=/s,port=tap:t,mode=copy", "mode=copy"),
        ("name=a,socket=/s,port=xdp:e,rings=on", "rings=on"),
        ("x", "'x'"),
        ("name=a,cpu=3", "'cpu'"),
        ("name=a,socket=/s,port=tap:t,socket-mode=rw", "socket-mode: mode 'rw': give permissions in octal"),
        (
            "name=a,socket=/s,port=tap:t,socket-group=no-such",
            "socket-group: group 'no-such' is not in /etc/group",
        ),
        ("name=a,socket=/s,port=tap:t,metadata-token=maybe", "metadata-token 'maybe'"),
        ("name=a,socket=/s,port=tap:t,name=b", "name=a and name=b: give 'name' once"),
        ("name=a,socket=/s,port=tap:t,queues=2,queues=3", "queues=2 and queues=3"),
    ] {
        assert!(vm_of(bad).unwrap_err().to_string().contains(word), "{bad}");
    }
    assert!(token_policy("maybe").is_err());
}

#[test]
fn options_of_a_vm_are_refused_where_there_is_none() {
    let vms = |more: &[&str]| {
        let command = NetArgs::augment_args(clap::Command::new("net"));
        let matches = command.try_get_matches_from([&["net", "--control", "/c"], more].concat());
        let args = NetArgs::from_arg_matches(&matches.expect("good options")).expect("arguments");
        vms(&args, file::text_at_start, &HandedSockets::default())
    };
    let values = [
        ("--port", "tap:t"),
        ("--name", "a"),
        ("--mac", "52:54:00:00:00:01"),
        ("--guard", "vlan=off"),
        ("--tx-limit", "1M/s"),
        ("--rx-limit", "1M/s"),
    ];
    assert_eq!(serving::options_of_a_vm::<NetArgs>(), values.map(|(option, _)| option));
    for (option, value) in values {
        let said = vms(&[option, value]).expect_err("there is no VM").to_string();
        assert!(said.starts_with(&format!("{option} needs --socket PATH or --fd N")), "{said}");
    }
    assert_eq!(vms(&[]).expect("none yet"), []);
}
