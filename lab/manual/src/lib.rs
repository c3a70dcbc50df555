//! Manual pages and completions, made from what the programs and the C header say of themselves.
//!
//! [`pages`] and [`completions()`] take a program's clap `Command`, so a page has the text of
//! `--help`. [`keys_page`] describes the keys of a configuration file by the options of the same
//! names. [`functions_page`] takes the C header. A test of each program and of the C library calls
//! these and [`compare()`], which compares with the files of the tree, or writes them. So nothing
//! of this is linked into what is shipped.
#![warn(missing_docs)]

mod compare;
mod completions;
mod functions;
mod keys;
mod page;
mod roff;
mod warnings;

pub use compare::{UPDATE, compare};
pub use completions::completions;
pub use functions::functions_page;
pub use keys::{Key, KeyTable, Need, keys_page};
pub use page::pages;
pub use warnings::warnings;

use std::collections::BTreeMap;

/// Texts by the names of their files.
pub type Files = BTreeMap<String, String>;
