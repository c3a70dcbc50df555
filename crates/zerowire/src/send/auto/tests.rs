use super::*;

/// A socket whose sends cost what `cost` says, and whose kernel copies what is lent if `copies`.
struct World {
    auto: Auto,
    copied: u64,
    lent: u64,
    spent: u64,
}

impl World {
    fn new() -> Self {
        Self { auto: Auto::new(), copied: 0, lent: 0, spent: 0 }
    }

    fn run(&mut self, sends: u32, len: usize, copy_ns: u64, lend_ns: u64, kernel_copies: bool) {
        for i in 0..sends {
            let turn = self.auto.decide(len);
            // Every ninth send is disturbed: the choice must not mind.
            let noise = if i % 9 == 0 { 5 } else { 1 };
            let ns = match turn.way {
                SendWay::Copy => copy_ns,
                SendWay::Lend => lend_ns,
            };
            self.spent += ns;
            if turn.measure {
                self.auto.measured(len, turn.way, ns * noise);
            }
            match turn.way {
                SendWay::Copy => self.copied += 1,
                SendWay::Lend => {
                    self.lent += 1;
                    self.auto.notified(len, kernel_copies);
                }
            }
        }
    }
}

#[test]
fn the_cheaper_way_serves_and_trials_cost_under_a_hundredth() {
    for (copy, lend, way) in
        [(1000, 2000, SendWay::Copy), (2000, 1000, SendWay::Lend), (1000, 100, SendWay::Lend)]
    {
        let mut world = World::new();
        world.run(100_000, 60_000, copy, lend, false);
        let choice = &world.auto.choices()[0];
        assert_eq!((choice.way, choice.because), (way, Because::Measured), "{choice}");
        assert_eq!((choice.from_bytes, choice.to_bytes), (32_768, 65_535));
        let best = 100_000 * copy.min(lend);
        let over = world.spent - best;
        // Ten times as dear a loser costs ten times as much to try.
        assert!(over * 100 < best * copy.max(lend) / copy.min(lend), "{over} of {best}");
    }
}

#[test]
fn a_kernel_that_copies_what_is_lent_ends_lending_at_once_and_it_is_tried_again() {
    let mut world = World::new();
    world.run(20_000, 60_000, 1000, 900, true);
    assert_eq!(world.auto.choices()[0].because, Because::KernelCopied);
    // One trial cut short, and a knock after 8192 sends.
    assert!(world.lent <= u64::from(COPIED_IN_A_ROW + 3 * KNOCK), "{} lent", world.lent);
    assert!(world.lent > u64::from(COPIED_IN_A_ROW), "never tried again");
    world.run(100_000, 60_000, 1000, 500, false);
    assert_eq!(world.auto.choices()[0].way, SendWay::Lend, "a sink that lends now is found");
}

#[test]
fn a_change_of_costs_is_found() {
    let mut world = World::new();
    world.run(50_000, 10_000, 1000, 500, false);
    assert_eq!(world.auto.choices()[0].way, SendWay::Lend);
    world.run(200_000, 10_000, 400, 500, false);
    assert_eq!(world.auto.choices()[0].way, SendWay::Copy);
}

#[test]
fn lending_that_turns_into_copying_ends_within_the_row() {
    let mut world = World::new();
    world.run(2000, 10_000, 1000, 500, false);
    let before = world.lent;
    world.run(1000, 10_000, 1000, 500, true);
    assert_eq!(world.lent - before, u64::from(COPIED_IN_A_ROW));
}

#[test]
fn short_payloads_are_never_lent() {
    let mut world = World::new();
    world.run(10_000, 255, 1000, 1, false);
    assert_eq!(world.lent, 0);
    assert_eq!(world.auto.choices()[0].because, Because::Short);
}

#[test]
fn what_is_refused_is_copied_and_knocked_for_later() {
    let mut auto = Auto::new();
    let mut asked = 0;
    for _ in 0..20_000 {
        if auto.decide(4096).way == SendWay::Lend {
            asked += 1;
            auto.refused(4096);
        } else {
            auto.measured(4096, SendWay::Copy, 100);
        }
    }
    assert_eq!(auto.choices()[0].because, Because::Refused);
    assert!((2..=4).contains(&asked), "{asked}");
}

#[test]
fn a_knock_that_nobody_answers_is_repeated() {
    let mut auto = Auto::new();
    let mut lent = 0;
    for _ in 0..200_000 {
        // The first sixteen were copied by the kernel; of the others nothing is ever heard.
        let turn = auto.decide(4096);
        if turn.way == SendWay::Lend {
            lent += 1;
            if lent <= COPIED_IN_A_ROW {
                auto.notified(4096, true);
            }
        }
        if turn.measure {
            auto.measured(4096, turn.way, 100);
        }
    }
    assert!(lent >= COPIED_IN_A_ROW + 3 * KNOCK, "{lent} lent");
}

#[test]
fn the_cost_of_notifications_counts_against_lending() {
    let mut auto = Auto::new();
    for _ in 0..1000 {
        let turn = auto.decide(2048);
        if turn.measure {
            auto.notifications_cost(16, 16 * 300);
            auto.measured(2048, turn.way, if turn.way == SendWay::Copy { 1000 } else { 900 });
        }
        if turn.way == SendWay::Lend {
            auto.notified(2048, false);
        }
    }
    let choice = &auto.choices()[0];
    assert_eq!((choice.way, choice.copy_ns, choice.lend_ns), (SendWay::Copy, 1000, 1200));
    assert!(choice.to_string().contains("copying took 1000 ns of CPU a send, lending 1200"), "{choice}");
}

#[test]
fn each_class_learns_for_itself() {
    let mut world = World::new();
    for _ in 0..100 {
        world.run(100, 1000, 300, 600, false);
        world.run(100, 60_000, 9000, 1000, false);
    }
    let ways: Vec<_> = world.auto.choices().iter().map(|c| c.way).collect();
    assert_eq!(ways, [SendWay::Copy, SendWay::Lend]);
}

/// While payloads are copied nobody reads notifications but for this.
#[test]
fn a_knock_asks_for_its_notifications_and_ever_more_seldom() {
    let mut auto = Auto::new();
    (0..COPIED_IN_A_ROW).for_each(|_| auto.notified(4096, true));
    assert_eq!(auto.choices().len(), 0);
    let mut asked = Vec::new();
    let mut lent = 0;
    for _ in 0..FIRST_RUN + KNOCK + 100 {
        lent += u32::from(auto.decide(4096).way == SendWay::Lend);
        // Other lengths in between change nothing.
        auto.decide(100);
        if auto.awaits_answer() {
            asked
                .push((lent, auto.classes[Auto::class_of(4096)].choice.sends - u64::from(FIRST_RUN + KNOCK)));
        }
    }
    assert_eq!(asked, [0, 1, 2, 4, 8, 16, 32, 64].map(|sends| (KNOCK, sends)));
    auto.notified(4096, false);
    assert!(!auto.awaits_answer(), "it was heard");
    assert_eq!(auto.choices()[1].because, Because::KernelCopied);
    assert!(matches!(auto.classes[Auto::class_of(4096)].state, TrialState::Trial { .. }));
}
