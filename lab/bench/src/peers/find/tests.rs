use super::*;

#[test]
fn a_peer_is_one_of_the_known_names_and_a_path() {
    let named: NamedPeer = "passt=/a=b".parse().unwrap();
    assert_eq!((named.peer, named.path.to_str()), (PeerProgram::Passt, Some("/a=b")));
    for (text, words) in
        [("passt", "give NAME=PATH"), ("passt=", "give NAME=PATH"), ("qemu=/a", "no peer 'qemu'")]
    {
        let error = text.parse::<NamedPeer>().unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn files_must_be_there_once() {
    let named = |text: &str| text.parse::<NamedPeer>().unwrap();
    let refused = |all: &[NamedPeer]| verify(all).unwrap_err().to_string();
    assert!(refused(&[named("iperf3=/none")]).contains("no such file"));
    let own = named("iperf3=/proc/self/exe");
    assert!(refused(&[own.clone(), own.clone()]).contains("given twice"));
    verify(std::slice::from_ref(&own)).unwrap();
    assert_eq!(find(PeerProgram::Iperf3, &[own]).unwrap(), Path::new("/proc/self/exe"));
}

#[test]
fn what_is_missing_names_its_package() {
    for peer in PeerProgram::value_variants() {
        assert_eq!(PeerProgram::from_str(&peer.to_string(), false), Ok(*peer));
        assert!(!peer.source().is_empty());
    }
    assert_eq!(in_path("no-program-has-this-name"), None);
}
