//! For tests: the record of what is lent, without a socket, and the numbers of the choice by
//! measurement.

pub use super::auto::{BLOCK, FIRST_RUN, KNOCK};
pub use super::window::{UnknownIds, Window};
