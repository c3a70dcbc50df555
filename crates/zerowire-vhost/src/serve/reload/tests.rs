use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::*;
use crate::limit::Limits;
use crate::serve::{RefusalKind, ServerRefusal, ServerStats, VmInfo, VmTurn};

/// A VM on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OnPort {
    name: String,
    port: &'static str,
    endpoint: Endpoint,
    limits: Limits,
}

impl RosterConfig for OnPort {
    fn name(&self) -> &str {
        &self.name
    }
}

fn on(name: &str, port: &'static str) -> OnPort {
    let endpoint = Endpoint::Path(name.into());
    OnPort { name: name.to_owned(), port, endpoint, limits: Limits::default() }
}

/// VMs that do nothing.
#[derive(Default)]
struct IdleVms {
    all: Mutex<Vec<(OnPort, VmState)>>,
    /// Ports that can't be tried, and those that can't be had.
    untried: Vec<&'static str>,
    bad: Mutex<Vec<&'static str>>,
    /// Ports that are bad as soon as their VM has gone.
    single_use: Vec<&'static str>,
    /// True: removals give up.
    held: bool,
    /// Added by somebody else as soon as one has gone.
    other: Mutex<Option<OnPort>>,
    /// How many removals go side by side, and how many there have been.
    together: usize,
    going: (Mutex<usize>, Condvar),
    /// The VMs that were there when some got other limits.
    updated: Mutex<Vec<String>>,
    /// Added when another one has gone.
    late: Mutex<Vec<OnPort>>,
}

impl IdleVms {
    fn with(vms: &[OnPort]) -> Self {
        let all = vms.iter().map(|vm| (vm.clone(), VmState::Running)).collect();
        Self { all: Mutex::new(all), bad: Mutex::new(vec!["bad"]), ..Self::default() }
    }

    fn ports(&self) -> Vec<(String, &'static str)> {
        self.vms().into_iter().map(|vm| (vm.config.name, vm.config.port)).collect()
    }

    fn had(&self, config: &OnPort) -> Result<(), StartError> {
        let is_bad = self.bad.lock().expect("no panic").contains(&config.port);
        let text = format!("no port {}", config.port);
        if is_bad { Err(StartError::Limit { vm: config.name.clone(), text }) } else { Ok(()) }
    }
}

impl VmFleet for IdleVms {
    type Config = OnPort;
    type Error = StartError;
    type Stats = ();

    fn vms(&self) -> Vec<VmInfo<OnPort>> {
        let all = self.all.lock().expect("no panic");
        let info = |(config, state): &(OnPort, VmState)| VmInfo {
            config: config.clone(),
            state: *state,
            connected: false,
        };
        all.iter().map(info).collect()
    }

    fn stats(&self) -> ServerStats<()> {
        unreachable!("nobody asks")
    }

    fn add(&self, config: OnPort, _turn: Option<VmTurn<'_>>) -> Result<(), StartError> {
        self.had(&config)?;
        let names: Vec<_> =
            self.ports().into_iter().map(|(name, _)| name).chain([config.name.clone()]).collect();
        crate::serve::check_names(names.iter().map(String::as_str))?;
        self.all.lock().expect("no panic").push((config, VmState::Running));
        Ok(())
    }

    fn add_later(&self, config: OnPort) -> Result<(), StartError> {
        self.late.lock().expect("no panic").push(config);
        Ok(())
    }

    fn try_open(&self, running: &OnPort, wanted: &OnPort) -> Result<(), StartError> {
        let is_tried = running.port != wanted.port && !self.untried.contains(&wanted.port);
        if is_tried { self.had(wanted) } else { Ok(()) }
    }

    fn remove(&self, name: &str) -> Result<(), ChangeError<StartError>> {
        if self.held {
            return Err(ChangeError::Stuck(name.to_owned()));
        }
        let (going, changed) = &self.going;
        let mut count = going.lock().expect("no panic");
        *count += 1;
        changed.notify_all();
        let waited = changed.wait_timeout_while(count, Duration::from_secs(20), |n| *n < self.together);
        assert!(!waited.expect("no panic").1.timed_out(), "one goes behind the other");
        let gone: Vec<_> =
            self.all.lock().expect("no panic").extract_if(.., |(vm, _)| vm.name == name).collect();
        let lost = gone.iter().map(|(vm, _)| vm.port).filter(|port| self.single_use.contains(port));
        self.bad.lock().expect("no panic").extend(lost);
        if let Some(other) = self.other.lock().expect("no panic").take() {
            self.add(other, None).expect("it is free");
        }
        if gone.is_empty() { Err(ChangeError::Unknown(name.to_owned())) } else { Ok(()) }
    }

    fn drain(&self, name: &str) -> Result<(), ChangeError<StartError>> {
        let mut all = self.all.lock().expect("no panic");
        all.iter_mut().filter(|(vm, _)| vm.name == name).for_each(|(_, state)| *state = VmState::Draining);
        Ok(())
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn stop(&self) {}
}

impl Reloads for IdleVms {
    fn check(all: &[&OnPort]) -> Result<(), StartError> {
        crate::serve::check_names(all.iter().map(|vm| vm.name.as_str()))
    }

