use super::*;

#[test]
fn registers_are_parts_of_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(8192).unwrap();
    let bar = map(file.path()).unwrap();
    let group = registers(&bar, BarRange { bar: 4, offset: 4096, len: 16 }).unwrap();
    group.write_int(1, 1u8);
    group.write_int(2, 0x0302u16);
    group.write_int(4, 0x0706_0504u32);
    assert_eq!(std::fs::read(file.path()).unwrap()[4096..4104], [0, 1, 2, 3, 4, 5, 6, 7]);
    let read: (u8, u16, u32) = (group.read_int(7), group.read_int(4), group.read_int(0));
    assert_eq!(read, (7, 0x0504, 0x0302_0100));
    for (offset, len) in [(8192, 1), (8191, 2), (u32::MAX, u32::MAX)] {
        let error = registers(&bar, BarRange { bar: 4, offset, len }).unwrap_err();
        assert!(error.contains("beyond BAR 4"), "{error}");
    }
    assert!(registers(&bar, BarRange { bar: 4, offset: 8192, len: 0 }).is_ok());
}

#[test]
#[should_panic(expected = "access of 4 bytes at 14 in 16 bytes")]
fn access_past_the_end_panics() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4096).unwrap();
    let bar = map(file.path()).unwrap();
    registers(&bar, BarRange { bar: 0, offset: 0, len: 16 }).unwrap().read_int::<u32>(14);
}
