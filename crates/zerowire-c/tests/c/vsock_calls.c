/*
 * Each call of mapped receive, and how they fail, at the real daemon. The guest does what a letter
 * asks for, on port 5000. Ends with 0, or says which line found something else.
 *
 *   vsock_calls UDS.map
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <zerowire.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: not so: %s (last error: %s)\n", __LINE__, #what, zw_last_error());               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
/* It fails so, and the text has this in it. */
#define FAILS(call, error, part) CHECK((call) == -(error) && strstr(zw_last_error(), part) != NULL)

/* Long enough for anything here on a busy machine. */
#define PATIENCE 20000
#define WINDOW (4 * 4096u)

static int readable(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, timeout_ms) == 1 && (p.revents & POLLIN) != 0;
}

static void ask(zw_vsock *connection, char what)
{
    CHECK(zw_vsock_write(connection, &what, 1) == 1);
}

/* The next window, however long it takes. */
static zw_window *taken(zw_vsock *connection)
{
    zw_window *window;
    int result;

    while ((result = zw_vsock_dequeue(connection, &window)) == -EAGAIN)
        CHECK(zw_vsock_wait(connection, PATIENCE) == 1);
    CHECK(result == 1);
    return window;
}

static struct zw_vsock_options defaults(void)
{
    struct zw_vsock_options options;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    return options;
}

static void arguments_are_checked(const char *path)
{
    struct zw_vsock_options options;
    zw_vsock *connection = NULL;
    zw_vsock_listener *listener = NULL;

    FAILS(zw_vsock_connect(NULL, 1, NULL, &connection), EINVAL, "path is NULL");
    FAILS(zw_vsock_connect(path, 1, NULL, NULL), EINVAL, "connection is NULL");
    FAILS(zw_vsock_listen(path, 1, NULL, NULL), EINVAL, "listener is NULL");
    FAILS(zw_vsock_connect("/nonexistent.map", 1, NULL, &connection), ENOENT, "--uds");
    FAILS(zw_vsock_connect(path, UINT32_MAX, NULL, &connection), EINVAL, "4294967295");

    options = defaults();
    options.size = 0;
    FAILS(zw_vsock_connect(path, 1, &options, &connection), EINVAL, "sizeof(struct zw_vsock_options)");
    options = defaults();
    options.kind = 3;
    FAILS(zw_vsock_connect(path, 1, &options, &connection), EINVAL, "kind 3");
    options = defaults();
    options.flags = 8;
    FAILS(zw_vsock_connect(path, 1, &options, &connection), EINVAL, "flags 0x8");
    options = defaults();
    options.reserved = 5;
    FAILS(zw_vsock_listen(path, 1, &options, &listener), EINVAL, "reserved is 5");
    options = defaults();
    options.windows = 65;
    FAILS(zw_vsock_listen(path, 1, &options, &listener), EINVAL, "windows: 65 is not in 2 to 64");
    options = defaults();
    options.data_pages = 4096;
    FAILS(zw_vsock_connect(path, 1, &options, &connection), EINVAL, "--map-max");
    options = defaults();
    options.credit = 1u << 30;
    FAILS(zw_vsock_connect(path, 1, &options, &connection), EINVAL, "1073741824");
    options = defaults();
    options.flags |= ZW_DIRECT;
    FAILS(zw_vsock_connect(path, 1, &options, &connection), EPERM, "--share-guest-memory");
    FAILS(zw_vsock_connect(path, 77, NULL, &connection), ECONNREFUSED, "port 77");
    CHECK(connection == NULL && listener == NULL);
}

static void handles_may_be_null(void)
{
    struct zw_vsock_options options;
    struct zw_packet packet;
    zw_vsock *connection;
    zw_window *window;
    char byte;

    FAILS(zw_vsock_accept(NULL, 0, &connection), EINVAL, "listener is NULL");
    FAILS(zw_vsock_listener_fd(NULL), EINVAL, "listener is NULL");
    FAILS(zw_vsock_dequeue(NULL, &window), EINVAL, "connection is NULL");
    FAILS(zw_vsock_wait(NULL, 0), EINVAL, "connection is NULL");
    FAILS(zw_vsock_fd(NULL), EINVAL, "connection is NULL");
    FAILS(zw_vsock_arm(NULL), EINVAL, "connection is NULL");
    FAILS(zw_vsock_disarm(NULL), EINVAL, "connection is NULL");
    FAILS(zw_vsock_is_hung_up(NULL), EINVAL, "connection is NULL");
    FAILS(zw_vsock_unmap(NULL), EINVAL, "connection is NULL");
    FAILS(zw_vsock_map(NULL), EINVAL, "connection is NULL");
    FAILS(zw_vsock_agreed(NULL, &options), EINVAL, "connection is NULL");
    FAILS(zw_vsock_ports(NULL, NULL, NULL), EINVAL, "connection is NULL");
    FAILS(zw_vsock_set_nonblocking(NULL, 1), EINVAL, "connection is NULL");
    FAILS(zw_vsock_read(NULL, &byte, 1), EINVAL, "connection is NULL");
    FAILS(zw_vsock_write(NULL, &byte, 1), EINVAL, "connection is NULL");
    FAILS(zw_vsock_shutdown(NULL, SHUT_RD), EINVAL, "connection is NULL");
    packet.size = sizeof packet;
    FAILS(zw_window_next(NULL, &packet), EINVAL, "window is NULL");
    CHECK(zw_vsock_poll_value(NULL) == ZW_POLL_NOTHING && zw_window_bytes(NULL) == 0);
    zw_window_rewind(NULL);
    zw_window_release(NULL);
    zw_vsock_close(NULL);
    zw_vsock_listener_close(NULL);
}

