use super::*;

#[test]
fn a_child_and_its_folder_end_with_it() {
    let held = Held::temporary(&format!("zerowire-held-{}", std::process::id())).unwrap();
    let folder = held.folder().to_owned();
    fs::write(folder.join("log"), "text").unwrap();
    let mut child = held.spawn(Command::new("sleep").arg("60")).unwrap();
    assert!(held.try_wait(&mut child).unwrap().is_none());
    held.stop(&mut child).unwrap();
    drop(held);
    assert!(!folder.exists());
}

#[test]
fn what_a_signal_finds_is_ended() {
    let folder = std::env::temp_dir().join(format!("zerowire-found-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    // The second one ignores SIGTERM.
    let stubborn = "trap '' TERM; while :; do sleep 1; done";
    let commands = [("sleep", vec!["60"]), ("sh", vec!["-c", stubborn])];
    let children = commands.map(|(program, args)| Command::new(program).args(args).spawn().unwrap());
    let mut entries = children.map(|child| HeldEntry {
        id: 0,
        child: Pid::from_raw(child.id() as i32),
        folder: Some(folder.clone()),
    });
    end(&mut entries);
    for pid in entries.iter().filter_map(|entry| entry.child) {
        assert!(waitpid(Some(pid), WaitOptions::NOHANG).is_err(), "{pid:?} was not waited for");
    }
    assert!(!folder.exists());
}
