use super::*;

fn tree(modules: &[(&str, &str)]) -> (tempfile::TempDir, ModuleTree) {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("drivers/net");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, depends) in modules {
        let object = format!("ELF\0alias=x\0depends={depends}\0name={name}\0");
        std::fs::write(folder.join(format!("{name}.ko")), object).unwrap();
    }
    let tree = ModuleTree::scan(dir.path()).unwrap();
    (dir, tree)
}

fn names(modules: &[Module]) -> Vec<&str> {
    modules.iter().map(|module| module.name.as_str()).collect()
}

#[test]
fn dependencies_come_first_and_once() {
    let (_dir, tree) =
        tree(&[("virtio-net", "net_failover"), ("net_failover", "failover"), ("failover", "")]);
    let order = tree.resolve(&["virtio_net", "failover"]).unwrap();
    assert_eq!(names(&order), ["failover", "net_failover", "virtio_net"]);
}

#[test]
fn a_built_in_module_is_left_out() {
    let (_dir, tree) = tree(&[("a", "")]);
    assert_eq!(names(&tree.resolve(&["virtio_pci", "a"]).unwrap()), ["a"]);
}

#[test]
fn a_missing_dependency_is_an_error() {
    let (_dir, tree) = tree(&[("a", "gone")]);
    let error = tree.resolve(&["a"]).unwrap_err().to_string();
    assert!(error.contains("gone"), "{error}");
}
