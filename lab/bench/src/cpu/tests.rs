use super::*;

#[test]
fn own_clock_advances_with_work_and_foreign_clock_needs_a_process() {
    let before = ProcessClock::own().now().unwrap();
    let thread = thread_time();
    let mut sum = 0u64;
    for value in 0..200_000u64 {
        sum = std::hint::black_box(sum.wrapping_add(value));
    }
    assert!(ProcessClock::own().now().unwrap() > before);
    assert!(thread_time() > thread);
    // One more than the largest process number of Linux (PID_MAX_LIMIT).
    assert!(ProcessClock::of(4_194_305).is_err());
}

#[test]
fn a_thread_can_be_watched_from_another_one() {
    let own = ThreadClock::own();
    let near = thread_time();
    let other = std::thread::spawn(move || own.now().unwrap()).join().unwrap();
    assert!(other >= near.saturating_sub(Duration::from_millis(20)));
    let gone = std::thread::spawn(ThreadClock::own).join().unwrap();
    // The kernel may take a moment to forget a thread that has been joined.
    zerowire_testkit::wait_until("its clock is gone", || gone.now().is_err());
}

#[test]
fn sleeps_are_counted() {
    assert_eq!(
        voluntary_switches("Name:\ta\nvoluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t3\n"),
        17
    );
    let before = own_sleeps();
    std::thread::sleep(Duration::from_millis(1));
    assert!(own_sleeps() > before);
    assert!(sleeps_of(std::process::id()).unwrap() > before);
}

#[test]
fn a_sleeping_child_settles_with_its_cpu_time() {
    let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
    let clock = ProcessClock::of(child.id()).unwrap();
    // One that waits for a CPU stands still, too.
    zerowire_testkit::wait_until("it sleeps", || {
        let (first, asleep) = clock.settled(Duration::from_secs(5)).unwrap();
        asleep && clock.now().unwrap() == first
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn pinning_and_unpinning_restores_the_affinity() {
    std::thread::spawn(|| {
        let placement = Placement::detect().unwrap();
        placement.pin_driver().unwrap();
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        placement.unpin().unwrap();
        assert_eq!(sched_getaffinity(None).unwrap(), placement.all);
    })
    .join()
    .unwrap();
}

#[test]
fn the_clock_of_several_processes_is_their_sum() {
    let mut other = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let both = ProcessClock::of_all(&[std::process::id(), other.id()]).unwrap();
    let alone = ProcessClock::of(other.id()).unwrap();
    while alone.now().unwrap() < Duration::from_millis(50) {
        std::thread::sleep(Duration::from_millis(5));
    }
    other.kill().unwrap();
    let (own, of_other) = (ProcessClock::own().now().unwrap(), alone.now().unwrap());
    assert!(both.now().unwrap() >= own + of_other);
    other.wait().unwrap();
    assert!(both.now().is_err());
}
