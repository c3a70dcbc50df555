/* Calls each function of the interface of whole frames, well and badly. Arguments: a way ("ring",
 * "xdp") and the interface. The test program reads what comes, and knows what has to come. With the
 * interface's other end as well: what happens when the interface is slow, goes down, and away. Ends
 * with 0, or says which line is wrong. */
#include <errno.h>
#include <poll.h>
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

enum { WAIT_MS = 20000 };

static const char *interface;
static int xdp;
static uint32_t next;

static void run(const char *format, const char *argument)
{
    char command[200];

    snprintf(command, sizeof command, format, argument);
    CHECK(system(command) == 0);
}

static struct zw_frames_options defaults(void)
{
    struct zw_frames_options o;

    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.way = xdp ? ZW_FRAMES_XDP : ZW_FRAMES_RING;
    o.flags = ZW_CHECKED;
    return o;
}

static zw_frames *opened(const struct zw_frames_options *options)
{
    zw_frames *frames = NULL;

    CHECK(zw_frames_open(interface, options, &frames) == 0 && frames != NULL);
    return frames;
}

static void refused(struct zw_frames_options options, int error, const char *text)
{
    zw_frames *frames = NULL;

    CHECK(zw_frames_open(interface, &options, &frames) == -error && frames == NULL);
    SAYS(text);
}

static void options_are_checked(void)
{
    struct { struct zw_frames_options known; char later[8]; } longer;
    struct zw_frames_options o;
    zw_frames *frames = NULL;

    o = defaults(), o.size = 0, refused(o, EINVAL, "sizeof");
    o = defaults(), o.way = 2, refused(o, EINVAL, "way 2");
    o = defaults(), o.flags = 32, refused(o, EINVAL, "flags 0x20");
    o = defaults(), o.frame_bytes = 13, refused(o, EINVAL, "13");
    o = defaults(), o.frame_bytes = 1 << 20, refused(o, EINVAL, "1048576");
    if (xdp) {
        o = defaults(), o.mode = 3, refused(o, EINVAL, "mode 3");
        o = defaults(), o.queue = 7, refused(o, EINVAL, "no queue 7");
        o = defaults(), o.entries = 3, refused(o, EINVAL, "power of two");
        o = defaults(), o.copy_up_to = 9, refused(o, EINVAL, "copy_up_to 9");
        o = defaults(), o.flags = ZW_FRAMES_OFFLOAD, refused(o, EINVAL, "flags 0x2");
        o = defaults(), o.mode = ZW_XDP_ZEROCOPY, refused(o, EOPNOTSUPP, "no zero-copy mode");
    } else {
        o = defaults(), o.mode = 1, refused(o, EINVAL, "mode 1");
        o = defaults(), o.queue = 1, refused(o, EINVAL, "queue 1");
        o = defaults(), o.entries = 64, refused(o, EINVAL, "entries 64");
        o = defaults(), o.busy_ms = 1, refused(o, EINVAL, "busy_ms 1");
        o = defaults(), o.flags = ZW_FRAMES_HUGE_PAGES, refused(o, EINVAL, "flags 0x10");
        o = defaults(), o.places = 1 << 30, refused(o, EINVAL, "slots");
    }
    o = defaults();
    CHECK(zw_frames_open("nosuch0", &o, &frames) == -ENODEV);
    SAYS("nosuch0");
    CHECK(zw_frames_open("a name that is longer than any interface's", &o, &frames) == -ENODEV);
    CHECK(zw_frames_open("", &o, &frames) == -ENODEV && frames == NULL);

    memset(&longer, 0, sizeof longer);
    longer.known = defaults();
    longer.known.size = sizeof longer;
    CHECK(zw_frames_close(opened(&longer.known), 0) == 0);
    longer.later[7] = 1;
    CHECK(zw_frames_open(interface, &longer.known, &frames) == -E2BIG && frames == NULL);
}

