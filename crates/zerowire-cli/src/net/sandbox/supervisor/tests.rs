use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::{Args, FromArgMatches};
use zerowire_metadata::TokenPolicy;
use zerowire_net::{FrameGuard, Limits, MetadataSource};
use zerowire_testkit::net::in_netns;
use zerowire_testkit::own_process;
use zerowire_testkit::process::{become_ordinary, limit};
use zerowire_testkit::wait_until;
use zerowire_vhost::serve::Endpoint;

use super::*;
use crate::control::Manage;
use crate::net::NetArgs;
use crate::net::config::{Defaults, table_of};
use crate::net::manage::Managed;
use crate::net::sandbox::message::{ChildOrder, ChildWord};
use crate::net::sandbox::vm::tests::{common, config, setup, vm, vm_of};
use crate::reload::FileReload;
use crate::sandbox::capture::tests::capture;
use crate::sandbox::channel::tests::crowd;
use crate::sandbox::keeper::Charge;
use crate::service::HandedSockets;

/// A VM may go while another one of its name comes.
#[test]
fn a_vm_of_the_same_name_is_another_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut vms = NetRoster::new(None);
    let first = vms.admit(config(dir.path(), None)).expect("entered");
    assert!(vms.admit(config(dir.path(), None)).is_err(), "the name is taken");
    vms.forget(first);
    let second = vms.admit(config(dir.path(), None)).expect("entered");
    vms.forget(first);
    assert!(vms.all.iter().map(|kept| kept.number).eq([second]));
    vms.closed = true;
    vms.forget(second);
    assert!(vms.admit(config(dir.path(), None)).is_err(), "the server stops");
}

/// Others go on meanwhile.
#[test]
fn a_vm_that_comes_while_a_capture_begins_waits_until_descriptors_have_arrived() {
    own_process!();
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let (keeper, child) = Keeper::played(vm(dir.path(), None));
        let supervisor = Supervisor::new(common(), None);
        let number = supervisor.lock().admit(config(dir.path(), None)).expect("entered");
        keeper.charge.hand(&keeper.link().expect("a child")).expect("handed");
        setup(&child);
        supervisor.set_capture(Some(capture()));
        let state = || supervisor.vms().first().map(|vm| vm.state);
        limit(libc::RLIMIT_NOFILE, 100, 100).expect("a lower limit");
        become_ordinary(60_000 + std::process::id() % 5000, 0);
        let unread = crowd();
        std::thread::scope(|scope| {
            let comes = scope.spawn(|| supervisor.parts.keep(number, &keeper, None));
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(state(), Some(VmState::Opening));
            assert!(!comes.is_finished(), "it waits");
            drop(unread);
            assert!(comes.join().expect("no panic"));
        });
        let Ok(Some((ChildOrder::Capture(64), fds))) = child.receive() else { panic!("no capture") };
        assert_eq!((fds.len(), state()), (1, Some(VmState::Running)));
    });
}

/// The supervisor as the control socket manages it.
fn managed(supervisor: Arc<Supervisor>) -> Managed {
    let command = NetArgs::augment_args(clap::Command::new("net"));
    let given = ["net", "--control", "/c", "--metadata-token", "optional"];
    let args = NetArgs::from_arg_matches(&command.get_matches_from(given)).expect("arguments");
    Managed::new(supervisor, Defaults::new(&args).expect("defaults"), None)
}

