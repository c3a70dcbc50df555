/* Lends memory to a connection whose peer does not read, so that it is lent for sure, and ends the
 * connection. First argument: the port on 127.0.0.1; second: "lent" or "lease"; third: "changed",
 * or "kept" for the counter-check; fourth: "checked" asks for the check, "default" doesn't. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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

/* More than both sockets' buffers ever hold together. */
enum { BYTES = 64 << 20 };

int main(int argc, char **argv)
{
    const struct rlimit none = { 0, 0 };
    struct zw_sender_options o;
    struct zw_closed closed;
    struct sockaddr_in to;
    zw_sender *sender;
    zw_area *area = NULL;
    zw_lease *lease = NULL;
    unsigned char *memory;
    uint32_t ticket;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    closed.size = sizeof closed;
    CHECK(argc == 5 && setrlimit(RLIMIT_CORE, &none) == 0);
    memset(&to, 0, sizeof to);
    to.sin_family = AF_INET;
    to.sin_port = htons((uint16_t)atoi(argv[1]));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);

    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.mode = ZW_MODE_ZEROCOPY;
    o.backend = ZW_BACKEND_SOCKET;
    o.flags = strcmp(argv[4], "checked") == 0 ? ZW_CHECKED : 0;
    CHECK(zw_sender_new(fd, &o, &sender) == 0);
    /* So that the ticket is not 0. */
    CHECK(zw_sender_send(sender, "first", 5, NULL) == 0);
    if (strcmp(argv[2], "lease") == 0) {
        CHECK(zw_area_new(BYTES, 1, 0, &area) == 0 && zw_area_lease(area, &lease) == 0);
        memory = (unsigned char *)zw_lease_data(lease);
        CHECK(zw_sender_send_lease(sender, lease, &ticket) == 0);
    } else {
        memory = (unsigned char *)calloc(1, BYTES);
        CHECK(memory != NULL && zw_sender_send(sender, memory, BYTES, &ticket) == 0);
    }
    CHECK(ticket == 1 && zw_sender_wait(sender, ticket, 0) < 0 && zw_sender_outstanding(sender) > 0);
    if (strcmp(argv[3], "changed") == 0)
        memory[1000] ^= 1;
    CHECK(zw_sender_close(sender, ZW_CLOSE_ABORT, 0, &closed) == 0);
    CHECK(closed.aborted > 0 && closed.aborted_bytes >= BYTES / 2);
    while (zw_orphans() > 0)
        usleep(1000);
    zw_area_close(area);
    puts("ended");
    return 0;
}
