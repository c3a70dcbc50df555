use std::convert::Infallible;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;

fn get(attached: &Attached<u32>, index: u32, value: u32) -> Arc<u32> {
    attached.get_or((0, 0, index), || Ok::<_, Infallible>(value)).unwrap_or_else(|e| match e {})
}

#[test]
fn one_is_made_for_all_users_and_goes_with_the_last() {
    let attached = Attached(Mutex::new(Vec::new()));
    let (first, second) = (get(&attached, 1, 10), get(&attached, 1, 11));
    assert_eq!((*first, *second, *get(&attached, 2, 20)), (10, 10, 20));
    drop(first);
    drop(second);
    assert_eq!(*get(&attached, 1, 12), 12);
    assert_eq!(attached.0.lock().unwrap().len(), 1, "what nobody uses is forgotten");
    assert_eq!(attached.get_or((0, 0, 3), || Err::<u32, _>("refused")), Err("refused"));
}

#[test]
fn an_interface_that_waits_holds_up_no_other() {
    let attached = Attached(Mutex::new(Vec::new()));
    let (begun, begins) = channel();
    let (go, goes) = channel::<()>();
    std::thread::scope(|s| {
        let shared = &attached;
        let slow = s.spawn(move || {
            shared.get_or((0, 0, 1), || {
                begun.send(()).unwrap();
                goes.recv_timeout(Duration::from_secs(20)).map(|()| 10)
            })
        });
        begins.recv().unwrap();
        assert_eq!(*get(&attached, 2, 20), 20);
        let _ = go.send(());
        assert_eq!(slow.join().unwrap().map(|v| *v), Ok(10));
    });
}
