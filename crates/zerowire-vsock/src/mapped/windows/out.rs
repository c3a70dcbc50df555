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
mod tests;
