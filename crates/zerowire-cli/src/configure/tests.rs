use super::*;
use std::sync::atomic::Ordering;

#[test]
fn nothing_is_changed_where_nothing_can_be() {
    let setup = Setup::default();
    let error = format!("{:#}", setup.apply("lo", 0, true).expect_err("loopback has no header split"));
    assert!(error.contains("--configure changed nothing on lo"), "{error}");
    setup.restore().expect("nothing to do");
}

#[test]
fn it_is_set_back_once_by_whoever_comes_first() {
    let (setup, count) = Setup::counting();
    let guard = setup.guard();
    setup.restore().expect("done");
    setup.restore().expect("nothing left");
    drop(guard);
    assert_eq!(count.load(Ordering::SeqCst), 1);
    let (setup, count) = Setup::counting();
    drop(setup.guard());
    assert_eq!(count.load(Ordering::SeqCst), 1, "a way out without a word");
}

#[test]
fn steering_names_port_and_queue() {
    for command in steering("lo", 3, 9999) {
        assert!(command.contains("dst-port 9999 action 3"), "{command}");
    }
}
