use std::sync::Barrier;
use std::time::Duration;

use zerowire_testkit::own_process;
use zerowire_testkit::process::{become_ordinary, limit};
use zerowire_vsock::OwnSockets;

use super::super::group::tests::{group, kept};
use super::super::roster::VsockRoster;
use super::*;
use crate::sandbox::capture::tests::capture;
use crate::sandbox::channel::Channel;
use crate::sandbox::channel::tests::crowd;
use crate::sandbox::keeper::{Charge, ChildEnd};
use crate::sandbox::link::{ANSWER_PATIENCE, settled};

/// The next order that a child gets.
fn next(child: &Channel) -> GroupOrder {
    child.receive().expect("an order").expect("not the end").0
}

/// The VMs that a child is given, with their limits.
pub fn given(child: &Channel) -> Vec<(String, Limits)> {
    assert!(matches!(next(child), GroupOrder::Start(_)));
    let mut vms = Vec::new();
    loop {
        match next(child) {
            GroupOrder::Vm(setup) => vms.push(setup.config()),
            GroupOrder::Session(None) => {}
            GroupOrder::Serve => return vms.into_iter().map(|vm| (vm.name, vm.rates)).collect(),
            other => panic!("{other:?}"),
        }
    }
}

fn set_rates(keeper: &Keeper<VsockGroup>, vm: &KeptVsock, rates: Limits) -> Result<(), String> {
    let deadline = Instant::now() + ANSWER_PATIENCE;
    settled(keeper.ask_rates(vm, rates, deadline)?, deadline)
}

fn limits() -> Limits {
    Limits { transmit: Some("1M/s".parse().expect("a limit")), receive: None }
}

#[test]
fn a_child_that_does_not_read_while_it_is_given_its_vms_holds_nobody_up() {
    let dir = tempfile::tempdir().expect("a folder");
    let (keeper, child) = Keeper::played(group(dir.path(), 0));
    let link = keeper.link().expect("a child");
    let vms = lock(&keeper.charge.members).vms.clone();
    let roster = VsockRoster::new(None);
    roster.started(&vms, &keeper);
    let text = "x".repeat(20_000);
    let full = (0..).take_while(|_| link.channel.send(&text, &[]).is_ok()).count();
    std::thread::scope(|scope| {
        let handed = scope.spawn(|| keeper.charge.hand(&link));
        while !lock(&keeper.charge.members).has_child() {
            assert!(!handed.is_finished(), "it waits for the child");
            std::thread::yield_now();
        }
        assert!(keeper.ask_stats().is_empty(), "it takes no question yet");
        assert_eq!(set_rates(&keeper, &vms[0], limits()), Ok(()), "its setup has them");
        assert_eq!(roster.vms().len(), 2);
        assert!(roster.set_capture(None).1.into_iter().all(|change| change.begin.is_none()));
        assert!(!handed.is_finished(), "it waits for the child");
        (0..full).for_each(|_| drop(child.receive::<String>()));
        let vms = given(&child);
        assert_eq!(vms, [("a".to_owned(), limits()), ("b".to_owned(), Limits::default())]);
        assert_eq!(handed.join().expect("no panic"), Ok(()));
    });
    assert_eq!(keeper.ask_stats().len(), 1);
}

/// The VMs that go on, by name, and what that means for their front ends.
fn died(keeper: &Keeper<VsockGroup>) -> Vec<(String, String)> {
    let end = ChildEnd { why: "killed by signal 9".to_owned(), is_error: true };
    keeper.charge.died(&end).expect("another child follows")
}

/// It may have been given another state of them.
#[test]
fn changes_of_vms_that_a_starting_child_has_come_behind_all_vms() {
    let dir = tempfile::tempdir().expect("a folder");
    let (keeper, child) = Keeper::played(group(dir.path(), 0));
    let members = || lock(&keeper.charge.members);
    let vms = members().begin();
    let [a, b] = &vms[..] else { panic!("two VMs") };
    keeper.drain(a);
    assert!(members().give(a).expect("open").expect("it stays").0.drains, "its setup says so");
    let rates = set_rates(&keeper, a, limits());
    assert!(rates.is_err_and(|e| e.contains("holds when it does")), "it has not answered");
    assert_eq!(set_rates(&keeper, b, limits()), Ok(()), "its setup has them");
    lock(&b.state).leaves = true;
    assert!(members().give(b).expect("open").is_none(), "it has left");
    let late = members().late_changes();
    assert!(matches!(&late[..], [(VmChange::Rates(_, 0, _), _)]), "{late:?}");
    assert!(!members().is_serving());
    assert!(members().late_changes().is_empty() && members().is_serving());
    keeper.drain(a);
    assert!(matches!(next(&child), GroupOrder::Change(VmChange::Drain(0))), "at once, and the first one");
}

