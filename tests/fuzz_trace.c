/*
 * fuzz_trace.c - any bytes as a trace: requests within the limits, or a refusal that names the
 * line.
 */
#include "client/assert.h"
#include "client/trace.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const char *path) {
    trace *t;
    trace_request request;
    char why[256] = "";
    kvt_status status = trace_open(path, why, sizeof why, &t);
    if (status != KVT_OK) {
        KVT_ASSERT(why[0]);
        return;
    }
    uint32_t sum = 0;
    uint64_t n = 0;
    while (n++ < 200 && (status = trace_next(t, &request)) == KVT_OK) {
        KVT_ASSERT(request.n_tokens <= KVT_MAX_REQUEST_TOKENS);
        if (request.n_tokens)
            sum += request.tokens[0] + request.tokens[request.n_tokens - 1];
    }
    KVT_ASSERT(status == KVT_OK || status == KVT_ENOENT || trace_why(t)[0]);
    trace_close(t);
    (void)sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    char path[64];
    if (fd < 0)
        fd = memfd_create("fuzz_trace", 0);
    KVT_ASSERT(fd >= 0 && ftruncate(fd, 0) == 0);
    KVT_ASSERT(pwrite(fd, data, size, 0) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    read_all(path);
    return 0;
}
