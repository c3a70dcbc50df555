use super::*;

#[test]
fn summaries_of_odd_even_and_empty_lists() {
    let odd = Summary::of([5.0, 1.0, 3.0]).unwrap();
    assert_eq!((odd.min, odd.median, odd.max), (1.0, 3.0, 5.0));
    assert_eq!((odd.q1, odd.q3), (2.0, 4.0));
    let even = Summary::of([4.0, 1.0, 3.0, 2.0]).unwrap();
    assert_eq!(even.median, 2.5);
    assert_eq!(Summary::of([7.0]).unwrap().q3, 7.0);
    assert_eq!(Summary::of([]), None);
}

#[test]
fn ratios_pair_runs_of_the_same_round() {
    // The machine slows down threefold from round to round; the ratio stays 2.
    let floor = [100.0, 300.0, 900.0];
    let variant = [200.0, 600.0, 1800.0];
    let ratio = Summary::ratio(&variant, &floor).unwrap();
    assert_eq!((ratio.min, ratio.median, ratio.max), (2.0, 2.0, 2.0));
    assert_eq!(Summary::ratio(&[1.0], &[0.0]), None);
}

#[test]
fn rotation_gives_every_variant_every_place() {
    let orders: Vec<Vec<usize>> = (0..3).map(|round| rotation(3, round).collect()).collect();
    assert_eq!(orders, [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    assert_eq!(rotation(0, 5).count(), 0);
}
