/*
 * libzerowire: receiving a guest's streams and messages in mapped memory, from `zerowire vsock`
 * (zw_vsock_..., zw_window_...; docs/mapped-receive.md describes the memory and the handshake), and
 * sending memory that is lent to the kernel (zw_sender_..., zw_area_..., zw_lease_...) and whole
 * frames (zw_frames_...; docs/send.md), and receiving from many sockets in place (zw_receiver_...,
 * zw_arrival_...; docs/recv.md).
 *
 * Results: 0 or more for success, a negative errno for a failure; zw_last_error() then says in
 * words what was wrong and what to do. Functions that take a connection, an area or a DMA buffer
 * may be called by any thread; a sender, of frames too, a window and a lease are used by one thread
 * at a time, a receiver by the thread that made it. A handle is the caller's until its close or
 * release function; NULL handles give -EINVAL.
 *
 * Structs that later versions may make longer begin with size: set it to sizeof the struct, before
 * results are asked for too (-EINVAL otherwise). Arrays of zw_arrival have the size of an element
 * as an argument. zw_version says how structs of another version are taken. zw_vnet_header is
 * virtio's, and stays as it is.
 *
 * ZW_MEMORY_VERSION to ZW_REGION_SHIFT and zw_window_header to zw_control describe the memory,
 * version 1: for programs that do without the functions.
 *
 * Generated from crates/zerowire-c/src by cbindgen: change it there.
 */
#ifndef ZEROWIRE_H
#define ZEROWIRE_H


#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

// The version of this header: major * 65536 + minor * 256 + patch. zw_version says that of the
// library.
#define ZW_LIBRARY_VERSION 256u

// Version of the memory and of the handshake.
#define ZW_MEMORY_VERSION 1u

// Bytes of a page; windows are made of them.
#define ZW_PAGE 4096u

// poll_value: the window is the daemon's.
#define ZW_POLL_NOTHING 0u

// poll_value: the window has data, and is the program's until it stores ZW_POLL_NOTHING.
#define ZW_POLL_DATA 1u

// poll_value: no more data will come.
#define ZW_POLL_END 4294967295u

// Flag of entries and packets: the last part of a message.
#define ZW_ENTRY_EOM 1u

// Flag of entries and packets: the last part of a record.
#define ZW_ENTRY_EOR 2u

// Flag of entries and packets: the payload lies in guest memory, and the guest can change it.
#define ZW_ENTRY_DIRECT 4u

// Where in an entry's flags the number of the guest memory region begins.
#define ZW_REGION_SHIFT 8u

// A kind: bytes in order, as SOCK_STREAM.
#define ZW_STREAM 1u

// A kind: messages in order, each whole, as SOCK_SEQPACKET.
#define ZW_SEQPACKET 2u

// A flag of options: each packet of a stream begins a page. Without it small ones share pages.
#define ZW_UNPACKED 4u

// A flag of options: payload stays in guest memory. -EPERM if the daemon has no
// --share-guest-memory.
#define ZW_DIRECT 2u

// A flag of zw_area_new: pages of 2 MiB from the machine's pool (/proc/sys/vm/nr_hugepages).
#define ZW_HUGE_PAGES 1u

// A mode: measured for each socket and length, the cheaper way serves (docs/send.md).
#define ZW_MODE_AUTO 0u

// A mode: the kernel copies; memory is free when the call returns.
#define ZW_MODE_COPY 1u

// A mode: lent always. A limit that forbids it is an error (-ENOBUFS).
#define ZW_MODE_ZEROCOPY 2u

// A back end: io_uring if areas are given and it is allowed, else socket calls, and on AF_VSOCK
// always these. zw_sender_path says which and why.
#define ZW_BACKEND_AUTO 0u

// A back end: send, sendmsg, sendmmsg, with MSG_ZEROCOPY.
#define ZW_BACKEND_SOCKET 1u

// A back end: io_uring's SEND_ZC and SENDMSG_ZC; -EOPNOTSUPP where io_uring is not allowed. On
// AF_VSOCK it only copies.
#define ZW_BACKEND_URING 2u

// Notifications are read several at a time.
#define ZW_NOTIFY_BATCHED 0u

// zw_sender_send, _sendv and _send_lease wait for each payload's notification, at most for
// timeout_ms. Slow. 0 says that the payload was taken, and its memory may still be lent: don't
// reuse it before zw_sender_wait returns 0 for its ticket.
#define ZW_NOTIFY_EACH_ONE 1u

// A flag of zw_sender_options: memory is checked, see zw_sender_send. Always so if the library is
// a debug build.
#define ZW_CHECKED 1u

// zw_sender_close: sends what waits, and waits for what is lent.
#define ZW_CLOSE_DRAIN 0u

// zw_sender_close: at once; a TCP connection with payloads that are lent or wait is reset.
#define ZW_CLOSE_ABORT 1u

// A way: a transmit ring of a packet socket (PACKET_TX_RING). On any interface, with checksum and
// segmentation offload.
#define ZW_FRAMES_RING 0u

// A way: an AF_XDP socket on one queue of an interface.
#define ZW_FRAMES_XDP 1u

// A mode of AF_XDP: zero copy where the driver can, else one copy by the kernel; zw_frames_path
// says which.
#define ZW_XDP_AUTO 0u

// A mode of AF_XDP: one copy, by the kernel. On any interface.
#define ZW_XDP_COPY 1u

// A mode of AF_XDP: the interface reads frames in place; -EOPNOTSUPP where its driver can't.
#define ZW_XDP_ZEROCOPY 2u

// A flag of zw_frames_options, ring only: frames may have a zw_vnet_header.
#define ZW_FRAMES_OFFLOAD 2u

// A flag of zw_frames_options, ring only: past the interface's queue, without traffic control
// (PACKET_QDISC_BYPASS).
#define ZW_FRAMES_BYPASS_QUEUE 4u

// A flag of zw_frames_options, ring only: the kernel skips frames that it refuses, without an
// error (PACKET_LOSS).
#define ZW_FRAMES_SKIP_REFUSED 8u

// A flag of zw_frames_options, AF_XDP only: memory in pages of 2 MiB.
#define ZW_FRAMES_HUGE_PAGES 16u

// A flag of zw_vnet_header: sum from csum_start on, and put the checksum at csum_start +
// csum_offset, where the frame has the sum of the pseudo header (VIRTIO_NET_HDR_F_NEEDS_CSUM).
#define ZW_VNET_NEEDS_CSUM 1u

// A gso_type of zw_vnet_header: the frame is not cut.
#define ZW_VNET_GSO_NONE 0u

// A gso_type of zw_vnet_header: TCP segments over IPv4.
#define ZW_VNET_GSO_TCPV4 1u

// A gso_type of zw_vnet_header: TCP segments over IPv6.
#define ZW_VNET_GSO_TCPV6 4u

// A gso_type of zw_vnet_header: UDP datagrams (Linux 6.2).
#define ZW_VNET_GSO_UDP_L4 5u

