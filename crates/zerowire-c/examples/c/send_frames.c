/*
 * Sends numbered frames on an interface, built in the memory that the kernel sends from, and prints
 * how the bytes went. A ring of a packet socket by default, on any interface; -x: an AF_XDP socket,
 * on queue -q. -n COUNT frames of -l LENGTH bytes, Ethernet header included. -u: UDP datagrams of
 * that many bytes of payload, many in one frame that is cut by the kernel or the interface (ring
 * only). -c: checks that frames are left alone once they are committed. Needs CAP_NET_RAW.
 *
 *   cc send_frames.c -o send_frames $(pkg-config --cflags --libs zerowire)
 *   ./send_frames [-x] [-q QUEUE] [-n COUNT] [-l LENGTH] [-u] [-c] INTERFACE
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zerowire.h>

/* Ethernet, IPv4 and UDP headers; the most bytes of datagrams in one frame. */
enum { HEADERS = 42, CUT_BYTES = 60000, SECONDS_MS = 10000 };

static int fail(const char *what, int error)
{
    fprintf(stderr, "send_frames: %s: %s (error %d)\n", what, zw_last_error(), -error);
    return 1;
}

/* A frame to nobody (a locally administered address), of the EtherType for experiments, with its
 * number in it. */
static void build(unsigned char *frame, size_t length, uint32_t number)
{
    static const unsigned char head[14] = { 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5 };
    size_t i;

    memcpy(frame, head, sizeof head);
    for (i = sizeof head; i < length; i++)
        frame[i] = i < 18 ? (unsigned char)(number >> (8 * (17 - i))) : (unsigned char)(number * 7 + i);
}

/* The same as UDP from 10.0.0.1 to 10.0.0.2, whose checksums the kernel or the interface puts
 * in. */
static void build_udp(unsigned char *frame, size_t length, uint32_t number)
{
    uint32_t sum = 0;
    size_t i;

    build(frame, length, number);
    memset(frame + 12, 0, HEADERS - 12);
    frame[12] = 8;
    frame[14] = 0x45;
    frame[16] = (unsigned char)((length - 14) >> 8);
    frame[17] = (unsigned char)(length - 14);
    frame[20] = 0x40;
    frame[22] = 64;
    frame[23] = 17;
    frame[26] = frame[30] = 10;
    frame[29] = 1;
    frame[33] = 2;
    for (i = 14; i < 34; i += 2)
        sum += (uint32_t)(frame[i] << 8 | frame[i + 1]);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = ~((sum & 0xffff) + (sum >> 16));
    frame[24] = (unsigned char)(sum >> 8);
    frame[25] = (unsigned char)sum;
    frame[34] = frame[36] = 0x30;
    frame[38] = (unsigned char)((length - 34) >> 8);
    frame[39] = (unsigned char)(length - 34);
}

static int send_all(zw_frames *frames, uint32_t count, size_t length, uint32_t segment)
{
    uint32_t n;
    int result;

    for (n = 0; n < count; n++) {
        struct zw_vnet_header header;
        void *frame;

        /* No place: hand over what is built, and wait for one. */
        while ((result = zw_frames_reserve(frames, length, &frame)) == -EAGAIN)
            if ((result = zw_frames_wait(frames, SECONDS_MS)) < 0)
                return fail("wait", result);
        if (result < 0)
            return fail("reserve", result);
        if (segment == 0) {
            build((unsigned char *)frame, length, n);
        } else {
            build_udp((unsigned char *)frame, length, n);
            if ((result = zw_vnet_prepare(frame, length, segment, &header)) < 0)
                return fail("prepare", result);
        }
        if ((result = zw_frames_commit(frames, length, segment == 0 ? NULL : &header)) < 0)
            return fail("commit", result);
        /* Many frames go with one system call; their places come back without one. */
        if (n % 64 == 63 && (result = zw_frames_flush(frames)) < 0)
            return fail("flush", result);
    }
    result = zw_frames_drain(frames, SECONDS_MS);
    return result < 0 ? fail("drain", result) : 0;
}

static void print_ledger(const zw_frames *frames)
{
    struct zw_ledger ledger;
    const char *name;
    uint64_t bytes, dropped;
    uint32_t reason;
    char path[300];

    ledger.size = sizeof ledger;
    if (zw_frames_ledger(frames, &ledger, &dropped) < 0 || zw_frames_path(frames, path, sizeof path) < 0)
        return;
    printf("%" PRIu64 " bytes in %" PRIu64 " frames, %" PRIu64 " system calls, %" PRIu64 " dropped\n", ledger.bytes,
           ledger.payloads, ledger.system_calls, dropped);
    printf("path: %s\nzero-copied: %" PRIu64 "\n", path, ledger.zero_copied_bytes);
    for (reason = 0; zw_frames_copied(frames, reason, &name, &bytes) > 0; reason++)
        if (bytes > 0)
            printf("copied, %s: %" PRIu64 "\n", name, bytes);
}

int main(int argc, char **argv)
{
    struct zw_frames_options options;
    size_t length = 1000;
    uint32_t count = 1000, segment = 0;
    zw_frames *frames;
    int option, result;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    while ((option = getopt(argc, argv, "xq:n:l:uc")) != -1) {
        switch (option) {
        case 'x': options.way = ZW_FRAMES_XDP; break;
        case 'q': options.queue = (uint32_t)strtoul(optarg, NULL, 0); break;
        case 'n': count = (uint32_t)strtoul(optarg, NULL, 0); break;
        case 'l': length = strtoul(optarg, NULL, 0); break;
        case 'u': segment = 1; break;
        case 'c': options.flags |= ZW_CHECKED; break;
        default: return 2;
        }
    }
    if (optind + 1 != argc) {
        fprintf(stderr, "send_frames: give an interface\n");
        return 2;
    }
    if (segment != 0) {
        if (length == 0 || length > CUT_BYTES) {
            fprintf(stderr, "send_frames: -u takes 1 to %d bytes of payload: give them with -l\n", CUT_BYTES);
            return 2;
        }
        options.flags |= ZW_FRAMES_OFFLOAD;
        segment = (uint32_t)length;
        length = HEADERS + length * (CUT_BYTES / length);
    }
    if ((result = zw_frames_open(argv[optind], &options, &frames)) < 0)
        return fail(argv[optind], result);
    result = send_all(frames, count, length, segment);
    if (result == 0)
        print_ledger(frames);
    /* All are back already, or not worth waiting for. */
    zw_frames_close(frames, 0);
    return result;
}
