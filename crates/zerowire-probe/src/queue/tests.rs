//! Facts of interfaces that this machine doesn't have, and what is said about them.

use super::super::MachineFacts;
use super::advice::{commands, rss_command};
use super::checks::Asked;
use super::explain::{Registration, explain, explain_by};
use super::facts::{Facts, Kernel, Ntuple};
use super::*;
use zerowire_sys::netdevice::rules::Rule;
use zerowire_sys::netlink::{DataSplit, Queue, Rss, XdpAttached};

/// A NIC that can, with eight queues: the last one is left out of RSS, and a rule steers to it.
fn ready() -> Facts {
    let link = LinkInfo {
        index: 4,
        name: "eth1".to_owned(),
        is_up: true,
        is_running: true,
        parent: Some("pci 0000:01:00.0".to_owned()),
        ..LinkInfo::default()
    };
    let mut rings = Rings::default();
    (rings.data_split, rings.hds_thresh, rings.rx_buf_len) = (Some(DataSplit::On), Some(0), Some(4096));
    let mut channels = Channels::default();
    (channels.combined, channels.combined_max) = (8, 16);
    let rss = Rss { table: (0..128).map(|n| n % 7).collect(), ..Rss::default() };
    let queue = |id| {
        let mut queue = Queue::default();
        (queue.id, queue.napi) = (id, Some(8000 + id));
        queue
    };
    Facts {
        link,
        driver: Some("bnxt_en".to_owned()),
        rings: Ok(rings),
        channels: Ok(channels),
        rss: Ok(rss),
        ntuple: Some(Ntuple::On),
        rules: Ok(vec![Rule { location: 3, queue: Some(7), flow: "tcp6", port: Some(9999) }]),
        device: Ok(Device::default()),
        queues: Ok((0..8).map(queue).collect()),
    }
}

fn able() -> Kernel {
    Kernel { ring: Ok(()), recv_zc: true, device: libc::ENODEV, nodev: Err(libc::EINVAL), more_areas: false }
}

fn root() -> MachineFacts {
    MachineFacts { kernel: "6.18.4".to_owned(), caps: vec!["CAP_NET_ADMIN"], ..MachineFacts::default() }
}

fn about(facts: &Facts, queue: Option<u32>) -> QueueReport {
    report(root(), Asked { interface: "eth1", queue }, Ok(facts.clone()), &able())
}

fn of<'a>(report: &'a QueueReport, id: &str) -> &'a Finding {
    &report.checks.iter().find(|c| c.subject.id == id).unwrap_or_else(|| panic!("no {id}")).finding
}

/// Changes the facts, and asserts what the check `id` on queue 7 then comes to; `words` must be in
/// its remedy.
#[track_caller]
fn becomes(id: &str, outcome: CheckOutcome, words: &str, change: impl FnOnce(&mut Facts)) {
    let mut facts = ready();
    change(&mut facts);
    let report = about(&facts, Some(7));
    let finding = of(&report, id);
    assert_eq!(finding.outcome, outcome, "{finding:?}");
    let remedy = finding.remedy.as_deref().unwrap_or_default();
    assert!(remedy.contains(words), "{finding:?}");
    let others =
        report.checks.iter().filter(|c| c.subject.id != id && c.finding.outcome == CheckOutcome::Missing);
    assert_eq!(others.count(), 0, "only {id}: {:?}", report.checks);
    assert_eq!(report.verdict.outcome, outcome, "{:?}", report.verdict);
}

fn rings(facts: &mut Facts) -> &mut Rings {
    facts.rings.as_mut().expect("told")
}

