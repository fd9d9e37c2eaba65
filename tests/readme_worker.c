#include <kvtrunk.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 2, HEADS = 2, DIM = 64, PAGE = 64, TOKENS = 1000 };

static uint16_t kv[2][LAYERS][TOKENS + PAGE][HEADS][DIM]; /* the worker's own cache: K, V */

static void compute(size_t from, size_t end) { /* a model would do it; here any numbers will do */
    for (size_t t = from; t < end; t++)
        for (int i = 0; i < 2 * LAYERS * HEADS * DIM; i++)
            kv[i % 2][i / 2 % LAYERS][t][i / 4 % HEADS][i / 8 % DIM] = (uint16_t)(0x3000 + t % 999);
}

static void must(kvt_status status) {
    if (status != KVT_OK) {
        fprintf(stderr, "%s: %s\n", kvt_status_name(status), kvt_last_error());
        exit(1);
    }
}

int main(void) {
    kvt_realm realm = {.model = "sha256 of my weights", .engine = "my engine 1.0, fast kernels"};
    kvt_geometry_init(&realm.geometry, LAYERS, HEADS, DIM, PAGE);
    kvt_client *client;
    must(kvt_open(NULL, &realm, &client));
    uint32_t prompt[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        prompt[i] = i * i;
    kvt_lease *lease;
    kvt_lease_info info;
    must(kvt_acquire(client, prompt, TOKENS, KVT_CLAIM, &lease));
    kvt_lease_get(lease, &info);
    kvt_layout cache; /* [layer][token][head][dim], as large as our cache */
    kvt_layout_token_major(&realm.geometry, TOKENS + PAGE, kv[0], kv[1], &cache);
    must(kvt_decode(lease, 0, info.held_tokens, 0, LAYERS, &cache));
    compute(info.held_tokens, TOKENS);
    for (size_t page = info.held_tokens / PAGE; page * PAGE < info.claimed_tokens; page++) {
        kvt_layout from = cache;
        from.part[0] = kv[0][0][page * PAGE];
        from.part[1] = kv[1][0][page * PAGE];
        must(kvt_encode(lease, page, &from));
    }
    if (kvt_seal(lease, NULL) != KVT_OK) /* no room, say: then the next worker computes it again */
        fprintf(stderr, "not kept: %s\n", kvt_last_error());
    must(kvt_release(lease));
    printf("%u of %d tokens were held\n", info.held_tokens, TOKENS);
    kvt_close(client);
    return 0;
}