/// The child has not answered by then, or was not even asked.
#[test]
fn a_vm_that_joins_while_the_child_dies_is_the_next_ones() {
    let dir = tempfile::tempdir().expect("a folder");
    let (keeper, child) = Keeper::played(group(dir.path(), 0));
    let (link, own) = (keeper.link().expect("a child"), OwnSockets::default());
    let [c, d] = [(2, "c"), (3, "d")].map(|vm| kept(dir.path(), &own, vm, 0));
    keeper.charge.hand(&link).expect("room");
    assert_eq!(given(&child).len(), 2);
    std::thread::scope(|scope| {
        let joins = scope.spawn(|| keeper.join(&c).is_ok());
        assert!(matches!(next(&child), GroupOrder::Change(VmChange::Add(..))));
        link.close();
        assert!(joins.join().expect("no panic"), "the next child gets it");
    });
    assert!(keeper.join(&d).is_ok());
    let names = |died: Vec<(String, String)>| died.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(died(&keeper)), ["a", "b"]);
    let error = |vm: &KeptVsock| vm.stats(&[]).vm.totals.last_error;
    assert_eq!([error(&c), error(&d)], [None, None], "that child did not have them");
    assert!(lock(&keeper.charge.members).vms.iter().take(2).all(|vm| error(vm).is_some()));
    let (ours, theirs) = Channel::pair().expect("a pair");
    keeper.charge.hand(&Arc::new(ChildLink::new(ours))).expect("room");
    let vms: Vec<_> = given(&Channel::of(theirs)).into_iter().map(|(name, _)| name).collect();
    assert_eq!(vms, ["a", "b", "c", "d"]);
    assert_eq!(names(died(&keeper)), vms);
    assert!(error(&c).is_some() && error(&d).is_some());
}

#[test]
fn limits_hold_when_the_child_says_so() {
    let dir = tempfile::tempdir().expect("a folder");
    let (keeper, child) = Keeper::played(group(dir.path(), 0));
    let link = keeper.link().expect("a child");
    keeper.charge.hand(&link).expect("room");
    assert_eq!(given(&child).len(), 2);
    let vm = lock(&keeper.charge.members).vms[0].clone();
    let carry_out = |answers: bool| {
        std::thread::scope(|scope| {
            let sets = scope.spawn(|| set_rates(&keeper, &vm, limits()));
            let GroupOrder::Change(VmChange::Rates(number, 0, _)) = next(&child) else {
                panic!("another order")
            };
            assert!(!sets.is_finished(), "it waits");
            if answers {
                link.take(GroupWord::Changed(number, None))
            } else {
                link.close()
            }
            sets.join().expect("no panic")
        })
    };
    assert_eq!(carry_out(true), Ok(()));
    // One that takes no order has the limits of before.
    let text = "x".repeat(20_000);
    let full = (0..).take_while(|_| link.channel.send(&text, &[]).is_ok()).count();
    let refused = set_rates(&keeper, &vm, Limits::default());
    assert!(refused.is_err_and(|e| e.contains("it takes no order now")));
    assert_eq!(vm.config().rates, limits());
    (0..full).for_each(|_| drop(child.receive::<String>()));
    assert_eq!(carry_out(false), Ok(()), "the next one has them");
}

/// The child has not run yet since many VMs got other limits.
#[test]
fn limits_wait_for_room_among_a_childs_orders() {
    let dir = tempfile::tempdir().expect("a folder");
    let (keeper, child) = Keeper::played(group(dir.path(), 0));
    let link = keeper.link().expect("a child");
    keeper.charge.hand(&link).expect("room");
    assert_eq!(given(&child).len(), 2);
    let vm = lock(&keeper.charge.members).vms[0].clone();
    let text = "x".repeat(20_000);
    let full = (0..).take_while(|_| link.channel.send(&text, &[]).is_ok()).count();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| keeper.ask_rates(&vm, limits(), Instant::now() + Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!asks.is_finished(), "it waits");
        (0..full).for_each(|_| drop(child.receive::<String>()));
        assert!(matches!(next(&child), GroupOrder::Change(VmChange::Rates(_, 0, _))));
        assert!(asks.join().expect("no panic").is_ok_and(|asked| asked.is_some()));
    });
}

/// Several callers change one VM at the same time.
#[test]
fn the_limits_that_a_child_gets_last_are_those_that_are_kept() {
    const ROUNDS: usize = 10_000;
    let dir = tempfile::tempdir().expect("a folder");
    let (keeper, child) = Keeper::played(group(dir.path(), 0));
    let link = keeper.link().expect("a child");
    keeper.charge.hand(&link).expect("room");
    assert_eq!(given(&child).len(), 2);
    let vm = lock(&keeper.charge.members).vms[0].clone();
    let turn = Barrier::new(3);
    std::thread::scope(|scope| {
        for rates in [limits(), Limits::default()] {
            let (keeper, vm, turn) = (&keeper, &vm, &turn);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    turn.wait();
                    // The answer may be late.
                    let _ = set_rates(keeper, vm, rates);
                    turn.wait();
                }
            });
        }
        let mut differing = 0;
        for _ in 0..ROUNDS {
            turn.wait();
            let [_, last] = [(); 2].map(|()| {
                let GroupOrder::Change(VmChange::Rates(number, 0, rates)) = next(&child) else {
                    panic!("another order")
                };
                link.take(GroupWord::Changed(number, None));
                rates
            });
            turn.wait();
            differing += usize::from(vm.config().rates != last);
        }
        assert_eq!(differing, 0, "rounds after which the child has other limits than its VM");
    });
}

