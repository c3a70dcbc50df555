//! Hostile programs with mapped receive, by random scripts: the same that the fuzz target
//! `vsock_mapped` plays, in a number that every test run can afford.

use proptest::prelude::*;
use zerowire_testkit::own_process;
use zerowire_vsock::testing::play_mapped;

/// An action with its arguments, so that random scripts get further than random bytes.
fn action() -> impl Strategy<Value = Vec<u8>> {
    let weighted = prop_oneof![
        6 => 0u8..3, 4 => Just(3u8), 3 => Just(4u8), 2 => Just(5u8), 4 => 6u8..8, 1 => Just(8u8), 2 => Just(9u8),
        1 => Just(10u8), 1 => Just(11u8), 4 => Just(12u8), 2 => Just(13u8), 6 => Just(14u8), 3 => Just(15u8),
    ];
    (weighted, proptest::collection::vec(any::<u8>(), 0..6)).prop_map(|(what, with)| {
        let mut bytes = vec![what];
        bytes.extend(with);
        bytes
    })
}

/// No panic, bounded memory, every chain given back once, and other connections of the same VM
/// unharmed.
#[test]
fn nothing_that_a_program_does_harms_another() {
    own_process!();
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    let scripts = proptest::collection::vec(action(), 0..150);
    proptest!(config, |(first in any::<u8>(), script in scripts)| {
        let dir = tempfile::tempdir().expect("a directory for sockets");
        play_mapped(dir.path(), &[vec![first], script.concat()].concat());
    });
}
