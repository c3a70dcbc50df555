use super::*;

#[test]
fn a_child_and_its_folder_end_with_it() {
    let held = Held::temporary().unwrap();
    let folder = held.folder().to_owned();
    fs::write(folder.join("log"), "text").unwrap();
    let mut child = held.spawn(Command::new("sleep").arg("60")).unwrap();
    assert!(held.try_wait(&mut child).unwrap().is_none());
    held.stop(&mut child).unwrap();
    drop(held);
    assert!(!folder.exists());
}

/// Anybody may write to /tmp: a name that can be guessed may be there, as a link to other files.
#[test]
fn a_folder_belongs_to_this_user_alone_and_has_a_name_that_cant_be_guessed() {
    let [one, other] = [Held::temporary().unwrap(), Held::temporary().unwrap()];
    let mode = fs::metadata(one.folder()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let number = std::process::id().to_string();
    for held in [&one, &other] {
        let name = held.folder().file_name().unwrap().to_str().unwrap();
        assert!(!name.split('-').any(|word| word == number), "{name}");
    }
    assert_ne!(one.folder(), other.folder());
}

#[test]
fn what_a_signal_finds_is_ended() {
    let folder = tempfile::tempdir().unwrap().keep();
    // The second one ignores SIGTERM.
    let stubborn = "trap '' TERM; while :; do sleep 1; done";
    let commands = [("sleep", vec!["60"]), ("sh", vec!["-c", stubborn])];
    let children = commands.map(|(program, args)| Command::new(program).args(args).spawn().unwrap());
    let mut entries = children.map(|child| HeldEntry {
        id: 0,
        child: Pid::from_raw(child.id() as i32),
        folder: Some(folder.clone()),
        file: None,
    });
    end(&mut entries);
    for pid in entries.iter().filter_map(|entry| entry.child) {
        assert!(waitpid(Some(pid), WaitOptions::NOHANG).is_err(), "{pid:?} was not waited for");
    }
    assert!(!folder.exists());
}
