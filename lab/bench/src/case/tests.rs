use super::*;

#[test]
fn cases_multiply_out_and_lengths_are_checked() {
    let cases = Case::all(&Direction::ALL, &[64, 1500], &WorkingSet::ALL).unwrap();
    assert_eq!(cases.len(), 8);
    assert_eq!(cases[0].to_string(), "tx 64 B hot");
    let error = Case::all(&Direction::ALL, &[10], &WorkingSet::ALL).unwrap_err();
    assert!(error.to_string().contains("10"));
}

#[test]
fn long_frames_take_more_and_shorter_samples() {
    let case = |frame_len| Case { direction: Direction::Receive, frame_len, working_set: WorkingSet::Hot };
    assert_eq!([64, LARGEST_PLAIN, LARGEST_PLAIN + 1].map(|len| case(len).rounds_for_one()), [1, 1, 3]);
}

#[test]
fn samples_are_whole_bursts() {
    for frame_len in [64, 1500, 9000, 60_000] {
        for quick in [false, true] {
            let case = Case { direction: Direction::Receive, frame_len, working_set: WorkingSet::Hot };
            assert_eq!(case.frames(quick) % case.burst(), 0);
            assert!(case.frames(quick) > 0);
        }
    }
}
