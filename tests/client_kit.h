/* client_kit.h - what the tests of the worker library share: a small geometry, a payload that tells
 * where it belongs, a client of the fake daemon. */
#ifndef KVT_TESTS_CLIENT_KIT_H
#define KVT_TESTS_CLIENT_KIT_H

#include "client/error.h"
#include "tests/check.h"
#include "tests/fake_daemon.h"

enum {
    KIT_PAGE_TOKENS = 16,
    KIT_LAYERS = 2,
    KIT_HEADS = 2,
    KIT_DIM = 8,
    KIT_MAX_TOKENS = 256,
    KIT_ROW = KIT_HEADS * KIT_DIM,
    KIT_PART = KIT_LAYERS * KIT_MAX_TOKENS * KIT_ROW,
};

/* [layer][token][head][dim] of each part. */
typedef struct kit_kv {
    uint16_t part[2][KIT_PART];
} kit_kv;

static inline kvt_geometry kit_geometry(void) {
    kvt_geometry geometry;
    kvt_geometry_init(&geometry, KIT_LAYERS, KIT_HEADS, KIT_DIM, KIT_PAGE_TOKENS);
    return geometry;
}

static inline kvt_realm kit_realm(void) {
    return (kvt_realm){.model = "a model", .salt = "s", .geometry = kit_geometry()};
}

static inline uint16_t kit_element(uint32_t salt, int part, size_t layer, size_t token, size_t i) {
    uint64_t seed = salt * 1000003u + token * 4096 + layer * 512 + (size_t)part * 256 + i;
    return (uint16_t)check_random(&seed);
}

static inline size_t kit_at(size_t layer, size_t token, size_t i) {
    return (layer * KIT_MAX_TOKENS + token) * KIT_ROW + i;
}

static inline void kit_fill(kit_kv *kv, uint32_t salt) {
    for (int p = 0; p < 2; p++)
        for (size_t l = 0; l < KIT_LAYERS; l++)
            for (size_t t = 0; t < KIT_MAX_TOKENS; t++)
                for (size_t i = 0; i < KIT_ROW; i++)
                    kv->part[p][kit_at(l, t, i)] = kit_element(salt, p, l, t, i);
}

static inline kvt_layout kit_layout(kit_kv *kv, size_t first_token) {
    kvt_geometry geometry = kit_geometry();
    kvt_layout layout;
    kvt_layout_token_major(&geometry, KIT_MAX_TOKENS, kv->part[0] + kit_at(0, first_token, 0),
                           kv->part[1] + kit_at(0, first_token, 0), &layout);
    return layout;
}

/* Are tokens first .. first + n of kv those of the salt? */
static inline int kit_right(const kit_kv *kv, uint32_t salt, size_t first, size_t n) {
    for (int p = 0; p < 2; p++)
        for (size_t l = 0; l < KIT_LAYERS; l++)
            for (size_t t = first; t < first + n; t++)
                for (size_t i = 0; i < KIT_ROW; i++)
                    if (kv->part[p][kit_at(l, t, i)] != kit_element(salt, p, l, t, i))
                        return 0;
    return 1;
}

static uint32_t kit_path[KIT_MAX_TOKENS];

__attribute__((constructor)) static void kit_path_fill(void) {
    for (uint32_t i = 0; i < KIT_MAX_TOKENS; i++)
        kit_path[i] = 100 + i;
}

/* The first n tokens of the one path that the fake daemon knows. */
static inline const uint32_t *kit_tokens(uint32_t n) {
    CHECK(n <= KIT_MAX_TOKENS);
    return kit_path;
}

static inline kvt_options kit_options(const fake_daemon *f) {
    return (kvt_options){.socket = f->socket, .name = "test", .timeout_ms = 20000};
}

#define CHECK_STATUS(call, expected)                                                               \
    do {                                                                                           \
        kvt_status status_ = (call);                                                               \
        CHECK_MSG(status_ == (expected), "%s: %s", kvt_status_name(status_), kvt_last_error());    \
    } while (0)

static inline kvt_client *kit_open(const fake_daemon *f) {
    kvt_client *client = NULL;
    kvt_options options = kit_options(f);
    kvt_realm realm = kit_realm();
    CHECK_STATUS(kvt_open(&options, &realm, &client), KVT_OK);
    return client;
}

static inline kvt_lease *kit_acquire(kvt_client *client, uint32_t n_tokens, uint32_t flags) {
    kvt_lease *lease = NULL;
    CHECK_STATUS(kvt_acquire(client, kit_tokens(n_tokens), n_tokens, flags, &lease), KVT_OK);
    return lease;
}

static inline kvt_lease_info kit_info(const kvt_lease *lease) {
    kvt_lease_info info;
    kvt_lease_get(lease, &info);
    return info;
}

static inline kvt_status kit_encode(kvt_lease *lease, kit_kv *kv, size_t page) {
    kvt_layout from = kit_layout(kv, page * KIT_PAGE_TOKENS);
    return kvt_encode(lease, page, &from);
}

static inline kvt_status kit_decode(kvt_lease *lease, kit_kv *kv, size_t first, size_t n) {
    kvt_layout to = kit_layout(kv, first);
    return kvt_decode(lease, first, n, 0, KIT_LAYERS, &to);
}

/* The fake daemon holds n_tokens tokens of the salt's payload. */
static inline void kit_hold(fake_daemon *f, kit_kv *kv, uint32_t n_tokens) {
    uint8_t *bytes = malloc(FAKE_FRAME_BYTES);
    CHECK(bytes);
    for (uint32_t i = 0; i * KIT_PAGE_TOKENS < n_tokens; i++) {
        uint32_t left = n_tokens - i * KIT_PAGE_TOKENS;
        uint32_t rows = left < KIT_PAGE_TOKENS ? left : KIT_PAGE_TOKENS;
        kvt_layout from = kit_layout(kv, i * KIT_PAGE_TOKENS);
        size_t n_bytes;
        CHECK_EQ(kvt_page_encode(&f->shape, rows, &from, bytes, FAKE_FRAME_BYTES, &n_bytes),
                 KVT_OK);
        fake_hold_page(f, i, bytes, n_bytes, rows);
    }
    free(bytes);
}

#endif
