use super::*;

const BOTH: &str = "\
[[vm]]
name = 'a'
[vm.net]
socket = '/a.net'
port = 'tap:t'
metadata-token = 'optional'
socket-owner = 'root'
[vm.vsock]
socket = '/a.vsock'
cid = 3
uds = '/a'
groups = ['x', 'y']
uds-mode = '0666'

[[vm]]
name = 'b'
[vm.vsock]
socket = '/b.vsock'
cid = 4
uds = '/b'

[[vm]]
name = 'c'
[vm.net]
socket = '/c.net'
port = 'tap:u'
";

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("written");
    file
}

#[test]
fn each_command_takes_its_tables_and_skips_vms_without() {
    let f = file(BOTH);
    let net = read(f.path(), "vm.net", |vm| vm.net).expect("a good file");
    let names: Vec<_> = net.iter().map(|(name, n)| (name.as_str(), n.port.as_str())).collect();
    assert_eq!(names, [("a", "tap:t"), ("c", "tap:u")]);
    let vsock = read(f.path(), "vm.vsock", |vm| vm.vsock).expect("a good file");
    let names: Vec<_> = vsock.iter().map(|(name, v)| (name.as_str(), v.cid)).collect();
    assert_eq!(names, [("a", 3), ("b", 4)]);
    assert_eq!(vsock[0].1.groups.as_deref(), Some(&["x".to_owned(), "y".to_owned()][..]));
    assert_eq!(vsock[1].1.groups, None);
}

#[test]
fn a_file_without_the_table_or_with_unknown_keys_is_refused() {
    let text = |toml: &str, table: &str| {
        let f = file(toml);
        let error = if table == "vm.net" {
            read(f.path(), table, |vm| vm.net).err()
        } else {
            read(f.path(), table, |vm| vm.vsock).err().map(|e| e.context("vsock"))
        };
        format!("{:#}", error.expect("an error"))
    };
    let no_net = "[[vm]]\nname='b'\n[vm.vsock]\nsocket='/s'\ncid=4\nuds='/b'\n";
    assert!(text(no_net, "vm.net").contains("[vm.net]"));
    let no_vsock = "[[vm]]\nname='c'\n[vm.net]\nsocket='/s'\nport='tap:u'\n";
    assert!(text(no_vsock, "vm.vsock").contains("[vm.vsock]"));
    let twice = BOTH.replace("name = 'c'", "name = 'a'");
    assert!(text(&twice, "vm.net").contains("lines 2 and 23 name two VMs 'a'"), "{}", text(&twice, "vm.net"));
    // What is of the wrong type is named with its line, and nothing is behind the message.
    let wrong = BOTH.replace("cid = 4", "cid = 'four'");
    for table in ["vm.net", "vm.vsock"] {
        let said = text(&wrong, table);
        assert!(said.contains("line 19") && said.contains("cid = 'four'") && said.trim() == said, "{said}");
    }
    // A mistake in the other command's table is one all the same.
    for (toml, word) in [
        ("[[vm]]\nname='a'\n[vm.net]\nsocket='/s'\nprt='tap:t'\n", "prt"),
        ("[[vm]]\nname='a'\n[vm.vsock]\nsocket='/s'\ncid=3\nuds='/b'\ngroup=['x']\n", "group"),
        ("[[vm]]\nname='a'\n[vm.vsok]\n", "vsok"),
        ("[[vms]]\nname='a'\n", "vms"),
    ] {
        for table in ["vm.net", "vm.vsock"] {
            assert!(text(toml, table).contains(word), "{toml}: {}", text(toml, table));
        }
    }
}