/// It may not have answered when it got them.
#[test]
fn a_child_is_asked_again_for_limits_and_a_guard_that_its_vm_has() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let (keeper, child) = Keeper::played(vm(dir.path(), None));
        let link = keeper.link().expect("a child");
        let supervisor = Arc::new(Supervisor::new(common(), None));
        let number = supervisor.lock().admit(config(dir.path(), None)).expect("entered");
        keeper.charge.hand(&link).expect("handed");
        setup(&child);
        assert!(supervisor.parts.keep(number, &keeper, None));
        let managed = managed(supervisor);
        let limits = Limits { transmit: Some("1M/s".parse().expect("a limit")), receive: None };
        let guard = FrameGuard::parse("vlan=off", None).expect("a guard");
        let wanted = config(dir.path(), None).limits(limits).guard(Some(guard));
        // How many further questions the child answers.
        let answers = AtomicUsize::new(0);
        let (statuses, orders) = std::thread::scope(|scope| {
            let plays = scope.spawn(|| {
                let mut orders = String::new();
                while let Ok(Some((order, _))) = child.receive() {
                    match order {
                        ChildOrder::Limits(_) => orders.push_str("limits "),
                        ChildOrder::Guard(_) => orders.push_str("guard "),
                        ChildOrder::Statistics(number) => {
                            let less = |left: usize| left.checked_sub(1);
                            if answers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
                                link.take(ChildWord::Statistics(number, Box::default()));
                            }
                        }
                        other => panic!("{other:?}"),
                    }
                }
                orders
            });
            let statuses = [0, 0, 1].map(|answered| {
                answers.store(answered, Ordering::Relaxed);
                let turn = managed.turn().of("vm").expect("nobody has it");
                managed.change("vm", table_of(&wanted), &[], false, turn).map_err(|e| e.status)
            });
            link.close();
            (statuses, plays.join().expect("no panic"))
        });
        assert_eq!(statuses, [Err(503), Err(503), Ok(false)]);
        assert_eq!(orders, "limits guard ".repeat(3));
    });
}

/// The first child hangs. The others answer when all have been told.
#[test]
fn all_children_are_told_before_an_answer_is_awaited() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("metadata.json");
        std::fs::write(&file, "{}").expect("metadata");
        let supervisor = Supervisor::new(common(), None);
        let names = ["zwone", "zwtwo", "zwthree"];
        let children = names.map(|name| {
            let port = format!("tap:{name}").parse().expect("a port");
            let config = VmConfig::new(name, Endpoint::Path(dir.path().join(name)), port);
            let metadata = MetadataSource { file: file.clone(), tokens: TokenPolicy::Optional };
            let config = config.metadata(Some(metadata));
            let number = supervisor.lock().admit(config.clone()).expect("entered");
            let (keeper, child) = Keeper::played(vm_of(config));
            let link = keeper.link().expect("a child");
            keeper.charge.hand(&link).expect("handed");
            setup(&child);
            assert!(supervisor.parts.keep(number, &keeper, None));
            (link, child)
        });
        let limits = Limits { transmit: Some("1M/s".parse().expect("a limit")), receive: None };
        let configs = || supervisor.vms().into_iter().map(|vm| vm.config);
        let wanted: Vec<_> = configs().map(|config| config.limits(limits)).collect();
        let reloaded = std::thread::scope(|scope| {
            let fleet: &dyn Fleet = &supervisor;
            let reloads = scope.spawn(|| fleet.reload(&names.map(str::to_owned), wanted));
            let told = children.each_ref().map(|(_, child)| {
                let next = || child.receive().expect("an order").expect("not the end").0;
                let ChildOrder::Metadata(metadata, _) = next() else { panic!("no metadata") };
                assert!(matches!(next(), ChildOrder::Limits(_)));
                let ChildOrder::Statistics(statistics) = next() else { panic!("no question") };
                [metadata, statistics]
            });
            for ((link, _), [metadata, statistics]) in children.iter().zip(told).skip(1) {
                link.take(ChildWord::Metadata(metadata, None));
                link.take(ChildWord::Statistics(statistics, Box::default()));
            }
            reloads.join().expect("no panic").expect("a good file")
        });
        let errors: [_; 2] = reloaded.errors.try_into().expect("two errors");
        assert!(errors.iter().all(|e| e.contains("VM zwone") && e.contains("not answer")), "{errors:?}");
        assert!(configs().all(|config| config.limits == limits));
    });
}

