//! Protocol feature masks: what both ends of the socket agree on
//! (GET_PROTOCOL_FEATURES; QEMU `docs/interop/vhost-user.rst`, "Protocol
//! features").

/// Bit 0: more than one queue pair, GET_QUEUE_NUM.
pub const MQ: u64 = 1 << 0;
/// Bit 1: the dirty log comes as a descriptor.
pub const LOG_SHMFD: u64 = 1 << 1;
/// Bit 2: SEND_RARP.
pub const RARP: u64 = 1 << 2;
/// Bit 3: any request may ask for an acknowledgement.
pub const REPLY_ACK: u64 = 1 << 3;
/// Bit 4: NET_SET_MTU.
pub const MTU: u64 = 1 << 4;
/// Bit 5: SET_BACKEND_REQ_FD.
pub const BACKEND_REQ: u64 = 1 << 5;
/// Bit 6: SET_VRING_ENDIAN.
pub const CROSS_ENDIAN: u64 = 1 << 6;
/// Bit 7: crypto sessions.
pub const CRYPTO_SESSION: u64 = 1 << 7;
/// Bit 8: post-copy migration.
pub const PAGEFAULT: u64 = 1 << 8;
/// Bit 9: GET_CONFIG, SET_CONFIG.
pub const CONFIG: u64 = 1 << 9;
/// Bit 10: the back end may send descriptors.
pub const BACKEND_SEND_FD: u64 = 1 << 10;
/// Bit 11: host notifiers.
pub const HOST_NOTIFIER: u64 = 1 << 11;
/// Bit 12: inflight region as a descriptor.
pub const INFLIGHT_SHMFD: u64 = 1 << 12;
/// Bit 13: RESET_DEVICE.
pub const RESET_DEVICE: u64 = 1 << 13;
/// Bit 14: notifications as messages.
pub const INBAND_NOTIFICATIONS: u64 = 1 << 14;
/// Bit 15: GET_MAX_MEM_SLOTS, ADD_MEM_REG, REM_MEM_REG.
pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
/// Bit 16: SET_STATUS, GET_STATUS.
pub const STATUS: u64 = 1 << 16;
/// Bit 17: Xen mappings.
pub const XEN_MMAP: u64 = 1 << 17;
/// Bit 18: shared objects.
pub const SHARED_OBJECT: u64 = 1 << 18;
/// Bit 19: device state transfer.
pub const DEVICE_STATE: u64 = 1 << 19;
