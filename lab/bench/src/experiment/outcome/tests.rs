use super::*;

#[test]
fn a_report_has_the_day() {
    let date = RunTaken::now().date;
    let lens: Vec<usize> = date.split('-').map(str::len).collect();
    assert_eq!(lens, [4, 2, 2], "{date}");
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
