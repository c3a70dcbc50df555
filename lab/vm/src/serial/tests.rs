use super::*;
use std::io::{BufRead, BufReader};
use std::net::Shutdown;

const SECOND: Duration = Duration::from_secs(10);

fn pair() -> (Serial, UnixStream, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Serial::new(ours, &dir.path().join("log")).unwrap(), theirs, dir)
}

#[test]
fn output_and_status_of_a_command_come_back() {
    let (mut serial, mut guest, _dir) = pair();
    guest.write_all(b"\r\n@@READY 6.1\r\nhello\r\nworld\r\n\r\n@@END 1 3\r\n").unwrap();
    assert_eq!(serial.wait_ready(SECOND).unwrap(), "6.1");
    let output = serial.run("x", SECOND).unwrap();
    assert_eq!(output, Output { text: "hello\nworld".into(), status: 3 });
    let mut sent = [0; 4];
    guest.read_exact(&mut sent).unwrap();
    assert_eq!(&sent, b"1 x\n");
}

#[test]
fn a_late_answer_to_an_earlier_command_is_not_taken_for_the_next_one() {
    let (mut serial, mut guest, _dir) = pair();
    assert!(serial.command("slow", Duration::from_millis(1)).is_err());
    guest.write_all(b"late\n@@END 1 0\nnow\n@@END 2 0\n").unwrap();
    let output = serial.run("next", SECOND).unwrap();
    assert!(output.text.ends_with("now"), "{output:?}");
    assert_eq!(output.status, 0);
}

#[test]
fn a_line_that_got_lost_is_sent_again_and_a_slow_one_is_not() {
    // The answers to all lines come with the one to the second, so that none is late.
    for (answers, wanted, sent) in [
        (
            "\n@@END 2 0\nagain\n@@END 3 0\n",
            Some("again"),
            vec!["1 echo again", "", "2 true", "3 echo again"],
        ),
        ("late\n@@END 1 0\n\n@@END 2 0\n", None, vec!["1 echo again", "", "2 true"]),
    ] {
        let (mut serial, mut guest, _dir) = pair();
        let guest = std::thread::spawn(move || {
            let lines = BufReader::new(guest.try_clone().unwrap()).lines().map_while(Result::ok);
            let mut got = Vec::new();
            for line in lines {
                if line == "2 true" {
                    guest.write_all(answers.as_bytes()).unwrap();
                }
                got.push(line);
            }
            got
        });
        let output = serial.run("echo again", Duration::from_millis(1));
        assert_eq!(output.ok().map(|o| o.text).as_deref(), wanted);
        serial.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(guest.join().unwrap(), sent);
    }
}

#[test]
fn an_answer_that_comes_byte_by_byte_is_found() {
    let (mut serial, mut guest, _dir) = pair();
    let guest = std::thread::spawn(move || {
        for byte in b"some\n@@END 0 1\n@@EN text\n\n@@END 1 42\nmore\n@@END 2 0\n" {
            guest.write_all(&[*byte]).unwrap();
            std::thread::yield_now();
        }
        guest
    });
    let output = serial.run("x", SECOND).unwrap();
    assert_eq!(output, Output { text: "some\n@@END 0 1\n@@EN text".into(), status: 42 });
    assert_eq!(serial.run("y", SECOND).unwrap(), Output { text: "more".into(), status: 0 });
    guest.join().unwrap();
}

#[test]
fn a_panic_and_a_closed_line_end_the_wait() {
    let (mut serial, mut guest, _dir) = pair();
    guest.write_all(b"[1.0] Kernel panic - not syncing\n").unwrap();
    let error = format!("{:#}", serial.run("x", SECOND).unwrap_err());
    assert!(error.contains("panicked"), "{error}");

    let (mut serial, guest, _dir) = pair();
    drop(guest);
    assert!(serial.run("x", SECOND).is_err());
}
