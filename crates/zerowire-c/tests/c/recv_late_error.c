/*
 * What arrived is given before the error behind it. Two connections come at once, and the kernel
 * refuses to watch the second one (a filter, as the profiles of containers are). Ends with 0, or
 * says which line found something else.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zerowire.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: not so: %s (last error: %s)\n", __LINE__, #what, zw_last_error());               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define LONG 60000

/* From now on epoll_ctl fails with EPERM for this descriptor. */
static void refuse_to_watch(int fd)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)fd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};

    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void wait_for_backlog(int listening, unsigned connections)
{
    struct tcp_info info;
    socklen_t length;
    int i;

    /* Of a listening socket tcpi_unacked is the length of its backlog. */
    for (i = 0; i < LONG; i++) {
        length = sizeof info;
        CHECK(getsockopt(listening, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
        if (info.tcpi_unacked == connections)
            return;
        usleep(1000);
    }
    CHECK(!"the connections come");
}

int main(void)
{
    struct sockaddr_in address;
    struct zw_receiver_options options;
    struct zw_arrival arrivals[8];
    zw_receiver *receiver;
    uint64_t listener, connection;
    socklen_t length = sizeof address;
    int listening, watched, far[2], next[2], i;
    char byte;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.backend = ZW_RECV_PLAIN;
    CHECK(zw_receiver_new(&options, &receiver) == 0);
    listening = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(listening >= 0 && listen(listening, 8) == 0);
    CHECK(getsockname(listening, (struct sockaddr *)&address, &length) == 0);
    watched = dup(listening);
    CHECK(watched >= 0 && zw_receiver_listen(receiver, watched, &listener) == 0);
    for (i = 0; i < 2; i++) {
        far[i] = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(far[i] >= 0 && connect(far[i], (struct sockaddr *)&address, sizeof address) == 0);
    }
    wait_for_backlog(listening, 2);
    /* The numbers that the two connections get. */
    for (i = 0; i < 2; i++)
        CHECK((next[i] = open("/dev/null", O_RDONLY)) >= 0);
    CHECK(close(next[0]) == 0 && close(next[1]) == 0);
    refuse_to_watch(next[1]);

    CHECK(zw_receiver_recv(receiver, arrivals, sizeof arrivals[0], 8, LONG) == 1);
    CHECK(arrivals[0].kind == ZW_ARRIVAL_ACCEPTED && arrivals[0].listener == listener);
    connection = arrivals[0].connection;
    CHECK(zw_receiver_recv(receiver, arrivals, sizeof arrivals[0], 8, LONG) == -EPERM);
    CHECK(strstr(zw_last_error(), "epoll_ctl") != NULL && zw_receiver_connections(receiver) == 1);
    /* The first one works, the second one was closed. */
    CHECK(write(far[0], "hello", 5) == 5);
    CHECK(zw_receiver_recv(receiver, arrivals, sizeof arrivals[0], 8, LONG) == 1);
    CHECK(arrivals[0].connection == connection && arrivals[0].length == 5);
    CHECK(zw_arrival_release(arrivals, sizeof arrivals[0], 1) == 0);
    CHECK(read(far[1], &byte, 1) <= 0);

    /* A socket that the system refuses stays the caller's. */
    CHECK(zw_receiver_recv(receiver, arrivals, sizeof arrivals[0], 8, 0) == 0);
    CHECK(dup2(far[0], next[1]) == next[1]);
    CHECK(zw_receiver_add(receiver, next[1], &connection) == -EPERM && fcntl(next[1], F_GETFD) >= 0);
    CHECK(zw_receiver_close(receiver) == 0);
    return 0;
}
