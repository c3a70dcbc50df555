//! For fuzzing and measuring.

pub(in crate::recv) mod cycle;
pub(in crate::recv) mod play;
