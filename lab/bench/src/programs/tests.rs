use super::*;

fn programs(texts: &[&str]) -> Vec<NamedProgram> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_program_is_a_name_and_a_path() {
    let [program] = &programs(&["old-1.0=/a/b=c"])[..] else { panic!("one program") };
    assert_eq!((program.name.as_str(), program.path.to_str()), ("old-1.0", Some("/a/b=c")));
    assert_eq!(program.args, [""; 0]);
    let [program] = &programs(&["on=/a b/c --sandbox on --log  warn"])[..] else { panic!("one program") };
    assert_eq!(program.path.to_str(), Some("/a b/c"));
    assert_eq!(program.args, ["--sandbox", "on", "--log", "warn"]);
    for (text, words) in [
        ("/a/b", "give NAME=PATH"),
        ("=/a", "give NAME=PATH"),
        ("a=", "give NAME=PATH"),
        ("a b=/a", "'a b' is not free"),
        ("floor=/a", "'floor' is not free"),
    ] {
        let error = text.parse::<NamedProgram>().unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn names_are_told_apart_and_files_must_be_there() {
    let refused = |texts: &[&str]| verify(&programs(texts), None).unwrap_err().to_string();
    assert!(refused(&["a=/proc/self/exe", "a=/proc/self/exe"]).contains("another program"));
    assert!(refused(&["a=/none"]).contains("a=/none: there is no such file"));
    let (one, two) = (programs(&["a=/proc/self/exe"]), programs(&["a=/proc/self/exe", "b=/proc/self/exe"]));
    verify(&two, Some(0.0)).unwrap();
    verify(&one, None).unwrap();
    let error = verify(&one, Some(0.0)).unwrap_err().to_string();
    assert!(error.contains("--gate 0 with a alone"), "{error}");
}

#[test]
fn a_variant_is_set_beside_the_same_one_of_the_first_program() {
    let programs = programs(&["before=/a", "after=/b", "later=/c"]);
    let before = |variant| before(&programs, variant);
    assert_eq!(before("after").as_deref(), Some("before"));
    assert_eq!(before("later --path copy").as_deref(), Some("before --path copy"));
    assert_eq!(before("after, guest sleeps").as_deref(), Some("before, guest sleeps"));
    assert_eq!(before("before"), None);
    assert_eq!(before("floor"), None);
}