static void null_is_refused(void)
{
    struct zw_frames_options o = defaults();
    struct zw_vnet_header header;
    unsigned char bytes[64];
    void *data;
    zw_frames *frames = NULL;

    memset(bytes, 0, sizeof bytes);
    CHECK(zw_frames_open(NULL, &o, &frames) == -EINVAL && zw_frames_open(interface, &o, NULL) == -EINVAL);
    CHECK(zw_frames_reserve(NULL, 60, &data) == -EINVAL && zw_frames_commit(NULL, 60, NULL) == -EINVAL);
    SAYS("frames is NULL");
    CHECK(zw_frames_flush(NULL) == -EINVAL && zw_frames_reap(NULL) == -EINVAL && zw_frames_wait(NULL, 0) == -EINVAL);
    CHECK(zw_frames_drain(NULL, 0) == -EINVAL && zw_frames_fd(NULL) == -EINVAL);
    CHECK(zw_frames_ledger(NULL, NULL, NULL) == -EINVAL && zw_frames_path(NULL, NULL, 0) == -EINVAL);
    CHECK(zw_frames_copied(NULL, 0, NULL, NULL) == -EINVAL);
    CHECK(zw_frames_max(NULL) == 0 && zw_frames_outstanding(NULL) == 0 && zw_frames_close(NULL, 0) == 0);
    CHECK(zw_vnet_prepare(NULL, 60, 0, &header) == -EINVAL && zw_vnet_prepare(bytes, 60, 0, NULL) == -EINVAL);
    CHECK(zw_vnet_prepare(bytes, 60, 65536, &header) == -EINVAL);
    SAYS("gso_size 65536");
    CHECK(zw_vnet_prepare(bytes, 60, 0, &header) == -EINVAL);
    SAYS("TCP or UDP");
    frames = opened(&o);
    CHECK(zw_frames_reserve(frames, 60, NULL) == -EINVAL);
    CHECK(zw_frames_close(frames, -1) == 0);
}

/* As the test program expects it: number and length say what is in it. */
static void build(unsigned char *frame, size_t length, uint32_t number)
{
    static const unsigned char head[14] = { 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5 };
    size_t i;

    memcpy(frame, head, sizeof head);
    for (i = sizeof head; i < length; i++)
        frame[i] = i < 18 ? (unsigned char)(number >> (8 * (17 - i))) : (unsigned char)(number * 7 + i);
}

static void put(zw_frames *frames, size_t reserve, size_t length)
{
    void *data;
    int result;

    while ((result = zw_frames_reserve(frames, reserve, &data)) == -EAGAIN)
        CHECK(zw_frames_wait(frames, WAIT_MS) == 0);
    CHECK(result == 0);
    build((unsigned char *)data, length, next++);
    CHECK(zw_frames_commit(frames, length, NULL) == 0);
}

/* Each length, in few places, so that all are used again and again. */
static void every_length_is_sent(void)
{
    struct zw_frames_options o = defaults();
    struct zw_ledger ledger;
    zw_frames *frames;
    uint64_t dropped, total = 0, copied = 0, bytes;
    uint32_t reason;
    const char *name;
    char path[300];
    struct pollfd poll_fd;
    size_t length;
    void *one, *other;
    int back = 0;

    o.places = 8;
    frames = opened(&o);
    CHECK(zw_frames_max(frames) == 1514);
    for (length = 60; length <= 1514; length++) {
        put(frames, 1514, length);
        total += length;
    }
    CHECK(zw_frames_drain(frames, WAIT_MS) == 0 && zw_frames_outstanding(frames) == 0);
    back = zw_frames_reap(frames);
    CHECK(back >= 8 && zw_frames_reap(frames) == 0);
    ledger.size = sizeof ledger;
    CHECK(zw_frames_ledger(frames, &ledger, &dropped) == 0 && dropped == 0);
    CHECK(ledger.payloads == 1455 && ledger.bytes == total && ledger.system_calls > 0);
    for (reason = 0; zw_frames_copied(frames, reason, &name, &bytes) == 1; reason++)
        copied += bytes;
    CHECK(reason > 10 && copied == ledger.copied_bytes && copied + ledger.zero_copied_bytes == total);
    CHECK((copied == 0) == !xdp);
    CHECK(zw_frames_path(frames, path, sizeof path) > 20 && strstr(path, interface) != NULL);
    poll_fd.fd = zw_frames_fd(frames), poll_fd.events = POLLOUT;
    CHECK(poll(&poll_fd, 1, WAIT_MS) == 1 && (poll_fd.revents & POLLOUT) != 0);

    /* A place stays the same one until it is committed; the others run out. */
    CHECK(zw_frames_reserve(frames, 100, &one) == 0);
    CHECK(zw_frames_reap(frames) == 0 && zw_frames_reserve(frames, 200, &other) == 0 && one == other);
    for (back = 0; back < 8; back++)
        put(frames, 100, 100);
    CHECK(zw_frames_outstanding(frames) == 8 && zw_frames_reserve(frames, 100, &one) == -EAGAIN);
    CHECK(zw_frames_flush(frames) == 0 && zw_frames_wait(frames, WAIT_MS) == 0);
    CHECK(zw_frames_reserve(frames, 100, &one) == 0);
    CHECK(zw_frames_close(frames, WAIT_MS) == 0);
    /* Close hands over what was committed; with 0 it does not. */
    frames = opened(NULL);
    put(frames, 60, 60);
    CHECK(zw_frames_close(frames, -1) == 0);
    frames = opened(&o);
    put(frames, 60, 60);
    next--;
    CHECK(zw_frames_close(frames, 0) == 0);
}

