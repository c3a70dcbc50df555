use super::*;

/// Gives a byte at a time.
struct Drip(Vec<u8>);

impl Read for Drip {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Ok(0);
        }
        to[0] = self.0.remove(0);
        Ok(1)
    }
}

#[test]
fn slides_over_short_reads_and_knows_where_it_is() {
    let mut w = SlidingBuffer::new(Drip((0..20).collect()));
    assert!(w.need(4).expect("bytes"));
    assert_eq!(w.data(), [0, 1, 2, 3]);
    w.consume(3);
    assert!(w.skip(5).expect("bytes"));
    assert_eq!(w.offset, 8);
    assert!(w.need(12).expect("bytes"));
    assert_eq!(w.data()[11], 19);
    assert!(!w.need(13).expect("the end"));
    assert_eq!(w.data().len(), 12);
    assert!(!w.skip(13).expect("the end"));
    assert!(!w.is_cut);
}

#[test]
fn memory_is_bounded_by_what_is_asked_for() {
    let mut w = SlidingBuffer::new(io::repeat(7).take(64 << 20));
    assert!(w.skip(10 << 20).expect("bytes"));
    for _ in 0..1000 {
        assert!(w.need(50_000).expect("bytes"));
        w.consume(49_999);
    }
    assert_eq!(w.buffer.len(), READ_BYTES);
    assert_eq!(w.offset, (10 << 20) + 49_999_000);
}
