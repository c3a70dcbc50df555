use super::super::CheckOutcome;
use super::*;

#[test]
fn refusals_by_stage() {
    assert_eq!(translate(Ok(())).outcome, CheckOutcome::Ok);
    let user = translate(Err(PacketStage::Socket(libc::EPERM)));
    assert_eq!(user.outcome, CheckOutcome::Missing);
    assert!(user.remedy.is_some_and(|r| r.contains("CAP_NET_RAW")));
    let absent = translate(Err(PacketStage::Socket(libc::EAFNOSUPPORT)));
    assert!(absent.remedy.is_some_and(|r| r.contains("af_packet")));
    assert_eq!(translate(Err(PacketStage::Ring(libc::ENOMEM))).outcome, CheckOutcome::Degraded);
    assert!(translate(Err(PacketStage::Ring(libc::EINVAL))).remedy.is_some_and(|r| r.contains("4.11")));
}

#[test]
fn refusals_of_a_port_by_stage() {
    assert_eq!(translate_port(Ok(())).outcome, CheckOutcome::Ok);
    for (stop, outcome, remedy) in [
        (PacketStage::Socket(libc::EPERM), CheckOutcome::Missing, "CAP_NET_RAW"),
        (PacketStage::Socket(libc::EAFNOSUPPORT), CheckOutcome::Missing, "af_packet"),
        (PacketStage::Header(libc::ENOPROTOOPT), CheckOutcome::Missing, "6.3"),
        (PacketStage::Ring(libc::ENOMEM), CheckOutcome::Degraded, "memory"),
    ] {
        let finding = translate_port(Err(stop));
        assert_eq!(finding.outcome, outcome, "{stop:?}");
        assert!(finding.remedy.is_some_and(|r| r.contains(remedy)), "{stop:?}");
    }
}
