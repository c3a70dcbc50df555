use super::*;

const COPYBREAK: usize = 4096;

#[test]
fn the_offer_follows_the_frames() {
    let mut f = Forecast::new(true, 1534, COPYBREAK);
    assert_eq!(f.shape, Shape::Each);
    for _ in 0..RUN {
        f.note(1512, 1);
    }
    assert_eq!(f.shape, Shape::Small);
    f.note(4097, 1);
    assert_eq!(f.shape, Shape::Each);
    f.note(60_012, 40);
    assert_eq!((f.shape, f.longest_seen), (Shape::Long, 60_012));
    for i in 0..RUN {
        assert_eq!(f.shape, Shape::Long, "after {i} short frames");
        f.note(76, 1);
    }
    assert_eq!((f.shape, f.longest_seen), (Shape::Each, 0));
}

#[test]
fn frames_beyond_the_bound_do_not_count_as_small() {
    for copybreak in [0, 200, COPYBREAK] {
        let mut f = Forecast::new(true, 1534, copybreak);
        for _ in 0..10 * RUN {
            f.note(copybreak + 1, 1);
        }
        assert_eq!(f.shape, Shape::Each);
        assert!(f.is_small(copybreak) && !f.is_small(copybreak + 1));
    }
}

#[test]
fn short_frames_that_take_several_chains_are_small_and_their_length_is_known() {
    let mut f = Forecast::new(true, 1534, COPYBREAK);
    for i in 0..RUN {
        assert_eq!(f.shape, Shape::Each, "after {i} frames");
        f.note(3012, 2);
    }
    f.note(3012, 2);
    f.note(2012, 2);
    assert_eq!((f.shape, f.longest_seen), (Shape::Small, 3012));
    f.note(9012, 6);
    assert_eq!((f.shape, f.longest_seen), (Shape::Long, 9012));
}

#[test]
fn without_mergeable_buffers_length_alone_counts() {
    let mut f = Forecast::new(false, 1534, 0);
    f.note(1534, 1);
    assert_eq!(f.shape, Shape::Each);
    f.note(1535, 1);
    assert_eq!(f.shape, Shape::Long);
}
