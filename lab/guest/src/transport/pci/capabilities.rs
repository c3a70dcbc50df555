//! Where a virtio device's registers are (virtio 1.3 §4.1.4).

/// Offset of the status register in configuration space.
const STATUS: usize = 0x06;
/// Bit of it: there is a list of capabilities.
const HAS_LIST: u16 = 1 << 4;
/// Offset of the list's first link.
const FIRST: usize = 0x34;
/// Capability "vendor specific", which virtio uses.
const VENDOR: u8 = 0x09;
/// More capabilities than fit the 192 bytes of configuration space for them:
/// the list is a loop.
const MOST: usize = 48;
/// Registers of a device that a driver needs of the common configuration
/// (§4.1.4.3), bytes: up to queue_device.
const COMMON_LEN: u32 = 56;

/// A part of a BAR.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct BarRange {
    pub bar: u8,
    pub offset: u32,
    pub len: u32,
}

/// The parts that a driver uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Capabilities {
    pub common: BarRange,
    pub notify: BarRange,
    /// Bytes between the doorbells of queues (notify_off_multiplier).
    pub multiplier: u32,
    pub isr: BarRange,
    pub device: Option<BarRange>,
}

/// Reads the list in the first 256 bytes of configuration space. Of several
/// capabilities of a type the first one counts (§4.1.4.1).
pub(super) fn parse(config: &[u8]) -> Result<Capabilities, String> {
    if u16_at(config, STATUS)? & HAS_LIST == 0 {
        return Err("it has no list of capabilities (virtio 1.3, 4.1.4)".into());
    }
    let (mut common, mut notify, mut isr, mut device) = (None, None, None, None);
    let mut at = usize::from(u8_at(config, FIRST)? & !3);
    for _ in 0..MOST {
        if at == 0 {
            break;
        }
        // BARs from 6 on are reserved: such capabilities don't count.
        if u8_at(config, at)? == VENDOR && u8_at(config, at + 4)? < 6 {
            let bar = u8_at(config, at + 4)?;
            let place = BarRange { bar, offset: u32_at(config, at + 8)?, len: u32_at(config, at + 12)? };
            match u8_at(config, at + 3)? {
                1 => common = common.or(Some(place)),
                2 if notify.is_none() => notify = Some((place, u32_at(config, at + 16)?)),
                3 => isr = isr.or(Some(place)),
                4 => device = device.or(Some(place)),
                _ => {}
            }
        }
        at = usize::from(u8_at(config, at + 1)? & !3);
    }
    let missing = |name: &str| format!("it has no capability for its {name}: it is no modern virtio device");
    let common = common.ok_or_else(|| missing("common configuration"))?;
    let (notify, multiplier) = notify.ok_or_else(|| missing("notifications"))?;
    let isr = isr.ok_or_else(|| missing("interrupt status"))?;
    if common.len < COMMON_LEN || notify.len < 2 || isr.len < 1 {
        return Err(format!(
            "its capabilities are too short: {} bytes of common configuration, {} of notifications, {} of \
             interrupt status; 56, 2 and 1 are needed (virtio 1.3, 4.1.4)",
            common.len, notify.len, isr.len
        ));
    }
    Ok(Capabilities { common, notify, multiplier, isr, device })
}

fn u8_at(config: &[u8], at: usize) -> Result<u8, String> {
    let byte = config.get(at).copied();
    byte.ok_or_else(|| {
        format!("its configuration space ends at {} and byte {at} is needed; run as root", config.len())
    })
}

pub(super) fn u16_at(config: &[u8], at: usize) -> Result<u16, String> {
    Ok(u16::from_le_bytes([u8_at(config, at)?, u8_at(config, at + 1)?]))
}

fn u32_at(config: &[u8], at: usize) -> Result<u32, String> {
    Ok(u32::from(u16_at(config, at)?) | u32::from(u16_at(config, at + 2)?) << 16)
}

#[cfg(test)]
mod tests;
