//! Copies between guest memory and private memory, and sums of the guest's.
//!
//! The guest may write the same bytes meanwhile. What arrives is then a mixture of old and new
//! bytes, and a hostile guest could have written worse in the first place. The bytes are data, and
//! this side checks what it relies on in the private copy.

use super::Segment;

/// Bytes of a round of a sum's inner loop.
const ROUND: usize = 64;

/// Copies from the segments, `skip` bytes in, to `dst`. Returns how many bytes there were to copy.
#[inline]
pub fn read(segments: &[Segment], skip: usize, dst: &mut [u8]) -> usize {
    let len = dst.len();
    let mut done = 0;
    walk(segments, skip, len, |ptr, n| {
        // SAFETY: `ptr..ptr + n` is a part of a segment, which lies in mapped guest memory that the
        // caller holds. dst has room for n more bytes. It is private memory, so the two don't
        // overlap.
        unsafe { std::ptr::copy_nonoverlapping(ptr, dst.as_mut_ptr().add(done), n) };
        done += n;
    });
    done
}

/// Copies `src` into the segments, `skip` bytes in. Returns how many bytes there was room for.
#[inline]
pub fn write(segments: &[Segment], skip: usize, src: &[u8]) -> usize {
    let mut done = 0;
    walk(segments, skip, src.len(), |ptr, n| {
        // SAFETY: as in `read`, with the roles exchanged.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr().add(done), ptr, n) };
        done += n;
    });
    done
}

/// As [`write()`], from the beginning, for a header of `N` bytes. Nearly always all of it lies in
/// the first segment, and a copy of a known length costs no call.
#[inline(always)]
pub fn write_header<const N: usize>(segments: &[Segment], header: &[u8; N]) {
    match segments.first() {
        // SAFETY: as in `write`; the segment holds all of the header.
        Some(s) if s.len as usize >= N => unsafe {
            std::ptr::copy_nonoverlapping(header.as_ptr(), s.ptr, N);
        },
        _ => {
            write(segments, 0, header);
        }
    }
}

/// Writes `bytes` into the segment, `skip` bytes in, by one volatile store: the compiler neither
/// delays it nor merges it with others. Writes nothing where the segment ends before.
#[inline(always)]
pub fn write_now<const N: usize>(segment: &Segment, skip: usize, bytes: [u8; N]) {
    if skip + N <= segment.len as usize {
        let at = segment.ptr.wrapping_add(skip).cast::<[u8; N]>();
        // SAFETY: as in `write`; the segment holds all of the bytes, which as an array may lie at
        // any address.
        unsafe { at.write_volatile(bytes) };
    }
}

/// Leaves segments behind that lie wholly before `skip`, so that a copy in many steps does not walk
/// them with each one.
#[inline]
pub fn pass(segments: &mut &[Segment], skip: &mut usize) {
    while let Some((first, rest)) = segments.split_first()
        && *skip >= first.len as usize
    {
        *skip -= first.len as usize;
        *segments = rest;
    }
}

/// Visits `len` bytes of the segments from `skip` on, run by run.
#[inline]
fn walk(segments: &[Segment], mut skip: usize, mut len: usize, mut visit: impl FnMut(*mut u8, usize)) {
    for s in segments {
        if len == 0 {
            return;
        }
        let seg_len = s.len as usize;
        if skip >= seg_len {
            skip -= seg_len;
            continue;
        }
        let n = (seg_len - skip).min(len);
        visit(s.ptr.wrapping_add(skip), n);
        len -= n;
        skip = 0;
    }
}

/// Copies `len` bytes from one guest's segments to another's, `from_skip` and `to_skip` bytes in.
/// Returns how many bytes there were to copy and room for.
#[inline]
pub fn copy(from: &[Segment], from_skip: usize, to: &[Segment], to_skip: usize, len: usize) -> usize {
    let mut done = 0;
    walk(from, from_skip, len, |src, n| {
        let mut part = 0;
        walk(to, to_skip + done, n, |dst, m| {
            // SAFETY: both runs lie in mapped guest memory that the caller holds. Two guests may be
            // given the same memory: the runs may overlap, which `copy` allows.
            unsafe { std::ptr::copy(src.wrapping_add(part), dst, m) };
            part += m;
        });
        done += part;
    });
    done
}

/// The sum of a run's bytes as words in the machine's byte order, the last one filled up with a
/// zero. The guest may write the run meanwhile: the sum is then that of neither content.
#[inline]
pub fn sum(run: &Segment) -> u64 {
    let (ptr, len) = (run.ptr.cast_const(), run.len as usize);
    let mut at = 0;
    // Neighbours in a vector register: one addition each for as many words as it holds.
    let mut lanes = [0u64; ROUND / 4];
    while at + ROUND <= len {
        // SAFETY: ROUND bytes from `at` on lie within the run, which lies in mapped guest memory
        // that the caller holds. Every pattern of bytes is a value, and the read asks for no
        // alignment.
        let words = unsafe { ptr.add(at).cast::<[u32; ROUND / 4]>().read_unaligned() };
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(word);
        }
        at += ROUND;
    }
    let mut sum: u64 = lanes.iter().sum();
    while at + 4 <= len {
        // SAFETY: as above, for four bytes.
        sum += u64::from(unsafe { ptr.add(at).cast::<u32>().read_unaligned() });
        at += 4;
    }
    let mut tail = [0u8; 4];
    for (i, byte) in tail.iter_mut().enumerate().take(len - at) {
        // SAFETY: fewer than four bytes are left, and `at + i` is one of them.
        *byte = unsafe { ptr.add(at + i).read() };
    }
    sum + u64::from(u32::from_ne_bytes(tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_at_once_stays_in_its_segment() {
        let mut memory = [0u8; 4];
        let segment = Segment { ptr: memory.as_mut_ptr(), len: 3, region: 0 };
        write_now(&segment, 1, [7, 8]);
        write_now(&segment, 2, [9, 9]);
        assert_eq!(memory, [0, 7, 8, 0]);
    }
}
