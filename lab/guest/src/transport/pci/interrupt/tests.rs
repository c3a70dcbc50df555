use super::*;

#[test]
fn one_program_has_a_device() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let first = UioInterrupt::open_uio(file.path()).unwrap();
    let error = UioInterrupt::open_uio(file.path()).unwrap_err().to_string();
    assert!(error.contains("another program"), "{error}");
    drop(first);
    UioInterrupt::open_uio(file.path()).unwrap();
}

#[test]
fn bits_of_the_command_register_change_alone() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [9, 9, 9, 9, 1, 5, 9, 9]).unwrap();
    let command = Command(open(file.path()).unwrap());
    let seen = || std::fs::read(file.path()).unwrap();
    command.let_run(true).unwrap();
    command.mask(false).unwrap();
    assert_eq!(seen(), [9, 9, 9, 9, 7, 1, 9, 9]);
    command.mask(true).unwrap();
    assert_eq!(seen(), [9, 9, 9, 9, 7, 5, 9, 9]);
    command.mask(false).unwrap();
    command.let_run(false).unwrap();
    assert_eq!(seen(), [9, 9, 9, 9, 3, 5, 9, 9]);
}
