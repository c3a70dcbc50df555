/* Built with the frozen header of old/, run with the library of today. Ends with 0, or says which
 * line found something else. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static void sends(const struct zw_sender_options *options)
{
    zw_sender *sender;
    uint32_t ticket;
    int pair[2];
    char byte;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(zw_sender_new(pair[0], options, &sender) == 0);
    CHECK(zw_sender_send(sender, "x", 1, &ticket) == 0 && zw_sender_wait(sender, ticket, -1) == 0);
    CHECK(read(pair[1], &byte, 1) == 1 && byte == 'x');
    CHECK(zw_sender_close(sender, ZW_CLOSE_DRAIN, -1, NULL) == 0 && close(pair[1]) == 0);
}

int main(void)
{
    /* What lies behind a struct is anything. */
    struct { struct zw_sender_options known; char behind[64]; } s;
    struct { struct zw_frames_options known; char behind[64]; } f;
    struct { struct zw_receiver_options known; char behind[64]; } r;
    zw_receiver *receiver;
    zw_frames *frames;

    memset(&s, 0xff, sizeof s);
    memset(&s.known, 0, sizeof s.known);
    s.known.size = sizeof s.known;
    s.known.mode = ZW_MODE_COPY;
    s.known.backend = ZW_BACKEND_SOCKET;
    sends(&s.known);
    /* From before there were areas. */
    memset(&s.known.areas, 0xff, sizeof s - offsetof(struct zw_sender_options, areas));
    s.known.size = offsetof(struct zw_sender_options, areas);
    sends(&s.known);

    memset(&r, 0xff, sizeof r);
    memset(&r.known, 0, sizeof r.known);
    r.known.size = sizeof r.known;
    r.known.backend = ZW_RECV_PLAIN;
    CHECK(zw_receiver_new(&r.known, &receiver) == 0 && zw_receiver_close(receiver) == 0);
    /* From before gather_us. */
    memset(&r.known.gather_us, 0xff, sizeof r - offsetof(struct zw_receiver_options, gather_us));
    r.known.size = offsetof(struct zw_receiver_options, gather_us);
    CHECK(zw_receiver_new(&r.known, &receiver) == 0 && zw_receiver_close(receiver) == 0);

    /* It gets as far as the interface. */
    memset(&f, 0xff, sizeof f);
    memset(&f.known, 0, sizeof f.known);
    f.known.size = sizeof f.known;
    CHECK(zw_frames_open("nosuch0", &f.known, &frames) == -ENODEV || strstr(zw_last_error(), "CAP_NET_RAW") != NULL);
    memset(&f.known.busy_ms, 0xff, sizeof f - offsetof(struct zw_frames_options, busy_ms));
    f.known.size = offsetof(struct zw_frames_options, busy_ms);
    CHECK(zw_frames_open("nosuch0", &f.known, &frames) == -ENODEV || strstr(zw_last_error(), "CAP_NET_RAW") != NULL);
    return 0;
}
