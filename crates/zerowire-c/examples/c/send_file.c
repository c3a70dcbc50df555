/*
 * Sends a file over TCP out of memory that is lent to the kernel, and prints how the bytes went. A
 * buffer is read into again when its ticket is done, never before. -l: the buffers are leases of an
 * area, which says by itself when one is free; with io_uring its memory is registered. -m copy,
 * zerocopy or auto (the default). -b socket or uring: see docs/send.md. -c: checks that lent memory
 * is left alone.
 *
 *   cc send_file.c -o send_file $(pkg-config --cflags --libs zerowire)
 *   ncat -l 5001 >/dev/null &
 *   ./send_file [-l] [-c] [-m MODE] [-b BACKEND] 127.0.0.1 5001 FILE
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zerowire.h>

enum { BUFFERS = 16, BUFFER_BYTES = 256 * 1024 };

static int fail(const char *what, int error)
{
    fprintf(stderr, "send_file: %s: %s (error %d)\n", what, zw_last_error(), -error);
    return 1;
}

static int dial(const char *host, const char *port)
{
    struct addrinfo hints, *found, *a;
    int fd = -1, error;

    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    error = getaddrinfo(host, port, &hints, &found);
    if (error != 0) {
        fprintf(stderr, "send_file: %s port %s: %s\n", host, port, gai_strerror(error));
        return -1;
    }
    for (a = found; a != NULL; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0)
            break;
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd < 0)
        perror("send_file: connect");
    return fd;
}

/* Buffers of our own: each is lent in turn, and waited for before it is used again. */
static int send_lent(zw_sender *sender, int file, unsigned char *memory)
{
    uint32_t tickets[BUFFERS];
    size_t used = 0;
    int result = 0;

    for (;; used++) {
        size_t i = used % BUFFERS;
        unsigned char *buffer = memory + i * BUFFER_BYTES;
        ssize_t n;

        if (used >= BUFFERS && (result = zw_sender_wait(sender, tickets[i], -1)) < 0)
            return fail("wait", result);
        n = read(file, buffer, BUFFER_BYTES);
        if (n < 0) {
            perror("send_file: read");
            return 1;
        }
        if (n == 0)
            return 0;
        if ((result = zw_sender_send(sender, buffer, (size_t)n, &tickets[i])) < 0)
            return fail("send", result);
    }
}

/* Buffers of an area: they come back by themselves. */
static int send_leases(zw_sender *sender, int file, zw_area *area)
{
    for (;;) {
        zw_lease *lease;
        ssize_t n;
        int result = zw_area_lease(area, &lease);

        if (result == -EAGAIN) {
            if ((result = zw_sender_wait_any(sender, -1)) < 0)
                return fail("wait", result);
            continue;
        }
        if (result < 0)
            return fail("lease", result);
        n = read(file, zw_lease_data(lease), zw_lease_capacity(lease));
        if (n <= 0) {
            if (n < 0)
                perror("send_file: read");
            zw_lease_release(lease);
            return n < 0;
        }
        if ((result = zw_lease_set_length(lease, (size_t)n)) < 0 ||
            (result = zw_sender_send_lease(sender, lease, NULL)) < 0) {
            zw_lease_release(lease); /* not taken: still ours */
            return fail("send", result);
        }
    }
}

static void print_ledger(zw_sender *sender)
{
    struct zw_ledger ledger;
    const char *name;
    char text[1024];
    uint64_t bytes;
    uint32_t reason;

    ledger.size = sizeof ledger;
    if (zw_sender_ledger(sender, &ledger) < 0)
        return;
    printf("%" PRIu64 " bytes in %" PRIu64 " payloads\n", ledger.bytes, ledger.payloads);
    printf("zero-copied: %" PRIu64 "\n", ledger.zero_copied_bytes);
    for (reason = 0; zw_sender_copied(sender, reason, &name, &bytes) > 0; reason++)
        if (bytes > 0)
            printf("copied, %s: %" PRIu64 "\n", name, bytes);
    if (zw_sender_path(sender, text, sizeof text) >= 0)
        printf("path: %s\n", text);
    if (zw_sender_choices(sender, text, sizeof text) > 0)
        fputs(text, stdout);
}

static uint32_t one_of(const char *text, const char *first, const char *second, const char *third)
{
    const char *words[3];
    uint32_t i;

    words[0] = first;
    words[1] = second;
    words[2] = third;
    for (i = 0; i < 3; i++)
        if (strcmp(text, words[i]) == 0)
            return i;
    fprintf(stderr, "send_file: %s: use %s, %s or %s\n", text, first, second, third);
    exit(2);
}

int main(int argc, char **argv)
{
    struct zw_sender_options options;
    struct zw_closed closed;
    unsigned char *memory = NULL;
    zw_area *area = NULL;
    const zw_area *areas[1];
    zw_sender *sender;
    int leases = 0, option, file, fd, result, status;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    while ((option = getopt(argc, argv, "lcm:b:")) != -1) {
        switch (option) {
        case 'l': leases = 1; break;
        case 'c': options.flags |= ZW_CHECKED; break;
        case 'm': options.mode = one_of(optarg, "auto", "copy", "zerocopy"); break;
        case 'b': options.backend = one_of(optarg, "auto", "socket", "uring"); break;
        default: return 2;
        }
    }
    if (argc - optind != 3) {
        fprintf(stderr, "usage: %s [-l] [-c] [-m MODE] [-b BACKEND] HOST PORT FILE\n", argv[0]);
        return 2;
    }
    file = open(argv[optind + 2], O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        perror(argv[optind + 2]);
        return 1;
    }
    if (leases) {
        if ((result = zw_area_new(BUFFER_BYTES, BUFFERS, 0, &area)) < 0)
            return fail("area", result);
        areas[0] = area;
        options.areas = areas;
        options.area_count = 1;
    } else {
        memory = (unsigned char *)malloc((size_t)BUFFERS * BUFFER_BYTES);
        if (memory == NULL) {
            perror("send_file");
            return 1;
        }
    }
    fd = dial(argv[optind], argv[optind + 1]);
    if (fd < 0)
        return 1;
    if ((result = zw_sender_new(fd, &options, &sender)) < 0)
        return close(fd), fail("sender", result); /* fd is still ours */

    status = leases ? send_leases(sender, file, area) : send_lent(sender, file, memory);
    if (status == 0) {
        if ((result = zw_sender_wait_all(sender, -1)) < 0)
            status = fail("wait", result);
        print_ledger(sender);
    }
    closed.size = sizeof closed;
    result = zw_sender_close(sender, status == 0 ? ZW_CLOSE_DRAIN : ZW_CLOSE_ABORT, -1, &closed);
    if (result < 0)
        status = fail("close", result);
    if (closed.kept > 0) {
        fprintf(stderr, "send_file: the kernel still reads %zu buffers\n", closed.kept);
        while (zw_orphans() > 0)
            usleep(1000);
    }
    zw_area_close(area);
    free(memory);
    close(file);
    return status;
}