/// The file has no guard. A client's change has not got so far when SIGHUP comes.
#[test]
fn a_file_that_is_read_again_waits_for_a_change_of_its_vm() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("metadata.json");
        std::fs::write(&file, "{}").expect("metadata");
        let in_file = config(dir.path(), Some(&file));
        let (keeper, child) = Keeper::played(vm(dir.path(), Some(&file)));
        let link = keeper.link().expect("a child");
        let supervisor = Arc::new(Supervisor::new(common(), None));
        let number = supervisor.lock().admit(in_file.clone()).expect("entered");
        keeper.charge.hand(&link).expect("handed");
        setup(&child);
        assert!(supervisor.parts.keep(number, &keeper, None));
        let managed = managed(supervisor.clone());
        let guard = FrameGuard::parse("vlan=off", None).expect("a guard");
        let wanted = table_of(&in_file.clone().guard(Some(guard)));
        let mut reload = FileReload::new(std::slice::from_ref(&in_file), HandedSockets::default());
        let next = || child.receive().expect("an order").map(|(order, _)| order);
        let keys = ["metadata".to_owned(), "guard".to_owned()];
        std::thread::scope(|scope| {
            let turn = managed.turn().of("vm").expect("nobody has it");
            let changes = scope.spawn(|| managed.change("vm", wanted, &keys, false, turn));
            let Some(ChildOrder::Metadata(first, _)) = next() else { panic!("no metadata") };
            let reads = scope.spawn(|| {
                let fleet: &dyn Fleet = &*supervisor;
                let change = |before: &[String], wanted| fleet.reload(before, wanted);
                let read = Ok(vec![in_file.clone()]);
                reload.reload(Path::new("file"), managed.turn(), read, change, || fleet.vms())
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!reads.is_finished(), "it waits");
            link.take(ChildWord::Metadata(first, None));
            scope.spawn(|| {
                while let Some(order) = next() {
                    match order {
                        ChildOrder::Metadata(number, _) => link.take(ChildWord::Metadata(number, None)),
                        ChildOrder::Statistics(number) => {
                            link.take(ChildWord::Statistics(number, Box::default()));
                        }
                        _ => {}
                    }
                }
            });
            assert_eq!(changes.join().expect("no panic"), Ok(false));
            assert_eq!(reads.join().expect("no panic"), Ok(Vec::new()));
            link.close();
        });
        assert_eq!(supervisor.vms().remove(0).config, in_file, "the file came last");
    });
}

/// Its child may still have the tap, which nobody else can open then.
#[test]
fn a_vm_whose_child_does_not_end_leaves_until_it_does() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let supervisor = Supervisor::new(common(), None);
        let config = config(dir.path(), None);
        let number = supervisor.lock().admit(config.clone()).expect("entered");
        let (keeper, _child) = Keeper::played(vm(dir.path(), None));
        *lock(&keeper.charge.gone) = Some(Box::new(supervisor.parts.gone(number)));
        let (child, held) = std::sync::mpsc::channel();
        keeper.run_until(held);
        assert!(supervisor.parts.keep(number, &keeper, None));
        drop(keeper);
        for _ in 0..2 {
            assert!(matches!(supervisor.remove(&config.name), Err(ChangeError::Stuck(_))));
            assert_eq!(supervisor.vms().first().map(|vm| vm.state), Some(VmState::Leaving));
        }
        assert!(supervisor.add(config.clone(), None).is_err(), "the name is taken");
        // It has no port, and the one before has no folder for its socket then: no child starts.
        let next = VmConfig::new("vm", config.endpoint.clone(), "packet:zwnone".parse().expect("a port"));
        supervisor.add_later(next).expect("it comes later");
        let waits = |kept: &KeptNet| matches!(kept.stage, KeptStage::Leaving(NetLeaving::Held(Some(_))));
        assert!(supervisor.lock().all.iter().any(waits));
        assert!(config.port.keep().is_err(), "the tap is taken");
        drop((dir, child));
        wait_until("it has gone", || supervisor.vms().is_empty() && config.port.keep().is_ok());
    });
}
