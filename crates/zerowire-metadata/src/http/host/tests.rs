use super::*;

#[test]
fn the_services_addresses_and_nothing_else() {
    for host in [
        "169.254.169.254",
        "169.254.169.254:80",
        "169.254.169.254:",
        " 169.254.169.254 ",
        "[fd00:ec2::254]",
        "[fd00:ec2::254]:80",
        "[FD00:0EC2:0:0:0:0:0:254]",
    ] {
        assert!(is_service(host), "{host}");
    }
    for host in [
        "",
        ":80",
        "metadata",
        "attacker.example",
        "169.254.169.254.attacker.example",
        "169.254.169.254:8080",
        "169.254.169.254:80:80",
        "169.254.169.253",
        "x@169.254.169.254",
        "fd00:ec2::254",
        "[fd00:ec2::254]x",
        "[fd00:ec2::254]:81",
        "[169.254.169.254]",
        "[::1]",
        "[",
        "]:80",
    ] {
        assert!(!is_service(host), "{host}");
    }
}

#[test]
fn a_target_may_name_the_host() {
    assert_eq!(of_target("http://a:80/x"), Some("a:80"));
    assert_eq!(of_target("http://a?b"), Some("a"));
    assert_eq!(of_target("/latest?u=http://a/"), None);
}