#[test]
fn a_vm_that_a_child_refuses_does_not_stay() {
    let dir = tempfile::tempdir().expect("a folder");
    let (keeper, child) = Keeper::played(group(dir.path(), 0));
    let link = keeper.link().expect("a child");
    let c = kept(dir.path(), &OwnSockets::default(), (2, "c"), 0);
    keeper.charge.hand(&link).expect("room");
    assert_eq!(given(&child).len(), 2);
    std::thread::scope(|scope| {
        let joins = scope.spawn(|| keeper.join(&c));
        let GroupOrder::Change(VmChange::Add(number, _)) = next(&child) else { panic!("another order") };
        link.take(GroupWord::Changed(number, Some("no room".to_owned())));
        let refused = joins.join().expect("no panic");
        assert!(matches!(refused, Err(JoinRefusal::Child(why)) if why == "no room"));
    });
    assert!(matches!(next(&child), GroupOrder::Change(VmChange::Remove(_, 2))));
    assert_eq!(died(&keeper).len(), 2);
}

/// Its descriptors have not left yet.
#[test]
fn a_vm_whose_child_dies_while_its_descriptors_wait_is_the_next_ones() {
    own_process!();
    let dir = tempfile::tempdir().expect("a folder");
    let (keeper, child) = Keeper::played(group(dir.path(), 0));
    let link = keeper.link().expect("a child");
    let c = kept(dir.path(), &OwnSockets::default(), (2, "c"), 0);
    keeper.charge.hand(&link).expect("room");
    assert_eq!(given(&child).len(), 2);
    limit(libc::RLIMIT_NOFILE, 100, 100).expect("a lower limit");
    become_ordinary(60_000 + std::process::id() % 5000, 0);
    let unread = crowd();
    std::thread::scope(|scope| {
        let joins = scope.spawn(|| keeper.join(&c).is_ok());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!joins.is_finished(), "it waits");
        drop(child);
        assert!(joins.join().expect("no panic"), "the next child gets it");
    });
    drop(unread);
    let names = |died: Vec<(String, String)>| died.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(died(&keeper)), ["a", "b"]);
    let (ours, theirs) = Channel::pair().expect("a pair");
    keeper.charge.hand(&Arc::new(ChildLink::new(ours))).expect("room");
    let vms: Vec<_> = given(&Channel::of(theirs)).into_iter().map(|(name, _)| name).collect();
    assert_eq!(vms, ["a", "b", "c"]);
}

/// Others go on meanwhile.
#[test]
fn a_vm_that_joins_and_captures_wait_until_descriptors_have_arrived() {
    own_process!();
    let dir = tempfile::tempdir().expect("a folder");
    let (keeper, child) = Keeper::played(group(dir.path(), 0));
    let (link, roster) = (keeper.link().expect("a child"), VsockRoster::new(None));
    let vms = lock(&keeper.charge.members).vms.clone();
    roster.started(&vms, &keeper);
    let c = kept(dir.path(), &OwnSockets::default(), (2, "c"), 0);
    keeper.charge.hand(&link).expect("room");
    assert_eq!(given(&child).len(), 2);
    limit(libc::RLIMIT_NOFILE, 100, 100).expect("a lower limit");
    become_ordinary(60_000 + std::process::id() % 5000, 0);
    let others_go_on = || {
        std::thread::sleep(Duration::from_millis(20));
        keeper.drain(&vms[0]);
        assert!(matches!(next(&child), GroupOrder::Change(VmChange::Drain(0))));
        assert_eq!(roster.vms().len(), 2);
    };
    let unread = crowd();
    std::thread::scope(|scope| {
        let joins = scope.spawn(|| keeper.join(&c).is_ok());
        others_go_on();
        assert!(!joins.is_finished(), "it waits");
        drop(unread);
        let GroupOrder::Change(VmChange::Add(number, _)) = next(&child) else { panic!("another order") };
        link.take(GroupWord::Changed(number, None));
        assert!(joins.join().expect("no panic"));
    });
    let unread = crowd();
    let changes = roster.set_capture(Some(capture())).1;
    std::thread::scope(|scope| {
        let deadline = Instant::now() + PATIENCE;
        let captured = scope.spawn(move || CaptureChange::finish(changes, deadline));
        others_go_on();
        assert!(!captured.is_finished(), "it waits");
        drop(unread);
        for vm in 0..2 {
            let begins = next(&child);
            let GroupOrder::Change(VmChange::Capture(number, of, _)) = begins else { panic!("{begins:?}") };
            assert_eq!(of, vm);
            link.take(GroupWord::Changed(number, None));
        }
        captured.join().expect("no panic");
    });
}
