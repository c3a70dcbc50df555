use super::*;

#[test]
fn every_alignment_and_length() {
    let from: Vec<u8> = (0..64).collect();
    for at in 0..16 {
        for len in 0..40 {
            // SAFETY: the bytes of a vector that outlives the slice.
            let slice = unsafe { VolatileSlice::new(from[at..].as_ptr(), len) };
            let mut to = [255; 48];
            assert_eq!(slice.copy_to(&mut to), len);
            assert_eq!(to[..len], from[at..at + len]);
            assert!(to[len..].iter().all(|b| *b == 255));
            assert_eq!(slice.skip(3).len(), len.saturating_sub(3));
            assert_eq!(slice.get(len), None);
        }
    }
    // SAFETY: as above.
    let slice = unsafe { VolatileSlice::new(from.as_ptr(), 64) };
    assert_eq!(slice.copy_to(&mut [0; 5]), 5);
    assert_eq!(slice.skip(60).get(3), Some(63));
    assert!(slice.skip(99).is_empty());
}

#[test]
fn room_takes_what_fits() {
    let mut to = [255; 4];
    let mut room = ByteRoom::from(&mut to[..]);
    assert_eq!((room.len(), room.put(&[1, 2]), room.behind(1).put(&[3, 4, 5, 6])), (4, 2, 3));
    assert!(room.behind(4).is_empty() && room.behind(5).is_empty());
    assert_eq!(to, [1, 3, 4, 5]);
}
