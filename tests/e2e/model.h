/*
 * model.h - a worker of any geometry, with the payload oracle: reads and fills leases layer group
 * by layer group, as an engine of a hybrid model does. With its KV on a GPU it does the same there,
 * on its own stream.
 */
#ifndef KVT_TESTS_E2E_MODEL_H
#define KVT_TESTS_E2E_MODEL_H

#include "tests/e2e/e2e.h"

typedef struct model {
    kvt_client *client;
    kvt_realm realm;
    oracle oracle;
    size_t max_tokens;
    uint64_t *rows; /* of the path at hand */
    uint16_t *part[2];
    void *gpu_part[2]; /* the same on the GPU; NULL: this model's KV is in host memory */
    void *stream;
} model;

/* max_tokens: of the longest path. */
void model_open(model *m, const e2e_daemon *d, const kvt_geometry *geometry, size_t max_tokens,
                uint32_t staging_pages);
/* The same for a model whose KV is on the GPU, if the tests are run on one and the model has no
 * layer groups: those are for the host. */
void model_open_on_gpu(model *m, const e2e_daemon *d, const kvt_geometry *geometry,
                       size_t max_tokens, uint32_t staging_pages);
void model_close(model *m);

/* Decodes all that the lease has of each group and checks every byte; wrong ones end the test. */
kvt_status model_read(model *m, kvt_lease *lease, const uint32_t *tokens);

/* Encodes and seals what is claimed and not held, up to max_pages of it. late: as an engine that
 * comes to it when the prompt is done, without rows that have passed out of a window. */
kvt_status model_fill(model *m, kvt_lease *lease, const uint32_t *tokens, size_t max_pages,
                      int late);

/* Acquires, expects so many tokens to be held, and reads them. */
kvt_lease *model_acquire(model *m, const uint32_t *tokens, size_t n_tokens, uint32_t flags,
                         size_t held_tokens);

#endif