#[test]
fn all_is_well_with_a_nic_that_can() {
    let report = about(&ready(), Some(7));
    assert!(report.checks.iter().all(|c| c.finding.outcome == CheckOutcome::Ok), "{:?}", report.checks);
    assert_eq!(report.checks.len(), 15);
    assert_eq!(report.verdict.outcome, CheckOutcome::Ok);
    assert!(
        report.commands.iter().filter(|c| c.purpose != "the same, IPv4").all(|c| c.done),
        "{:?}",
        report.commands
    );
    assert!(of(&report, "queue.steering").found.contains("3 (tcp6 port 9999)"));
    assert_eq!(
        (report.queues.len(), report.queues[7].rss, report.queues[7].rules),
        (8, Some((0, 128)), Some(1))
    );
}

#[test]
fn each_setting_that_stops_the_registration_is_named_alone() {
    use CheckOutcome::Missing;
    becomes("queue.header_split", Missing, "ethtool -G eth1 tcp-data-split on", |f| {
        rings(f).data_split = Some(DataSplit::Off);
    });
    becomes("queue.header_split", Missing, "tcp-data-split on", |f| rings(f).data_split = None);
    becomes("queue.hds_thresh", Missing, "ethtool -G eth1 hds-thresh 0", |f| {
        rings(f).hds_thresh = Some(256);
    });
    becomes("queue.xdp", Missing, "bpftool prog show id 77", |f| {
        f.link.xdp = Some((XdpAttached::Driver, Some(77)));
    });
    becomes("queue.xdp", Missing, "xdpgeneric off", |f| f.link.xdp = Some((XdpAttached::Stack, None)));
    for user in [QueueUser::AfXdp, QueueUser::IoUring, QueueUser::Dmabuf, QueueUser::Lease] {
        becomes("queue.user", Missing, "another queue", |f| {
            f.queues.as_mut().expect("told")[7].user = Some(user);
        });
    }
    becomes("queue.number", Missing, "Take -q 3. For more: 'ethtool -L eth1 combined 8'", |f| {
        f.queues.as_mut().expect("told").truncate(4);
    });
    becomes("queue.number", Missing, "4 at the most", |f| {
        f.queues.as_mut().expect("told").truncate(4);
        f.channels = Err(libc::EOPNOTSUPP);
    });
    becomes("queue.driver", Missing, "bnxt_en, mlx5_core, gve, fbnic", |f| {
        f.driver = Some("veth".to_owned());
        (f.link.kind, f.link.parent) = (Some("veth".to_owned()), None);
    });
}

#[test]
fn what_only_keeps_data_away_is_degraded() {
    use CheckOutcome::Degraded;
    becomes("queue.up", Degraded, "ip link set dev eth1 up", |f| {
        f.link.is_up = false;
        f.queues = Ok(Vec::new());
    });
    becomes("queue.up", Degraded, "cable", |f| f.link.is_running = false);
    becomes("queue.rss", Degraded, "ethtool -X eth1 equal 7", |f| {
        f.rss.as_mut().expect("told").table = (0..128).map(|n| n % 8).collect();
    });
    becomes("queue.steering", Degraded, "flow-type tcp6 dst-port PORT action 7", |f| {
        f.rules = Ok(Vec::new())
    });
    becomes("queue.steering", Degraded, "ethtool -K eth1 ntuple on", |f| {
        (f.rules, f.ntuple) = (Ok(Vec::new()), Some(Ntuple::Off));
    });
    becomes("queue.steering", Degraded, "ethtool -L", |f| f.rules = Err(libc::EOPNOTSUPP));
    becomes("queue.user", Degraded, "6.15", |f| f.queues = Err(libc::EOPNOTSUPP));
    becomes("queue.driver", Degraded, "7.1", |f| f.driver = Some("newnic".to_owned()));
}