/* The guest connects to port 6000 when it is asked to. */
static void listeners(const char *path, zw_vsock *other)
{
    zw_vsock_listener *listener, *second;
    zw_vsock *connection;
    uint32_t host_port, guest_port;
    zw_window *window;

    CHECK(zw_vsock_listen(path, 6000, NULL, &listener) == 0);
    FAILS(zw_vsock_listen(path, 6000, NULL, &second), EADDRINUSE, "port 6000");
    CHECK(zw_vsock_accept(listener, 0, &connection) == -EAGAIN);
    FAILS(zw_vsock_accept(listener, 0, NULL), EINVAL, "connection is NULL");
    CHECK(!readable(zw_vsock_listener_fd(listener), 0));
    ask(other, 'c');
    CHECK(readable(zw_vsock_listener_fd(listener), PATIENCE));
    CHECK(zw_vsock_accept(listener, PATIENCE, &connection) == 0);
    zw_vsock_listener_close(listener);
    CHECK(zw_vsock_ports(connection, &host_port, &guest_port) == 0 && host_port == 6000 && guest_port != 0);
    window = taken(connection);
    CHECK(zw_window_bytes(window) == 5);
    zw_vsock_close(connection);
    /* A window outlives its connection. */
    CHECK(zw_window_bytes(window) == 5);
    zw_window_release(window);
}

static void ten_bytes(zw_window *window)
{
    struct zw_packet packet;

    packet.size = sizeof packet;
    CHECK(zw_window_bytes(window) == 10);
    CHECK(zw_window_next(window, &packet) == 1);
    CHECK(packet.length == 10 && packet.flags == 0 && memcmp(packet.data, "0123456789", 10) == 0);
    CHECK(zw_window_next(window, &packet) == 0);
}

/* An event loop with one descriptor; then unmapping and mapping again with a window in the hand. */
static void waiting_and_mapping(zw_vsock *connection)
{
    struct zw_packet packet;
    zw_window *window, *none;
    int fd = zw_vsock_fd(connection);

    CHECK(zw_vsock_poll_value(connection) == ZW_POLL_NOTHING);
    CHECK(zw_vsock_dequeue(connection, &window) == -EAGAIN && zw_vsock_wait(connection, 0) == 0);
    FAILS(zw_vsock_dequeue(connection, NULL), EINVAL, "window is NULL");
    CHECK(zw_vsock_arm(connection) == 0 && !readable(fd, 0));
    ask(connection, 't');
    CHECK(readable(fd, PATIENCE));
    CHECK(zw_vsock_disarm(connection) == 0 && !readable(fd, 0));
    CHECK(zw_vsock_poll_value(connection) == ZW_POLL_DATA);
    CHECK(zw_vsock_arm(connection) == 1 && zw_vsock_wait(connection, 0) == 1);
    CHECK(zw_vsock_dequeue(connection, &window) == 1);
    FAILS(zw_window_next(window, NULL), EINVAL, "packet is NULL");
    ten_bytes(window);
    zw_window_rewind(window);
    ten_bytes(window);

    FAILS(zw_vsock_map(connection), EBUSY, "unmap()");
    CHECK(zw_vsock_unmap(connection) == 0);
    FAILS(zw_vsock_unmap(connection), EFAULT, "map()");
    FAILS(zw_vsock_dequeue(connection, &none), EFAULT, "map()");
    FAILS(zw_vsock_wait(connection, 0), EFAULT, "map()");
    FAILS(zw_vsock_arm(connection), EFAULT, "map()");
    FAILS(zw_vsock_disarm(connection), EFAULT, "map()");
    CHECK(zw_vsock_poll_value(connection) == ZW_POLL_NOTHING);
    zw_window_rewind(window);
    ten_bytes(window);
    zw_window_rewind(window);
    packet.size = sizeof packet;
    CHECK(zw_window_next(window, &packet) == 1);
    CHECK(zw_vsock_map(connection) == 0);
    zw_window_release(window);
}

