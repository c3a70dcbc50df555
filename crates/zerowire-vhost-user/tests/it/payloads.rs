//! Each payload survives a round trip, and malformed bytes are refused with
//! the value and the rule in the message.

use zerowire_vhost_user::*;

#[test]
fn round_trips() {
    let state = VringState { index: 3, num: 256 };
    assert_eq!(VringState::decode(8, &state.encode()).unwrap(), state);

    let addr = VringAddr {
        index: 1,
        flags: 1,
        desc: 0x7f00_0000_1000,
        used: 0x7f00_0000_3000,
        avail: 0x7f00_0000_2000,
        log: 0xdead_beef_0000,
    };
    assert_eq!(VringAddr::decode(9, &addr.encode()).unwrap(), addr);

    let regions: Vec<MemoryRegion> = (0..MAX_REGIONS as u64)
        .map(|i| MemoryRegion {
            guest_addr: i << 32,
            size: 0x20_0000 + i,
            user_addr: 0x7f00_0000_0000 + (i << 24),
            mmap_offset: i << 21,
        })
        .collect();
    for count in 0..=MAX_REGIONS {
        let table = MemoryTable { regions: regions[..count].to_vec() };
        assert_eq!(table.encode().len(), 8 + 32 * count);
        assert_eq!(MemoryTable::decode(5, &table.encode()).unwrap(), table);
    }
    let single = SingleRegion(regions[7]);
    assert_eq!(SingleRegion::decode(37, &single.encode()).unwrap(), single);

    let config = Config { offset: 6, flags: 1, data: vec![9; 20] };
    assert_eq!(Config::decode(24, &config.encode()).unwrap(), config);

    let log = LogRegion { size: 4096, mmap_offset: 8192 };
    assert_eq!(LogRegion::decode(6, &log.encode()).unwrap(), log);

    let inflight = Inflight { mmap_size: 1, mmap_offset: 2, num_queues: 3, queue_size: 4 };
    assert_eq!(Inflight::decode(31, &inflight.encode()).unwrap(), inflight);
}

#[test]
fn the_fields_lie_where_the_protocol_puts_them() {
    let addr = VringAddr { index: 1, flags: 2, desc: 3, used: 4, avail: 5, log: 6 };
    let mut expected = Vec::new();
    expected.extend_from_slice(&1u32.to_ne_bytes());
    expected.extend_from_slice(&2u32.to_ne_bytes());
    for value in 3u64..=6 {
        expected.extend_from_slice(&value.to_ne_bytes());
    }
    assert_eq!(addr.encode().as_slice(), expected);
}

#[test]
fn every_other_length_is_refused() {
    for len in (0..600).filter(|&len| len != 8) {
        assert!(VringState::decode(8, &vec![0; len]).is_err(), "{len}");
    }
    for len in (0..600).filter(|&len| len != 40) {
        let error = VringAddr::decode(9, &vec![0; len]).unwrap_err().to_string();
        assert!(error.contains("SET_VRING_ADDR") && error.contains(&len.to_string()), "{error}");
        assert!(SingleRegion::decode(37, &vec![1; len]).is_err(), "{len}");
    }
    for len in (0..600).filter(|&len| len != 16) {
        assert!(LogRegion::decode(6, &vec![0; len]).is_err(), "{len}");
    }
    for len in (0..600).filter(|&len| len != 20 && len != 24) {
        assert!(Inflight::decode(31, &vec![0; len]).is_err(), "{len}");
    }
}

#[test]
fn a_memory_table_must_hold_what_it_counts() {
    let region = MemoryRegion { guest_addr: 0, size: 4096, user_addr: 0, mmap_offset: 0 };
    let whole = MemoryTable { regions: vec![region; 2] }.encode();
    for cut in 0..whole.len() {
        assert!(MemoryTable::decode(5, &whole[..cut]).is_err(), "cut at {cut}");
    }
    for count in [9u32, 255, u32::MAX] {
        let mut bytes = whole.clone();
        bytes[..4].copy_from_slice(&count.to_ne_bytes());
        let error = MemoryTable::decode(5, &bytes).unwrap_err().to_string();
        assert!(error.contains(&format!("{count:#x}")), "{error}");
    }
    // A front end may send the whole array with the unused entries as zeroes.
    let mut padded = whole.clone();
    padded.resize(8 + 32 * MAX_REGIONS, 0);
    assert_eq!(MemoryTable::decode(5, &padded).unwrap().regions.len(), 2);
    padded.push(0);
    assert!(MemoryTable::decode(5, &padded).is_err());
}

#[test]
fn regions_that_wrap_or_are_empty_are_refused() {
    let good = MemoryRegion { guest_addr: 0, size: 4096, user_addr: 0, mmap_offset: 0 };
    let high = u64::MAX - 4000;
    for (region, field) in [
        (MemoryRegion { size: 0, ..good }, "size"),
        (MemoryRegion { guest_addr: high, ..good }, "guest address"),
        (MemoryRegion { user_addr: high, ..good }, "user address"),
        (MemoryRegion { mmap_offset: high, ..good }, "file offset"),
        (MemoryRegion { size: u64::MAX, guest_addr: 1, ..good }, "guest address"),
    ] {
        let error = SingleRegion::decode(37, &SingleRegion(region).encode()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(field) && text.contains("ADD_MEM_REG"), "{text}");
        let table = MemoryTable { regions: vec![good, region] };
        assert!(MemoryTable::decode(5, &table.encode()).is_err());
    }
}

#[test]
fn the_log_and_the_configuration_space_are_bounded() {
    let log = LogRegion { size: 2, mmap_offset: u64::MAX - 1 };
    assert!(LogRegion::decode(6, &log.encode()).is_err());

    let config = |offset: u32, size: u32, data: usize| {
        let mut bytes = Vec::new();
        for word in [offset, size, 0] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.resize(12 + data, 0);
        Config::decode(24, &bytes)
    };
    assert!(config(0, 256, 256).is_ok());
    assert!(config(1, 256, 256).is_err());
    assert!(config(u32::MAX, u32::MAX, 0).is_err());
    assert!(config(0, 8, 7).is_err());
    assert!(config(0, 8, 9).is_err());
}

#[test]
fn no_bytes_whatever_make_a_reader_panic() {
    let mut state = 0x243f_6a88_85a3_08d3u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let lengths = [0, 1, 7, 8, 9, 12, 16, 20, 24, 40, 72, 264, 300];
    for round in 0..20_000 {
        let mut body: Vec<u8> = (0..lengths[round % lengths.len()]).map(|_| random() as u8).collect();
        // Small counts are rare by chance and the most interesting ones.
        if body.len() >= 8 && round % 3 == 0 {
            body[..4].copy_from_slice(&(random() as u32 % 12).to_ne_bytes());
        }
        let request = random() as u32 % 50;
        let header = Header { request, flags: VERSION, size: body.len() as u32 };
        let mut message = Message::new(header, body, Vec::new());
        let _ = (message.request(), message.u64(), message.vring_state(), message.vring_addr());
        let _ = (message.single_region(), message.config(), message.log_region());
        let _ = (message.inflight(), message.empty(), message.no_fds());
        let _ = (message.vring_fd().is_ok(), message.memory_table().is_ok());
    }
}
