/* Senders that follow each other on one connection: on duplicates of its descriptor, and on the
 * descriptor that the one before gave back. The peer, in this program too, reads nothing for a
 * while, so that the kernel keeps what is lent. A plain loan of the program's own comes before.
 * Ends with 0, or says which line is wrong. */
#include <arpa/inet.h>
#include <errno.h>
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

#define HEAD 4096
#define BODY (1 << 20)
/* Long enough on a busy machine; nothing takes so long. */
#define LONG 20000

static char head[HEAD], body[BODY], got[BODY];
static int peer;

static int dial(void)
{
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0), small = 128 << 10;

    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &length) == 0);
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    peer = accept(listener, NULL, NULL);
    CHECK(peer >= 0);
    close(listener);
    return fd;
}

static void arrives(size_t length, char byte)
{
    size_t i;

    CHECK(recv(peer, got, length, MSG_WAITALL) == (ssize_t)length);
    for (i = 0; i < length; i++)
        CHECK(got[i] == byte);
}

static zw_sender *lends(int fd)
{
    struct zw_sender_options o;
    zw_sender *sender;

    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.mode = ZW_MODE_ZEROCOPY;
    o.backend = ZW_BACKEND_SOCKET;
    o.flags = ZW_CHECKED;
    CHECK(zw_sender_new(fd, &o, &sender) == 0);
    return sender;
}

/* A head, and a body that nobody reads: its ticket must not be done before somebody has. */
static void responds(zw_sender *sender)
{
    uint32_t ticket;
    size_t left;

    memset(head, 'h', HEAD);
    memset(body, 'b', BODY);
    CHECK(zw_sender_send(sender, head, HEAD, NULL) == 0);
    arrives(HEAD, 'h');
    CHECK(zw_sender_wait_all(sender, LONG) == 0);
    CHECK(zw_sender_send(sender, head, HEAD, NULL) == 0);
    CHECK(zw_sender_send(sender, body, BODY, &ticket) == 0);
    CHECK(zw_sender_wait(sender, ticket, 300) == -ETIMEDOUT);
    arrives(HEAD, 'h');
    for (left = BODY; left > 0; left -= 4096) {
        arrives(4096, 'b');
        /* A stream may have taken a part of it. */
        CHECK(zw_sender_poll(sender) >= 0);
    }
    CHECK(zw_sender_wait(sender, ticket, LONG) == 0);
}

/* A loan of the program's own, whose notification it reads. */
static void own_loan(int fd)
{
    char control[256];
    struct msghdr m;
    int on = 1, tries;

    CHECK(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0);
    CHECK(send(fd, "x", 1, MSG_ZEROCOPY) == 1);
    arrives(1, 'x');
    for (tries = 0;; tries++) {
        memset(&m, 0, sizeof m);
        m.msg_control = control, m.msg_controllen = sizeof control;
        if (recvmsg(fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0)
            return;
        CHECK(tries < LONG);
        usleep(1000);
    }
}

int main(void)
{
    zw_sender *sender, *second;
    struct zw_sender_options o;
    zw_area *area;
    zw_lease *lease;
    int fd = dial(), number, other, i;

    for (i = 0; i < 2; i++) {
        sender = lends(dup(fd));
        responds(sender);
        CHECK(zw_sender_close(sender, ZW_CLOSE_DRAIN, LONG, NULL) == 0);
    }
    own_loan(fd);
    sender = lends(number = dup(fd));
    responds(sender);

    /* Another one beside it: refused, or it copies. */
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.mode = ZW_MODE_ZEROCOPY;
    o.backend = ZW_BACKEND_SOCKET;
    other = dup(fd);
    CHECK(zw_sender_new(other, &o, &second) == -EBUSY);
    CHECK(strstr(zw_last_error(), "another sender") != NULL);
    o.mode = ZW_MODE_AUTO;
    CHECK(zw_sender_new(other, &o, &second) == 0); /* it was left open */
    CHECK(zw_sender_send(second, head, HEAD, NULL) == 0);
    arrives(HEAD, 'h');
    CHECK(zw_sender_outstanding(second) == 0);
    CHECK(zw_sender_close(second, ZW_CLOSE_DRAIN, LONG, NULL) == 0);

    /* Given back once it is done, and not before. */
    CHECK(zw_sender_send(sender, body, BODY, NULL) == 0);
    CHECK(zw_sender_into_socket(sender, 300) == -ETIMEDOUT);
    for (i = 0; i < BODY; i += 4096) {
        arrives(4096, 'b');
        CHECK(zw_sender_poll(sender) >= 0);
    }
    CHECK(zw_sender_into_socket(sender, LONG) == number);
    sender = lends(number);

    /* Buffers of an area that the sender waits for: each is used more than once, and none is
     * lost. */
    CHECK(zw_area_new(4096, 2, 0, &area) == 0);
    for (i = 0; i < 20; i++) {
        CHECK(zw_sender_lease(sender, area, LONG, &lease) == 0);
        memset(zw_lease_data(lease), 'a' + i, 4096);
        CHECK(zw_sender_send_lease(sender, lease, NULL) == 0);
        arrives(4096, (char)('a' + i));
    }
    CHECK(zw_sender_close(sender, ZW_CLOSE_DRAIN, LONG, NULL) == 0);
    CHECK(zw_area_free(area) == 2 && zw_orphans() == 0);
    zw_area_close(area);
    return 0;
}
