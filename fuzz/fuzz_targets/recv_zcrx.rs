//! Completions of zero-copy receive, those of a kernel and hostile ones: what the bytes mean is
//! said in `zerowire::recv::testing`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| zerowire::recv::testing::play_zcrx(script));