// A way to receive: ZW_RECV_MULTISHOT where io_uring is allowed, else ZW_RECV_PLAIN.
// zw_receiver_path says which and why.
#define ZW_RECV_AUTO 0u

// A way to receive: io_uring's multishot receive into buffers of the receiver (Linux 6.1).
#define ZW_RECV_MULTISHOT 1u

// A way to receive: epoll_wait and recvmsg.
#define ZW_RECV_PLAIN 2u

// A way to receive: io_uring's zero-copy receive on a queue of an interface (Linux 6.15).
#define ZW_RECV_QUEUE 3u

// A way to receive: the same without a device; the kernel copies (Linux 7.1).
#define ZW_RECV_NO_DEVICE 4u

// Flag of a receiver: without a device the refill ring is handed over only when a receive found no
// buffer, and not when half of the buffers wait there.
#define ZW_RECV_LAZY_FLUSH 2u

// Flag of a receiver: zero-copy receive with completions of 16 bytes where that is enough (Linux
// 6.18).
#define ZW_RECV_MIXED 4u

// Flag of a receiver: zero-copy receive with the refill ring in memory of the kernel, and not of
// this process.
#define ZW_RECV_KERNEL_RING 8u

// A gather_us: nothing is gathered, for programs that wait for each answer.
#define ZW_RECV_GATHER_NOTHING 4294967295u

// A kind of arrival: bytes.
#define ZW_ARRIVAL_DATA 1u

// A kind of arrival: the peer sends no more.
#define ZW_ARRIVAL_END 2u

// A kind of arrival: receiving on this connection failed, see error. Nothing more comes of it. A
// datagram socket goes on after an ICMP answer to a datagram that was sent earlier: ECONNREFUSED,
// EMSGSIZE (path MTU discovery), EHOSTUNREACH, ENETUNREACH, EHOSTDOWN, ENONET, ENOPROTOOPT,
// EPROTO, EACCES.
#define ZW_ARRIVAL_FAILED 3u

// A kind of arrival: the connection is new, it was accepted from listener. Comes before all else
// of it.
#define ZW_ARRIVAL_ACCEPTED 4u

// What zw_receiver_zero_copied says: zero_copied_bytes of the ledger is the exact number.
#define ZW_ZERO_COPIED_EXACT 0

// The same: zero_copied_bytes is the most that it can be. The kernel counts what it copies of a
// frame's fragments, but not what it copies from beside the headers (headers too long, no header
// split).
#define ZW_ZERO_COPIED_AT_MOST 1

// The same: nobody knows, they are all bytes. The kernel counts no copies (before Linux 7.2).
#define ZW_ZERO_COPIED_UNKNOWN 2

// Sends whole frames on one interface, built in memory that the kernel sends from.
typedef struct zw_frames zw_frames;

// Receives from many sockets.
typedef struct zw_receiver zw_receiver;

// The area of a receiver, for others to use. Any thread may use it.
typedef struct zw_shared_area zw_shared_area;

// A DMA buffer to make a receiver's area of. Any thread may use it.
typedef struct zw_dmabuf zw_dmabuf;

// Memory cut into buffers of one length. Any thread may use it.
typedef struct zw_area zw_area;

// One buffer of an area, held by nobody else. One thread uses it at a time.
typedef struct zw_lease zw_lease;

// Sends payloads over one connected socket.
typedef struct zw_sender zw_sender;

// A connection.
typedef struct zw_vsock zw_vsock;

// A port of the host.
typedef struct zw_vsock_listener zw_vsock_listener;

// A window that is held.
typedef struct zw_window zw_window;

// Fixed when a connection is made. Set size, and leave at 0 what you don't want to choose: 0 is
// the default of each field.
typedef struct zw_vsock_options {
    // sizeof(struct zw_vsock_options). Later versions append fields.
    size_t size;
    // ZW_STREAM or ZW_SEQPACKET. 0: ZW_STREAM.
    uint32_t kind;
    // Windows in the ring: 2 to 64. 0: 4.
    uint32_t windows;
    // Header pages of a window: 1 to 16. 0: 1.
    uint32_t header_pages;
    // Data pages of a window: 1 to 4096. 0: 128.
    uint32_t data_pages;
    // Bytes that make a window published. 0: 1.
    uint32_t lowat;
    // Bytes that the guest may send ahead. 0: what the daemon gives.
    uint32_t credit;
    // ZW_UNPACKED, ZW_DIRECT.
    uint32_t flags;
    // 0.
    uint32_t reserved;
} zw_vsock_options;

// Payload in a window.
typedef struct zw_packet {
    // sizeof(struct zw_packet), set by you: no more is written. Later versions append fields.
    size_t size;
    // Valid until the window is released. Nobody writes it, but for ZW_ENTRY_DIRECT: the guest
    // may.
    const void *data;
    // Bytes, at least 1.
    size_t length;
    // ZW_ENTRY_EOM, ZW_ENTRY_EOR, ZW_ENTRY_DIRECT.
    uint32_t flags;
    // 0.
    uint32_t reserved;
} zw_packet;

// How a sender works. Set size, and leave at 0 what you don't want to choose: 0 is the default of
// each field.
typedef struct zw_sender_options {
    // sizeof(struct zw_sender_options). Later versions append fields.
    size_t size;
    // ZW_MODE_...
    uint32_t mode;
    // ZW_BACKEND_...
    uint32_t backend;
    // Bytes that may be lent at a time; one payload may always be, however long. 0: 16 MiB.
    size_t max_lent_bytes;
    // Payloads that may be lent at a time. 0: 1024.
    size_t max_lent;
    // UDP: payloads are cut into datagrams of this many bytes, 1 to 65535 (UDP_SEGMENT);
    // zw_longest_segment says what the path takes. 0: not cut.
    uint32_t segment_bytes;
    // ZW_NOTIFY_...
    uint32_t notifications;
    // Milliseconds that a send waits for room, and with ZW_NOTIFY_EACH_ONE once more for the
    // notification. 0: as long as it takes.
    uint32_t timeout_ms;
    // ZW_CHECKED.
    uint32_t flags;
    // Areas whose buffers will be sent: with io_uring they are registered once. They stay yours.
    // NULL: none.
    const struct zw_area *const *areas;
    // Number of areas.
    size_t area_count;
} zw_sender_options;

// What a sender left behind.
typedef struct zw_closed {
    // sizeof(struct zw_closed), set by you: no more is written. Later versions append fields.
    size_t size;
    // Payloads that were not back in time.
    size_t aborted;
    // Their bytes.
    size_t aborted_bytes;
    // Of these, payloads that the kernel still holds.
    size_t kept;
} zw_closed;

// Tickets whose memory is back: all from first to last, both included. Tickets wrap around at
// 2^32.
typedef struct zw_completion {
    // sizeof(struct zw_completion), set by you: no more is written. Later versions append fields.
    size_t size;
    // First ticket.
    uint32_t first;
    // Last ticket.
    uint32_t last;
    // 1: the bytes were copied, by the sender or by the kernel; 0: they were not.
    uint32_t copied;
    // 0.
    uint32_t reserved;
} zw_completion;

