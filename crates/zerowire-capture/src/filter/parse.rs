//! Expressions as users write them.
//!
//! ```text
//! expression = operand { ("and" | "or") operand }      from left to right, as in pcap-filter(7)
//! operand    = "not" operand | "(" expression ")" | primitive
//! ```

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use zerowire_wire::pcapng::PacketDirection;
use zerowire_wire::{ethernet, ip};

use super::{FilterTest, PacketEnd, Step};

/// Bytes of an expression at most.
const MAX_TEXT_BYTES: usize = 4096;

/// How deep an expression may be nested: the results of a filter have 64 places.
const MAX_DEPTH: usize = 32;

/// Numbers of VLANs.
const VLANS: RangeInclusive<u16> = 0..=4095;

/// The words for error texts.
const OF_FRAMES: &str = "ip, ip6, arp, tcp, udp, icmp, icmp6, vlan [NUMBER], [src|dst] host ADDRESS, [src|dst] net \
                         ADDRESS/BITS, [tcp|udp] [src|dst] port NUMBER, portrange FIRST-LAST, ether [src|dst] host MAC, \
                         broadcast, multicast, less BYTES, greater BYTES, inbound, outbound";
const OF_VSOCK: &str = "[src|dst] cid NUMBER, [src|dst] port NUMBER, portrange FIRST-LAST, less BYTES, greater BYTES, inbound, outbound";

/// The steps of an expression.
pub(super) fn steps(text: &str, of_vsock: bool) -> Result<Vec<Step>, String> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(format!("it has {} bytes, at most {MAX_TEXT_BYTES} are allowed", text.len()));
    }
    let mut parser = Parser { words: words(text), at: 0, steps: Vec::new(), of_vsock };
    parser.expression(0)?;
    match parser.peek() {
        None => Ok(parser.steps),
        Some(word) => Err(format!("'{word}' where 'and', 'or' or the end should be")),
    }
}

/// The words of a text; parentheses and marks are words.
fn words(text: &str) -> Vec<&str> {
    let is_mark = |c: char| matches!(c, '(' | ')' | '!' | '&' | '|');
    let mut found = Vec::new();
    for mut part in text.split_whitespace() {
        while let Some(i) = part.find(is_mark) {
            found.extend(Some(&part[..i]).filter(|word| !word.is_empty()));
            let mark = if part[i..].starts_with("&&") || part[i..].starts_with("||") { 2 } else { 1 };
            found.push(&part[i..i + mark]);
            part = &part[i + mark..];
        }
        found.extend(Some(part).filter(|word| !word.is_empty()));
    }
    found
}

