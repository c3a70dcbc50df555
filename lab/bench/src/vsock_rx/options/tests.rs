use super::*;

#[test]
fn rings_hold_the_same_number_of_bytes_within_limits() {
    let windows: Vec<u32> = [4096, 16 << 10, 64 << 10, 512 << 10].map(|len| windows_for(0, len)).to_vec();
    assert_eq!(windows, [64, 64, 16, 4]);
    assert_eq!(windows_for(7, 4096), 7);
}

#[test]
fn impossible_options_are_named() {
    let sound = ClientOptions {
        place: RxPlace::Kernel,
        cid: 2,
        port: PORT,
        mode: ReceiveMode::Copy,
        pages: 1,
        lowat: 4096,
        credit: 0,
        windows: 0,
        copy_out: false,
        check: false,
    };
    sound.verify().unwrap();
    let refused = |options: ClientOptions| options.verify().unwrap_err().to_string();
    assert!(refused(ClientOptions { pages: 0, ..sound.clone() }).contains("-b 0"));
    assert!(refused(ClientOptions { lowat: 4097, ..sound.clone() }).contains("-r 4097"));
    assert!(refused(ClientOptions { mode: ReceiveMode::Direct, ..sound.clone() }).contains("-z d"));
    for windows in [1, 65] {
        let text = refused(ClientOptions { windows, ..sound.clone() });
        assert!(text.contains(&format!("--windows {windows}: choose 2 to 64")), "{text}");
    }
    let host = RxPlace::Host(PathBuf::from("/x"));
    assert!(refused(ClientOptions { place: host, credit: 5, ..sound }).contains("--buffer 5"));

    let sound =
        ServerOptions { place: RxPlace::Kernel, port: PORT, bytes: 1, tx_buffer: TX_BUFFER, check: false };
    sound.verify().unwrap();
    let refused = |options: ServerOptions| options.verify().unwrap_err().to_string();
    assert!(refused(ServerOptions { bytes: 0, ..sound.clone() }).contains("-m 0"));
    assert!(refused(ServerOptions { bytes: u64::MAX, ..sound.clone() }).contains("1 to 67108864"));
    assert!(refused(ServerOptions { tx_buffer: 0, ..sound.clone() }).contains("-b 0: choose 1 to 262144"));
    assert!(refused(ServerOptions { tx_buffer: 300_000 * PAGE, ..sound }).contains("-b 300000"));

    let table = TableOptions::default();
    table.verify().unwrap();
    let refused = |options: TableOptions| options.verify().unwrap_err().to_string();
    assert!(refused(TableOptions { rounds: Some(0), ..table.clone() }).contains("at least 1"));
    assert!(refused(TableOptions { sizes: vec![5000], ..table.clone() }).contains("5000"));
    assert!(refused(TableOptions { megabytes: Some(0), ..table.clone() }).contains("-m 0"));
    let huge = TableOptions { megabytes: Some(1 << 44), ..table.clone() };
    assert!(refused(huge).contains("-m 17592186044416: choose 1 to 65536"));
    assert!(refused(TableOptions { credit: Some(1), ..table.clone() }).contains("-v 1"));
    assert!(refused(TableOptions { windows: 1, ..table.clone() }).contains("--windows 1"));
    let nothing = TableOptions {
        modes: vec![ReceiveMode::Direct],
        directions: vec![Direction::Receive],
        ..table.clone()
    };
    assert!(refused(nothing).contains("take y"));
    TableOptions { modes: vec![ReceiveMode::Direct], ..table }.verify().unwrap();
}

#[test]
fn letters_and_words_name_the_same_modes() {
    for mode in ReceiveMode::value_variants() {
        for name in [mode.letter(), mode.to_string()] {
            assert_eq!(ReceiveMode::from_str(&name, false), Ok(*mode));
        }
    }
}