// What went how. Lent bytes are counted when they come back: only then it is known whether the
// kernel copied them.
typedef struct zw_ledger {
    // sizeof(struct zw_ledger), set by you: no more is written. Later versions append fields.
    size_t size;
    // Payloads sent.
    uint64_t payloads;
    // Bytes, zero-copied and copied.
    uint64_t bytes;
    // Payloads of which nobody copied a byte.
    uint64_t zero_copied_payloads;
    // Bytes that nobody copied.
    uint64_t zero_copied_bytes;
    // Bytes that were copied; zw_sender_copied says why.
    uint64_t copied_bytes;
    // System calls that sent.
    uint64_t system_calls;
} zw_ledger;

// How frames are sent. Set size, and leave at 0 what you don't want to choose: 0 is the default of
// each field. A field or flag of the other way than the one that is chosen has to be 0 (-EINVAL).
typedef struct zw_frames_options {
    // sizeof(struct zw_frames_options). Later versions append fields.
    size_t size;
    // ZW_FRAMES_RING or ZW_FRAMES_XDP.
    uint32_t way;
    // ZW_XDP_...; AF_XDP only.
    uint32_t mode;
    // Queue of the interface, from 0; AF_XDP only.
    uint32_t queue;
    // Places for frames: those that can be built or on their way at once. 0: 256 (ring), 2048
    // (AF_XDP).
    uint32_t places;
    // Entries of AF_XDP's rings, a power of two. 0: 2048.
    uint32_t entries;
    // Ring only: the kernel copies frames of at most this many bytes (65535 or less) and borrows
    // longer ones: for interfaces that copy lent frames anyway (veth, tap, lo). 0: all are lent.
    uint32_t copy_up_to;
    // Bytes of the longest frame, Ethernet header included. 0: what the MTU allows; with
    // ZW_FRAMES_OFFLOAD the longest there is.
    size_t frame_bytes;
    // AF_XDP only: milliseconds to wait for a queue whose last socket was closed. 0: 500.
    uint32_t busy_ms;
    // ZW_CHECKED, ZW_FRAMES_...
    uint32_t flags;
} zw_frames_options;

// A virtio-net header in the machine's byte order (virtio 1.3 §5.1.6.2): what the kernel or the
// interface is to do to a frame. Offsets count from the start of the Ethernet header. All 0:
// nothing.
typedef struct zw_vnet_header {
    // ZW_VNET_NEEDS_CSUM.
    uint8_t flags;
    // ZW_VNET_GSO_...
    uint8_t gso_type;
    // Bytes of all headers, which each segment gets; 0 where nothing is cut.
    uint16_t hdr_len;
    // Bytes of payload of a segment; 0 where nothing is cut.
    uint16_t gso_size;
    // Where the TCP or UDP header begins.
    uint16_t csum_start;
    // Where its checksum is in it: 16 (TCP), 6 (UDP).
    uint16_t csum_offset;
} zw_vnet_header;

// How a receiver works. Set size, and leave at 0 what you don't want to choose: 0 is the default
// of each field.
typedef struct zw_receiver_options {
    // sizeof(struct zw_receiver_options). Later versions append fields.
    size_t size;
    // ZW_RECV_...
    uint32_t backend;
    // ZW_HUGE_PAGES: the memory is of huge pages. ZW_RECV_LAZY_FLUSH, ZW_RECV_MIXED,
    // ZW_RECV_KERNEL_RING: for ZW_RECV_QUEUE and ZW_RECV_NO_DEVICE, the others have no use for
    // them. Several are combined by |.
    uint32_t flags;
    // Bytes of a buffer, a multiple of 64 from 64 to 2^30; longer datagrams are cut to it. 0:
    // 65536.
    size_t buffer_bytes;
    // Buffers, 2 to 32768: all that can be held and filled at a time. 0: 256.
    size_t buffers;
    // Buffers that one connection's leases may hold before it has to wait. 0: a quarter of them.
    size_t share;
    // Buffers that wait to be filled, at most. 0: a quarter of them.
    size_t depth;
    // Connections at a time. 0: 65536.
    size_t max_connections;
    // Entries of io_uring's completion queue. 0: 2048.
    uint32_t completions;
    // ZW_RECV_QUEUE: the number of the queue.
    uint32_t queue;
    // ZW_RECV_QUEUE: the name of the interface. NULL otherwise.
    const char *interface;
    // Microseconds that a wait may last beyond the first arrival to gather more, while all
    // connections send in bulk: fewer wake-ups for the same bytes. 0: 160. ZW_RECV_GATHER_NOTHING:
    // not at all.
    uint32_t gather_us;
    // ZW_RECV_QUEUE: bytes of a buffer to ask the driver for, a power of two, a page or
    // more (Linux 7.0, some drivers; above a page with ZW_HUGE_PAGES). 0: a page.
    uint32_t rx_buf_len;
    // ZW_RECV_QUEUE: the area is this DMA buffer as a whole (zw_dmabuf_new, Linux 6.16);
    // buffer_bytes is of no meaning then, and buffers only for share and depth. It stays yours.
    // NULL: memory of this process. With other ways: -EINVAL.
    const struct zw_dmabuf *dmabuf;
} zw_receiver_options;

// What came of a connection. With ZW_ARRIVAL_DATA it holds a buffer of the receiver: give it back
// with zw_arrival_release, once, in any order, by any thread, also after the receiver was closed.
// The struct may be moved and copied; its copies stand for one buffer, and releasing a second one
// is -ESTALE.
//
// It has no size of its own, since it stands in arrays: calls take that of an element. Later
// versions append fields.
typedef struct zw_arrival {
    // The connection, as zw_receiver_add gave it.
    uint64_t connection;
    // ZW_ARRIVAL_ACCEPTED: the listener, as zw_receiver_listen gave it; 0 otherwise.
    uint64_t listener;
    // ZW_ARRIVAL_...
    uint32_t kind;
    // ZW_ARRIVAL_FAILED: an errno; 0 otherwise.
    int32_t error;
    // The bytes, which stay as they are until the buffer is given back. Don't write there.
    const void *data;
    // Their number; 0 for an empty datagram.
    size_t length;
    // The library's: which buffer it is, and which use of it; 0: none is held. A copy of the
    // struct has the same.
    uint64_t token;
} zw_arrival;

