use super::*;

fn config(name: &str, cid: u64) -> VsockConfig {
    VsockConfig::new(
        name,
        Endpoint::Path(format!("/run/{name}.vhost").into()),
        cid,
        format!("/run/{name}.vsock"),
    )
}

fn error(mut configs: Vec<VsockConfig>) -> String {
    check_vms(&mut configs).expect_err("an error").to_string()
}

fn one(change: impl FnOnce(&mut VsockConfig)) -> Vec<VsockConfig> {
    let mut c = config("a", 3);
    change(&mut c);
    vec![c]
}

#[test]
fn good_configurations_pass_and_get_their_groups() {
    let mut configs = vec![config("a", 3), config("b", 0xffff_fffe)];
    configs[1].groups = ["y", "x", "y"].map(String::from).to_vec();
    configs[1].limits = VsockLimits {
        buffer_bytes: 16 << 20,
        max_connections: 65536,
        peer_connections: Some(65536),
        sibling_connections: Some(0),
        request_rate: 1_000_000,
    };
    configs[1].map.max_connections = Some(0);
    check_vms(&mut configs).unwrap();
    assert!(configs[0].map.max_connections.is_some_and(|n| (8..=8192).contains(&n)), "a share");
    assert_eq!(configs[1].map.max_connections, Some(0));
    assert_eq!(configs[0].groups, [DEFAULT_GROUP]);
    assert_eq!(configs[1].groups, ["x", "y"]);
}

#[test]
fn cids_with_another_meaning_are_refused_with_the_reason() {
    for (cid, why) in [
        (0, "reserved"),
        (1, "reserved"),
        (2, "the host's"),
        (0xffff_ffff, "VMADDR_CID_ANY"),
        (1 << 32, "more than 32 bits"),
        (u64::MAX, "more than 32 bits"),
    ] {
        let e = error(one(|c| c.cid = cid));
        assert!(e.contains(why) && e.contains(&format!("CID {cid}")), "{e}");
        assert!(e.contains("3 to 4294967294"), "{e}");
    }
}

#[test]
fn nothing_may_be_there_twice() {
    assert!(error(vec![config("a", 3), config("a", 4)]).contains("named 'a'"));
    let e = error(vec![config("a", 3), config("b", 3)]);
    assert!(e.contains("a and b") && e.contains("CID 3"), "{e}");

    let mut same = config("b", 4);
    same.uds = "/run/./a.vsock".into();
    let e = error(vec![config("a", 3), same]);
    assert!(e.contains("/run/./a.vsock") && e.contains("VM b") && e.contains("VM a"), "{e}");

    let folder = std::env::current_dir().unwrap();
    let (mut absolute, mut relative) = (config("a", 3), config("b", 4));
    absolute.uds = folder.join("u");
    relative.endpoint = Endpoint::Path("./u.map".into());
    let e = error(vec![absolute, relative]);
    assert!(e.contains("socket path ./u.map") && e.contains("VM a"), "{e}");

    let mut derived = config("b", 4);
    derived.uds = "/run/a.vsock.seqpacket".into();
    assert!(error(vec![config("a", 3), derived]).contains("/run/a.vsock.seqpacket"));

    let e = error(one(|c| c.endpoint = Endpoint::Path(c.uds.clone())));
    assert!(e.contains("/run/a.vsock"), "{e}");
}