#[test]
fn the_kernel_and_the_user_are_told_apart() {
    let with = |kernel: Kernel, machine: MachineFacts| {
        report(machine, Asked { interface: "eth1", queue: Some(7) }, Ok(ready()), &kernel)
    };
    let missing = |r: &QueueReport| {
        let list = r.checks.iter().filter(|c| c.finding.outcome == CheckOutcome::Missing);
        list.map(|c| c.subject.id).collect::<Vec<_>>()
    };
    let refused = Kernel { device: libc::EPERM, nodev: Err(libc::EPERM), ..able() };
    let user = with(refused, MachineFacts::default());
    assert_eq!(missing(&user), ["queue.admin"]);
    assert_eq!(of(&user, "queue.admin").found, "not held");
    assert!(of(&with(refused, root()), "queue.admin").found.contains("first user namespace"));
    let old = Kernel { recv_zc: false, device: libc::EINVAL, ..able() };
    assert_eq!(missing(&with(old, root())), ["queue.kernel"]);
    let none = Kernel {
        ring: Err(libc::EPERM),
        recv_zc: false,
        device: libc::EPERM,
        nodev: Err(libc::EPERM),
        more_areas: false,
    };
    let filtered = with(none, root());
    assert!(missing(&filtered).contains(&"queue.ring"), "{:?}", filtered.checks);
    assert!(of(&with(Kernel { nodev: Ok(()), ..able() }, root()), "queue.kernel").found.contains("NODEV"));
    let areas = |k| of(&with(k, root()), "queue.areas").clone();
    let (one, more) = (areas(able()), areas(Kernel { more_areas: true, ..able() }));
    assert!(one.outcome == CheckOutcome::Ok && one.found.contains("Linux 7.3"), "{one:?}");
    assert!(more.outcome == CheckOutcome::Ok && more.found.contains("can be added"), "{more:?}");
}

#[test]
fn without_such_an_interface_only_the_rest_is_looked_at() {
    let asked = Asked { interface: "eth9", queue: Some(0) };
    let report = report(root(), asked, Err(libc::ENODEV), &able());
    assert_eq!(report.verdict.outcome, CheckOutcome::Missing);
    assert!(of(&report, "queue.interface").found.contains("eth9"));
    assert!(report.settings.is_none() && report.queues.is_empty() && report.commands.is_empty());
    assert_eq!(of(&report, "queue.kernel").outcome, CheckOutcome::Ok);
}

#[test]
fn without_a_queue_all_are_looked_at() {
    let mut facts = ready();
    let good = about(&facts, None);
    assert_eq!(good.verdict.outcome, CheckOutcome::Ok, "{:?}", good.checks);
    assert!(good.commands.iter().any(|c| c.command.ends_with("action 7")), "the last queue");
    facts.queues.as_mut().expect("told")[2].user = Some(QueueUser::AfXdp);
    let one = about(&facts, None);
    assert_eq!(of(&one, "queue.user").found, "1 of 8 taken: 2 by an AF_XDP socket");
    assert_eq!(one.verdict.outcome, CheckOutcome::Ok);
    facts.queues.as_mut().expect("told").iter_mut().for_each(|q| q.user = Some(QueueUser::IoUring));
    assert_eq!(of(&about(&facts, None), "queue.user").outcome, CheckOutcome::Missing);
    facts.queues.as_mut().expect("told").truncate(1);
    assert_eq!(of(&about(&facts, None), "queue.number").outcome, CheckOutcome::Degraded);
}

#[test]
fn rss_leaves_out_the_queue_wherever_it_is() {
    assert_eq!(rss_command("e", 7, 8).as_deref(), Some("ethtool -X e equal 7"));
    assert_eq!(rss_command("e", 0, 8).as_deref(), Some("ethtool -X e start 1 equal 7"));
    assert_eq!(rss_command("e", 1, 4).as_deref(), Some("ethtool -X e weight 1 0 1 1"));
    assert_eq!(rss_command("e", 50, 100).as_deref(), Some("ethtool -X e equal 50"));
    assert_eq!(rss_command("e", 0, 1), None);
    assert_eq!(rss_command("e", 0, 0), None);
}

