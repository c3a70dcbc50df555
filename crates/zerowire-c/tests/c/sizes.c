/*
 * Structs of another length than the library's: of an earlier header, of a later one, and wrong
 * ones. Ends with 0, or says which line found something else.
 */
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
#define FAILS(call, error, part) CHECK((call) == -(error) && strstr(zw_last_error(), part) != NULL)

static int all(const void *from, unsigned char byte, size_t length)
{
    const unsigned char *bytes = (const unsigned char *)from;

    while (length > 0 && bytes[length - 1] == byte)
        length--;
    return length == 0;
}

static void options(void)
{
    struct { struct zw_receiver_options known; unsigned char later[16]; } longer;
    struct { struct zw_vsock_options known; unsigned char later[16]; } vsock;
    zw_receiver *receiver;
    zw_vsock *connection;
    char both[100];

    memset(&longer, 0, sizeof longer);
    longer.known.size = sizeof longer;
    longer.known.backend = ZW_RECV_PLAIN;
    CHECK(zw_receiver_new(&longer.known, &receiver) == 0 && zw_receiver_close(receiver) == 0);
    longer.later[15] = 1;
    snprintf(both, sizeof both, "%zu bytes sets byte %zu", sizeof longer, sizeof longer - 1);
    FAILS(zw_receiver_new(&longer.known, &receiver), E2BIG, both);
    snprintf(both, sizeof both, "has %zu bytes", sizeof longer.known);
    FAILS(zw_receiver_new(&longer.known, &receiver), E2BIG, both);
    longer.known.size = sizeof(size_t) - 1;
    FAILS(zw_receiver_new(&longer.known, &receiver), EINVAL, "sizeof(struct zw_receiver_options)");
    longer.known.size = 4097;
    FAILS(zw_receiver_new(&longer.known, &receiver), EINVAL, "size 4097");

    memset(&vsock, 0, sizeof vsock);
    vsock.known.size = sizeof vsock;
    FAILS(zw_vsock_connect("/nonexistent.map", 1, &vsock.known, &connection), ENOENT, "--uds");
    vsock.later[0] = 1;
    FAILS(zw_vsock_connect("/nonexistent.map", 1, &vsock.known, &connection), E2BIG, "zw_vsock_options");
    memset(&vsock, 0xff, sizeof vsock);
    vsock.known.size = sizeof(size_t);
    FAILS(zw_vsock_connect("/nonexistent.map", 1, &vsock.known, &connection), ENOENT, "--uds");
}

/* Of a later program: known fields are written, the others become 0, and nothing behind them is
 * touched. Of an earlier one: nothing behind its own is touched. */
static void results(zw_receiver *receiver)
{
    struct { struct zw_ledger known; unsigned char later[16], behind[16]; } ledger;
    struct { struct zw_recv_events known; unsigned char later[16], behind[16]; } events;
    size_t later = sizeof ledger.known + 16, earlier = offsetof(struct zw_ledger, zero_copied_payloads);

    memset(&ledger, 0xff, sizeof ledger);
    ledger.known.size = later;
    CHECK(zw_receiver_ledger(receiver, &ledger.known) == 0 && ledger.known.bytes == 5 && ledger.known.size == later);
    CHECK(all(ledger.later, 0, 16) && all(ledger.behind, 0xff, 16));
    memset(&ledger, 0xff, sizeof ledger);
    ledger.known.size = earlier;
    CHECK(zw_receiver_ledger(receiver, &ledger.known) == 0 && ledger.known.bytes == 5 && ledger.known.size == earlier);
    CHECK(all(&ledger.known.zero_copied_payloads, 0xff, sizeof ledger - earlier));
    ledger.known.size = 0;
    FAILS(zw_receiver_ledger(receiver, &ledger.known), EINVAL, "sizeof(struct zw_ledger)");
    ledger.known.size = 1 << 20;
    FAILS(zw_receiver_ledger(receiver, &ledger.known), EINVAL, "size 1048576");
    CHECK(all(&ledger.known.zero_copied_payloads, 0xff, sizeof ledger - earlier));

    memset(&events, 0xff, sizeof events);
    events.known.size = sizeof events.known + 16;
    CHECK(zw_receiver_events(receiver, &events.known) == 0 && events.known.system_calls > 0);
    CHECK(all(events.later, 0, 16) && all(events.behind, 0xff, 16));
    events.known.size = 1;
    FAILS(zw_receiver_events(receiver, &events.known), EINVAL, "sizeof(struct zw_recv_events)");
}