/// A guest connects to UDS_PORT: no VM may have a socket there.
#[test]
fn no_socket_lies_where_a_guests_connections_arrive() {
    let named = |name: &str, cid| VsockConfig { uds: format!("/run/{name}").into(), ..config(name, cid) };
    let e = error(vec![named("vm", 3), named("vm_22", 4)]);
    for word in ["VM vm_22", "/run/vm_22", "VM vm's guest", "port 22", "--uds", "directory"] {
        assert!(e.contains(word), "no '{word}' in {e}");
    }
    let e = error(vec![named("vm_22", 4), VsockConfig { uds: "/run//./vm".into(), ..named("vm", 3) }]);
    assert!(e.contains("port 22"), "{e}");
    // Sockets of front ends, also the VM's own, and what is made beside UDS.
    for path in ["/run/a.vsock_0", "/run/a.vsock_4294967295"] {
        let e = error(one(|c| c.endpoint = Endpoint::Path(path.into())));
        assert!(e.contains(path) && e.contains("VM a's guest"), "{e}");
    }
    let e = error(vec![named("x.map", 3), named("x.map_7", 4)]);
    assert!(e.contains("port 7"), "{e}");
    // No port is written like these.
    for name in ["vm_", "vm_x", "vm_022", "vm_4294967296", "vm_1.sock", "vm_-1", "vm_+1"] {
        check_vms(&mut [named("vm", 3), named(name, 4)]).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// Nor may the control socket lie there, nor on a VM's path.
#[test]
fn no_guest_reaches_the_control_socket() {
    let with = |control: &str| one(|c| c.control = Some(control.into()));
    let e = error(with("/run/./a.vsock_22"));
    for word in ["VM a", "control socket /run/a.vsock_22", "port 22", "--uds", "--control", "directory"] {
        assert!(e.contains(word), "no '{word}' in {e}");
    }
    for path in ["/run/a.vsock", "/run//a.vhost", "/run/a.vsock.map"] {
        let e = error(with(path));
        assert!(e.contains("VM a") && e.contains("is the control socket's"), "{e}");
    }
    let relative = |c: &mut VsockConfig| c.uds = "a".into();
    let folder = std::env::current_dir().unwrap();
    for (path, words) in [("a_22", "port 22"), ("a", "is the control socket's")] {
        let e = error(one(|c| (relative(c), c.control = Some(folder.join(path))).0));
        assert!(e.contains(words), "{e}");
    }
    check_vms(&mut with("/run/a.vsock_022")).expect("no port is written like this");
}

#[test]
fn counts_and_limits_are_bounded() {
    // A server that runs may have none any more.
    check_vms(&mut []).unwrap();
    let many = (3..260).map(|cid| config(&format!("vm{cid}"), cid)).collect();
    assert!(error(many).starts_with("257 VMs"));
    for bytes in [0, 4095, (16 << 20) + 1] {
        let e = error(one(|c| c.limits.buffer_bytes = bytes));
        assert!(e.contains(&format!("{bytes} bytes")) && e.contains("4096 to 16777216"), "{e}");
    }
    for n in [0, 65537] {
        let e = error(one(|c| c.limits.max_connections = n));
        assert!(e.contains(&format!("{n} connections")) && e.contains("1 to 65536"), "{e}");
    }
    let e = error(one(|c| (c.limits.max_connections, c.limits.peer_connections) = (8, Some(9))));
    assert!(e.contains("9 connections with one other guest") && e.contains("0 to 8"), "{e}");
    let e = error(one(|c| (c.limits.max_connections, c.limits.sibling_connections) = (8, Some(9))));
    assert!(e.contains("9 connections with other guests") && e.contains("0 to 8"), "{e}");
    let e = error(one(|c| c.limits.request_rate = 1_000_001));
    assert!(e.contains("1000001 connection requests") && e.contains("1 to 1000000, or 0 for none"), "{e}");
    let e = error(one(|c| (c.limits.max_connections, c.map.max_connections) = (8, Some(9))));
    assert!(e.contains("9 mapped connections, of 8") && e.contains("0 to 8"), "{e}");
    for bytes in [65_535, (1 << 40) + 1] {
        let e = error(one(|c| c.map.max_total_bytes = bytes));
        assert!(e.contains(&format!("{bytes} bytes of windows in all")) && e.contains("65536 to"), "{e}");
    }
    for (hold, text) in [(Duration::ZERO, "of 0 ms"), (Duration::from_millis(60_001), "of 60001 ms")] {
        let e = error(one(|c| c.map.hold = hold));
        assert!(e.contains(text) && e.contains("1 to 60000"), "{e}");
    }
    assert!(error(one(|c| c.groups = vec![String::new()])).contains("group"));
}

/// Whoever reads the text knows what to change.
#[test]
fn each_limit_names_the_option_that_sets_it() {
    type Change = fn(&mut VsockConfig);
    let cases: [(&str, Change); 9] = [
        ("--buffer", |c| c.limits.buffer_bytes = 0),
        ("--max-connections", |c| c.limits.max_connections = 0),
        ("--peer-connections", |c| (c.limits.max_connections, c.limits.peer_connections) = (8, Some(9))),
        ("--sibling-connections", |c| {
            (c.limits.max_connections, c.limits.sibling_connections) = (8, Some(9))
        }),
        ("--request-rate", |c| c.limits.request_rate = 1_000_001),
        ("--map-max", |c| c.map.max_bytes = 0),
        ("--map-connections", |c| (c.limits.max_connections, c.map.max_connections) = (8, Some(9))),
        ("--map-total", |c| c.map.max_total_bytes = 0),
        ("--map-hold", |c| c.map.hold = Duration::ZERO),
    ];
    for (option, change) in cases {
        let e = error(one(change));
        assert!(e.contains(&format!("({option}")), "no {option} in {e}");
    }
    assert!(error(one(|c| c.groups = vec![String::new()])).contains("(--groups)"));
}

fn sets(groups: &[&[&str]]) -> Vec<Vec<usize>> {
    let owned: Vec<Vec<String>> =
        groups.iter().map(|g| g.iter().map(|s| (*s).to_owned()).collect()).collect();
    let borrowed: Vec<&[String]> = owned.iter().map(Vec::as_slice).collect();
    components(&borrowed)
}

#[test]
fn groups_connect_vms_also_by_way_of_others() {
    assert_eq!(sets(&[]), Vec::<Vec<usize>>::new());
    assert_eq!(sets(&[&["a"], &["b"], &["a"]]), [vec![0, 2], vec![1]]);
    // The last VM joins two sets that were apart.
    assert_eq!(sets(&[&["a"], &["b"], &["c"], &["b"], &["a", "b"]]), [vec![0, 1, 3, 4], vec![2]]);
    // A chain that closes from its far end.
    assert_eq!(sets(&[&["d"], &["a", "b"], &["c", "d"], &["b", "c"]]), [vec![0, 1, 2, 3]]);
    assert_eq!(sets(&[&["x"], &["x"], &["x"]]), [vec![0, 1, 2]]);
}

fn order(groups: &[&[&str]]) -> Vec<usize> {
    let vm = |groups: &&[&str]| {
        let groups = groups.iter().map(|g| (*g).to_owned()).collect();
        VsockConfig { groups, ..config("a", 3) }
    };
    connected_order(&groups.iter().map(vm).collect::<Vec<_>>(), &[])
}

#[test]
fn vms_that_groups_connect_follow_each_other() {
    assert_eq!(order(&[]), Vec::<usize>::new());
    assert_eq!(order(&[&["a"], &["b"], &["a"]]), [0, 2, 1]);
    // The last VM connects two that have no group in common.
    assert_eq!(order(&[&["a"], &["b"], &["c"], &["b"], &["a", "b"]]), [0, 4, 1, 3, 2]);
    // A chain that closes from its far end.
    assert_eq!(order(&[&["d"], &["a", "b"], &["c", "d"], &["b", "c"]]), [0, 2, 3, 1]);
    assert_eq!(order(&[&["x"], &["x"], &["x"]]), [0, 1, 2]);
    // The VM that connects two comes before the one that would have a thread of its own.
    let vms = [&["b"][..], &["a", "b"]];
    let vms = vms.map(|groups| VsockConfig {
        groups: groups.iter().map(|g| (*g).to_owned()).collect(),
        ..config("a", 3)
    });
    assert_eq!(connected_order(&vms, &["a".to_owned()]), [1, 0]);
}
