use super::*;

/// Windows with `out` bytes out. `back` bytes of them are back at the next call of
/// `take_released`.
#[derive(Default)]
struct Fake {
    out: u32,
    back: u32,
    /// What was asked for.
    asked: Vec<u32>,
    /// How many bytes come back during `wait_for_bytes`.
    meanwhile: u32,
}

impl Releases for Fake {
    fn take_released(&mut self) -> u32 {
        self.out -= self.back;
        std::mem::take(&mut self.back)
    }

    fn is_any_out(&self) -> bool {
        self.out > 0
    }

    fn wait_for_bytes(&mut self, bytes: u32) -> bool {
        self.asked.push(bytes);
        self.back = std::mem::take(&mut self.meanwhile);
        self.back >= bytes
    }
}

/// A guest with credit for 1000 bytes that has sent `sent` of them, all of them in windows that
/// are out.
fn scene(sent: u32) -> (WindowCredit, FromGuest, Fake) {
    let (mut credit, mut incoming) = (WindowCredit::default(), FromGuest::new(1000));
    assert!(incoming.receive(sent));
    credit.took(sent as usize);
    (credit, incoming, Fake { out: sent, ..Fake::default() })
}

#[test]
fn a_guest_gets_credit_for_windows_that_came_back() {
    let (mut credit, mut incoming, mut fake) = scene(600);
    let review = credit.review(&mut incoming, Why::Routine, Some(&mut fake));
    assert_eq!(review, CreditReview { due: false, quiet: true });
    assert_eq!((credit.uncredited, &fake.asked[..]), (600, &[501][..]));
    fake.back = 501;
    let review = credit.review(&mut incoming, Why::Routine, Some(&mut fake));
    assert_eq!(review, CreditReview { due: true, quiet: false });
    assert_eq!((credit.uncredited, incoming.untold(), fake.asked.len()), (99, 501, 1));
    incoming.tell();
    // With nothing out the program can do nothing about what is in the window that is filled.
    assert!(incoming.receive(500));
    credit.took(500);
    (fake.out, fake.back) = (99, 99);
    let review = credit.review(&mut incoming, Why::Routine, Some(&mut fake));
    assert_eq!((review.due, credit.uncredited), (true, 0));
}

#[test]
fn what_comes_back_while_it_is_asked_for_is_looked_at_again() {
    let (mut credit, mut incoming, mut fake) = scene(800);
    fake.meanwhile = 550;
    let review = credit.review(&mut incoming, Why::Routine, Some(&mut fake));
    assert_eq!((review.due, credit.uncredited, incoming.untold()), (true, 250, 550));
}

#[test]
fn a_program_that_keeps_windows_makes_the_guest_hear_of_any_room() {
    let (mut credit, mut incoming, mut fake) = scene(300);
    let review = credit.review(&mut incoming, Why::Routine, Some(&mut fake));
    assert_eq!((review, &fake.asked[..]), (CreditReview { due: false, quiet: true }, &[][..]));
    let review = credit.review(&mut incoming, Why::Idle, Some(&mut fake));
    assert_eq!(review, CreditReview { due: false, quiet: false }, "the program will tell");
    assert_eq!(fake.asked, [1]);
    fake.back = 10;
    let review = credit.review(&mut incoming, Why::Routine, Some(&mut fake));
    assert_eq!(review, CreditReview { due: true, quiet: false }, "of 10 bytes");
    incoming.tell();
    fake.back = 10;
    let review = credit.review(&mut incoming, Why::Routine, Some(&mut fake));
    assert_eq!((review, fake.back), (CreditReview { due: false, quiet: true }, 10), "only once");
}

#[test]
fn nothing_is_kept_from_a_guest_whose_message_or_program_ends() {
    let (mut credit, mut incoming, mut fake) = scene(300);
    let review = credit.review(&mut incoming, Why::PartWaits, Some(&mut fake));
    assert_eq!((review.due, credit.uncredited, incoming.untold()), (true, 0, 300));
    let (mut credit, mut incoming, _) = scene(300);
    let review = credit.review(&mut incoming, Why::Idle, None::<&mut Fake>);
    assert_eq!((review.due, credit.uncredited, incoming.untold()), (true, 0, 300));
}