// What happened besides bytes, since the receiver was made.
typedef struct zw_recv_events {
    // sizeof(struct zw_recv_events), set by you: no more is written. Later versions append fields.
    size_t size;
    // Receives that found no buffer. Nothing is lost; the connections wait.
    uint64_t out_of_buffers;
    // Times a connection waited since its leases held its share.
    uint64_t paused;
    // ZW_RECV_QUEUE, ZW_RECV_NO_DEVICE: arrivals that the kernel copied.
    uint64_t copied;
    // Times that io_uring's completion queue was full.
    uint64_t overflows;
    // Buffers that came back.
    uint64_t refills;
    // Receives that were started (io_uring).
    uint64_t armed;
    // Connections that were accepted.
    uint64_t accepted;
    // Times that accepting stopped at max_connections.
    uint64_t accept_pauses;
    // System calls, all of them.
    uint64_t system_calls;
    // ZW_RECV_QUEUE, ZW_RECV_NO_DEVICE: times that the kernel told by a completion of its own that
    // it copied or found no buffer (Linux 7.2).
    uint64_t notices;
} zw_recv_events;

// The start of a window's header pages.
typedef struct zw_window_header {
    // ZW_POLL_...; atomic: load with acquire, store with release.
    uint32_t poll_value;
    // Data pages with payload.
    uint32_t hdr_num;
} zw_window_header;

// An entry. They follow the header, and end with one of length 0.
typedef struct zw_entry {
    // Bytes of payload.
    uint32_t length;
    // ZW_ENTRY_...
    uint32_t flags;
} zw_entry;

// What follows an entry with ZW_ENTRY_DIRECT: the payload's offset in guest memory region
// (flags >> ZW_REGION_SHIFT).
typedef struct zw_entry_offset {
    // Its lower half.
    uint32_t offset_low;
    // Its upper half.
    uint32_t offset_high;
} zw_entry_offset;

// The control page. Each word has a cache line of its own.
typedef struct zw_control {
    // Not 0: the program sleeps, or is about to.
    uint32_t program_sleeps;
    // Nothing.
    uint8_t reserved0[60];
    // What release the daemon wants to hear of: 0 none, 1 any, n + 2 that of window n.
    uint32_t daemon_waits;
    // Nothing.
    uint8_t reserved1[60];
    // ZW_MEMORY_VERSION.
    uint32_t version;
    // Nothing.
    uint8_t reserved2[3964];
} zw_control;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library that runs, as ZW_LIBRARY_VERSION says that of the header that a
// program was built with.
//
// Both may differ within one soname. Structs grow at the end. An older program's shorter struct is
// taken as if 0 followed; results are written up to the program's size. A newer program's longer
// one is taken if what the library does not know is 0, else -E2BIG; fields of results that the
// library does not know become 0.
uint32_t zw_version(void);

// The last error of this thread in words; "" before the first. Valid until the thread's next call
// of this library.
//
// Calls work in exit handlers and in destructors of thread keys, too. The words of their errors
// are not kept there: a fixed text says so.
const char *zw_last_error(void);

// Connects to a port of the guest. `path` is the daemon's --uds with ".map" appended; options
// NULL: the defaults.
//
// -EINVAL: wrong options; -E2BIG: options of a later version; others: docs/mapped-receive.md.
int zw_vsock_connect(const char *path,
                     uint32_t port,
                     const struct zw_vsock_options *options,
                     struct zw_vsock **connection);

// Closes it. Windows that are held stay valid. NULL is allowed.
void zw_vsock_close(struct zw_vsock *connection);

// Listens on a port of the host (CID 2), with path and options as those of zw_vsock_connect.
// -EADDRINUSE: another program listens there, or a child of one that did, before its execve(2).
int zw_vsock_listen(const char *path,
                    uint32_t port,
                    const struct zw_vsock_options *options,
                    struct zw_vsock_listener **listener);

// The next connection: waits at most timeout_ms, or without a limit if it is negative; -EAGAIN if
// none came.
int zw_vsock_accept(struct zw_vsock_listener *listener, int timeout_ms, struct zw_vsock **connection);

// Readable when a connection waits, or the daemon is gone. It stays the listener's.
int zw_vsock_listener_fd(const struct zw_vsock_listener *listener);

// Stops listening. Connections that were accepted stay. NULL is allowed.
void zw_vsock_listener_close(struct zw_vsock_listener *listener);

// Takes the next window: 1 and a window, 0 if no more data will come, -EAGAIN if there is nothing
// yet. -ECONNRESET in place of 0: the guest reset the connection or is gone, and something may be
// missing. -ENOBUFS: the next window is still held. -EPROTO: the daemon wrote something
// impossible. Makes no system call.
int zw_vsock_dequeue(struct zw_vsock *connection, struct zw_window **window);

// The next packet, up to packet.size bytes of the struct: 1, or 0 behind the last one. One thread
// at a time.
int zw_window_next(struct zw_window *window, struct zw_packet *packet);

// Begins with the first packet again.
void zw_window_rewind(struct zw_window *window);

// Bytes of payload in all packets.
uint64_t zw_window_bytes(const struct zw_window *window);

// Gives the window back to the daemon, in any order; its packets must not be used any more. NULL
// is allowed.
void zw_window_release(struct zw_window *window);

// The state of the next window, to spin on without a system call: ZW_POLL_...
uint32_t zw_vsock_poll_value(const struct zw_vsock *connection);

// Sleeps until there is a window or the end: 1; 0 after timeout_ms (negative: no limit);
// -ECONNRESET: no daemon.
int zw_vsock_wait(struct zw_vsock *connection, int timeout_ms);

// For poll and epoll: after zw_vsock_arm returned 0, readable (POLLIN) when there is a window, the
// end, or no daemon any more. Then call zw_vsock_disarm and dequeue. The descriptor stays the
// connection's.
int zw_vsock_fd(const struct zw_vsock *connection);

// Makes the descriptor tell of the next window: 0; or 1 if there is something already.
int zw_vsock_arm(struct zw_vsock *connection);

// The program is awake again: the descriptor is not written to any more.
int zw_vsock_disarm(struct zw_vsock *connection);

// 1 if the daemon has closed its end.
int zw_vsock_is_hung_up(struct zw_vsock *connection);

// Removes the mapping; windows that are held stay valid. -EFAULT: it is not mapped.
int zw_vsock_unmap(struct zw_vsock *connection);

// Maps again what zw_vsock_unmap removed. -EBUSY: it is mapped already.
int zw_vsock_map(struct zw_vsock *connection);

// What was agreed on, up to options.size bytes: the options as they were asked for, with the
// values that 0 stood for.
int zw_vsock_agreed(const struct zw_vsock *connection, struct zw_vsock_options *options);

// The connection's ports: the one that this program has at the guest's side, and the guest's.
// Either may be NULL.
int zw_vsock_ports(const struct zw_vsock *connection, uint32_t *host_port, uint32_t *guest_port);

// Whether zw_vsock_read and zw_vsock_write return -EAGAIN in place of waiting.
int zw_vsock_set_nonblocking(struct zw_vsock *connection, int on);

// Copying receive, as read does on a socket; 0 is the end, -ECONNRESET one that is cut short.
ssize_t zw_vsock_read(struct zw_vsock *connection, void *to, size_t length);

// Sends, as write does on a socket, and returns how many bytes went. -EPIPE: the connection has
// ended. -EAGAIN: no room, on a connection that does not block.
ssize_t zw_vsock_write(struct zw_vsock *connection, const void *from, size_t length);

