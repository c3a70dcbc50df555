use super::*;

#[test]
fn registers_are_parts_of_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(8192).unwrap();
    let bar = Arc::new(map(file.path()).unwrap());
    let registers = Registers::at(&bar, BarRange { bar: 4, offset: 4096, len: 16 }).unwrap();
    registers.write(1, 1u8);
    registers.write(2, 0x0302u16);
    registers.write(4, 0x0706_0504u32);
    assert_eq!(std::fs::read(file.path()).unwrap()[4096..4104], [0, 1, 2, 3, 4, 5, 6, 7]);
    let read: (u8, u16, u32) = (registers.read(7), registers.read(4), registers.read(0));
    assert_eq!(read, (7, 0x0504, 0x0302_0100));
    for (offset, len) in [(8192, 1), (8191, 2), (u32::MAX, u32::MAX)] {
        let error = Registers::at(&bar, BarRange { bar: 4, offset, len }).unwrap_err();
        assert!(error.contains("beyond BAR 4"), "{error}");
    }
    assert!(Registers::at(&bar, BarRange { bar: 4, offset: 8192, len: 0 }).is_ok());
}

#[test]
#[should_panic(expected = "register of 4 bytes at 0xe of 0x10")]
fn access_past_the_end_panics() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4096).unwrap();
    let bar = Arc::new(map(file.path()).unwrap());
    Registers::at(&bar, BarRange { bar: 0, offset: 0, len: 16 }).unwrap().read::<u32>(14);
}
