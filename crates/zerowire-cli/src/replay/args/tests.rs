use super::*;
use clap::Parser;

#[derive(Parser)]
struct ReplayCli {
    #[command(flatten)]
    args: ReplayArgs,
}

fn parse(line: &str) -> Result<ReplayArgs, String> {
    let words = std::iter::once("replay").chain(line.split_whitespace());
    ReplayCli::try_parse_from(words).map(|c| c.args).map_err(|e| e.to_string())
}

#[test]
fn options_are_those_of_tcpreplay() {
    let pace = |line: &str| parse(line).expect("good").pace.pace();
    assert_eq!(pace("-i a f"), ReplayPace::Recorded { speed: 1.0 });
    assert_eq!(pace("--intf1 a --multiplier 2.5 f"), ReplayPace::Recorded { speed: 2.5 });
    assert_eq!(pace("-i a -x 2 f"), ReplayPace::Recorded { speed: 2.0 });
    assert_eq!(pace("-i a -p 100 f"), ReplayPace::Pps(100.0));
    assert_eq!(pace("-i a -M 0.5 f"), ReplayPace::Mbps(0.5));
    assert_eq!(pace("-i a -t -K -q -l 3 -L 7 -"), ReplayPace::Top);
    let args = parse("-i a --pad --max-memory 64M f").expect("good");
    assert_eq!(args.packets.policy(1500).expect("good").cut, TruncatedPolicy::Pad);
    assert_eq!(args.max_memory, 64 << 20);
}

#[test]
fn contradictions_and_bad_numbers_are_refused() {
    for line in [
        "f",
        "-i a",
        "-i a -p 1 -M 1 f",
        "-i a -t -x 2 f",
        "-i a -p 0 f",
        "-i a -p -1 f",
        "-i a -x nan f",
        "-i a --duration inf f",
        "-i a --limit 0 f",
        "-i a --pad --truncated send f",
        "-i a --truncated pad f",
        "-i a --port tap f",
        "-i a --max-memory 0 f",
        "-i a --max-memory 99999999999G f",
        "-i a --max-memory 1T f",
        "-i a --mss 7 f",
        "-i a -t --max-gap 1 f",
        "-i a -p 1 --max-gap 1 f",
        "-i a -M 1 --max-gap 1 f",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
    assert!(parse("-i a --mss 1000 f").expect("parses").packets.policy(1500).is_err());
    assert!(parse("-i a -x 2 --max-gap 1 f").is_ok());
    let queue = |line: &str| parse(line).expect("parses").port.queue().ok();
    assert_eq!([queue("-i a --queue 0 f"), queue("-i a --queue 1 --port send f")], [None; 2]);
    assert_eq!([queue("-i a f"), queue("-i a --queue 1 --port xdp f")], [Some(0), Some(1)]);
}
