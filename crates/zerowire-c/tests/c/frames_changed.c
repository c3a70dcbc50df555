/* Commits two frames, hands them over, and waits until they are back. Arguments: "ring" or "xdp";
 * the interface; "changed" to write to the second one when it is committed, "kept" for the
 * counter-check; "checked" asks for the check, "default" doesn't. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <zerowire.h>

#define CHECK(what)                                                                                                            \
    do {                                                                                                                       \
        if (!(what)) {                                                                                                         \
            fprintf(stderr, "line %d: %s is not so; the last error: %s\n", __LINE__, #what, zw_last_error());                  \
            exit(1);                                                                                                           \
        }                                                                                                                      \
    } while (0)

int main(int argc, char **argv)
{
    const struct rlimit none = { 0, 0 };
    struct zw_frames_options o;
    zw_frames *frames;
    void *data;
    int i;

    CHECK(argc == 5 && setrlimit(RLIMIT_CORE, &none) == 0);
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.way = strcmp(argv[1], "xdp") == 0 ? ZW_FRAMES_XDP : ZW_FRAMES_RING;
    o.flags = strcmp(argv[4], "checked") == 0 ? ZW_CHECKED : 0;
    CHECK(zw_frames_open(argv[2], &o, &frames) == 0);
    for (i = 0; i < 2; i++) {
        CHECK(zw_frames_reserve(frames, 1500, &data) == 0);
        memset(data, 2, 1500);
        CHECK(zw_frames_commit(frames, 1500, NULL) == 0);
    }
    if (strcmp(argv[3], "changed") == 0)
        ((unsigned char *)data)[1030] ^= 1;
    CHECK(zw_frames_drain(frames, 20000) == 0 && zw_frames_reap(frames) == 2);
    CHECK(zw_frames_close(frames, 0) == 0);
    puts("ended");
    return 0;
}
