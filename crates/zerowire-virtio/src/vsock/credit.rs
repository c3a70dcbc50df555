//! Credit: who may send how much (virtio 1.3 §5.10.6.3).
//!
//! All counts are free-running and wrap around, as the header's fields do.

/// What a guest may send to this side, for connections that end on the host.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    buffer: u32,
    received: u32,
    forwarded: u32,
    told: u32,
}

impl Incoming {
    /// A buffer of this many bytes, empty.
    pub fn new(buffer: u32) -> Self {
        Self { buffer, received: 0, forwarded: 0, told: 0 }
    }

    /// The guest has sent `len` bytes. False, and nothing counted, where it was not allowed to.
    #[must_use]
    pub fn receive(&mut self, len: u32) -> bool {
        let fits = len <= self.buffer - self.received.wrapping_sub(self.forwarded);
        if fits {
            self.received = self.received.wrapping_add(len);
        }
        fits
    }

    /// `len` of the bytes received have left the buffer.
    pub fn forward(&mut self, len: u32) {
        debug_assert!(len <= self.received.wrapping_sub(self.forwarded));
        self.forwarded = self.forwarded.wrapping_add(len);
    }

    /// The fields for a header to the guest, which knows them then.
    pub fn tell(&mut self) -> (u32, u32) {
        self.told = self.forwarded;
        (self.buffer, self.forwarded)
    }

    /// Whether the guest is to be told: it knows of less than half of the buffer that is free.
    pub fn is_news(&self) -> bool {
        self.untold() > self.buffer / 2
    }

    /// Bytes that have left the buffer since the guest was told last.
    pub fn untold(&self) -> u32 {
        self.forwarded.wrapping_sub(self.told)
    }
}

/// What this side may send to a guest, which says so itself and is not believed more than is plausible.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing {
    alloc: u32,
    forwarded: u32,
    sent: u32,
}

/// The guest says that more bytes have left its buffer than were ever sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeyondSent;

impl Outgoing {
    /// Takes the fields of a header from the guest. A driver's threads may send an older count behind a newer one: the
    /// newest is kept.
    pub fn update(&mut self, alloc: u32, forwarded: u32) -> Result<(), BeyondSent> {
        let step = forwarded.wrapping_sub(self.forwarded);
        if step <= self.in_flight() {
            self.forwarded = forwarded;
        } else if step < 1 << 31 {
            return Err(BeyondSent);
        }
        self.alloc = alloc;
        Ok(())
    }

    fn in_flight(&self) -> u32 {
        self.sent.wrapping_sub(self.forwarded)
    }

    /// Bytes that may be sent.
    pub fn free(&self) -> u32 {
        self.alloc.saturating_sub(self.in_flight())
    }

    /// The guest's buffer, bytes.
    pub fn alloc(&self) -> u32 {
        self.alloc
    }

    /// What has left the guest's buffer.
    pub fn forwarded(&self) -> u32 {
        self.forwarded
    }

    /// `len` bytes were sent.
    pub fn send(&mut self, len: u32) {
        self.sent = self.sent.wrapping_add(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_gets_what_it_was_given_and_no_more() {
        let mut c = Incoming::new(100);
        assert!(c.receive(100));
        assert!(!c.receive(1));
        c.forward(50);
        assert!(!c.is_news(), "half is known");
        c.forward(1);
        assert!(c.is_news());
        assert_eq!(c.tell(), (100, 51));
        assert!(!c.is_news());
        assert!(c.receive(51));
        assert!(!c.receive(1));
    }

    #[test]
    fn counts_wrap_around() {
        let mut c = Incoming::new(1000);
        let mut o = Outgoing::default();
        o.update(1000, 0).expect("sound");
        let mut total = 0u32;
        for _ in 0..10_000_000 / 1000 {
            for _ in 0..1000 {
                assert!(c.receive(700));
                c.forward(700);
                o.send(700);
                total = total.wrapping_add(700);
                o.update(1000, total).expect("sound");
            }
        }
        assert_eq!((c.forwarded, o.free()), (total, 1000));
    }

    #[test]
    fn what_a_guest_says_is_bounded_by_what_was_sent() {
        let mut o = Outgoing::default();
        assert_eq!(o.update(100, 1), Err(BeyondSent));
        o.update(100, 0).expect("sound");
        o.send(80);
        assert_eq!(o.free(), 20);
        o.update(100, 60).expect("sound");
        o.update(100, 40).expect("an older count");
        assert_eq!(o.free(), 80);
        assert_eq!(o.update(100, 81), Err(BeyondSent));
        o.update(10, 60).expect("a smaller buffer");
        assert_eq!(o.free(), 0);
    }
}