#[test]
fn commands_are_undone_by_what_was_before() {
    let mut facts = ready();
    (rings(&mut facts).data_split, rings(&mut facts).hds_thresh) = (Some(DataSplit::Off), Some(256));
    facts.ntuple = Some(Ntuple::Off);
    let list = commands(&facts, Some(7));
    let all: Vec<_> = list.iter().map(|c| (c.command.as_str(), c.undo.as_deref(), c.done)).collect();
    assert_eq!(
        all[0],
        ("ethtool -G eth1 tcp-data-split on", Some("ethtool -G eth1 tcp-data-split auto"), false)
    );
    assert_eq!(all[1], ("ethtool -G eth1 hds-thresh 0", Some("ethtool -G eth1 hds-thresh 256"), false));
    assert_eq!(all[2], ("ethtool -X eth1 equal 7", Some("ethtool -X eth1 default"), true));
    assert_eq!(all[3].0, "ethtool -K eth1 ntuple on");
    assert_eq!(all[4].0, "ethtool -N eth1 flow-type tcp6 dst-port PORT action 7");
}

fn says(errno: i32, registration: &Registration<'_>, facts: Option<&Facts>, words: &[&str]) {
    let text = explain_by(errno, registration, facts);
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn errors_of_a_registration_name_the_cause_and_what_to_do() {
    let on = Registration::new(Some("eth1"), 7);
    let facts = ready();
    let changed = |change: &dyn Fn(&mut Facts)| {
        let mut facts = ready();
        change(&mut facts);
        facts
    };
    says(libc::EPERM, &on, None, &["queue 7 of eth1", "EPERM", "CAP_NET_ADMIN", "first user namespace"]);
    says(libc::ENODEV, &on, None, &["no interface eth1", "ip link"]);
    let veth = changed(&|f| f.driver = Some("veth".to_owned()));
    says(libc::EOPNOTSUPP, &on, Some(&veth), &["veth", "bnxt_en, mlx5_core, gve, fbnic", "7.1"]);
    says(libc::EOPNOTSUPP, &on, Some(&facts), &["firmware"]);
    says(libc::ERANGE, &on, Some(&facts), &["8 in use", "ethtool -L eth1 combined 8"]);
    let off = changed(&|f| rings(f).data_split = Some(DataSplit::Off));
    says(libc::EINVAL, &on, Some(&off), &["ethtool -G eth1 tcp-data-split on"]);
    let some = changed(&|f| rings(f).hds_thresh = Some(64));
    says(libc::EINVAL, &on, Some(&some), &["64 bytes", "ethtool -G eth1 hds-thresh 0"]);
    let xdp = changed(&|f| f.link.xdp = Some((XdpAttached::Driver, Some(5))));
    says(libc::EEXIST, &on, Some(&xdp), &["XDP program 5", "xdpdrv off"]);
    let taken = changed(&|f| f.queues.as_mut().expect("told")[7].user = Some(QueueUser::AfXdp));
    says(libc::EBUSY, &on, Some(&taken), &["an AF_XDP socket", "another queue"]);
    says(libc::EEXIST, &on, None, &["XDP program", "another queue"]);
    says(libc::ENOMEM, &Registration { area_bytes: 64 << 20, ..on.clone() }, None, &["64 MiB", "ulimit -l"]);
    says(libc::EIO, &on, None, &["zerowire doctor -i eth1 -q 7"]);
}

#[test]
fn a_wrong_request_is_told_before_the_interface_is_blamed() {
    let on = Registration { area_bytes: 1 << 20, ..Registration::new(Some("eth1"), 7) };
    let mut facts = ready();
    rings(&mut facts).data_split = Some(DataSplit::Off);
    let e = |r: Registration<'_>, word: &str| says(libc::EINVAL, &r, Some(&facts), &[word]);
    e(Registration { has_recv_zc: false, ..on.clone() }, "6.15");
    e(Registration { is_wide: false, ..on.clone() }, "CQE32");
    e(Registration { is_deferred: false, ..on.clone() }, "DEFER_TASKRUN");
    e(Registration { area_bytes: 5000, ..on.clone() }, "5000 bytes");
    e(Registration { refill_entries: 0, ..on.clone() }, "0 entries");
    e(Registration { refill_entries: 40_000, ..on.clone() }, "40000 entries");
    let without = Registration { area_bytes: 1 << 20, ..Registration::new(None, 0) };
    says(libc::EINVAL, &without, None, &["without a device", "ZCRX_REG_NODEV", "7.1"]);
    says(
        libc::EINVAL,
        &Registration { buffer_bytes: Some(5000), ..on },
        Some(&ready()),
        &["5000 bytes", "power of two"],
    );
}

/// What the kernel answers to real registrations here, and what is said of it. Without the
/// capability it asks for that first.
#[test]
fn the_kernels_own_answers_are_explained() {
    use super::super::recv::NO_INTERFACE;
    use zerowire_sys::{trial::register_zcrx, uring::zcrx::ZcrxSource};
    let interface = LinkInfo::find("lo").expect("loopback").index;
    for (source, name, errno, word) in [
        (ZcrxSource::Queue { interface, queue: 0 }, "lo", libc::EOPNOTSUPP, "bnxt_en"),
        (NO_INTERFACE, "nowhere0", libc::ENODEV, "no interface nowhere0"),
    ] {
        let answer = register_zcrx(source).expect_err("no NIC").raw_os_error().expect("a number");
        let text = explain(answer, &Registration::new(Some(name), 0));
        match answer {
            libc::EPERM => assert!(text.contains("CAP_NET_ADMIN"), "{text}"),
            _ => assert!(answer == errno && text.contains(word), "{answer}: {text}"),
        }
    }
}

#[test]
fn a_queue_that_is_not_there_yet_is_made_first() {
    let list = commands(&ready(), Some(9));
    assert_eq!(list[0].command, "ethtool -L eth1 combined 10");
    assert_eq!(list[0].undo.as_deref(), Some("ethtool -L eth1 combined 8"));
    assert!(list.iter().any(|c| c.command == "ethtool -X eth1 equal 9"), "{list:?}");
    assert!(!commands(&ready(), Some(16)).iter().any(|c| c.command.contains("-L")), "16 is beyond the most");
}

/// Such as veth, which refuses channels that receive and send.
#[test]
fn a_driver_with_channels_that_only_receive_is_asked_for_those() {
    let mut facts = ready();
    let mut channels = Channels::default();
    (channels.rx, channels.rx_max) = (1, 2);
    facts.channels = Ok(channels);
    facts.queues.as_mut().expect("told").truncate(1);
    facts.rss = Ok(Rss { table: vec![0], ..Rss::default() });
    let remedy = |facts: &Facts, queue, id| {
        of(&about(facts, queue), id).remedy.clone().unwrap_or_else(|| panic!("{id}: no remedy"))
    };
    assert_eq!(remedy(&facts, None, "queue.number"), "For more: 'ethtool -L eth1 rx 2' (the most is 2).");
    let rss = remedy(&facts, Some(0), "queue.rss");
    assert!(rss.contains("'ethtool -L eth1 rx 2' makes a second one"), "{rss}");
    let text = explain_by(libc::ERANGE, &Registration::new(Some("eth1"), 1), Some(&facts));
    assert!(text.contains("'ethtool -L eth1 rx 2'"), "{text}");
    let list = commands(&facts, Some(1));
    assert_eq!(list[0].command, "ethtool -L eth1 rx 2");
    assert_eq!(list[0].undo.as_deref(), Some("ethtool -L eth1 rx 1"));
}

/// On this machine: the interface's own settings are read.
#[test]
fn loopback_is_explained() {
    let text = explain(libc::EOPNOTSUPP, &Registration::new(Some("lo"), 0));
    assert!(text.starts_with("queue 0 of lo can't be registered") && text.contains("bnxt_en"), "{text}");
    let report = run("lo", Some(0));
    assert_eq!(report.verdict.outcome, CheckOutcome::Missing);
    assert_eq!(of(&report, "queue.driver").outcome, CheckOutcome::Missing);
}
