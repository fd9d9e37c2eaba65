/*
 * core_ladder.c - the codec sets that pages are put into, one after the other, as they cool
 * (core_cool.c): what a configuration may name, and what of it a realm can have.
 */
#include "daemon/core_state.h"

#include <stdio.h>
#include <string.h>

/* The newest name is a codec set, and takes less than the one in front of it: seen at one geometry
 * that every set can have. */
static kvt_status check_rung(const ladder *l, const char *text, char *why, size_t why_bytes) {
    char own[128], reason[128] = "";
    kvt_page_shape shapes[2];
    kvt_geometry g;
    uint32_t last = l->n_names - 1;
    kvt_geometry_init(&g, 4, 1, 128, 64);
    for (uint32_t i = last > 0 ? last - 1 : 0; i <= last; i++)
        if (kvt_page_shape_init(&g, 0, l->names[i], reason, sizeof reason, &shapes[last - i]) !=
            KVT_OK) {
            snprintf(why ? why : own, why ? why_bytes : sizeof own, "ladder \"%.60s\": %s", text,
                     reason);
            return KVT_EINVAL;
        }
    if (last == 0 || kvt_page_bytes(&shapes[0], 64) < kvt_page_bytes(&shapes[1], 64))
        return KVT_OK;
    snprintf(
        why ? why : own, why ? why_bytes : sizeof own,
        "ladder \"%.60s\": %.32s takes no less than %.32s; give sets of ever fewer bits: i8 > i4",
        text, l->names[last], l->names[last - 1]);
    return KVT_EINVAL;
}

/* "i8 > i4": the sets, without the blanks around them. */
kvt_status ladder_read(ladder *l, const char *text, char *why, size_t why_bytes) {
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, ">");
        const char *next = at[n] ? at + n + 1 : at + n;
        while (n > 0 && *at == ' ')
            at++, n--;
        while (n > 0 && at[n - 1] == ' ')
            n--;
        if (n == 0 || n >= sizeof l->names[0] || l->n_names == COOL_MAX_RUNGS)
            goto bad;
        char *name = l->names[l->n_names++];
        snprintf(name, sizeof l->names[0], "%.*s", (int)n, at);
        at = next;
        kvt_status status = check_rung(l, text, why, why_bytes);
        if (status != KVT_OK)
            return status;
    }
    if (l->n_names >= 2)
        return KVT_OK;
bad:
    if (why)
        snprintf(why, why_bytes,
                 "ladder \"%.100s\": 2 to %d codec sets are needed, with > between them: i8 > i4",
                 text, COOL_MAX_RUNGS);
    return KVT_EINVAL;
}

kvt_status core_ladder_check(const char *text, char *why, size_t why_bytes) {
    ladder l = {0};
    return text[0] ? ladder_read(&l, text, why, why_bytes) : KVT_OK;
}

static kvt_status add_rung(realm *r, const char *set) {
    kvt_page_shape shapes[KVT_MAX_GROUPS];
    const uint32_t rung = r->n_rungs, n = r->page_tokens;
    for (uint32_t group = 0; group < r->n_groups; group++) {
        kvt_status status =
            kvt_page_shape_init(&r->desc.geometry, group, set, NULL, 0, &shapes[group]);
        if (status != KVT_OK)
            return status;
        if (kvt_page_bytes(&shapes[group], n) >= kvt_page_bytes(&r->rungs[group][rung - 1], n))
            return KVT_EINVAL;
    }
    for (uint32_t group = 0; group < r->n_groups; group++)
        r->rungs[group][rung] = shapes[group];
    r->n_rungs++;
    return KVT_OK;
}

void realm_ladder(const core *c, realm *r) {
    const ladder *l = &c->ladder;
    const char *codec = r->names.codec[0] ? r->names.codec : "f16";
    uint32_t i = 0;
    r->n_rungs = 1;
    for (uint32_t group = 0; group < r->n_groups; group++)
        r->rungs[group][0] = r->shapes[group];
    while (i < l->n_names && strcmp(l->names[i], codec) != 0)
        i++;
    /* A set that this geometry cannot have, or that saves nothing, ends it. */
    while (++i < l->n_names && add_rung(r, l->names[i]) == KVT_OK)
        continue;
}
