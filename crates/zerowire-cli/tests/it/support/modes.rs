//! Tests of a program that serves its VMs itself, and by confined processes.

/// The options of either.
pub type Mode = &'static [&'static str];

pub const PLAIN: Mode = &["--sandbox", "off"];
pub const CONFINED: Mode = &["--sandbox", "on"];

/// Runs each test in both modes.
macro_rules! in_both_modes {
    ($($test:ident)*) => {
        mod plain {
            $(#[test] fn $test() { super::$test($crate::support::modes::PLAIN); })*
        }
        mod confined {
            $(#[test] fn $test() { super::$test($crate::support::modes::CONFINED); })*
        }
    };
}
pub(crate) use in_both_modes;