// SHUT_RD, SHUT_WR or SHUT_RDWR of <sys/socket.h>. The guest hears of either. After SHUT_RD what
// was published can still be taken; the end comes behind it.
int zw_vsock_shutdown(struct zw_vsock *connection, int how);

// Maps memory for `buffers` buffers (1 to 2^24) of buffer_bytes (1 to 2^30) each, all zeroes.
// flags: 0, ZW_HUGE_PAGES. -ENOMEM: no memory, or not enough huge pages.
int zw_area_new(size_t buffer_bytes, size_t buffers, uint32_t flags, struct zw_area **area);

// Gives the handle up. The memory stays as long as a lease, a sender or the kernel has a buffer of
// it. NULL is allowed.
void zw_area_close(struct zw_area *area);

// Buffers that are free now; 0 for NULL.
size_t zw_area_free(const struct zw_area *area);

// Takes a free buffer: 0; -EAGAIN, without words, if none is free: it never waits, and does not
// look whether lent buffers are back (zw_sender_lease does). The buffer holds what its last owner
// left there, and its length is buffer_bytes.
int zw_area_lease(const struct zw_area *area, struct zw_lease **lease);

// The buffer, at a multiple of 64 bytes; NULL for NULL. Yours until the lease is given to a sender
// or released.
void *zw_lease_data(struct zw_lease *lease);

// Length of the buffer in bytes; 0 for NULL.
size_t zw_lease_capacity(const struct zw_lease *lease);

// Bytes of it that will be sent; 0 for NULL.
size_t zw_lease_length(const struct zw_lease *lease);

// Sets how many bytes will be sent. -EINVAL: more than the capacity.
int zw_lease_set_length(struct zw_lease *lease, size_t length);

// Gives the buffer back to its area unsent. NULL is allowed. Not for a lease that a sender has
// taken.
void zw_lease_release(struct zw_lease *lease);

// Makes a sender of a connected socket: TCP, UDP, AF_VSOCK; others can only copy. options NULL:
// the defaults.
//
// If it returns 0 the descriptor is the library's: zw_sender_close closes it,
// zw_sender_into_socket gives it back. Its number may still be used to poll (POLLOUT: there is
// room; POLLERR, POLLHUP: notifications have come over socket calls, or an error or the end of the
// connection: call zw_sender_poll), to receive and to shut down. After an error it is still yours,
// and open.
//
// Several senders may follow each other on a connection, on duplicates of its descriptor or on
// that of zw_sender_into_socket. Of several at a time only the first lends, and the others copy
// (second_sender). While a sender lives, over socket calls, no other process and no other code may
// lend (MSG_ZEROCOPY) on the same socket or read its error queue: memory could come back too
// early.
//
// A sender is used by one thread at a time; with io_uring always by the thread that made it. A
// ring that many senders share is there in Rust only.
//
// -EBADF, -ENOTCONN; -EINVAL: wrong options; -E2BIG: options of a later version; -EOPNOTSUPP: no
// io_uring; -EBUSY: ZW_MODE_ZEROCOPY, and another sender lends on the socket.
int zw_sender_new(int fd, const struct zw_sender_options *options, struct zw_sender **sender);

// Sends a payload: one datagram or message, or bytes of a stream. Waits for room up to the
// options' timeout. Returns 0, and the payload's ticket unless `ticket` is NULL.
//
// The memory is lent from now on: don't change, reuse or free it until the ticket is done, which
// zw_sender_wait or zw_sender_next_completion says. With ZW_CHECKED, and always in a debug build
// of the library, checksums of the bytes are taken here and compared when the loan ends; if they
// differ the process aborts, with the ticket and the offset on standard error. A failed call lends
// nothing.
//
// On a stream the call returns when the socket has taken a part; the rest goes with the next calls
// of the sender (any send, zw_sender_poll, zw_sender_wait...), so call one of them when the socket
// is writable again.
//
// -ETIMEDOUT: no room in time. -EMSGSIZE: too long for a datagram. -ENOBUFS: ZW_MODE_ZEROCOPY and
// a limit of locked memory; or a full queue of an interface, where IP_RECVERR is set
// (zw_last_error tells them apart). -EPIPE, -ECONNRESET: the peer is gone. -ECONNREFUSED: nobody
// listens, said of an earlier datagram.
int zw_sender_send(struct zw_sender *sender, const void *data, size_t length, uint32_t *ticket);

// As zw_sender_send, without waiting. -EAGAIN, without an error text: all room is taken, and
// nothing was lent. zw_sender_wants_room says what to wait for.
int zw_sender_try_send(struct zw_sender *sender, const void *data, size_t length, uint32_t *ticket);

// As zw_sender_send, of several pieces as one payload. The array itself is the caller's again when
// the call returns. A datagram of more than 17 pieces is gathered into one buffer, and counts as
// copied (scattered).
int zw_sender_sendv(struct zw_sender *sender, const struct iovec *pieces, size_t count, uint32_t *ticket);

// As zw_sender_sendv, without waiting. -EAGAIN, without an error text: all room is taken.
int zw_sender_try_sendv(struct zw_sender *sender, const struct iovec *pieces, size_t count, uint32_t *ticket);

// Sends several payloads in order, each element one: datagrams with few system calls (sendmmsg).
// Waits as zw_sender_send, and lends as it does. Returns how many were taken, from the first on;
// fewer than `count`: the next call says what was wrong. Their tickets follow each other from
// `*first` on (NULL is allowed).
ssize_t zw_sender_send_many(struct zw_sender *sender, const struct iovec *payloads, size_t count, uint32_t *first);

// As zw_sender_send, of a lease. If it returns 0 the lease is the sender's, and the handle is
// gone; the buffer goes back to its area when the kernel has done with it, and ZW_CHECKED watches
// it until then. Otherwise the lease is still yours.
int zw_sender_send_lease(struct zw_sender *sender, struct zw_lease *lease, uint32_t *ticket);

// As zw_sender_send_lease, without waiting. -EAGAIN, without an error text: all room is taken, and
// the lease is still yours.
int zw_sender_try_send_lease(struct zw_sender *sender, struct zw_lease *lease, uint32_t *ticket);

// As zw_area_lease, but waits for a free buffer, at most timeout_ms (negative: no limit), and
// reads notifications meanwhile: the buffers that this sender lent come back by that. -ETIMEDOUT;
// other errors: as zw_sender_poll.
int zw_sender_lease(struct zw_sender *sender, const struct zw_area *area, int timeout_ms, struct zw_lease **lease);

// UDP: changes options.segment_bytes from the next payload on, 1 to 65535; 0: each payload is one
// datagram. The way on where a send says that segments are too long for the path (-EMSGSIZE), or
// that it can't cut at all (-EIO).
//
// -EINVAL: no UDP socket, or a longer one.
int zw_sender_set_segment_bytes(struct zw_sender *sender, uint32_t bytes);

