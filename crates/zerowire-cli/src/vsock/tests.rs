use clap::FromArgMatches;
use zerowire_vhost::serve::Endpoint;
use zerowire_vsock::{VsockConfig, VsockLimits};

use super::start::{descriptor_warning, start_line};
use super::*;

fn vm(max_connections: usize) -> VsockConfig {
    VsockConfig::new("a", Endpoint::Path("/run/a".into()), 3, "/run/a.host")
        .groups(vec!["x".to_owned(), "y".to_owned()])
        .limits(VsockLimits::default().max_connections(max_connections))
}

#[test]
fn too_low_a_descriptor_limit_is_named_with_the_need_and_the_remedy() {
    // A VM takes 80 and its programs that wait 384, a mapped connection two more than others.
    let need = 16 + 80 + 384 + 8192 + 2 * 170;
    let mut mapped = vm(8192);
    mapped.map.max_connections = Some(170);
    assert_eq!(descriptor_warning(std::slice::from_ref(&mapped), need), None);
    assert!(descriptor_warning(std::slice::from_ref(&mapped), need - 1).is_some());
    let text = descriptor_warning(&[mapped, vm(100)], 8192).expect("a warning");
    let all = format!("LimitNOFILE={}", need + 80 + 384 + 100 + 2 * 100);
    for word in [
        "8292 connections (2 VMs), 270 of them mapped",
        &all,
        "limit is 8192",
        "--max-connections",
        "--map-connections",
    ] {
        assert!(text.contains(word), "no '{word}' in {text}");
    }
}

/// As the errors of the device name them (zerowire-vsock, `StartError::Limit`).
#[test]
fn options_that_errors_name_are_there() {
    let command = VsockArgs::augment_args(clap::Command::new("vsock"));
    for option in [
        "buffer",
        "max-connections",
        "peer-connections",
        "sibling-connections",
        "request-rate",
        "map-max",
        "map-connections",
        "map-total",
        "map-hold",
        "groups",
    ] {
        assert!(command.get_arguments().any(|a| a.get_long() == Some(option)), "--{option}");
    }
}

#[test]
fn the_start_line_says_what_runs() {
    let (name, text) = start_line(&vm(8192));
    assert_eq!(name, "a");
    for word in ["listening on /run/a,", "CID 3", "/run/a.host.seqpacket", "groups x, y", "262144 bytes"] {
        assert!(text.contains(word), "no '{word}' in {text}");
    }
}

/// Without root, other users look alike to a confined process.
#[test]
fn a_sandbox_of_an_ordinary_user_refuses_other_users() {
    let check = |more: &[&str]| {
        let command = VsockArgs::augment_args(clap::Command::new("vsock"));
        let given =
            [&["vsock", "--sandbox", "on", "--socket", "/s", "--cid", "3", "--uds", "/u"], more].concat();
        let matches = command.try_get_matches_from(given).expect("good options");
        let args = VsockArgs::from_arg_matches(&matches).expect("arguments");
        args.sandbox.check(&args).map_err(|e| e.to_string())
    };
    let map = ["--map-allow", "65534"];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                check(&map).expect("root tells users apart");
                let user = rustix::process::Uid::from_raw(1000);
                rustix::thread::set_thread_res_uid(user, user, user).expect("this thread's user");
            }
            for given in [map, ["--map-allow", "0"], ["--map-listen", "65534:5"]] {
                let said = check(&given).expect_err("it is refused");
                assert!(said.contains("--map-allow or --map-listen of another user"), "{said}");
            }
            let own = rustix::process::geteuid().as_raw().to_string();
            check(&["--map-allow", &own]).expect("a child knows the user who started it");
        });
    });
}
