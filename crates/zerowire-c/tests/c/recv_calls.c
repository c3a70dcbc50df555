/* Each call of the receivers, and how they fail. Ends with 0, or says which line found something
 * else. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zerowire.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: not so: %s (last error: %s)\n", __LINE__, #what, zw_last_error());               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static zw_receiver *shared;

static void *elsewhere(void *held)
{
    struct zw_arrival arrival;
    zw_shared_area *area;

    CHECK(zw_receiver_recv(shared, &arrival, sizeof arrival, 1, 0) == -EEXIST);
    CHECK(strstr(zw_last_error(), "thread") != NULL);
    CHECK(zw_receiver_close(shared) == -EEXIST && zw_receiver_export(shared, &area) == -EEXIST);
    CHECK(zw_receiver_add_area(shared, 4096, 16, 0) == -EEXIST);
    /* But a buffer may be given back by any thread. */
    CHECK(zw_arrival_release((struct zw_arrival *)held, sizeof arrival, 1) == 0);
    return NULL;
}

static void options_are_checked(void)
{
    struct zw_receiver_options options;
    zw_receiver *receiver = NULL;
    struct rlimit usual, little;

    memset(&options, 0, sizeof options);
    CHECK(zw_receiver_new(&options, &receiver) == -EINVAL && strstr(zw_last_error(), "zw_receiver_options") != NULL);
    options.size = sizeof options;
    CHECK(zw_receiver_new(&options, NULL) == -EINVAL);
    options.backend = 6;
    CHECK(zw_receiver_new(&options, &receiver) == -EINVAL && strstr(zw_last_error(), "backend 6") != NULL);
    options.backend = ZW_RECV_QUEUE;
    CHECK(zw_receiver_new(&options, &receiver) == -EINVAL && strstr(zw_last_error(), "interface") != NULL);
    options.interface = "lo";
    CHECK(zw_receiver_new(&options, &receiver) < 0 && strstr(zw_last_error(), "lo") != NULL);
    options.backend = ZW_RECV_AUTO;
    options.flags = 16;
    CHECK(zw_receiver_new(&options, &receiver) == -EINVAL && strstr(zw_last_error(), "flags 0x10") != NULL);
    options.flags = ZW_RECV_LAZY_FLUSH | ZW_RECV_MIXED | ZW_RECV_KERNEL_RING;
    options.backend = ZW_RECV_QUEUE;
    options.rx_buf_len = 5000;
    CHECK(zw_receiver_new(&options, &receiver) == -EINVAL && strstr(zw_last_error(), "5000") != NULL);
    options.backend = ZW_RECV_AUTO;
    options.rx_buf_len = 0;
    options.flags = 0;
    options.buffers = 1;
    CHECK(zw_receiver_new(&options, &receiver) == -EINVAL && strstr(zw_last_error(), "1 receive buffers") != NULL);
    /* Buffers that this process may not map. */
    CHECK(getrlimit(RLIMIT_AS, &usual) == 0);
    little = usual;
    little.rlim_cur = (rlim_t)1 << 30;
    CHECK(setrlimit(RLIMIT_AS, &little) == 0);
    options.buffer_bytes = 1 << 20;
    options.buffers = 4096;
    CHECK(zw_receiver_new(&options, &receiver) == -ENOMEM && strstr(zw_last_error(), "4294967296") != NULL);
    CHECK(setrlimit(RLIMIT_AS, &usual) == 0);
    CHECK(receiver == NULL);
}

