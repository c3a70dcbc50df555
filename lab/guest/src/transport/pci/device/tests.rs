use super::*;

#[test]
fn the_device_is_closed_before_memory_that_was_opened_later() {
    let mut stop = OwnedFd::from(tempfile::tempfile().unwrap());
    let memory: Vec<_> = (0..3).map(|_| tempfile::tempfile().unwrap()).collect();
    for file in &memory {
        raise_above(&mut stop, file.as_fd()).unwrap();
    }
    assert!(memory.iter().all(|file| file.as_raw_fd() < stop.as_raw_fd()), "{stop:?} of {memory:?}");
    let before = stop.as_raw_fd();
    raise_above(&mut stop, memory[0].as_fd()).unwrap();
    assert_eq!(stop.as_raw_fd(), before, "it stays where it is high enough");
}

#[test]
fn a_timer_stands_for_an_interrupt() {
    let ticks = ticks().unwrap();
    for _ in 0..2 {
        assert!(ticks.wait(Duration::from_secs(10)).unwrap());
        assert!(ticks.clear().unwrap() > 0);
    }
}
