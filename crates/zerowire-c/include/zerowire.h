/*
 * libzerowire: receiving a guest's streams and messages in mapped memory, from `zerowire vsock`.
 * docs/mapped-receive.md describes the memory and the handshake.
 *
 * Results: 0 or more for success, a negative errno for a failure; zw_last_error() then says in words what was wrong and
 * what to do. Functions that take a connection may be called by any thread. A handle is the caller's until its close or
 * release function; NULL handles give -EINVAL.
 */
#ifndef ZEROWIRE_H
#define ZEROWIRE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The memory, version 1. Programs that use the functions below need none of this. */

#define ZW_VERSION 1
#define ZW_PAGE 4096

/* The start of a window's header pages. */
struct zw_window_header {
    uint32_t poll_value; /* ZW_POLL_...; atomic: load with acquire, store with release */
    uint32_t hdr_num;    /* data pages with payload */
};

/* An entry; they follow the header, and end with one of length 0. */
struct zw_entry {
    uint32_t length; /* bytes of payload */
    uint32_t flags;  /* ZW_ENTRY_... */
};

/* The second half of an entry with ZW_ENTRY_DIRECT. */
struct zw_entry_offset {
    uint32_t offset_low; /* in guest memory region (flags >> ZW_REGION_SHIFT) */
    uint32_t offset_high;
};

/* The control page. */
struct zw_control {
    uint32_t program_sleeps;
    uint8_t reserved0[60];
    uint32_t daemon_waits;
    uint8_t reserved1[60];
    uint32_t version;
    uint8_t reserved2[3964];
};

/* poll_value */
#define ZW_POLL_NOTHING 0u
#define ZW_POLL_DATA 1u
#define ZW_POLL_END 0xffffffffu

/* flags of entries, and of packets */
#define ZW_ENTRY_EOM 1u    /* the last part of a message */
#define ZW_ENTRY_EOR 2u    /* the last part of a record */
#define ZW_ENTRY_DIRECT 4u /* the payload lies in guest memory: the guest can change it */
#define ZW_REGION_SHIFT 8

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

/* The interface. */

typedef struct zw_vsock zw_vsock;                   /* a connection */
typedef struct zw_vsock_listener zw_vsock_listener; /* a port of the host */
typedef struct zw_window zw_window;                 /* a window that is held */

#define ZW_STREAM 1u    /* SOCK_STREAM */
#define ZW_SEQPACKET 2u /* SOCK_SEQPACKET */

#define ZW_PACKED 1u /* small packets share pages */
#define ZW_DIRECT 2u /* payload stays in guest memory where the daemon allows it */

/* Fixed when a connection is made. Fill it with zw_vsock_options_init, then change what you want. */
struct zw_vsock_options {
    uint32_t kind;         /* ZW_STREAM or ZW_SEQPACKET */
    uint32_t windows;      /* in the ring: 2 to 64, default 4 */
    uint32_t header_pages; /* of a window: 1 to 16, default 1 */
    uint32_t data_pages;   /* of a window: 1 to 4096, default 128 */
    uint32_t lowat;        /* bytes that make a window published, default 1 */
    uint32_t credit;       /* bytes that the guest may send ahead; 0: the daemon's */
    uint32_t flags;        /* ZW_PACKED (the default), ZW_DIRECT */
    uint32_t reserved;     /* 0 */
};
ZW_ASSERT(sizeof(struct zw_vsock_options) == 32);

struct zw_packet {
    const void *data; /* valid until the window is released; nobody writes it, but for ZW_ENTRY_DIRECT */
    size_t length;    /* bytes, at least 1 */
    uint32_t flags;   /* ZW_ENTRY_EOM, _EOR, _DIRECT */
    uint32_t reserved;
};

/* The last error of this thread in words; "" before the first. Valid until the thread's next call of this library. */
const char *zw_last_error(void);

void zw_vsock_options_init(struct zw_vsock_options *options);

/* Connects to a port of the guest. `path` is the daemon's --uds with ".map" appended; options NULL: the defaults. */
int zw_vsock_connect(const char *path, uint32_t port, const struct zw_vsock_options *options, zw_vsock **connection);
/* Closes it. Windows that are held stay valid. NULL is allowed. */
void zw_vsock_close(zw_vsock *connection);

/* Listens on a port of the host (CID 2). */
int zw_vsock_listen(const char *path, uint32_t port, const struct zw_vsock_options *options,
                    zw_vsock_listener **listener);
/* The next connection: waits at most timeout_ms, or without a limit if it is negative; -EAGAIN if none came. */
int zw_vsock_accept(zw_vsock_listener *listener, int timeout_ms, zw_vsock **connection);
/* Readable when a connection waits, or the daemon is gone. It stays the listener's. */
int zw_vsock_listener_fd(const zw_vsock_listener *listener);
void zw_vsock_listener_close(zw_vsock_listener *listener);

/*
 * Takes the next window: 1 and a window, 0 if no more data will come, -EAGAIN if there is nothing yet. -ENOBUFS: the
 * next window is still held. -EPROTO: the daemon wrote something impossible. Makes no system call.
 */
int zw_vsock_dequeue(zw_vsock *connection, zw_window **window);
/* The next packet: 1, or 0 behind the last one. One thread at a time. */
int zw_window_next(zw_window *window, struct zw_packet *packet);
/* Begins with the first packet again. */
void zw_window_rewind(zw_window *window);
/* Bytes of payload in all packets. */
uint64_t zw_window_bytes(const zw_window *window);
/* Gives the window back to the daemon, in any order; its packets must not be used any more. NULL is allowed. */
void zw_window_release(zw_window *window);

/* The state of the next window, to spin on without a system call: ZW_POLL_... */
uint32_t zw_vsock_poll_value(const zw_vsock *connection);
/* Sleeps until there is a window or the end: 1; 0 after timeout_ms (negative: no limit); -ECONNRESET: no daemon. */
int zw_vsock_wait(zw_vsock *connection, int timeout_ms);
/*
 * For poll and epoll: after zw_vsock_arm returned 0, readable (POLLIN) when there is a window, the end, or no daemon any
 * more. Then call zw_vsock_disarm and dequeue. zw_vsock_arm returns 1 if there is something already. The descriptor
 * stays the connection's.
 */
int zw_vsock_fd(const zw_vsock *connection);
int zw_vsock_arm(zw_vsock *connection);
int zw_vsock_disarm(zw_vsock *connection);
/* 1 if the daemon has closed its end. */
int zw_vsock_is_hung_up(zw_vsock *connection);

/* Removes the mapping, and maps again; windows that are held stay valid. -EFAULT: not mapped, -EBUSY: mapped already. */
int zw_vsock_unmap(zw_vsock *connection);
int zw_vsock_map(zw_vsock *connection);

/* Copying receive and sending, as read and write do on a blocking socket; 0 is the end. */
ssize_t zw_vsock_read(zw_vsock *connection, void *to, size_t length);
ssize_t zw_vsock_write(zw_vsock *connection, const void *from, size_t length);
/* SHUT_RD, SHUT_WR or SHUT_RDWR of <sys/socket.h>. */
int zw_vsock_shutdown(zw_vsock *connection, int how);

#ifdef __cplusplus
}
#endif

#endif