/* Only zero-copy receive has an area that others can use, and only a DMA buffer is one. */
static void areas_are_checked(zw_receiver *receiver)
{
    struct zw_receiver_options options;
    zw_shared_area *area = NULL;
    zw_dmabuf *dmabuf = NULL;
    zw_receiver *other = NULL;
    int fd;

    CHECK(zw_receiver_export(receiver, &area) == -EOPNOTSUPP && area == NULL);
    CHECK(strstr(zw_last_error(), "only those of zero-copy receive") != NULL);
    CHECK(zw_receiver_export(receiver, NULL) == -EINVAL && zw_receiver_export(NULL, &area) == -EINVAL);
    CHECK(zw_receiver_import(NULL, NULL, &other) == -EINVAL && strstr(zw_last_error(), "area is NULL") != NULL);
    CHECK(zw_receiver_import(NULL, NULL, NULL) == -EINVAL && other == NULL);
    CHECK(zw_receiver_add_area(receiver, 4096, 16, 0) == -EOPNOTSUPP);
    CHECK(strstr(zw_last_error(), "one area") != NULL && strstr(zw_last_error(), "zero-copy receive") != NULL);
    CHECK(zw_receiver_add_area(receiver, 4096, 1, 0) == -EINVAL && zw_receiver_add_area(receiver, 4096, 16, 2) == -EINVAL);
    CHECK(strstr(zw_last_error(), "ZW_HUGE_PAGES") != NULL && zw_receiver_add_area(NULL, 4096, 16, 0) == -EINVAL);
    CHECK(zw_shared_area_bytes(NULL) == 0 && zw_shared_area_buffers(NULL) == 0);
    zw_shared_area_close(NULL);

    fd = memfd_create("zerowire", MFD_CLOEXEC);
    CHECK(fd >= 0 && zw_dmabuf_new(fd, &dmabuf) == -ENOTTY && dmabuf == NULL);
    CHECK(strstr(zw_last_error(), "no DMA buffer") != NULL && strstr(zw_last_error(), "/dev/udmabuf") != NULL);
    CHECK(zw_dmabuf_new(-1, &dmabuf) == -EBADF && zw_dmabuf_new(fd, NULL) == -EINVAL);
    CHECK(close(fd) == 0); /* it was never taken */
    CHECK(zw_dmabuf_length(NULL) == 0);
    zw_dmabuf_close(NULL);

    /* Without a device: with an area to share from Linux 7.1 on; before, the kernel that is needed
     * is named. */
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.backend = ZW_RECV_NO_DEVICE;
    options.buffer_bytes = 4096;
    options.buffers = 16;
    if (zw_receiver_new(&options, &other) < 0) {
        CHECK(strstr(zw_last_error(), "Linux 7.1") != NULL || strstr(zw_last_error(), "CAP_NET_ADMIN") != NULL);
        return;
    }
    CHECK(zw_receiver_export(other, &area) == 0 && zw_shared_area_buffers(area) == 16);
    /* More of it from Linux 7.3 on. */
    if (zw_receiver_add_area(other, 4096, 4, 0) == 0)
        CHECK(zw_shared_area_buffers(area) == 20 && zw_shared_area_bytes(area) == 20 * 4096);
    else
        CHECK(strstr(zw_last_error(), "Linux 7.3") != NULL);
    CHECK(zw_receiver_close(other) == 0);
    zw_shared_area_close(area);
}

