//! Request numbers of the front-end channel.

use crate::WireError;

macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $wire:literal;)*) => {
        /// What a front end asks for (QEMU `docs/interop/vhost-user.rst`,
        /// "Front-end message types").
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        #[repr(u32)]
        pub enum Request {
            $($(#[$doc])* $name = $number,)*
        }

        impl Request {
            /// Every request, in the order of the numbers.
            pub const ALL: &'static [Request] = &[$(Request::$name,)*];

            /// The name without the prefix `VHOST_USER_`.
            pub const fn name(self) -> &'static str {
                match self { $(Request::$name => $wire,)* }
            }
        }

        impl TryFrom<u32> for Request {
            type Error = WireError;

            fn try_from(number: u32) -> Result<Self, WireError> {
                match number {
                    $($number => Ok(Request::$name),)*
                    request => Err(WireError::UnknownRequest { request }),
                }
            }
        }
    };
}

requests! {
    /// VHOST_USER_GET_FEATURES: reply is the u64 mask of device features.
    GetFeatures = 1, "GET_FEATURES";
    /// VHOST_USER_SET_FEATURES: u64 mask of acknowledged device features.
    SetFeatures = 2, "SET_FEATURES";
    /// VHOST_USER_SET_OWNER: begins a session; no payload.
    SetOwner = 3, "SET_OWNER";
    /// VHOST_USER_RESET_OWNER: deprecated; no payload.
    ResetOwner = 4, "RESET_OWNER";
    /// VHOST_USER_SET_MEM_TABLE: memory table, one descriptor a region.
    SetMemTable = 5, "SET_MEM_TABLE";
    /// VHOST_USER_SET_LOG_BASE: log region and its descriptor.
    SetLogBase = 6, "SET_LOG_BASE";
    /// VHOST_USER_SET_LOG_FD: descriptor that is signalled at log writes.
    SetLogFd = 7, "SET_LOG_FD";
    /// VHOST_USER_SET_VRING_NUM: ring state, the size of the queue.
    SetVringNum = 8, "SET_VRING_NUM";
    /// VHOST_USER_SET_VRING_ADDR: ring addresses (user addresses of the front end).
    SetVringAddr = 9, "SET_VRING_ADDR";
    /// VHOST_USER_SET_VRING_BASE: ring state, the next available index.
    SetVringBase = 10, "SET_VRING_BASE";
    /// VHOST_USER_GET_VRING_BASE: stops a ring; reply is a ring state.
    GetVringBase = 11, "GET_VRING_BASE";
    /// VHOST_USER_SET_VRING_KICK: u64 with index, descriptor to be notified by.
    SetVringKick = 12, "SET_VRING_KICK";
    /// VHOST_USER_SET_VRING_CALL: u64 with index, descriptor to notify.
    SetVringCall = 13, "SET_VRING_CALL";
    /// VHOST_USER_SET_VRING_ERR: u64 with index, descriptor for errors.
    SetVringErr = 14, "SET_VRING_ERR";
    /// VHOST_USER_GET_PROTOCOL_FEATURES: reply is the u64 mask.
    GetProtocolFeatures = 15, "GET_PROTOCOL_FEATURES";
    /// VHOST_USER_SET_PROTOCOL_FEATURES: u64 mask.
    SetProtocolFeatures = 16, "SET_PROTOCOL_FEATURES";
    /// VHOST_USER_GET_QUEUE_NUM: reply is a u64 count of queues.
    GetQueueNum = 17, "GET_QUEUE_NUM";
    /// VHOST_USER_SET_VRING_ENABLE: ring state, 1 enables, 0 disables.
    SetVringEnable = 18, "SET_VRING_ENABLE";
    /// VHOST_USER_SEND_RARP: u64 with the MAC address to announce.
    SendRarp = 19, "SEND_RARP";
    /// VHOST_USER_NET_SET_MTU: u64 with the MTU in bytes.
    NetSetMtu = 20, "NET_SET_MTU";
    /// VHOST_USER_SET_BACKEND_REQ_FD: socket for requests of the back end.
    SetBackendReqFd = 21, "SET_BACKEND_REQ_FD";
    /// VHOST_USER_IOTLB_MSG: translation update.
    IotlbMsg = 22, "IOTLB_MSG";
    /// VHOST_USER_SET_VRING_ENDIAN: ring state, the byte order.
    SetVringEndian = 23, "SET_VRING_ENDIAN";
    /// VHOST_USER_GET_CONFIG: reads configuration space.
    GetConfig = 24, "GET_CONFIG";
    /// VHOST_USER_SET_CONFIG: writes configuration space.
    SetConfig = 25, "SET_CONFIG";
    /// VHOST_USER_CREATE_CRYPTO_SESSION.
    CreateCryptoSession = 26, "CREATE_CRYPTO_SESSION";
    /// VHOST_USER_CLOSE_CRYPTO_SESSION.
    CloseCryptoSession = 27, "CLOSE_CRYPTO_SESSION";
    /// VHOST_USER_POSTCOPY_ADVISE.
    PostcopyAdvise = 28, "POSTCOPY_ADVISE";
    /// VHOST_USER_POSTCOPY_LISTEN.
    PostcopyListen = 29, "POSTCOPY_LISTEN";
    /// VHOST_USER_POSTCOPY_END.
    PostcopyEnd = 30, "POSTCOPY_END";
    /// VHOST_USER_GET_INFLIGHT_FD.
    GetInflightFd = 31, "GET_INFLIGHT_FD";
    /// VHOST_USER_SET_INFLIGHT_FD.
    SetInflightFd = 32, "SET_INFLIGHT_FD";
    /// VHOST_USER_GPU_SET_SOCKET.
    GpuSetSocket = 33, "GPU_SET_SOCKET";
    /// VHOST_USER_RESET_DEVICE: disables all rings and resets device state.
    ResetDevice = 34, "RESET_DEVICE";
    /// VHOST_USER_VRING_KICK: notification in band.
    VringKick = 35, "VRING_KICK";
    /// VHOST_USER_GET_MAX_MEM_SLOTS: reply is a u64 count of regions.
    GetMaxMemSlots = 36, "GET_MAX_MEM_SLOTS";
    /// VHOST_USER_ADD_MEM_REG: one region and its descriptor.
    AddMemReg = 37, "ADD_MEM_REG";
    /// VHOST_USER_REM_MEM_REG: one region to remove.
    RemMemReg = 38, "REM_MEM_REG";
    /// VHOST_USER_SET_STATUS: u64 with the virtio device status.
    SetStatus = 39, "SET_STATUS";
    /// VHOST_USER_GET_STATUS: reply is a u64 device status.
    GetStatus = 40, "GET_STATUS";
    /// VHOST_USER_GET_SHARED_OBJECT.
    GetSharedObject = 41, "GET_SHARED_OBJECT";
    /// VHOST_USER_SET_DEVICE_STATE_FD.
    SetDeviceStateFd = 42, "SET_DEVICE_STATE_FD";
    /// VHOST_USER_CHECK_DEVICE_STATE.
    CheckDeviceState = 43, "CHECK_DEVICE_STATE";
    /// VHOST_USER_GET_SHMEM_CONFIG.
    GetShmemConfig = 44, "GET_SHMEM_CONFIG";
}

impl Request {
    /// The number on the wire.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// A name for any number, for error messages.
    pub fn describe(number: u32) -> String {
        match Request::try_from(number) {
            Ok(request) => request.name().to_owned(),
            Err(_) => format!("request {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_from_1_to_44_and_round_trip() {
        let numbers: Vec<u32> = Request::ALL.iter().map(|r| r.number()).collect();
        assert_eq!(numbers, (1..=44).collect::<Vec<_>>());
        for &request in Request::ALL {
            assert_eq!(Request::try_from(request.number()).unwrap(), request);
        }
    }

    #[test]
    fn other_numbers_are_refused_by_value() {
        for number in [0, 45, u32::MAX] {
            let error = Request::try_from(number).unwrap_err().to_string();
            assert!(error.contains(&number.to_string()), "{error}");
        }
    }
}