static void wrong_frames_are_refused(void)
{
    struct zw_frames_options o = defaults();
    struct zw_vnet_header header;
    zw_frames *frames = opened(&o);
    unsigned char *frame;
    void *data;

    CHECK(zw_frames_commit(frames, 60, NULL) == -EINVAL);
    SAYS("zw_frames_reserve first");
    CHECK(zw_frames_reserve(frames, 13, &data) == -EINVAL);
    SAYS("13 bytes");
    CHECK(zw_frames_reserve(frames, 1519, &data) == -EMSGSIZE && zw_frames_reserve(frames, (size_t)-1, &data) == -EMSGSIZE);
    CHECK(zw_frames_reserve(frames, 60, &data) == 0);
    CHECK(zw_frames_commit(frames, 61, NULL) == -EINVAL);
    SAYS("only 60 were reserved");
    CHECK(zw_frames_commit(frames, 10, NULL) == -EINVAL);
    memset(&header, 0, sizeof header);
    header.flags = ZW_VNET_NEEDS_CSUM, header.csum_start = 34, header.csum_offset = 6;
    CHECK(zw_frames_commit(frames, 60, &header) == -EINVAL);
    SAYS(xdp ? "AF_XDP has no" : "offload");
    header.flags = 0;
    CHECK(zw_frames_commit(frames, 60, &header) == -EINVAL);
    SAYS("flags 0");
    header.flags = 2;
    CHECK(zw_frames_commit(frames, 60, &header) == -EINVAL);
    SAYS("flags 0x2");
    header.flags = 1, header.gso_type = 3;
    CHECK(zw_frames_commit(frames, 60, &header) == -EINVAL);
    SAYS("gso_type 3");
    header.gso_type = ZW_VNET_GSO_UDP_L4, header.hdr_len = 42;
    CHECK(zw_frames_commit(frames, 60, &header) == -EINVAL);
    SAYS("gso_size is 0");
    header.gso_type = ZW_VNET_GSO_NONE;
    CHECK(zw_frames_commit(frames, 60, &header) == -EINVAL);
    SAYS("hdr_len 42");
    /* By a VLAN tag it may be longer; without one it is refused as a whole, and the place is still
     * there. */
    CHECK(zw_frames_reserve(frames, 1518, &data) == 0);
    frame = (unsigned char *)data;
    build(frame, 1518, next);
    CHECK(zw_frames_commit(frames, 1518, NULL) == -EMSGSIZE);
    SAYS("MTU 1500");
    CHECK(zw_frames_commit(frames, 1514, NULL) == 0);
    next++;
    CHECK(zw_frames_close(frames, WAIT_MS) == 0);
}