static void calls(uint32_t backend)
{
    struct zw_receiver_options options;
    struct zw_arrival arrivals[8], kept, stale;
    struct zw_recv_events events;
    struct zw_ledger ledger;
    zw_receiver *receiver;
    pthread_t thread;
    uint64_t connection = 0, listener = 0;
    char text[512], small[5], rest[4];
    int pair[2], fd;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.backend = backend;
    options.buffer_bytes = 4096;
    options.buffers = 16;
    options.max_connections = 1;
    options.gather_us = ZW_RECV_GATHER_NOTHING;
    CHECK(zw_receiver_new(&options, &receiver) == 0);
    CHECK(zw_receiver_path(receiver, NULL, 0) > 0);
    CHECK(zw_receiver_path(receiver, text, sizeof text) == (int)strlen(text));
    CHECK(zw_receiver_path(receiver, small, sizeof small) == (int)strlen(text) && strncmp(small, text, 4) == 0);

    areas_are_checked(receiver);
    CHECK(zw_receiver_add(receiver, -1, &connection) == -EBADF);
    /* After an error the descriptor is still the caller's. */
    fd = open("/dev/null", O_RDONLY);
    CHECK(zw_receiver_add(receiver, fd, &connection) == -ENOTSOCK && zw_receiver_add(receiver, fd, NULL) == -EINVAL);
    CHECK(zw_receiver_add(NULL, fd, &connection) == -EINVAL && zw_receiver_listen(NULL, fd, &listener) == -EINVAL);
    CHECK(zw_receiver_listen(receiver, fd, &listener) == -EINVAL && close(fd) == 0);
    CHECK(zw_receiver_listen(receiver, -1, &listener) == -EBADF);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && listen(fd, 1) == 0 && zw_receiver_add(receiver, fd, &connection) == -EINVAL);
    CHECK(strstr(zw_last_error(), "listens") != NULL && close(fd) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(zw_receiver_listen(receiver, pair[1], &listener) == -EINVAL);
    CHECK(zw_receiver_add(receiver, pair[1], &connection) == 0 && zw_receiver_connections(receiver) == 1);
    fd = open("/dev/null", O_RDONLY);
    CHECK(zw_receiver_add(receiver, fd, &connection) == -EMFILE && close(fd) == 0);

    CHECK(zw_receiver_recv(receiver, arrivals, sizeof kept, 8, 0) == 0);
    CHECK(zw_receiver_recv(receiver, NULL, sizeof kept, 8, 0) == -EINVAL);
    CHECK(zw_receiver_recv(NULL, arrivals, sizeof kept, 8, 0) == -EINVAL);
    CHECK(zw_receiver_limit(receiver, connection, 5) == 0);
    CHECK(zw_receiver_limit(receiver, connection + 1, 5) == -ENOENT);
    CHECK(write(pair[0], "hello, world", 12) == 12);
    CHECK(zw_receiver_recv(receiver, arrivals, sizeof kept, 8, 10000) == 1);
    CHECK(arrivals[0].connection == connection && arrivals[0].kind == ZW_ARRIVAL_DATA && arrivals[0].length == 5);
    CHECK(memcmp(arrivals[0].data, "hello", 5) == 0);
    kept = arrivals[0];
    CHECK(zw_receiver_recv(receiver, arrivals, sizeof kept, 8, 10) == 0);
    CHECK(zw_receiver_limit(receiver, connection, UINT64_MAX) == 0);
    CHECK(zw_receiver_recv(receiver, arrivals, sizeof kept, 1, 10000) == 1 && arrivals[0].length == 7);
    /* Copies stand for one buffer. */
    arrivals[1] = arrivals[0];
    CHECK(zw_arrival_release(arrivals, sizeof kept, 1) == 0);
    CHECK(arrivals[0].data == NULL && arrivals[0].length == 0 && arrivals[0].token == 0);
    CHECK(zw_arrival_release(arrivals, sizeof kept, 1) == 0); /* nothing is in it any more */
    CHECK(zw_arrival_release(arrivals, sizeof kept, 2) == -ESTALE && strstr(zw_last_error(), "element 1") != NULL);
    CHECK(arrivals[1].data == NULL && zw_arrival_release(arrivals, 40, 2) == -EINVAL);

    /* Answers go over the same socket. */
    fd = zw_receiver_socket(receiver, connection);
    CHECK(fd >= 0 && write(fd, "yes", 3) == 3 && read(pair[0], rest, 4) == 3);
    CHECK(shutdown(pair[0], SHUT_WR) == 0);
    CHECK(zw_receiver_recv(receiver, arrivals, sizeof kept, 8, 10000) == 1 && arrivals[0].kind == ZW_ARRIVAL_END);
    CHECK(arrivals[0].data == NULL && arrivals[0].error == 0);
    CHECK(zw_arrival_release(arrivals, sizeof kept, 1) == 0);

    shared = receiver;
    stale = kept;
    CHECK(memcmp(kept.data, "hello", 5) == 0);
    CHECK(pthread_create(&thread, NULL, elsewhere, &kept) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(kept.data == NULL);

    fd = zw_receiver_remove(receiver, connection);
    CHECK(fd >= 0 && close(fd) == 0 && close(pair[0]) == 0);
    CHECK(zw_receiver_remove(receiver, connection) == -ENOENT && zw_receiver_socket(receiver, connection) == -ENOENT);
    CHECK(zw_receiver_unlisten(receiver, 77) == -ENOENT);

    fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && listen(fd, 5) == 0);
    CHECK(zw_receiver_listen(receiver, fd, &listener) == 0);
    fd = zw_receiver_unlisten(receiver, listener);
    CHECK(fd >= 0 && close(fd) == 0);

    CHECK(zw_receiver_recv(receiver, arrivals, sizeof kept, 8, 0) == 0);
    ledger.size = sizeof ledger;
    events.size = sizeof events;
    CHECK(zw_receiver_ledger(receiver, &ledger) == 0 && ledger.bytes == 12 && ledger.payloads == 2);
    CHECK(ledger.copied_bytes == 12 && ledger.zero_copied_bytes == 0);
    CHECK(zw_receiver_zero_copied(receiver) == ZW_ZERO_COPIED_EXACT && zw_receiver_zero_copied(NULL) == -EINVAL);
    CHECK(zw_receiver_events(receiver, &events) == 0 && events.refills == 2 && events.system_calls > 0);
    CHECK(events.notices == 0);
    CHECK(zw_receiver_ledger(receiver, NULL) == -EINVAL && zw_receiver_events(receiver, NULL) == -EINVAL);

    /* A buffer outlives the receiver, and a connection that failed says why. */
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && zw_receiver_add(receiver, pair[1], &connection) == 0);
    CHECK(write(pair[0], "kept", 4) == 4 && zw_receiver_recv(receiver, &kept, sizeof kept, 1, 10000) == 1);
    CHECK(zw_receiver_close(receiver) == 0 && zw_receiver_close(NULL) == 0);
    /* It is in the place of another that was given back, whose copy is no way to it. */
    CHECK(zw_arrival_release(&stale, sizeof stale, 1) == -ESTALE);
    CHECK(memcmp(kept.data, "kept", 4) == 0);
    CHECK(zw_arrival_release(&kept, sizeof kept, 1) == 0);
    close(pair[0]);
}

int main(void)
{
    options_are_checked();
    calls(ZW_RECV_MULTISHOT);
    calls(ZW_RECV_PLAIN);
    return 0;
}
