use super::*;

#[test]
fn fields_lie_in_order() {
    let bytes = [1, 4, 0x36, 0, 0xb4, 0x05, 0x22, 0, 0x10, 0, 2, 0];
    let header = VirtioNetHdr {
        flags: FLAG_NEEDS_CSUM,
        gso_type: GSO_TCPV6,
        hdr_len: 0x36,
        gso_size: 1460,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 2,
    };
    assert_eq!(header.encode(), bytes);
    assert_eq!(VirtioNetHdr::decode(&bytes), header);
}