// The longest segment_bytes that the path of a connected UDP socket takes at the moment: its MTU
// without the headers. The socket may be a sender's. -EBADF; -EINVAL: no UDP socket with a peer.
int zw_longest_segment(int fd);

// Sends what waits and reads the notifications that are there. Returns how many lent payloads came
// back since the last call. When none did, and nothing was sent since then either, it looks for an
// error of the socket, which costs a system call: a send tells one by itself.
//
// Errors: as zw_sender_send, about earlier payloads. -EPIPE, once: the connection has ended, be it
// in order. Its socket stays ready for those that poll it: close the sender. When both sides have
// shut down, a TCP connection ends once the peer's kernel has acknowledged everything, others once
// all memory is back. POLLHUP comes earlier: zw_sender_wait_all sleeps until the memory is back.
int zw_sender_poll(struct zw_sender *sender);

// Whether what waits (a payload that was refused with -EAGAIN, or the rest of one) waits for room
// in the socket's buffer: 1: poll the descriptor for POLLOUT. 0: a limit of what is lent holds it
// up, and notifications end that: poll for POLLERR (socket calls), or call zw_sender_wait_any.
// POLLOUT would be there at once then, again and again.
int zw_sender_wants_room(struct zw_sender *sender);

// Waits until the ticket is done: its memory is yours again. At most timeout_ms; negative: no
// limit; 0: only looks. -ETIMEDOUT; -EINVAL: no ticket of this sender.
int zw_sender_wait(struct zw_sender *sender, uint32_t ticket, int timeout_ms);

// Waits until one payload more is done; returns at once if none is out. timeout_ms as in
// zw_sender_wait; -ETIMEDOUT.
int zw_sender_wait_any(struct zw_sender *sender, int timeout_ms);

// Waits until everything is sent, and all memory is back. timeout_ms as in zw_sender_wait;
// -ETIMEDOUT. -EPIPE, once: a TCP connection ended before the peer's kernel had acknowledged
// everything. 0 doesn't say that the peer's program has read it.
int zw_sender_wait_all(struct zw_sender *sender, int timeout_ms);

// Ends the sender and closes the socket. The handle is gone, whatever is returned. NULL is
// allowed.
//
// ZW_CLOSE_DRAIN waits at most timeout_ms (negative: no limit), then does what ZW_CLOSE_ABORT
// does. 0: drained, or aborted as asked for. -ETIMEDOUT: not everything was back; other errors: as
// zw_sender_wait_all. `closed`, unless NULL, says in each of these cases what was left behind.
// With a wrong closed.size (-EINVAL) ask zw_orphans.
//
// If closed.kept is not 0 the kernel still reads memory of yours (frames in an interface's queue):
// it must stay valid and unchanged until zw_orphans returns 0. If it is 0 all memory is yours.
// Buffers of areas need no such care.
int zw_sender_close(struct zw_sender *sender, uint32_t how, int timeout_ms, struct zw_closed *closed);

// Sends what waits, waits until all memory is back, at most timeout_ms (negative: no limit), and
// gives the descriptor back, for a connection that stays open: returned, 0 or more. The handle is
// gone then. The next sender on the connection goes on where this one ends.
//
// After an error the sender is as it was. -ETIMEDOUT; other errors: as zw_sender_wait_all.
int zw_sender_into_socket(struct zw_sender *sender, int timeout_ms);

// Payloads of senders that are closed which the kernel still holds; takes back those that it has
// let go of.
size_t zw_orphans(void);

// The next range of tickets that are done: 1, or 0 if there is none. In the order in which they
// came back. It reads nothing by itself: call zw_sender_poll before. The last 65536 ranges are
// kept.
//
// On AF_VSOCK the kernel's notifications can't be told apart by payload: all that is lent comes
// back together, when the last of it does, and counts as copied when the kernel copied any of it.
int zw_sender_next_completion(struct zw_sender *sender, struct zw_completion *completion);

// Payloads that are lent or wait to be sent; 0 for NULL.
size_t zw_sender_outstanding(const struct zw_sender *sender);

// Their bytes; 0 for NULL.
size_t zw_sender_outstanding_bytes(const struct zw_sender *sender);

// The totals up to now, up to ledger.size bytes of them.
int zw_sender_ledger(const struct zw_sender *sender, struct zw_ledger *ledger);

// Bytes copied for a reason, and its name ("kernel", "small"...: docs/ledger.md). Reasons are
// numbered from 0 on: returns 1, or 0 behind the last one. The name is the library's, and stays.
// NULL is allowed for both results.
int zw_sender_copied(const struct zw_sender *sender, uint32_t reason, const char **name, uint64_t *bytes);

// What runs and why, for people, into your buffer. As snprintf: returns the whole length, and
// writes at most size - 1 bytes and a 0; NULL and 0 ask for the length.
int zw_sender_path(const struct zw_sender *sender, char *text, size_t size);

// ZW_MODE_AUTO: what was chosen for each class of lengths and why, for people, a line each, into
// your buffer as zw_sender_path does. Empty in other modes.
int zw_sender_choices(const struct zw_sender *sender, char *text, size_t size);

// Opens a sender of frames on an interface of this thread's network namespace. options NULL: the
// defaults, a ring.
//
// A frame begins with its Ethernet header and ends before the checksum that the interface appends.
// Nothing is received, but that a queue of an AF_XDP socket in zero-copy mode throws away what it
// receives.
//
// -EPERM: no CAP_NET_RAW; -ENODEV: no such interface; -EINVAL: wrong options; -E2BIG: options of a
// later version; -EBUSY, -EOPNOTSUPP (AF_XDP): the queue has another socket, the driver no
// zero-copy mode; -ENOBUFS: the limit of locked memory; -ENOMEM.
int zw_frames_open(const char *interface, const struct zw_frames_options *options, struct zw_frames **frames);

// Bytes of the longest frame without a VLAN tag that goes uncut, Ethernet header included; 0 for
// NULL.
size_t zw_frames_max(const struct zw_frames *frames);

// Takes a place for a frame of `length` bytes: 0, and where to build it; -EAGAIN, without words,
// if none is free: it never waits. The bytes are those of older frames: write all of them.
//
// One place can be had at a time: until zw_frames_commit it is the same one, with what you wrote
// there. An error of zw_frames_flush, _wait or _drain may take it away, which zw_frames_commit
// says.
//
// -EMSGSIZE: longer than the MTU (with ZW_FRAMES_OFFLOAD zw_frames_commit says so) or than a
// place; -EINVAL: no whole Ethernet header.
int zw_frames_reserve(struct zw_frames *frames, size_t length, void **data);

// The frame is built: send the first `length` bytes of the place that was reserved, with what
// `header` asks for (NULL: nothing). zw_frames_flush hands it over. An error leaves the place
// reserved.
//
// From here on the place is the sender's: don't write to it. With ZW_CHECKED, and always in a
// debug build of the library, a checksum of the frame is taken here, and compared when it is back;
// if it differs the process aborts, with the number of the frame (from 0) and the offset on
// standard error. After an error of zw_frames_flush that names a frame those that are on their way
// then are not checked.
//
// -EMSGSIZE: longer than the MTU; -EINVAL: longer than the place, nothing reserved, or a header
// that breaks a rule, or AF_XDP, or no ZW_FRAMES_OFFLOAD.
int zw_frames_commit(struct zw_frames *frames, size_t length, const struct zw_vnet_header *header);