/* All windows of the ring are held; then they are given back, the second one first. */
static void holding(zw_vsock *connection)
{
    zw_window *held[2], *window;
    uint64_t bytes;

    ask(connection, 'l');
    held[0] = taken(connection);
    held[1] = taken(connection);
    FAILS(zw_vsock_dequeue(connection, &window), ENOBUFS, "more than 2 windows");
    FAILS(zw_vsock_wait(connection, 0), ENOBUFS, "drop its lease");
    CHECK(zw_vsock_poll_value(connection) == ZW_POLL_NOTHING);
    bytes = zw_window_bytes(held[0]) + zw_window_bytes(held[1]);
    CHECK(bytes > 0 && bytes <= 2 * WINDOW);
    zw_window_release(held[1]);
    FAILS(zw_vsock_dequeue(connection, &window), ENOBUFS, "still held");
    zw_window_release(held[0]);
    while (bytes < 3 * WINDOW) {
        window = taken(connection);
        bytes += zw_window_bytes(window);
        zw_window_release(window);
    }
    CHECK(bytes == 3 * WINDOW && zw_vsock_dequeue(connection, &window) == -EAGAIN);
}

static void copying(zw_vsock *connection)
{
    char bytes[16];
    zw_window *window;

    CHECK(zw_vsock_set_nonblocking(connection, 1) == 0);
    CHECK(zw_vsock_read(connection, bytes, sizeof bytes) == -EAGAIN);
    CHECK(zw_vsock_set_nonblocking(connection, 0) == 0);
    FAILS(zw_vsock_read(connection, NULL, 1), EINVAL, "to is NULL");
    FAILS(zw_vsock_write(connection, NULL, 1), EINVAL, "from is NULL");
    ask(connection, 't');
    /* What is behind the bytes that came is left as it was, so that a read costs what it brings. */
    memset(bytes, 'x', sizeof bytes);
    CHECK(zw_vsock_read(connection, bytes, 4) == 4 && memcmp(bytes, "0123", 4) == 0);
    FAILS(zw_vsock_dequeue(connection, &window), EBUSY, "6 bytes");
    CHECK(zw_vsock_read(connection, bytes, sizeof bytes) == 6 && memcmp(bytes, "456789xxxxxxxxxx", 16) == 0);
}

static void the_end(zw_vsock *connection)
{
    char byte;
    zw_window *window;

    FAILS(zw_vsock_shutdown(connection, 7), EINVAL, "SHUT_RDWR");
    CHECK(zw_vsock_is_hung_up(connection) == 0);
    ask(connection, 'e');
    CHECK(zw_vsock_wait(connection, PATIENCE) == 1 && zw_vsock_poll_value(connection) == ZW_POLL_END);
    CHECK(zw_vsock_dequeue(connection, &window) == 0 && zw_vsock_dequeue(connection, &window) == 0);
    CHECK(zw_vsock_read(connection, &byte, 1) == 0);
    CHECK(zw_vsock_shutdown(connection, SHUT_RD) == 0 && zw_vsock_shutdown(connection, SHUT_WR) == 0);
    FAILS(zw_vsock_write(connection, &byte, 1), EPIPE, "pipe");
}

int main(int argc, char **argv)
{
    struct zw_vsock_options options, agreed;
    uint32_t host_port, guest_port;
    zw_vsock *connection;
    zw_window *window;

    CHECK(argc == 2 && zw_last_error()[0] == 0);
    arguments_are_checked(argv[1]);
    handles_may_be_null();

    options = defaults();
    options.windows = 2;
    options.data_pages = WINDOW / 4096;
    CHECK(zw_vsock_connect(argv[1], 5000, &options, &connection) == 0);
    CHECK(zw_vsock_ports(connection, &host_port, &guest_port) == 0 && guest_port == 5000 && host_port != 0);
    CHECK(zw_vsock_ports(connection, NULL, NULL) == 0);
    FAILS(zw_vsock_agreed(connection, NULL), EINVAL, "options is NULL");
    agreed.size = 0;
    FAILS(zw_vsock_agreed(connection, &agreed), EINVAL, "sizeof(struct zw_vsock_options)");
    agreed.size = sizeof agreed;
    CHECK(zw_vsock_agreed(connection, &agreed) == 0 && agreed.credit == 256u << 10 && agreed.windows == 2);
    CHECK(agreed.kind == ZW_STREAM && agreed.header_pages == 1 && agreed.data_pages == WINDOW / 4096);
    CHECK(agreed.lowat == 1 && agreed.flags == 0 && agreed.reserved == 0 && agreed.size == sizeof agreed);
    waiting_and_mapping(connection);
    holding(connection);
    copying(connection);
    listeners(argv[1], connection);
    the_end(connection);
    zw_vsock_close(connection);

    /* A VM that goes is no whole end. */
    options.kind = ZW_SEQPACKET;
    CHECK(zw_vsock_connect(argv[1], 5001, &options, &connection) == 0);
    CHECK(zw_vsock_agreed(connection, &agreed) == 0 && agreed.kind == ZW_SEQPACKET);
    puts("connected");
    fflush(stdout);
    CHECK(zw_vsock_wait(connection, PATIENCE) == 1);
    FAILS(zw_vsock_dequeue(connection, &window), ECONNRESET, "port 5001 is cut short");
    FAILS(zw_vsock_read(connection, &options, 1), ECONNRESET, "cut short");
    zw_vsock_close(connection);
    return 0;
}
