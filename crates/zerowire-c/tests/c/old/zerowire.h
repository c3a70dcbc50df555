/*
 * The header of an early 0.1.0, cut to what tests/c/old_program.c uses and frozen: programs that
 * were built with it run with each later library of the same soname. Don't change it.
 */
#ifndef ZEROWIRE_H
#define ZEROWIRE_H

#include <stddef.h>
#include <stdint.h>

#define ZW_MODE_COPY 1u
#define ZW_BACKEND_SOCKET 1u
#define ZW_CLOSE_DRAIN 0u
#define ZW_RECV_PLAIN 2u

typedef struct zw_area zw_area;
typedef struct zw_dmabuf zw_dmabuf;
typedef struct zw_frames zw_frames;
typedef struct zw_receiver zw_receiver;
typedef struct zw_sender zw_sender;
struct zw_closed;

typedef struct zw_sender_options {
    size_t size;
    uint32_t mode;
    uint32_t backend;
    size_t max_lent_bytes;
    size_t max_lent;
    uint32_t segment_bytes;
    uint32_t notifications;
    uint32_t timeout_ms;
    uint32_t flags;
    const struct zw_area *const *areas;
    size_t area_count;
} zw_sender_options;

typedef struct zw_frames_options {
    size_t size;
    uint32_t way;
    uint32_t mode;
    uint32_t queue;
    uint32_t places;
    uint32_t entries;
    uint32_t copy_up_to;
    size_t frame_bytes;
    uint32_t busy_ms;
    uint32_t flags;
} zw_frames_options;

typedef struct zw_receiver_options {
    size_t size;
    uint32_t backend;
    uint32_t flags;
    size_t buffer_bytes;
    size_t buffers;
    size_t share;
    size_t depth;
    size_t max_connections;
    uint32_t completions;
    uint32_t queue;
    const char *interface;
    uint32_t gather_us;
    uint32_t rx_buf_len;
    const struct zw_dmabuf *dmabuf;
} zw_receiver_options;

const char *zw_last_error(void);
int zw_sender_new(int fd, const struct zw_sender_options *options, struct zw_sender **sender);
int zw_sender_send(struct zw_sender *sender, const void *data, size_t length, uint32_t *ticket);
int zw_sender_wait(struct zw_sender *sender, uint32_t ticket, int timeout_ms);
int zw_sender_close(struct zw_sender *sender, uint32_t how, int timeout_ms, struct zw_closed *closed);
int zw_frames_open(const char *interface, const struct zw_frames_options *options, struct zw_frames **frames);
int zw_receiver_new(const struct zw_receiver_options *options, struct zw_receiver **receiver);
int zw_receiver_close(struct zw_receiver *receiver);

#endif
