use rustix::mm::{MapFlags, ProtFlags};

use super::super::testing::is_left_out;
use super::super::{Mapping, READ_WRITE};
use super::*;

#[test]
fn released_pages_are_zero_and_can_be_used_again() {
    let mut map = PrivateMap::new(8192).expect("memory");
    assert!(map.len() == 8192 && map.iter().all(|b| *b == 0));
    assert!(is_left_out(map.as_ptr()), "core dumps leave it out");
    map[4090..4102].fill(7);
    assert_eq!(map.iter().filter(|b| **b == 7).count(), 12);
    map.release_pages();
    assert!(map.iter().all(|b| *b == 0));
    map[0] = 1;
    assert_eq!(map[..2], [1, 0]);
}

#[test]
fn others_read_a_sealed_file_and_do_not_write_it() {
    let (mut map, file) = SealedMap::new("sealed", 8192).expect("memory");
    assert!(map.len() == 8192 && is_left_out(map.as_ptr()));
    map[4095..4097].copy_from_slice(&[3, 4]);
    let mut seen = [0; 2];
    assert_eq!(rustix::io::pread(&file, &mut seen[..], 4095), Ok(2));
    assert_eq!(seen, [3, 4]);
    let other = |access| Mapping::shared_with(&file, 0, 8192, access, MapFlags::empty());
    assert!(other(ProtFlags::READ).is_ok());
    assert_eq!(other(READ_WRITE).map(drop), Err(io::Errno::PERM));
    assert_eq!(rustix::io::pwrite(&file, &[1], 0), Err(io::Errno::PERM));
    for len in [4096, 12288] {
        assert_eq!(ftruncate(&file, len), Err(io::Errno::PERM), "{len}");
    }
    assert_eq!(map[0], 0);
}
