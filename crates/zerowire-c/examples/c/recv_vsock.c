/*
 * Receives a guest's stream or messages in mapped memory and prints how many bytes, packets and
 * messages came, and a sum over the bytes. -q: messages. -z: spins in place of sleeping. -l:
 * listens for one connection of the guest. -d: payload stays in the guest's memory, which needs
 * zerowire vsock --share-guest-memory; prints how much did. -o FILE: writes the payload to a file.
 *
 *   cc recv_vsock.c -o recv_vsock $(pkg-config --cflags --libs zerowire)
 *   ./recv_vsock [-l] [-z] [-q] [-d] [-o FILE] /run/vm.vsock.map 5000
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zerowire.h>

static int fail(const char *what, int error)
{
    fprintf(stderr, "recv_vsock: %s: %s (error %d)\n", what, zw_last_error(), -error);
    return 1;
}

int main(int argc, char **argv)
{
    struct zw_vsock_options options;
    int listening = 0, spinning = 0, option, result;
    uint64_t bytes = 0, packets = 0, messages = 0, sum = 0, direct = 0;
    zw_vsock *connection = NULL;
    FILE *copy = NULL;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    while ((option = getopt(argc, argv, "lzqdo:")) != -1) {
        switch (option) {
        case 'l': listening = 1; break;
        case 'z': spinning = 1; break;
        case 'q': options.kind = ZW_SEQPACKET; break;
        case 'd': options.flags |= ZW_DIRECT; break;
        case 'o':
            copy = fopen(optarg, "wb");
            if (copy == NULL) {
                perror(optarg);
                return 1;
            }
            break;
        default: return 2;
        }
    }
    if (argc - optind != 2) {
        fprintf(stderr, "usage: %s [-l] [-z] [-q] [-d] [-o FILE] UDS.map PORT\n", argv[0]);
        return 2;
    }
    const char *path = argv[optind];
    uint32_t port = (uint32_t)strtoul(argv[optind + 1], NULL, 0);

    if (listening) {
        zw_vsock_listener *listener;
        result = zw_vsock_listen(path, port, &options, &listener);
        if (result < 0)
            return fail("listen", result);
        result = zw_vsock_accept(listener, -1, &connection);
        zw_vsock_listener_close(listener);
    } else {
        result = zw_vsock_connect(path, port, &options, &connection);
    }
    if (result < 0)
        return fail("connect", result);

    for (;;) {
        zw_window *window;
        struct zw_packet packet;

        packet.size = sizeof packet;
        result = zw_vsock_dequeue(connection, &window);
        if (result == 0)
            break; /* no more data will come */
        if (result == -EAGAIN) {
            if (spinning) {
                /* A daemon that was killed stores nothing more: look after it now and then. */
                for (unsigned looks = 1; zw_vsock_poll_value(connection) == ZW_POLL_NOTHING; looks++) {
                    if (looks % (1u << 20) == 0 && zw_vsock_is_hung_up(connection) == 1 &&
                        zw_vsock_poll_value(connection) == ZW_POLL_NOTHING) {
                        fprintf(stderr, "recv_vsock: zerowire vsock has ended, or the guest is gone\n");
                        return 1;
                    }
                }
            } else if ((result = zw_vsock_wait(connection, -1)) < 0) {
                return fail("wait", result);
            }
            continue;
        }
        if (result < 0)
            return fail("dequeue", result);
        while (zw_window_next(window, &packet) > 0) {
            const volatile unsigned char *data = (const volatile unsigned char *)packet.data;
            for (size_t i = 0; i < packet.length; i++)
                sum += data[i];
            bytes += packet.length;
            packets++;
            if (packet.flags & ZW_ENTRY_EOM)
                messages++;
            if (packet.flags & ZW_ENTRY_DIRECT)
                direct += packet.length;
            if (copy != NULL && fwrite(packet.data, 1, packet.length, copy) != packet.length) {
                perror("recv_vsock: the copy");
                return 1;
            }
        }
        zw_window_release(window);
    }
    if (copy != NULL && fclose(copy) != 0) {
        perror("recv_vsock: the copy");
        return 1;
    }
    if (zw_vsock_write(connection, "done\n", 5) != 5)
        fprintf(stderr, "recv_vsock: the guest does not listen any more: %s\n", zw_last_error());
    zw_vsock_close(connection);
    printf("%" PRIu64 " bytes, %" PRIu64 " packets, %" PRIu64 " messages, sum %" PRIu64 "\n", bytes, packets,
           messages, sum);
    if (options.flags & ZW_DIRECT)
        printf("%" PRIu64 " bytes in the guest's memory\n", direct);
    return 0;
}
