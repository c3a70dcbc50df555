use super::*;

#[test]
fn an_entry_holds_the_number_of_a_page() {
    let soft_dirty = 1 << 55;
    assert_eq!(decode(PRESENT | soft_dirty | 0x1234).unwrap(), GuestAddr(0x123_4000));
    assert!(decode(0x1234).is_err(), "swapped out");
    let hidden = decode(PRESENT).unwrap_err().to_string();
    assert!(hidden.contains("CAP_SYS_ADMIN"), "{hidden}");
}
