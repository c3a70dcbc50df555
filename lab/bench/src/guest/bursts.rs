//! Receiving with the ring kept full: for ports that hand the guest's buffers to the kernel ahead
//! of the frames.

use anyhow::{Context, Result, bail};

use super::{ChainWatch, NetGuest, QUEUE_SIZE, publish};
use crate::tap::VNET_HEADER_LEN;

/// Buffers that are given back together.
const REFILL: usize = QUEUE_SIZE as usize / 8;

impl NetGuest {
    /// Posts buffers until the ring is full. They must be as many as its entries, so that none is
    /// posted twice.
    pub fn fill(&mut self) -> Result<()> {
        let buffers = self.buffers.as_mut().context("no receive buffers were prepared")?;
        if buffers.slots.places() < usize::from(QUEUE_SIZE) {
            bail!("{} receive buffers for a ring of {QUEUE_SIZE} entries", buffers.slots.places());
        }
        while buffers.post(self.rx.ring_mut()) {}
        publish(&mut self.rx)
    }

    /// Takes exactly `count` frames of `frame_len` bytes, each in one buffer, and posts a buffer
    /// for each.
    pub fn collect(&mut self, count: usize, frame_len: usize) -> Result<()> {
        let buffers = self.buffers.as_mut().context("no receive buffers were prepared")?;
        let mut watch = ChainWatch::new("receive", count);
        let (mut done, mut posted) = (0, 0);
        while done < count {
            let Some(used) = self.rx.ring_mut().reap()? else {
                watch.spin(done)?;
                continue;
            };
            done += 1;
            if used.len as usize != frame_len + VNET_HEADER_LEN {
                bail!("a frame of {} bytes, header included, came where {frame_len} were sent", used.len);
            }
            if done - posted == REFILL || done == count {
                while posted < done && buffers.post(self.rx.ring_mut()) {
                    posted += 1;
                }
                publish(&mut self.rx)?;
            }
        }
        Ok(())
    }
}