    fn keeps(running: &OnPort, wanted: &OnPort) -> bool {
        OnPort { limits: running.limits, ..wanted.clone() } == *running
    }

    fn differs(running: &OnPort, wanted: &OnPort) -> bool {
        running.limits != wanted.limits
    }

    fn endpoint(config: &OnPort) -> &Endpoint {
        &config.endpoint
    }

    fn update(&self, kept: Vec<(OnPort, OnPort)>) -> Vec<ChangeError<StartError>> {
        let mut all = self.all.lock().expect("no panic");
        *self.updated.lock().expect("no panic") = all.iter().map(|(vm, _)| vm.name.clone()).collect();
        for (_, wanted) in kept {
            all.iter_mut()
                .filter(|(vm, _)| vm.name == wanted.name)
                .for_each(|(vm, _)| vm.limits = wanted.limits);
        }
        Vec::new()
    }
}

fn named(ports: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
    ports.iter().map(|(name, port)| ((*name).to_owned(), *port)).collect()
}

/// Gives a VM other settings than those that it has by now.
fn change(vms: &IdleVms, wanted: OnPort) -> Result<(), ReplaceError<StartError>> {
    let running = vms.vms().into_iter().find(|vm| vm.config.name == wanted.name);
    let before = running.map_or_else(|| wanted.clone(), |vm| vm.config);
    replace(vms, &before, wanted, &ChangeTurn::default())
}

#[test]
fn a_vm_gets_another_port_and_others_stay() {
    let vms = IdleVms::with(&[on("a", "p"), on("b", "q")]);
    change(&vms, on("a", "r")).expect("a good port");
    assert_eq!(vms.ports(), named(&[("b", "q"), ("a", "r")]));
    let limits = Limits { transmit: Some("1M/s".parse().expect("a limit")), receive: None };
    change(&vms, OnPort { limits, ..on("b", "q") }).expect("good limits");
    assert_eq!(vms.ports(), named(&[("b", "q"), ("a", "r")]), "it was not removed");
    assert_eq!(vms.vms()[0].config.limits, limits);
}

#[test]
fn what_can_be_seen_before_changes_nothing() {
    let mut handed = on("handed", "h");
    handed.endpoint = Endpoint::Fd(7);
    let vms = IdleVms::with(&[on("a", "p"), on("b", "q"), handed.clone()]);
    vms.drain("b").expect("it is there");
    let before = vms.ports();
    handed.port = "r";
    for (wanted, words) in [
        (on("a", "bad"), "no port bad"),
        (on("none", "r"), "no VM is named 'none'"),
        (on("b", "r"), "just being added or removed"),
        (handed, "restart the program"),
    ] {
        let e = change(&vms, wanted).expect_err(words);
        assert!(matches!(e, ReplaceError::Unchanged(_)) && e.to_string().contains(words), "{e:?}");
        assert_eq!(vms.ports(), before);
    }
}

#[test]
fn what_shows_late_has_the_vm_added_again_as_it_was() {
    let vms = IdleVms { untried: vec!["bad"], ..IdleVms::with(&[on("a", "p")]) };
    let e = change(&vms, on("a", "bad")).expect_err("no such port");
    assert!(matches!(e, ReplaceError::Restored { .. }) && e.cause().is_some(), "{e:?}");
    let words = "VM a: no port bad; VM a has its old settings again, and its front end has to connect again";
    assert_eq!(e.to_string(), words);
    assert_eq!(vms.ports(), named(&[("a", "p")]));
}

#[test]
fn a_vm_that_can_not_be_added_again_is_said_to_be_gone() {
    let vms = IdleVms { untried: vec!["bad"], single_use: vec!["p"], ..IdleVms::with(&[on("a", "p")]) };
    let e = change(&vms, on("a", "bad")).expect_err("no such port");
    assert!(matches!(e, ReplaceError::Gone { .. }), "{e:?}");
    for words in ["no port bad; VM a is gone: ", "can't be had again either: VM a: no port p"] {
        assert!(e.to_string().contains(words), "{e}");
    }
    assert_eq!(vms.ports(), []);
}

/// Somebody adds it while a file is read again.
#[test]
fn a_vm_of_the_same_name_is_not_said_to_be_gone() {
    let vms = IdleVms { other: Mutex::new(Some(on("a", "other"))), ..IdleVms::with(&[on("a", "p")]) };
    let done = reload(&vms, &["a".to_owned()], vec![on("a", "r")]).expect("a good file");
    let [error] = done.errors.as_slice() else { panic!("{done:?}") };
    assert!(error.ends_with("another VM a was added meanwhile, and stays"), "{error}");
    assert_eq!(vms.ports(), named(&[("a", "other")]));
}

#[test]
fn a_vm_that_is_held_up_gets_its_settings_when_it_has_gone() {
    let vms = IdleVms { held: true, ..IdleVms::with(&[on("a", "p")]) };
    let e = change(&vms, on("a", "r")).expect_err("it is held up");
    assert!(matches!(e, ReplaceError::Later(_)) && e.to_string().ends_with("It is added again then"), "{e}");
    assert_eq!(*vms.late.lock().expect("no panic"), [on("a", "r")]);
}

/// A VM whose new port fails gets its old one only if no other VM of the file wants it.
#[test]
fn a_file_that_is_read_again_restores_behind_all_others() {
    let before = ["a", "b"].map(str::to_owned);
    let vms = IdleVms::with(&[on("a", "p"), on("b", "q")]);
    let done = reload(&vms, &before, vec![on("a", "bad"), on("b", "r"), on("c", "bad")]).expect("names");
    assert_eq!(
        (done.replaced.as_slice(), done.added.as_slice()),
        (["b".to_owned()].as_slice(), [].as_slice())
    );
    let errors: [_; 2] = done.errors.try_into().expect("two errors");
    assert_eq!(errors[0], "VM c: no port bad; VM c is not served");
    assert!(errors[1].contains("no port bad; VM a has its old settings again"), "{errors:?}");
    assert_eq!(vms.ports(), named(&[("b", "r"), ("a", "p")]));
}

/// A removal that is held up takes some seconds.
#[test]
fn a_file_that_is_read_again_removes_vms_side_by_side() {
    let all = ["a", "b", "c", "d"];
    let vms = IdleVms { together: 3, ..IdleVms::with(&all.map(|name| on(name, name))) };
    let wanted = vec![on("a", "p"), on("b", "b"), on("e", "q"), on("c", "r")];
    let done = reload(&vms, &all.map(str::to_owned), wanted).expect("a good file");
    assert_eq!((done.removed, done.replaced), (vec!["d".to_owned()], vec!["a".to_owned(), "c".to_owned()]));
    assert!(done.errors.is_empty(), "{:?}", done.errors);
    assert_eq!(vms.ports(), named(&[("b", "b"), ("a", "p"), ("e", "q"), ("c", "r")]), "in the file's order");
}

/// To add a VM may take long, or never end.
#[test]
fn limits_hold_before_a_vm_is_added_and_behind_all_removals() {
    let before = ["a", "gone"].map(str::to_owned);
    let vms = IdleVms::with(&[on("a", "p"), on("gone", "q")]);
    let limits = Limits { transmit: Some("1M/s".parse().expect("a limit")), receive: None };
    let wanted = vec![on("new", "r"), OnPort { limits, ..on("a", "p") }];
    let done = reload(&vms, &before, wanted.clone()).expect("a good file");
    assert_eq!((done.errors, done.changed), (Vec::new(), vec!["a".to_owned()]));
    assert_eq!(vms.updated.lock().expect("no panic").as_slice(), ["a"]);
    let before = ["a", "new"].map(str::to_owned);
    assert_eq!(reload(&vms, &before, wanted).expect("the same file").changed, [""; 0]);
    assert!(vms.vms().iter().any(|vm| vm.config.limits == limits));
}

/// A change that hangs holds up no other one for ever, and a VM that can't get its turn keeps its
/// front end.
#[test]
fn a_vm_whose_turn_does_not_come_stays_as_it_is() {
    let (vms, turn) = (IdleVms::with(&[on("a", "p")]), ChangeTurn::new(Duration::ZERO));
    let hanging = turn.of("a").expect("nobody has it");
    let e = replace(&vms, &on("a", "p"), on("a", "r"), &turn).expect_err("another change hangs");
    assert!(e.to_string().starts_with("another change is under way"), "{e}");
    let ReplaceError::Unchanged(e) = e else { panic!("{e}") };
    assert_eq!((e.kind(), vms.ports()), (RefusalKind::Passing, named(&[("a", "p")])));
    assert!(turn.entering("b").is_ok(), "others go on");
    drop(hanging);
    replace(&vms, &on("a", "p"), on("a", "r"), &turn).expect("its turn");
    assert_eq!(vms.ports(), named(&[("a", "r")]));
    assert!(turn.away("a").is_ok(), "it has let go of it");
}

#[test]
fn a_vm_that_was_changed_meanwhile_keeps_that() {
    let vms = IdleVms::with(&[on("a", "q")]);
    let e = replace(&vms, &on("a", "p"), on("a", "r"), &ChangeTurn::default()).expect_err("it is on q");
    assert!(matches!(e, ReplaceError::Unchanged(ChangeError::Changed(_))), "{e}");
    assert_eq!(vms.ports(), named(&[("a", "q")]));
}

#[test]
fn the_last_vm_of_a_file_is_removed() {
    let vms = IdleVms::with(&[on("a", "p")]);
    let done = reload(&vms, &["a".to_owned()], Vec::new()).expect("a file without VMs");
    assert_eq!((done.removed, done.errors), (vec!["a".to_owned()], Vec::new()));
    // It is away for a moment, so it is not among those that are read again.
    assert_eq!(reload(&vms, &[], Vec::new()).expect("nothing to do"), Reloaded::default());
}
