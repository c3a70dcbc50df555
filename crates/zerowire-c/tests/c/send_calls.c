/* Calls each function of the senders' interface, well and badly. Arguments: the port of a listener
 * on 127.0.0.1 that accepts and reads what comes to its end, and a UDP port there. Ends with 0, or
 * says which line is wrong. */
#include <errno.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zerowire.h>

#define CHECK(what)                                                                                                            \
    do {                                                                                                                       \
        if (!(what)) {                                                                                                         \
            fprintf(stderr, "line %d: %s is not so; the last error: %s\n", __LINE__, #what, zw_last_error());                  \
            exit(1);                                                                                                           \
        }                                                                                                                      \
    } while (0)
#define SAYS(text) CHECK(strstr(zw_last_error(), text) != NULL)

static int stream_port, datagram_port;

static int dial(int type)
{
    struct sockaddr_in to;
    int fd = socket(AF_INET, type, 0);

    memset(&to, 0, sizeof to);
    to.sin_family = AF_INET;
    to.sin_port = htons((uint16_t)(type == SOCK_STREAM ? stream_port : datagram_port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

static struct zw_sender_options defaults(void)
{
    struct zw_sender_options o;

    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.flags = ZW_CHECKED;
    return o;
}

/* Wrong options: each closes the descriptor, and says what is wrong. */
static void refused(struct zw_sender_options options, int error, const char *text)
{
    zw_sender *sender = NULL;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    CHECK(zw_sender_new(fd, &options, &sender) == -error && sender == NULL);
    SAYS(text);
    CHECK(close(fd) == 0); /* still the caller's */
}

static void options_are_checked(void)
{
    struct { struct zw_sender_options known; char later[8]; } longer;
    struct zw_sender_options o;
    zw_sender *sender;
    int fd;

    o = defaults(), o.size = 0, refused(o, EINVAL, "sizeof");
    o = defaults(), o.mode = 3, refused(o, EINVAL, "mode 3");
    o = defaults(), o.backend = 9, refused(o, EINVAL, "backend 9");
    o = defaults(), o.notifications = 2, refused(o, EINVAL, "notifications 2");
    o = defaults(), o.segment_bytes = 65536, refused(o, EINVAL, "segment_bytes 65536");
    o = defaults(), o.flags = 2, refused(o, EINVAL, "flags 0x2");
    o = defaults(), o.area_count = 1, refused(o, EINVAL, "areas is NULL");
    refused(defaults(), ENOTCONN, "not connected");
    CHECK(zw_sender_new(-1, NULL, &sender) == -EBADF);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(zw_sender_new(fd, NULL, NULL) == -EINVAL && close(fd) == 0);

    /* Options of a later version: fields that are 0 are no obstacle. */
    memset(&longer, 0, sizeof longer);
    longer.known = defaults();
    longer.known.size = sizeof longer;
    CHECK(zw_sender_new(dial(SOCK_STREAM), &longer.known, &sender) == 0);
    CHECK(zw_sender_close(sender, ZW_CLOSE_DRAIN, 0, NULL) == 0);
    longer.later[7] = 1;
    fd = dial(SOCK_STREAM);
    CHECK(zw_sender_new(fd, &longer.known, &sender) == -E2BIG && close(fd) == 0);
}

static void null_is_refused(void)
{
    zw_lease *lease;

    CHECK(zw_sender_send(NULL, "x", 1, NULL) == -EINVAL);
    SAYS("sender is NULL");
    CHECK(zw_sender_try_send(NULL, "x", 1, NULL) == -EINVAL && zw_sender_sendv(NULL, NULL, 0, NULL) == -EINVAL);
    CHECK(zw_sender_try_sendv(NULL, NULL, 0, NULL) == -EINVAL && zw_sender_send_many(NULL, NULL, 0, NULL) == -EINVAL);
    CHECK(zw_sender_send_lease(NULL, NULL, NULL) == -EINVAL && zw_sender_try_send_lease(NULL, NULL, NULL) == -EINVAL);
    CHECK(zw_sender_poll(NULL) == -EINVAL && zw_sender_wait(NULL, 0, 0) == -EINVAL);
    CHECK(zw_sender_wait_any(NULL, 0) == -EINVAL && zw_sender_wait_all(NULL, 0) == -EINVAL);
    CHECK(zw_sender_wants_room(NULL) == -EINVAL);
    CHECK(zw_sender_next_completion(NULL, NULL) == -EINVAL && zw_sender_ledger(NULL, NULL) == -EINVAL);
    CHECK(zw_sender_copied(NULL, 0, NULL, NULL) == -EINVAL && zw_sender_path(NULL, NULL, 0) == -EINVAL);
    CHECK(zw_sender_choices(NULL, NULL, 0) == -EINVAL && zw_sender_set_segment_bytes(NULL, 100) == -EINVAL);
    CHECK(zw_sender_outstanding(NULL) == 0 && zw_sender_outstanding_bytes(NULL) == 0);
    CHECK(zw_sender_close(NULL, ZW_CLOSE_DRAIN, 0, NULL) == 0);
    CHECK(zw_area_new(1, 1, 0, NULL) == -EINVAL && zw_area_lease(NULL, &lease) == -EINVAL);
    CHECK(zw_sender_into_socket(NULL, 0) == -EINVAL && zw_sender_lease(NULL, NULL, 0, &lease) == -EINVAL);
    CHECK(zw_sender_lease(NULL, NULL, 0, NULL) == -EINVAL);
    CHECK(zw_area_free(NULL) == 0 && zw_lease_data(NULL) == NULL && zw_lease_capacity(NULL) == 0);
    CHECK(zw_lease_length(NULL) == 0 && zw_lease_set_length(NULL, 0) == -EINVAL);
    zw_area_close(NULL);
    zw_lease_release(NULL);
}

/* "0123456789" ten times, in each way there is. */
static void every_way_sends(void)
{
    struct zw_sender_options o = defaults();
    struct zw_completion c;
    struct zw_ledger ledger;
    struct zw_closed closed;
    struct iovec pieces[3];
    zw_sender *sender;
    zw_area *area;
    zw_lease *lease;
    uint32_t ticket = 77, done = 0;
    char text[8], whole[512];
    int length, i;

    pieces[0].iov_base = (void *)"0123", pieces[0].iov_len = 4;
    pieces[1].iov_base = NULL, pieces[1].iov_len = 0;
    pieces[2].iov_base = (void *)"456789", pieces[2].iov_len = 6;
    o.mode = ZW_MODE_ZEROCOPY;
    o.backend = ZW_BACKEND_SOCKET;
    CHECK(zw_sender_new(dial(SOCK_STREAM), &o, &sender) == 0);
    CHECK(zw_sender_send(sender, "0123456789", 10, &ticket) == 0 && ticket == 0);
    CHECK(zw_sender_try_send(sender, "0123456789", 10, &ticket) == 0 && ticket == 1);
    CHECK(zw_sender_sendv(sender, pieces, 3, &ticket) == 0 && ticket == 2);
    CHECK(zw_sender_try_sendv(sender, pieces, 3, NULL) == 0);
    CHECK(zw_sender_send_many(sender, pieces, 3, &ticket) == 3 && ticket == 4);

    CHECK(zw_area_new(10, 2, 0, &area) == 0 && zw_area_free(area) == 2);
    CHECK(zw_area_new(10, 2, 8, &area) == -EINVAL && zw_area_new(0, 2, 0, &area) == -EINVAL);
    for (i = 0; i < 2; i++) {
        CHECK(zw_area_lease(area, &lease) == 0);
        CHECK(zw_lease_set_length(lease, 11) == -EINVAL);
        SAYS("11");
        CHECK(zw_lease_set_length(lease, 9) == 0 && zw_lease_length(lease) == 9 && zw_lease_capacity(lease) == 10);
        CHECK(zw_lease_set_length(lease, 10) == 0);
        memcpy(zw_lease_data(lease), "0123456789", 10);
        CHECK((i ? zw_sender_try_send_lease : zw_sender_send_lease)(sender, lease, &ticket) == 0 && ticket == 7u + (uint32_t)i);
    }
    CHECK(zw_sender_wants_room(sender) == 1); /* no limit was met */
    CHECK(zw_sender_wait(sender, 0, -1) == 0 && zw_sender_wait_any(sender, -1) == 0);
    CHECK(zw_sender_wait(sender, 9, 0) == -EINVAL);
    SAYS("9");
    for (i = 0; i < 3; i++)
        CHECK(zw_sender_send(sender, "0123456789", 10, NULL) == 0);
    CHECK(zw_sender_wait_all(sender, -1) == 0);
    CHECK(zw_sender_outstanding(sender) == 0 && zw_sender_outstanding_bytes(sender) == 0 && zw_sender_poll(sender) >= 0);
    CHECK(zw_area_free(area) == 2);
    c.size = sizeof c;
    while (zw_sender_next_completion(sender, &c) == 1)
        done += c.last - c.first + 1;
    CHECK(done == 12);
    ledger.size = sizeof ledger;
    CHECK(zw_sender_ledger(sender, &ledger) == 0);
    CHECK(ledger.bytes == 100 && ledger.payloads == 11 && ledger.bytes == ledger.zero_copied_bytes + ledger.copied_bytes);

    /* Text is cut to the buffer, and ends. */
    length = zw_sender_path(sender, NULL, 0);
    CHECK(length > 7 && length < (int)sizeof whole);
    CHECK(zw_sender_path(sender, text, sizeof text) == length && strlen(text) == 7);
    CHECK(zw_sender_path(sender, whole, sizeof whole) == length && strlen(whole) == (size_t)length);
    CHECK(strstr(whole, "MSG_ZEROCOPY") != NULL && strncmp(text, whole, 7) == 0);
    CHECK(zw_sender_choices(sender, whole, sizeof whole) == 0 && whole[0] == 0);
    closed.size = sizeof closed;
    CHECK(zw_sender_close(sender, ZW_CLOSE_DRAIN, -1, &closed) == 0);
    CHECK(closed.aborted == 0 && closed.kept == 0);
    zw_area_close(area);
}

/* Each call waits for its own notification. */
static void each_one(void)
{
    struct zw_sender_options o = defaults();
    zw_sender *sender;
    uint32_t i, ticket;

    o.mode = ZW_MODE_ZEROCOPY;
    o.backend = ZW_BACKEND_SOCKET;
    o.notifications = ZW_NOTIFY_EACH_ONE;
    CHECK(zw_sender_new(dial(SOCK_DGRAM), &o, &sender) == 0);
    for (i = 0; i < 3; i++) {
        char buffer[100];

        memset(buffer, (int)i, sizeof buffer);
        CHECK(zw_sender_send(sender, buffer, sizeof buffer, &ticket) == 0 && ticket == i);
        CHECK(zw_sender_outstanding(sender) == 0);
    }
    CHECK(zw_sender_close(sender, 7, 0, NULL) == -EINVAL);
    SAYS("ZW_CLOSE_ABORT");
}

static void wrong_memory_is_refused(void)
{
    struct zw_sender_options o = defaults();
    struct iovec pieces[2];
    zw_sender *sender;
    zw_area *area;
    zw_lease *lease;

    pieces[0].iov_base = pieces[1].iov_base = (void *)"x";
    pieces[0].iov_len = pieces[1].iov_len = (size_t)1 << 62;
    CHECK(zw_sender_new(dial(SOCK_STREAM), &o, &sender) == 0);
    CHECK(zw_sender_send(sender, NULL, 1, NULL) == -EINVAL && zw_sender_send(sender, NULL, 0, NULL) == 0);
    CHECK(zw_sender_send(sender, "x", (size_t)-1, NULL) == -EINVAL);
    CHECK(zw_sender_sendv(sender, pieces, 2, NULL) == -EINVAL && zw_sender_sendv(sender, NULL, 1, NULL) == -EINVAL);
    CHECK(zw_sender_sendv(sender, pieces, (size_t)1 << 40, NULL) == -EINVAL);

    /* A lease that is refused is still the caller's. */
    CHECK(zw_area_new(100, 1, 0, &area) == 0 && zw_area_lease(area, &lease) == 0);
    CHECK(zw_area_free(area) == 0);
    CHECK(zw_sender_send_lease(NULL, lease, NULL) == -EINVAL && zw_lease_length(lease) == 100);
    zw_sender_close(sender, ZW_CLOSE_ABORT, 0, NULL);
    zw_lease_release(lease);
    CHECK(zw_area_free(area) == 1);
    zw_area_close(area);
}

/* A datagram that is too long is not taken; its memory, and its lease, stay the caller's. */
static void datagrams(void)
{
    static char big[70000];
    struct zw_sender_options o = defaults();
    struct iovec many[20], several[3];
    struct zw_ledger ledger;
    zw_sender *sender;
    zw_area *area;
    zw_lease *lease;
    const char *name;
    uint64_t bytes, scattered = 0;
    uint32_t reason, first = 77;
    int i;

    o.mode = ZW_MODE_ZEROCOPY;
    CHECK(zw_sender_new(dial(SOCK_DGRAM), &o, &sender) == 0);
    CHECK(zw_sender_send(sender, big, sizeof big, NULL) == -EMSGSIZE);
    SAYS("70000");
    big[0] = 1; /* ours: nothing watches it */
    CHECK(zw_area_new(70000, 1, 0, &area) == 0 && zw_area_lease(area, &lease) == 0);
    CHECK(zw_sender_send_lease(sender, lease, NULL) == -EMSGSIZE && zw_lease_length(lease) == 70000);
    CHECK(zw_sender_try_send_lease(sender, lease, NULL) == -EMSGSIZE && zw_lease_length(lease) == 70000);
    CHECK(zw_lease_set_length(lease, 1000) == 0);

    for (i = 0; i < 20; i++)
        many[i].iov_base = big + i, many[i].iov_len = 50;
    CHECK(zw_sender_sendv(sender, many, 20, NULL) == 0);
    CHECK(zw_sender_send_lease(sender, lease, NULL) == 0);
    CHECK(zw_sender_send_many(sender, many, 3, &first) == 3 && first == 2);
    several[0].iov_base = big, several[0].iov_len = 10;
    several[1].iov_base = big, several[1].iov_len = sizeof big;
    several[2].iov_base = big, several[2].iov_len = 10;
    CHECK(zw_sender_send_many(sender, several, 3, &first) == 1 && first == 5);
    CHECK(zw_sender_send(sender, big, 10, NULL) == -EMSGSIZE); /* the second one of before */
    CHECK(zw_sender_send_many(sender, several + 1, 2, NULL) == -EMSGSIZE);
    CHECK(zw_sender_wait_all(sender, -1) == 0);
    CHECK(zw_area_free(area) == 1);
    ledger.size = sizeof ledger;
    CHECK(zw_sender_ledger(sender, &ledger) == 0 && ledger.bytes == 1000 + 1000 + 3 * 50 + 10);
    for (reason = 0; zw_sender_copied(sender, reason, &name, &bytes) == 1; reason++)
        if (strcmp(name, "scattered") == 0)
            scattered = bytes;
    CHECK(reason > 10 && scattered == 1000);
    CHECK(zw_sender_copied(sender, 0, NULL, NULL) == 1);
    zw_sender_close(sender, ZW_CLOSE_DRAIN, -1, NULL);
    zw_area_close(area);
}

/* Payloads that the kernel cuts: how long the pieces may be, and changed between two payloads. */
static void segments(void)
{
    static const char bytes[300];
    struct zw_sender_options o = defaults();
    struct zw_ledger ledger;
    zw_sender *sender;
    int longest, fd = dial(SOCK_DGRAM), stream = dial(SOCK_STREAM);

    longest = zw_longest_segment(fd);
    CHECK(longest >= 1400);
    CHECK(zw_longest_segment(stream) == -EINVAL);
    SAYS("no UDP socket with a peer");
    CHECK(zw_longest_segment(-1) == -EBADF);
    CHECK(zw_sender_new(stream, &o, &sender) == 0);
    CHECK(zw_sender_set_segment_bytes(sender, 100) == -EINVAL);
    SAYS("needs a UDP socket");
    zw_sender_close(sender, ZW_CLOSE_DRAIN, -1, NULL);

    o.mode = ZW_MODE_ZEROCOPY;
    o.segment_bytes = 100;
    CHECK(zw_sender_new(fd, &o, &sender) == 0 && zw_longest_segment(fd) == longest);
    CHECK(zw_sender_send(sender, bytes, sizeof bytes, NULL) == 0); /* three datagrams */
    CHECK(zw_sender_set_segment_bytes(sender, 200) == 0);
    CHECK(zw_sender_send(sender, bytes, sizeof bytes, NULL) == 0); /* two */
    CHECK(zw_sender_set_segment_bytes(sender, 65536) == -EINVAL);
    SAYS("segment_bytes 65536");
    CHECK(zw_sender_set_segment_bytes(sender, 0) == 0);
    CHECK(zw_sender_send(sender, bytes, sizeof bytes, NULL) == 0); /* one */
    CHECK(zw_sender_wait_all(sender, -1) == 0);
    ledger.size = sizeof ledger;
    CHECK(zw_sender_ledger(sender, &ledger) == 0 && ledger.payloads == 3 && ledger.bytes == 3 * sizeof bytes);
    zw_sender_close(sender, ZW_CLOSE_DRAIN, -1, NULL);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    stream_port = atoi(argv[1]);
    datagram_port = atoi(argv[2]);
    options_are_checked();
    null_is_refused();
    every_way_sends();
    wrong_memory_is_refused();
    datagrams();
    each_one();
    segments();
    CHECK(zw_orphans() == 0);
    return 0;
}
