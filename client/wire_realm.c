/*
 * wire_realm.c - the canonical bytes of a realm.
 *
 * Every field is there, in the order of its tag, with its length in front: so two realms have the
 * same bytes only if all their fields are equal, and no bytes of one field can pass for another's.
 */
#include "client/wire_io.h"

#include <string.h>

enum {
    TAG_MODEL = 1, /* .. TAG_CODEC: the six names, in the order of kvt_realm_names */
    TAG_CODEC = 6,
    TAG_KIND = 7, /* numbers from here on */
    TAG_DTYPE = 8,
    TAG_N_LAYERS = 9,
    TAG_N_KV_HEADS = 10,
    TAG_HEAD_DIM = 11,
    TAG_PAGE_TOKENS = 12,
    TAG_N_RANKS = 13,
    TAG_GROUPS = 14,
    N_NAMES = 6,
};

/* The codec set that stands for none: two workers that mean the same must write the same. */
static const char DEFAULT_CODEC[] = "f16";

static void put_numbers(kvt_writer *w, uint8_t tag, const uint32_t *numbers, uint32_t n) {
    kvt_wire_put_u8(w, tag);
    kvt_wire_put_u16(w, (uint16_t)(n * sizeof *numbers));
    kvt_wire_put_tokens(w, numbers, n);
}

static void put_geometry(kvt_writer *w, const kvt_geometry *g) {
    put_numbers(w, TAG_KIND, &g->kind, 1);
    put_numbers(w, TAG_DTYPE, &g->dtype, 1);
    put_numbers(w, TAG_N_LAYERS, &g->n_layers, 1);
    put_numbers(w, TAG_N_KV_HEADS, &g->n_kv_heads, 1);
    put_numbers(w, TAG_HEAD_DIM, g->head_dim, 2);
    put_numbers(w, TAG_PAGE_TOKENS, &g->page_tokens, 1);
    put_numbers(w, TAG_N_RANKS, &g->n_ranks, 1);
    uint32_t groups[2 * KVT_MAX_GROUPS];
    for (uint32_t i = 0; i < g->n_groups; i++) {
        groups[2 * i] = g->groups[i].n_layers;
        groups[2 * i + 1] = g->groups[i].window;
    }
    put_numbers(w, TAG_GROUPS, groups, 2 * g->n_groups);
}

kvt_status kvt_wire_realm_encode(const kvt_realm *realm, uint8_t *to, size_t room,
                                 size_t *ret_n_bytes) {
    const char *names[N_NAMES] = {realm->model,           realm->engine, realm->adapter,
                                  realm->adapter_version, realm->salt,   realm->codec};
    if (!names[0] || !names[0][0])
        return KVT_EINVAL;
    if (!names[N_NAMES - 1] || !names[N_NAMES - 1][0])
        names[N_NAMES - 1] = DEFAULT_CODEC;
    if (realm->geometry.n_groups == 0)
        return KVT_EGEOMETRY;
    if (realm->geometry.n_groups > KVT_MAX_GROUPS)
        return KVT_ELIMIT;
    kvt_writer w = {.at = to, .room = room};
    for (uint32_t i = 0; i < N_NAMES; i++) {
        if (names[i] && strlen(names[i]) > KVT_MAX_NAME_BYTES)
            return KVT_ELIMIT;
        kvt_wire_put_u8(&w, (uint8_t)(TAG_MODEL + i));
        kvt_wire_put_str(&w, names[i]);
    }
    put_geometry(&w, &realm->geometry);
    if (w.failed)
        return KVT_ELIMIT;
    *ret_n_bytes = w.n_bytes;
    return KVT_OK;
}

uint64_t kvt_wire_geometry_hash(uint32_t n_groups, const uint64_t *hashes) {
    uint64_t hash = hashes[0];
    for (uint32_t i = 1; i < n_groups; i++)
        hash = hash * UINT64_C(0x9e3779b97f4a7c15) + hashes[i];
    return hash;
}

static void take_name(wire_reader *r, uint8_t tag, char *to) {
    if (kvt_wire_take_u8(r) != tag)
        r->failed = 1;
    kvt_wire_str name = kvt_wire_take_str(r, KVT_MAX_NAME_BYTES);
    memcpy(to, name.at, name.n_bytes);
    to[name.n_bytes] = 0;
}

/* Exactly n numbers; returns how many were there for n = 0 (any number up to max). */
static uint32_t take_numbers(wire_reader *r, uint8_t tag, uint32_t n, uint32_t max, uint32_t *to) {
    if (kvt_wire_take_u8(r) != tag)
        r->failed = 1;
    uint32_t n_bytes = kvt_wire_take_u16(r);
    uint32_t there = n_bytes / (uint32_t)sizeof *to;
    if (n_bytes % sizeof *to || there == 0 || there > max || (n && there != n))
        r->failed = 1;
    const uint8_t *at = kvt_wire_take(r, n_bytes);
    if (!at)
        return 0;
    kvt_wire_get_tokens(at, there, to);
    return there;
}

static void take_geometry(wire_reader *r, kvt_geometry *g) {
    uint32_t groups[2 * KVT_MAX_GROUPS] = {0};
    memset(g, 0, sizeof *g);
    take_numbers(r, TAG_KIND, 1, 1, &g->kind);
    take_numbers(r, TAG_DTYPE, 1, 1, &g->dtype);
    take_numbers(r, TAG_N_LAYERS, 1, 1, &g->n_layers);
    take_numbers(r, TAG_N_KV_HEADS, 1, 1, &g->n_kv_heads);
    take_numbers(r, TAG_HEAD_DIM, 2, 2, g->head_dim);
    take_numbers(r, TAG_PAGE_TOKENS, 1, 1, &g->page_tokens);
    take_numbers(r, TAG_N_RANKS, 1, 1, &g->n_ranks);
    uint32_t n = take_numbers(r, TAG_GROUPS, 0, 2 * KVT_MAX_GROUPS, groups);
    if (n % 2)
        r->failed = 1;
    g->n_groups = n / 2;
    for (uint32_t i = 0; i < g->n_groups; i++)
        g->groups[i] = (kvt_group){.n_layers = groups[2 * i], .window = groups[2 * i + 1]};
}

kvt_status kvt_wire_realm_decode(const uint8_t *bytes, size_t n_bytes, kvt_realm_names *names,
                                 kvt_realm *ret_realm) {
    wire_reader r = {.at = bytes, .n_left = n_bytes};
    kvt_realm realm = {.model = names->model,
                       .engine = names->engine,
                       .adapter = names->adapter,
                       .adapter_version = names->adapter_version,
                       .salt = names->salt,
                       .codec = names->codec};
    take_name(&r, TAG_MODEL, names->model);
    take_name(&r, TAG_MODEL + 1, names->engine);
    take_name(&r, TAG_MODEL + 2, names->adapter);
    take_name(&r, TAG_MODEL + 3, names->adapter_version);
    take_name(&r, TAG_MODEL + 4, names->salt);
    take_name(&r, TAG_CODEC, names->codec);
    take_geometry(&r, &realm.geometry);
    if (kvt_wire_end(&r) != KVT_OK || !names->model[0] || !names->codec[0])
        return KVT_EPROTO;
    *ret_realm = realm;
    return KVT_OK;
}
