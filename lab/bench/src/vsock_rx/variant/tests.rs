use super::*;

#[test]
fn figures_are_for_the_length_of_the_column() {
    let sample = RxSample {
        bytes: 1_000_000,
        dequeue_seconds: 1e-3,
        touch_seconds: 2e-3,
        dequeues: 500,
        backend_cpu_seconds: 1e-3,
        program_cpu_seconds: 3e-3,
        ..RxSample::default()
    };
    assert!((sample.dequeue_ns(4000) - 4000.0).abs() < 1e-6);
    assert!((sample.dequeue_and_touch_ns(4000) - 12_000.0).abs() < 1e-6);
    assert!((sample.cpu_per_gb() - 4.0).abs() < 1e-9);
    assert!((sample.per_dequeue(sample.bytes) - 2000.0).abs() < 1e-9);
    assert!(RxSample::default().cpu_per_gb().is_finite());
}

#[test]
fn a_dequeue_fits_in_the_guest() {
    for len in [4 << 10, 64 << 10, 512 << 10, 4 << 20] {
        let case = RxCase { direction: Direction::Receive, len, working_set: WorkingSet::Hot, windows: 4 };
        // Half of the ring can be held.
        let held = usize::from(QUEUE_SIZE) / 2 * case.rx_buffer() as usize;
        assert!(len > 2 << 20 || held >= len, "{len}");
        assert!(case.guest_credit(65_536) as usize >= 2 * len);
    }
}
