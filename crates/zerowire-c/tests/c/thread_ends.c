/* What a thread still does when it ends: handles are closed by the destructor of a thread key, and
 * by an exit handler. Calls that fail there return their error, as everywhere.
 * Ends with 0, or says which line is wrong. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zerowire.h>

#define CHECK(what)                                                                                                            \
    do {                                                                                                                       \
        if (!(what)) {                                                                                                         \
            fprintf(stderr, "line %d: %s is not so\n", __LINE__, #what);                                                       \
            _exit(1);                                                                                                          \
        }                                                                                                                      \
    } while (0)

/* More than the sockets' buffers take, so that it is lent until the end. */
static char big[16 << 20];
static zw_sender *at_exit;
static pthread_key_t key;
static int destroyed;

/* A sender whose peer reads nothing. */
static zw_sender *lends(void)
{
    struct sockaddr_in at;
    struct zw_sender_options o;
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
    zw_sender *sender;

    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &length) == 0);
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0 && accept(listener, NULL, NULL) >= 0);
    close(listener);
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.mode = ZW_MODE_ZEROCOPY;
    o.backend = ZW_BACKEND_SOCKET;
    CHECK(zw_sender_new(fd, &o, &sender) == 0);
    CHECK(zw_sender_send(sender, big, sizeof big, NULL) == 0);
    /* The thread has words of an error that are dropped when it ends. */
    CHECK(zw_sender_wait_all(sender, 0) == -ETIMEDOUT && *zw_last_error() != 0);
    return sender;
}

static void close_it(void *sender)
{
    CHECK(zw_sender_close(sender, ZW_CLOSE_DRAIN, 0, NULL) == -ETIMEDOUT);
    CHECK(*zw_last_error() != 0);
    destroyed++;
}

static void *ends(void *unused)
{
    (void)unused;
    CHECK(pthread_setspecific(key, lends()) == 0);
    return NULL;
}

static void exits(void)
{
    close_it(at_exit);
}

int main(void)
{
    pthread_t thread;

    CHECK(pthread_key_create(&key, close_it) == 0 && pthread_create(&thread, NULL, ends, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0 && destroyed == 1);
    at_exit = lends();
    CHECK(atexit(exits) == 0);
    return 0;
}