// Makes a whole TCP or UDP frame ready for ZW_FRAMES_OFFLOAD: puts the sum of the pseudo header
// into its checksum field, and fills in the header for zw_frames_commit. gso_size: bytes of
// payload of the segments that it is cut into; 0: it needs only its checksum.
//
// -EINVAL: no TCP or UDP over IPv4 or IPv6 behind Ethernet and VLAN tags, or a gso_size above
// 65535.
int zw_vnet_prepare(void *frame, size_t length, uint32_t gso_size, struct zw_vnet_header *header);

// Hands over what was committed, with one system call where one is needed. It doesn't wait: frames
// that the kernel has no room for go with the next call.
//
// -ENETDOWN: the interface is down; the frames stay. -ENODEV: it is gone; open a new sender.
// -EMSGSIZE and others that name a frame: it was taken out, the others stay.
int zw_frames_flush(struct zw_frames *frames);

// Takes back the places of frames that were sent: how many came back since the last call. Mostly
// without a system call.
int zw_frames_reap(struct zw_frames *frames);

// As zw_frames_flush, and waits until a place is free: at most timeout_ms; negative: no limit.
// -ETIMEDOUT.
int zw_frames_wait(struct zw_frames *frames, int timeout_ms);

// As zw_frames_flush, and waits until all frames are back: at most timeout_ms; negative: no limit.
// -ETIMEDOUT: the words say what is not back; the sender can go on.
int zw_frames_drain(struct zw_frames *frames, int timeout_ms);

// Frames that were committed and are not back; 0 for NULL.
size_t zw_frames_outstanding(const struct zw_frames *frames);

// The descriptor of its socket, for event loops; -EINVAL for NULL. A ring's tells of frames that
// are back edge-triggered (EPOLLOUT | EPOLLET) only; AF_XDP's says when the ring is at most half
// full. It stays the sender's.
int zw_frames_fd(const struct zw_frames *frames);

// The totals up to now; a frame is a payload, and is counted when it is back. `dropped`, unless
// NULL: frames that were not sent.
int zw_frames_ledger(const struct zw_frames *frames, struct zw_ledger *ledger, uint64_t *dropped);

// Bytes copied for a reason, and its name, as zw_sender_copied.
int zw_frames_copied(const struct zw_frames *frames, uint32_t reason, const char **name, uint64_t *bytes);

// What runs, for people, into your buffer as zw_sender_path does.
int zw_frames_path(const struct zw_frames *frames, char *text, size_t size);

// Ends the sender. The handle is gone, whatever is returned, and with it all places. NULL is
// allowed.
//
// It hands over what was committed, and waits until all is back, at most timeout_ms (negative: no
// limit; 0: ends at once, without handing anything over, and without an error). -ETIMEDOUT, and
// others as zw_frames_drain: frames were not handed over, or not back; those that the kernel has
// may still be sent, from memory that it holds itself.
int zw_frames_close(struct zw_frames *frames, int timeout_ms);

// Makes a receiver. options NULL: the defaults. It is used by the thread that made it; others get
// -EEXIST.
//
// -EINVAL: wrong options; -E2BIG: options of a later version; -ENOMEM; -EOPNOTSUPP, -EPERM,
// -ENODEV and others: the way to receive that was asked for is impossible here, and zw_last_error
// says why.
int zw_receiver_new(const struct zw_receiver_options *options, struct zw_receiver **receiver);

// Closes it and its sockets. Arrivals that are held stay valid. NULL is allowed. -EEXIST: another
// thread made it; it stays.
int zw_receiver_close(struct zw_receiver *receiver);

// Takes a connected stream socket, or a datagram socket, and gives its number among the receiver's
// connections. If it returns 0 the descriptor is the library's, which closes it with the receiver;
// zw_receiver_remove gives it back. After an error it is still yours, open and as it was.
//
// -EBADF; -ENOTSOCK; -EINVAL: it listens; -EMFILE: max_connections.
int zw_receiver_add(struct zw_receiver *receiver, int fd, uint64_t *connection);

// Takes a listening socket: connections are accepted and added by themselves
// (ZW_ARRIVAL_ACCEPTED). At max_connections accepting stops until one is removed; others wait in
// the backlog. listener NULL is allowed.
//
// If it returns 0 the descriptor is the library's, until zw_receiver_unlisten. After an error it
// is still yours.
//
// ZW_RECV_PLAIN makes the socket non-blocking, and leaves it so: others may share the open file
// description (dup, fork). Make it blocking only when no receiver has it.
//
// -EBADF; -EINVAL: it doesn't listen.
int zw_receiver_listen(struct zw_receiver *receiver, int fd, uint64_t *listener);

// Gives a listening socket back: a descriptor, which is the caller's. ZW_RECV_PLAIN gives it back
// non-blocking. -ENOENT: no such listener.
int zw_receiver_unlisten(struct zw_receiver *receiver, uint64_t listener);

// Gives a connection's socket back: a descriptor, which is the caller's. What had been received
// before is still given by zw_receiver_recv; the rest is still in the socket. Arrivals that are
// held stay valid. -ENOENT: no such connection.
int zw_receiver_remove(struct zw_receiver *receiver, uint64_t connection);

// The descriptor of a connection, to send on it or to set options. It stays the receiver's.
// -ENOENT: no such connection.
int zw_receiver_socket(struct zw_receiver *receiver, uint64_t connection);

// Receives at most `bytes` more on a connection, and not a byte beyond; UINT64_MAX: no limit. Set
// right after zw_receiver_add it holds from the first byte. -ENOENT: no such connection.
int zw_receiver_limit(struct zw_receiver *receiver, uint64_t connection, uint64_t bytes);

// Waits for arrivals, at most timeout_ms (negative: no limit; 0: only looks), and writes up to
// `count` of them. Returns how many; 0 after the time. Give each with ZW_ARRIVAL_DATA back: a
// program that holds many makes its peers wait.
//
// `size` is sizeof(struct zw_arrival), the bytes of an element. So many are written of each,
// whatever the library's has; fields that the library does not know become 0.
//
// An error is one of the receiver as a whole, or of a listener that failed; what happens to one
// connection is an arrival. With an error nothing is lost: what arrived before it was given by
// earlier calls.
ssize_t zw_receiver_recv(struct zw_receiver *receiver,
                         struct zw_arrival *arrivals,
                         size_t size,
                         size_t count,
                         int timeout_ms);

