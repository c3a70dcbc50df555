use super::*;

#[test]
fn addresses_are_read_as_they_are_written() {
    let address: PciAddress = "0000:1f:02.7".parse().unwrap();
    assert_eq!(address, PciAddress { domain: 0, bus: 0x1f, device: 2, function: 7 });
    assert_eq!(address.to_string(), "0000:1f:02.7");
    assert_eq!("1f:2.7".parse::<PciAddress>().unwrap(), address);
    assert_eq!("10000:00:00.0".parse::<PciAddress>().unwrap().to_string(), "10000:00:00.0");
}

#[test]
fn what_is_no_address_is_refused() {
    for text in ["", ".", "0.0", "0:0", "../../x", "0:0:0:0.0", "0:20.0", "0:0.8", "0:+1.0", "0:0.0 "] {
        let error = text.parse::<PciAddress>().unwrap_err().to_string();
        assert!(error.contains("lspci"), "{text}: {error}");
    }
}