struct Parser<'a> {
    words: Vec<&'a str>,
    at: usize,
    steps: Vec<Step>,
    of_vsock: bool,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    fn next(&mut self, wanted: &str) -> Result<&'a str, String> {
        let word = self.peek().ok_or_else(|| format!("{wanted} is missing at its end"))?;
        self.at += 1;
        Ok(word)
    }

    /// Whether the next word is this one, which is taken then.
    fn takes(&mut self, word: &str) -> bool {
        let is_there = self.peek() == Some(word);
        self.at += usize::from(is_there);
        is_there
    }

    fn is(&mut self, test: FilterTest) {
        self.steps.push(Step::Is(test));
    }

    fn expression(&mut self, depth: usize) -> Result<(), String> {
        self.operand(depth)?;
        loop {
            let step = match self.peek() {
                Some("and" | "&&") => Step::And,
                Some("or" | "||") => Step::Or,
                _ => return Ok(()),
            };
            self.at += 1;
            self.operand(depth)?;
            self.steps.push(step);
        }
    }

    fn operand(&mut self, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} times"));
        }
        if self.takes("not") || self.takes("!") {
            self.operand(depth + 1)?;
            self.steps.push(Step::Not);
            return Ok(());
        }
        if self.takes("(") {
            self.expression(depth + 1)?;
            return match self.takes(")") {
                true => Ok(()),
                false => Err("')' is missing".to_owned()),
            };
        }
        let word = self.next("a word")?;
        match self.common(word)? {
            Some(test) => self.is(test),
            None if self.of_vsock => self.vsock(word)?,
            None => self.frame(word)?,
        }
        Ok(())
    }

    /// Words of all devices. None for another word.
    fn common(&mut self, word: &'a str) -> Result<Option<FilterTest>, String> {
        Ok(Some(match word {
            "less" => FilterTest::Less(self.value("a number of bytes")?),
            "greater" => FilterTest::Greater(self.value("a number of bytes")?),
            "inbound" => FilterTest::Direction(PacketDirection::Inbound),
            "outbound" => FilterTest::Direction(PacketDirection::Outbound),
            _ => return Ok(None),
        }))
    }

    fn vsock(&mut self, word: &'a str) -> Result<(), String> {
        let (end, word) = self.end(word)?;
        let test = match word {
            "cid" => FilterTest::Cid(end, self.value("a CID")?),
            "port" | "portrange" => FilterTest::Ports(end, self.ports::<u32>(word)?),
            other => return Err(format!("'{other}' is not known: give {OF_VSOCK}, with and, or, not, ( )")),
        };
        self.is(test);
        Ok(())
    }

    fn frame(&mut self, word: &'a str) -> Result<(), String> {
        let kind = match word {
            "ip" => FilterTest::Type(ethernet::IPV4),
            "ip6" => FilterTest::Type(ethernet::IPV6),
            "arp" => FilterTest::Type(ethernet::ARP),
            "tcp" => FilterTest::Protocol(ip::TCP),
            "udp" => FilterTest::Protocol(ip::UDP),
            "icmp" => FilterTest::Protocol(ip::ICMP),
            "icmp6" => FilterTest::Protocol(ip::ICMPV6),
            "vlan" => self.vlan()?,
            "ether" => self.ether()?,
            "broadcast" => FilterTest::Broadcast,
            "multicast" => FilterTest::Multicast,
            _ => return self.ends(word),
        };
        self.is(kind);
        // 'tcp port 80' is both.
        let further: &[&str] = match word {
            "ip" | "ip6" | "arp" => &["src", "dst", "host", "net"],
            "tcp" | "udp" => &["src", "dst", "port", "portrange"],
            _ => &[],
        };
        if let Some(more) = self.peek().filter(|word| further.contains(word)) {
            self.at += 1;
            self.ends(more)?;
            self.steps.push(Step::And);
        }
        Ok(())
    }

    /// What is about one of two addresses or ports.
    fn ends(&mut self, word: &'a str) -> Result<(), String> {
        let (end, word) = self.end(word)?;
        let test = match word {
            "host" => {
                let ip: IpAddr = self.value("an IP address")?;
                FilterTest::Network(end, ip, bits_of(ip))
            }
            "net" => self.network(end)?,
            "port" | "portrange" => FilterTest::Ports(end, self.ports::<u16>(word)?),
            other => return Err(format!("'{other}' is not known: give {OF_FRAMES}, with and, or, not, ( )")),
        };
        self.is(test);
        Ok(())
    }

    /// Which end a word is about, and the word.
    fn end(&mut self, word: &'a str) -> Result<(PacketEnd, &'a str), String> {
        let end = match word {
            "src" => PacketEnd::Source,
            "dst" => PacketEnd::Destination,
            other => return Ok((PacketEnd::Either, other)),
        };
        Ok((end, self.next("what is meant")?))
    }

    fn vlan(&mut self) -> Result<FilterTest, String> {
        let Some(number) = self.peek().and_then(|word| word.parse::<u16>().ok()) else {
            return Ok(FilterTest::Vlan(None));
        };
        self.at += 1;
        match VLANS.contains(&number) {
            true => Ok(FilterTest::Vlan(Some(number))),
            false => Err(format!("vlan {number}: numbers go from 0 to {}", VLANS.end())),
        }
    }

    fn ether(&mut self) -> Result<FilterTest, String> {
        let word = self.next("host, broadcast or multicast")?;
        match word {
            "broadcast" => return Ok(FilterTest::Broadcast),
            "multicast" => return Ok(FilterTest::Multicast),
            _ => {}
        }
        let (end, word) = self.end(word)?;
        let mac = if word == "host" { self.next("a MAC address")? } else { word };
        mac_address(mac)
            .map(|mac| FilterTest::Mac(end, mac))
            .ok_or_else(|| format!("'{mac}' is no MAC address such as 52:54:00:12:34:56"))
    }

    fn network(&mut self, end: PacketEnd) -> Result<FilterTest, String> {
        let text = self.next("a network")?;
        let wrong = || format!("'{text}' is no network such as 10.0.0.0/8 or fd00::/8");
        let (ip, bits) = text.split_once('/').ok_or_else(wrong)?;
        let (ip, bits) = (ip.parse().map_err(|_| wrong())?, bits.parse().map_err(|_| wrong())?);
        if bits > bits_of(ip) {
            return Err(wrong());
        }
        Ok(FilterTest::Network(end, ip, bits))
    }

    fn ports<T: FromStr + Into<u32>>(&mut self, word: &str) -> Result<RangeInclusive<u32>, String> {
        if word == "port" {
            let port = self.value::<T>("the number of a port")?.into();
            return Ok(port..=port);
        }
        let text = self.next("a range of ports")?;
        let range = text.split_once('-').and_then(|(first, last)| {
            let range = first.parse::<T>().ok()?.into()..=last.parse::<T>().ok()?.into();
            (!range.is_empty()).then_some(range)
        });
        range.ok_or_else(|| format!("'{text}' is no range of ports such as 8000-8080"))
    }

    fn value<T: FromStr>(&mut self, what: &str) -> Result<T, String> {
        let text = self.next(what)?;
        text.parse().map_err(|_| format!("'{text}' is not {what}"))
    }
}

/// Bits of an address of this kind.
fn bits_of(ip: IpAddr) -> u32 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn mac_address(text: &str) -> Option<[u8; 6]> {
    let octets: Vec<_> =
        text.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect::<Option<_>>()?;
    octets.try_into().ok().filter(|_| text.len() == 17 && !text.contains('+'))
}
