//! The bare loops: the same system calls as the library's, with nothing around them.
//!
//! Each keeps no more state than its calls need, checks their results, and never looks at a
//! payload. The library's back end beside it is measured against this.

mod packet;
mod ring;
mod udp;
mod uring;
mod xdp;

pub use ring::resident_slots;
pub use xdp::places as xdp_places;

use anyhow::{Result, bail};

use super::case::{BATCH, Column, TxCase};
use super::lab::TxLab;
use super::source::TxSource;
use super::way::TxWay;

/// The bare loop of `column`; there is none of [`Column::Auto`].
pub fn open<'a>(
    column: Column,
    case: &TxCase,
    lab: &'a TxLab,
    source: &'a TxSource,
) -> Result<Box<dyn TxWay + 'a>> {
    Ok(match column {
        Column::Send => Box::new(packet::Send::<false>::open(lab, source)?),
        Column::Sendmmsg => Box::new(packet::Sendmmsg::open(lab, source)?),
        Column::Ring => Box::new(ring::Ring::open(case, lab, source, false)?),
        Column::RingCopied => Box::new(ring::Ring::open(case, lab, source, true)?),
        Column::Xdp => Box::new(xdp::Xdp::open(case, lab, source)?),
        Column::Udp => Box::new(packet::Send::<true>::open(lab, source)?),
        Column::Zc => Box::new(udp::Lend::open(lab, source, 1)?),
        Column::ZcBatched => Box::new(udp::Lend::open(lab, source, BATCH)?),
        Column::SendZc => Box::new(uring::SendZc::open(lab, source, false)?),
        Column::SendZcFixed => Box::new(uring::SendZc::open(lab, source, true)?),
        Column::Auto => bail!("there is no bare loop of auto"),
    })
}
