use super::*;

#[test]
fn events_are_read_as_the_kernel_writes_them() {
    assert_eq!(config("event=0x04,umask=0x03\n"), Some(0x304));
    assert_eq!(config("event=0xff,umask=0x10"), Some(0x10ff));
    for odd in ["", "event=4x", "event=0x100", "edge=1", "event"] {
        assert_eq!(config(odd), None, "{odd}");
    }
}

/// What a server's folder looks like, and what is beside it.
#[test]
fn controllers_are_found_by_their_folders() {
    let temporary = tempfile::tempdir().expect("a folder");
    let dir = temporary.path().to_owned();
    for (name, cpus) in [
        ("uncore_imc_0", "0,24"),
        ("uncore_imc_free_running", "0"),
        ("cpu", "0"),
        ("amd_umc_3", "8"),
        ("amd_df", "0"),
    ] {
        let kind = if name.starts_with("amd") { "21\n" } else { "17\n" };
        fs::create_dir_all(dir.join(name).join("events")).unwrap();
        fs::write(dir.join(name).join("type"), kind).unwrap();
        fs::write(dir.join(name).join("cpumask"), format!("{cpus}\n")).unwrap();
    }
    for (event, text) in [("read", "event=0x04,umask=0x03"), ("write", "event=0x04,umask=0x0c")] {
        fs::write(dir.join("uncore_imc_0/events").join(format!("cas_count_{event}")), text).unwrap();
    }
    let mut found = controllers(&dir);
    found.sort_by_key(|c| (c.kind, c.config, c.cpu));
    let want = |config, cpu| Controller { kind: 17, config, cpu };
    let umc = Controller { kind: 21, config: 0x0a, cpu: 8 };
    assert_eq!(found, [want(0x304, 0), want(0x304, 24), want(0xc04, 0), want(0xc04, 24), umc]);
    assert_eq!(controllers(Path::new("/no/such/folder")), []);
}

#[test]
fn either_it_counts_or_it_says_why_not() {
    match Traffic::open() {
        Ok(traffic) => assert!(!traffic.what.is_empty() && traffic.bytes().is_ok()),
        Err(why) => assert!(why.contains("counter"), "{why}"),
    }
}
