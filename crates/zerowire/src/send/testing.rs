//! For tests: the record of what is lent, without a socket, the numbers of the choice by
//! measurement, and changes of memory that is lent.

pub use super::auto::{BLOCK, FIRST_RUN, KNOCK};
pub use super::sender::scribble;
pub use super::window::{UnknownIds, Window};
