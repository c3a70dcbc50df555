use super::*;

#[test]
fn days_are_those_of_the_calendar() {
    for (seconds, wanted) in [
        (0, "1970-01-01"),
        (951_782_399, "2000-02-28"),
        (951_782_400, "2000-02-29"),
        (951_868_800, "2000-03-01"),
        (1_798_761_599, "2026-12-31"),
        (1_798_761_600, "2027-01-01"),
        (4_107_542_400, "2100-03-01"),
    ] {
        assert_eq!(day(Duration::from_secs(seconds)), wanted);
    }
}

#[test]
fn a_command_has_no_places() {
    let line = "net --json /tmp/a.json --rounds 3 --svg=/tmp --program before=/tmp/x/zerowire --with";
    let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    words.push("--metadata /etc/m.json".to_owned());
    let wanted = "zerowire-bench net --rounds 3 --program before=zerowire --with '--metadata m.json'";
    assert_eq!(command(words), wanted);
}

#[test]
fn a_program_outside_of_a_tree_has_no_commit() {
    assert_eq!(commit(Path::new("/proc/self/exe")), None);
}
