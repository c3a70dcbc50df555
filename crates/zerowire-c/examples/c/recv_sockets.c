/*
 * Listens on a TCP port, receives what comes on any number of connections in place, and prints how
 * many bytes came, a sum over them, and how they were placed. Ends when CONNECTIONS have ended. -m
 * auto, multishot, plain or no-device: see docs/recv.md. -e: sends each connection the number of
 * its bytes when it ends.
 *
 *   cc recv_sockets.c -o recv_sockets $(pkg-config --cflags --libs zerowire)
 *   ./recv_sockets [-e] [-m MODE] 5001 1 &
 *   ncat --send-only 127.0.0.1 5001 < FILE
 */
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zerowire.h>

enum { BATCH = 64 };

struct peer {
    uint64_t connection, bytes;
    struct peer *next;
};

static int fail(const char *what, int error)
{
    fprintf(stderr, "recv_sockets: %s: %s (error %d)\n", what, zw_last_error(), -error);
    return 1;
}

/* A socket that listens; prints its port, which the system chooses for 0. */
static int listening(const char *port)
{
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_port = htons((uint16_t)strtoul(port, NULL, 0));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 128) < 0 ||
        getsockname(fd, (struct sockaddr *)&at, &length) < 0) {
        perror("recv_sockets: listen");
        exit(1);
    }
    printf("port %u\n", (unsigned)ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

static uint32_t way(const char *name)
{
    static const char *const names[] = {"auto", "multishot", "plain", "queue", "no-device"};

    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    fprintf(stderr, "recv_sockets: no way to receive is called %s\n", name);
    exit(2);
}

static struct peer *find(struct peer *peers, uint64_t connection)
{
    while (peers != NULL && peers->connection != connection)
        peers = peers->next;
    return peers;
}

int main(int argc, char **argv)
{
    struct zw_receiver_options options;
    struct zw_arrival arrivals[BATCH];
    struct zw_recv_events events;
    struct zw_ledger ledger;
    struct peer *peers = NULL, *peer;
    zw_receiver *receiver;
    uint64_t sum = 0;
    long left;
    int option, result, answer = 0;
    char path[256];

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    while ((option = getopt(argc, argv, "em:")) != -1) {
        switch (option) {
        case 'e': answer = 1; break;
        case 'm': options.backend = way(optarg); break;
        default: return 2;
        }
    }
    if (argc - optind != 2) {
        fprintf(stderr, "usage: %s [-e] [-m MODE] PORT CONNECTIONS\n", argv[0]);
        return 2;
    }
    /* A client that is gone when it is answered is an error, not the end of the program. */
    signal(SIGPIPE, SIG_IGN);
    left = strtol(argv[optind + 1], NULL, 0);
    result = zw_receiver_new(&options, &receiver);
    if (result < 0)
        return fail("the receiver", result);
    result = zw_receiver_listen(receiver, listening(argv[optind]), NULL);
    if (result < 0)
        return fail("listen", result);

    while (left > 0) {
        ssize_t count = zw_receiver_recv(receiver, arrivals, sizeof arrivals[0], BATCH, -1);

        if (count < 0)
            return fail("recv", (int)count);
        for (ssize_t i = 0; i < count; i++) {
            const struct zw_arrival *arrival = &arrivals[i];
            const unsigned char *bytes = (const unsigned char *)arrival->data;

            peer = find(peers, arrival->connection);
            switch (arrival->kind) {
            case ZW_ARRIVAL_ACCEPTED:
                peer = (struct peer *)calloc(1, sizeof *peer);
                if (peer == NULL)
                    return 1;
                peer->connection = arrival->connection;
                peer->next = peers;
                peers = peer;
                break;
            case ZW_ARRIVAL_DATA:
                for (size_t k = 0; k < arrival->length; k++)
                    sum += bytes[k];
                if (peer != NULL)
                    peer->bytes += arrival->length;
                break;
            case ZW_ARRIVAL_FAILED:
                fprintf(stderr, "recv_sockets: a connection: %s\n", strerror(arrival->error));
                /* fall through */
            case ZW_ARRIVAL_END:
                result = zw_receiver_remove(receiver, arrival->connection);
                if (result < 0)
                    return fail("remove", result);
                if (answer && peer != NULL && dprintf(result, "%" PRIu64 "\n", peer->bytes) < 0)
                    perror("recv_sockets: answer");
                close(result);
                left--;
                break;
            }
        }
        result = zw_arrival_release(arrivals, sizeof arrivals[0], (size_t)count);
        if (result < 0)
            return fail("release", result);
    }
    ledger.size = sizeof ledger;
    events.size = sizeof events;
    if ((result = zw_receiver_ledger(receiver, &ledger)) < 0 || (result = zw_receiver_events(receiver, &events)) < 0 ||
        (result = zw_receiver_path(receiver, path, sizeof path)) < 0)
        return fail("the totals", result);
    printf("%" PRIu64 " bytes, sum %" PRIu64 "\n", ledger.bytes, sum);
    printf("zero-copied: %" PRIu64 ", copied: %" PRIu64 "\n", ledger.zero_copied_bytes, ledger.copied_bytes);
    printf("accepted: %" PRIu64 ", system calls: %" PRIu64 "\n", events.accepted, events.system_calls);
    printf("path: %s\n", path);
    if ((result = zw_receiver_close(receiver)) < 0)
        return fail("close", result);
    while ((peer = peers) != NULL) {
        peers = peer->next;
        free(peer);
    }
    return 0;
}
