//! Windows that the program has.

/// Windows that were published and have not been seen back. They come back in the order in which
/// they were published, as far as this side sees.
#[derive(Debug)]
pub(super) struct OutWindows {
    /// Bytes copied into each window.
    bytes: Vec<u32>,
    /// The window that was published first of those that are out.
    oldest: u32,
    /// How many are out.
    count: u32,
    /// Bytes of windows that came back and were filled again before anybody asked.
    freed: u32,
}

impl OutWindows {
    /// Of `windows` windows, none of which is out.
    pub(super) fn new(windows: u32) -> Self {
        Self { bytes: vec![0; windows as usize], oldest: 0, count: 0, freed: 0 }
    }

    /// Whether none is out.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The window behind the last one is published, with this many bytes.
    pub(super) fn push(&mut self, window: u32, bytes: u32) {
        if self.count as usize == self.bytes.len() {
            // It is this one that went out first, and it came back before it was filled again.
            self.freed += self.pop();
        }
        self.bytes[window as usize] = bytes;
        self.count += 1;
    }

    fn pop(&mut self) -> u32 {
        let bytes = std::mem::take(&mut self.bytes[self.oldest as usize]);
        self.oldest = (self.oldest + 1) % self.bytes.len() as u32;
        self.count -= 1;
        bytes
    }

    /// Bytes of windows that came back since the last call.
    pub(super) fn take(&mut self, is_back: impl Fn(u32) -> bool) -> u32 {
        let mut bytes = std::mem::take(&mut self.freed);
        while self.count > 0 && is_back(self.oldest) {
            bytes += self.pop();
        }
        bytes
    }

    /// The last window that is to come back so that this many bytes are, or all. None where they
    /// are back by now.
    pub(super) fn last_of(&self, bytes: u32, is_back: impl Fn(u32) -> bool) -> Option<u32> {
        let (mut sum, mut last) = (0, None);
        for i in 0..self.count {
            let window = (self.oldest + i) % self.bytes.len() as u32;
            if !is_back(window) {
                last = Some(window);
            }
            sum += self.bytes[window as usize];
            if sum >= bytes {
                break;
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_in_the_order_in_which_they_went_out() {
        let mut out = OutWindows::new(4);
        assert!(out.is_empty() && out.take(|_| true) == 0);
        for (window, bytes) in [(0, 10), (1, 20), (2, 30)] {
            out.push(window, bytes);
        }
        assert_eq!(out.take(|window| window == 1), 0, "the first one is still out");
        assert_eq!(out.take(|window| window <= 1), 30);
        assert!(!out.is_empty());
        assert_eq!(out.take(|_| true), 30);
        assert!(out.is_empty());
    }

    #[test]
    fn a_window_that_is_filled_again_has_come_back() {
        let mut out = OutWindows::new(2);
        for (window, bytes) in [(0, 1), (1, 2), (0, 4), (1, 8), (0, 16)] {
            out.push(window, bytes);
        }
        assert_eq!(out.take(|_| false), 1 + 2 + 4);
        assert_eq!(out.take(|_| true), 8 + 16);
    }

    #[test]
    fn the_window_to_wait_for_is_the_last_one_that_is_needed() {
        let mut out = OutWindows::new(4);
        for (window, bytes) in [(0, 10), (1, 20), (2, 30)] {
            out.push(window, bytes);
        }
        let none = |_: u32| false;
        assert_eq!([1, 10, 11, 30, 31, 99].map(|n| out.last_of(n, none)), [0, 0, 1, 1, 2, 2].map(Some));
        assert_eq!(out.last_of(31, |window| window == 2), Some(1));
        assert_eq!(out.last_of(99, |_| true), None);
    }
}
