use super::*;
use crate::send::Payload;
use std::sync::Arc;

/// Panics when it is dropped.
struct Bomb;

impl AsRef<[u8]> for Bomb {
    fn as_ref(&self) -> &[u8] {
        b"bomb"
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a payload's owner panics");
    }
}

#[test]
fn a_panic_or_a_sweep_elsewhere_frees_nothing_and_hides_nothing() {
    // Taken away, as another thread's sweep does.
    let bytes: Arc<[u8]> = vec![7; 10].into();
    let mut window = Window::default();
    window.lend(bytes.clone().into(), 0, false).unwrap();
    let orphan = Orphan { back: AnyBackend::Gone, window };
    let taken = Orphans { senders: 1, payloads: 1, bytes: 10 };
    let before = {
        let mut all = lock(&LIST);
        all.away = all.away.plus(taken);
        all.away
    };
    assert!(before.payloads >= 1 && orphans().payloads >= 1, "what is being swept is still held");
    drop(Sweep { list: vec![orphan], taken });
    assert!(orphans().payloads >= 1);
    assert_eq!(Arc::strong_count(&bytes), 2);
    // A panic in the middle of a sweep.
    let mut window = Window::default();
    window.lend(Payload::from(bytes::Bytes::from_owner(Bomb)), 0, false).unwrap();
    let hurt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let list = std::mem::take(&mut lock(&LIST).here);
        let mut sweep = Sweep { list, taken: Orphans::default() };
        sweep.list.push(Orphan { back: AnyBackend::Gone, window });
        if let Some(o) = sweep.list.last_mut() {
            o.window.all_back();
        }
    }));
    assert!(hurt.is_err());
    assert_eq!(Arc::strong_count(&bytes), 2, "the other one's memory is still there");
    assert!(orphans().payloads >= 1);
    // Nobody will ever say that this one is back.
    zerowire_testkit::wait_until("it is freed", || {
        for o in lock(&LIST).here.iter_mut() {
            o.window.all_back();
        }
        orphans();
        Arc::strong_count(&bytes) == 1
    });
}