// Gives the buffers of `count` arrivals back, elements of `size` bytes: sizeof(struct zw_arrival).
// Any thread. Their data is NULL, length and token 0 afterwards; those without a buffer, and those
// that are so already, are passed over.
//
// -ESTALE: copies of some were given back before. Nothing happened to these, all others were given
// back. -EINVAL: `size`.
int zw_arrival_release(struct zw_arrival *arrivals, size_t size, size_t count);

// Connections that were added or accepted and not removed.
ssize_t zw_receiver_connections(struct zw_receiver *receiver);

// The totals up to now, of what zw_receiver_recv gave or will give: payloads are arrivals with
// bytes; zero-copied: placed by the NIC; copied: by the kernel. On a NIC's queue ask
// zw_receiver_zero_copied how far that can be told.
int zw_receiver_ledger(struct zw_receiver *receiver, struct zw_ledger *ledger);

// How far zero_copied_bytes of zw_receiver_ledger can be believed: ZW_ZERO_COPIED_EXACT for all
// ways but ZW_RECV_QUEUE, else ZW_ZERO_COPIED_AT_MOST or ZW_ZERO_COPIED_UNKNOWN. It stays the same
// for the receiver's life.
int zw_receiver_zero_copied(struct zw_receiver *receiver);

// What happened besides bytes, up to events.size bytes of the struct.
int zw_receiver_events(struct zw_receiver *receiver, struct zw_recv_events *events);

// What runs and why, for people, into your buffer. As snprintf: returns the whole length, and
// writes at most size - 1 bytes and a 0; NULL and 0 ask for the length.
int zw_receiver_path(struct zw_receiver *receiver, char *text, size_t size);

// Gives a receiver one more area, at any time (ZW_RECV_QUEUE, ZW_RECV_NO_DEVICE; Linux 7.3): so
// many buffers more that the program may hold and the kernel can fill. buffers * buffer_bytes
// counts, which is cut into buffers of the length that the first area has. flags: 0,
// ZW_HUGE_PAGES. It stays until the receiver and all buffers that are held of it have gone.
// Receivers that share the area use it, too; this one may hold more from now on.
//
// -EOPNOTSUPP: it receives in another way, or the kernel is too old; -EINVAL: out of range, or its
// area is a DMA buffer; -ENOMEM: no memory, or beyond RLIMIT_MEMLOCK. The receiver is as it was
// before then.
int zw_receiver_add_area(struct zw_receiver *receiver, size_t buffer_bytes, size_t buffers, uint32_t flags);

// Lets other receivers of this process use this one's area (ZW_RECV_QUEUE, ZW_RECV_NO_DEVICE;
// Linux 7.0): zw_receiver_import. The memory and, with a queue, the queue are kept until the last
// receiver, the last buffer that is held of all of them, and this handle have gone.
//
// Each of them counts in its own ledger what it was given. Which of them counts a piece that the
// kernel copied is left to chance; the sums are right.
//
// -EOPNOTSUPP: it receives in another way, or the kernel is too old; -EMFILE, -ENFILE: no
// descriptor is free.
int zw_receiver_export(struct zw_receiver *receiver, struct zw_shared_area **area);

// Makes a receiver on the area of another one, for the thread that calls this, which may be
// another one: with a ring and sockets of its own. A receiver that holds many buffers leaves fewer
// to the others.
//
// Of the options, buffers times buffer_bytes is how much of the area it may hold; the way to
// receive and the memory are those of the area. Where that is a DMA buffer, give dmabuf here as
// well: then this process sees what the device wrote on every machine.
//
// -EPERM: no CAP_NET_ADMIN; others as zw_receiver_new.
int zw_receiver_import(const struct zw_shared_area *area,
                       const struct zw_receiver_options *options,
                       struct zw_receiver **receiver);

// Bytes of the area; 0 for NULL.
size_t zw_shared_area_bytes(const struct zw_shared_area *area);

// Buffers of the area, as the kernel cuts it; 0 for NULL.
size_t zw_shared_area_buffers(const struct zw_shared_area *area);

// Gives the handle up; receivers that were made of it go on. NULL is allowed.
void zw_shared_area_close(struct zw_shared_area *area);

// Takes the descriptor of a DMA buffer, of the udmabuf device, a DMA heap or a GPU whose memory
// can be mapped, for the options of a receiver (ZW_RECV_QUEUE, Linux 6.16). If it returns 0 the
// descriptor is the library's, until the handle and all receivers that have the buffer are gone.
// After an error it is still yours, and open.
//
// The NIC places payload in it; what the NIC leaves beside the headers the kernel can't copy
// there, so that such a connection waits for ever. Not tested with a NIC. Whoever else has the
// buffer mapped must leave it alone while the receiver and its buffers are there.
//
// -EBADF; -EMFILE; -ENOTTY: no DMA buffer.
int zw_dmabuf_new(int fd, struct zw_dmabuf **dmabuf);

// Its length in bytes; 0 for NULL.
size_t zw_dmabuf_length(const struct zw_dmabuf *dmabuf);

// Gives the handle up; receivers that have the buffer keep it. NULL is allowed.
void zw_dmabuf_close(struct zw_dmabuf *dmabuf);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus


#if defined(__cplusplus)
#define ZW_ASSERT(what) static_assert(what, #what)
#else
#define ZW_ASSERT(what) _Static_assert(what, #what)
#endif

ZW_ASSERT(sizeof(struct zw_window_header) == 8);
ZW_ASSERT(offsetof(struct zw_window_header, poll_value) == 0);
ZW_ASSERT(offsetof(struct zw_window_header, hdr_num) == 4);
ZW_ASSERT(sizeof(struct zw_entry) == 8);
ZW_ASSERT(offsetof(struct zw_entry, length) == 0);
ZW_ASSERT(offsetof(struct zw_entry, flags) == 4);
ZW_ASSERT(sizeof(struct zw_entry_offset) == sizeof(struct zw_entry));
ZW_ASSERT(sizeof(struct zw_control) == ZW_PAGE);
ZW_ASSERT(offsetof(struct zw_control, program_sleeps) == 0);
ZW_ASSERT(offsetof(struct zw_control, daemon_waits) == 64);
ZW_ASSERT(offsetof(struct zw_control, version) == 128);
ZW_ASSERT(sizeof(struct zw_vsock_options) == 40);
ZW_ASSERT(offsetof(struct zw_vsock_options, size) == 0);
ZW_ASSERT(offsetof(struct zw_sender_options, size) == 0);
ZW_ASSERT(offsetof(struct zw_frames_options, size) == 0);
ZW_ASSERT(sizeof(struct zw_vnet_header) == 10);
ZW_ASSERT(offsetof(struct zw_receiver_options, size) == 0);
ZW_ASSERT(offsetof(struct zw_packet, size) == 0);
ZW_ASSERT(offsetof(struct zw_completion, size) == 0);
ZW_ASSERT(offsetof(struct zw_ledger, size) == 0);
ZW_ASSERT(offsetof(struct zw_closed, size) == 0);
ZW_ASSERT(offsetof(struct zw_recv_events, size) == 0);

#endif /* ZEROWIRE_H */