/* With offload the MTU counts for what a frame is cut into. */
static void what_is_cut_may_be_long(void)
{
    struct zw_frames_options o = defaults();
    struct zw_vnet_header header;
    zw_frames *frames;
    void *data;

    o.flags |= ZW_FRAMES_OFFLOAD;
    frames = opened(&o);
    CHECK(zw_frames_reserve(frames, 20000, &data) == 0 && zw_frames_reserve(frames, 1 << 20, &data) == -EMSGSIZE);
    SAYS("1048576 bytes doesn't fit");
    build((unsigned char *)data, 20000, next);
    CHECK(zw_frames_commit(frames, 20000, NULL) == -EMSGSIZE);
    SAYS("segmentation offload");
    memset(&header, 0, sizeof header);
    header.flags = ZW_VNET_NEEDS_CSUM, header.gso_type = ZW_VNET_GSO_UDP_L4, header.hdr_len = 42;
    header.gso_size = 1600, header.csum_start = 34, header.csum_offset = 6;
    CHECK(zw_frames_commit(frames, 20000, &header) == -EMSGSIZE);
    header.gso_size = 1400, header.csum_offset = 16;
    CHECK(zw_frames_commit(frames, 20000, &header) == -EINVAL);
    SAYS("checksum at 6");
    CHECK(zw_frames_close(frames, -1) == 0);
}

/* A queue that lets one frame through at once at most, and others after minutes. */
static void what_is_not_back_in_time_is_told(void)
{
    static const char slow[] = "tc qdisc add dev %s root tbf rate 100bit burst 1600 limit 100000";
    struct zw_frames_options o = defaults();
    zw_frames *frames;
    void *data;

    o.places = 2;
    frames = opened(&o);
    run(slow, interface);
    do
        put(frames, 1500, 1500);
    while (zw_frames_wait(frames, 2000) == 0);
    CHECK(zw_frames_wait(frames, 50) == -ETIMEDOUT);
    SAYS("none of 2 frames is back in 50 ms");
    CHECK(zw_frames_reserve(frames, 60, &data) == -EAGAIN && zw_frames_wait(frames, 0) == -ETIMEDOUT);
    CHECK(zw_frames_drain(frames, 50) == -ETIMEDOUT && zw_frames_outstanding(frames) == 2);
    SAYS("2 frames are not back");
    /* It goes on when they are. */
    run("tc qdisc del dev %s root", interface);
    CHECK(zw_frames_drain(frames, WAIT_MS) == 0 && zw_frames_reap(frames) >= 2);
    run(slow, interface);
    put(frames, 1500, 1500);
    put(frames, 1500, 1500);
    CHECK(zw_frames_close(frames, 50) == -ETIMEDOUT);
    run("tc qdisc del dev %s root", interface);
}

/* Down: the frames stay, and go when it is up again. Gone: said so. */
static void an_interface_goes(const char *peer)
{
    struct zw_frames_options o = defaults();
    zw_frames *frames = opened(&o);
    void *data;
    int result;

    run("ip link set %s down", interface);
    put(frames, 60, 60);
    CHECK(zw_frames_flush(frames) == -ENETDOWN);
    SAYS("is down (1 frames not sent)");
    CHECK(zw_frames_drain(frames, 50) == -ENETDOWN && zw_frames_outstanding(frames) == 1);
    run("ip link set %s up", interface);
    run("until ip link show %s | grep -q LOWER_UP; do sleep 0.01; done", interface);
    run("until ip link show %s | grep -q LOWER_UP; do sleep 0.01; done", peer);
    usleep(100000);
    CHECK(zw_frames_drain(frames, WAIT_MS) == 0 && zw_frames_outstanding(frames) == 0);
    CHECK(zw_frames_reserve(frames, 60, &data) == 0);
    build((unsigned char *)data, 60, next);
    CHECK(zw_frames_commit(frames, 60, NULL) == 0);
    run("ip link del %s", interface);
    result = zw_frames_flush(frames);
    CHECK(result == -ENODEV);
    SAYS("is gone (1 frames not sent)");
    zw_frames_close(frames, 0);
    CHECK(zw_frames_open(interface, &o, &frames) == -ENODEV);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3 || argc == 4);
    xdp = strcmp(argv[1], "xdp") == 0;
    interface = argv[2];
    if (argc == 4) {
        if (!xdp)
            what_is_not_back_in_time_is_told();
        an_interface_goes(argv[3]);
        return 0;
    }
    if (xdp) {
        /* NULL is a ring: the same calls, and it leaves the queue alone. */
        zw_frames *frames = opened(NULL);
        CHECK(zw_frames_close(frames, 0) == 0);
    }
    options_are_checked();
    null_is_refused();
    every_length_is_sent();
    wrong_frames_are_refused();
    if (!xdp)
        what_is_cut_may_be_long();
    printf("%u frames\n", next);
    return 0;
}
