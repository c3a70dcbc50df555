//! The vsock device with a hostile guest and hostile host programs, by random scripts: the same that the fuzz target
//! `vsock_muxer` plays, in a number that every test run can afford.

use proptest::prelude::*;
use zerowire_virtio::vsock::testing::play;

/// An action with its arguments, so that random scripts get further than random bytes.
fn action() -> impl Strategy<Value = Vec<u8>> {
    let weighted = prop_oneof![
        6 => 0u8..4, 3 => Just(4u8), 2 => Just(5u8), 3 => Just(6u8), 4 => Just(7u8), 3 => Just(8u8), 2 => Just(9u8),
        1 => Just(10u8), 1 => Just(11u8), 5 => 12u8..15, 2 => Just(15u8),
    ];
    (weighted, proptest::collection::vec(any::<u8>(), 0..9)).prop_map(|(what, with)| {
        let mut bytes = vec![what];
        bytes.extend(with);
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// No panic, bounded memory, every chain given back once, and the other VM's connection unharmed.
    #[test]
    fn nothing_that_a_guest_does_harms_another(script in proptest::collection::vec(action(), 0..150)) {
        let dir = tempfile::tempdir().expect("a directory for sockets");
        play(dir.path(), &script.concat());
    }
}