/* Elements of a later header lie further apart. */
static void arrivals(void)
{
    struct { struct zw_arrival known; unsigned char later[8]; } some[3], copy;
    struct zw_receiver_options o;
    zw_receiver *receiver;
    uint64_t connection;
    int pair[2];

    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.backend = ZW_RECV_PLAIN;
    CHECK(zw_receiver_new(&o, &receiver) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(zw_receiver_add(receiver, pair[1], &connection) == 0 && write(pair[0], "hello", 5) == 5);
    memset(some, 0xff, sizeof some);
    FAILS(zw_receiver_recv(receiver, &some[0].known, 40, 3, 0), EINVAL, "sizeof(struct zw_arrival)");
    FAILS(zw_receiver_recv(receiver, &some[0].known, sizeof some[0] + 1, 3, 0), EINVAL, "multiple of 8");
    CHECK(all(some, 0xff, sizeof some));
    CHECK(zw_receiver_recv(receiver, &some[0].known, sizeof some[0], 2, 10000) == 1);
    CHECK(some[0].known.length == 5 && memcmp(some[0].known.data, "hello", 5) == 0);
    CHECK(all(some[0].later, 0, 8) && all(&some[1], 0xff, 2 * sizeof some[1]));
    memset(&some[1], 0, sizeof some[1]);
    copy = some[1] = some[0];
    FAILS(zw_arrival_release(&some[0].known, 40, 2), EINVAL, "zw_arrival");
    FAILS(zw_arrival_release(&some[0].known, sizeof some[0], 2), ESTALE, "element 1");
    CHECK(all(some[0].later, 0, 8) && some[1].known.data == NULL);
    /* A number that never was a token. */
    copy.known.token = UINT64_MAX;
    FAILS(zw_arrival_release(&copy.known, sizeof copy, 1), ESTALE, "0xffffffffffffffff");
    results(receiver);
    CHECK(zw_receiver_close(receiver) == 0 && close(pair[0]) == 0);
}

static void senders(void)
{
    struct { struct zw_completion known; unsigned char later[16]; } c;
    struct { struct zw_closed known; unsigned char later[16]; } closed;
    struct zw_sender_options o;
    zw_sender *sender;
    int i, pair[2];

    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.mode = ZW_MODE_COPY;
    for (i = 0; i < 2; i++) {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && zw_sender_new(pair[0], &o, &sender) == 0);
        CHECK(zw_sender_send(sender, "x", 1, NULL) == 0 && zw_sender_poll(sender) >= 0);
        memset(&c, 0xff, sizeof c);
        c.known.size = 0;
        FAILS(zw_sender_next_completion(sender, &c.known), EINVAL, "sizeof(struct zw_completion)");
        c.known.size = sizeof c; /* it is still there */
        CHECK(zw_sender_next_completion(sender, &c.known) == 1 && c.known.copied == 1 && all(c.later, 0, 16));
        memset(&closed, 0xff, sizeof closed);
        closed.known.size = i == 0 ? sizeof closed : 3;
        if (i == 0) {
            CHECK(zw_sender_close(sender, ZW_CLOSE_DRAIN, -1, &closed.known) == 0);
            CHECK(closed.known.kept == 0 && all(closed.later, 0, 16));
        } else {
            FAILS(zw_sender_close(sender, ZW_CLOSE_DRAIN, -1, &closed.known), EINVAL, "sizeof(struct zw_closed)");
            CHECK(all(closed.later, 0xff, 16) && zw_orphans() == 0);
        }
        close(pair[1]);
    }
}

int main(void)
{
    CHECK(zw_version() == ZW_LIBRARY_VERSION);
    options();
    arrivals();
    senders();
    return 0;
}
