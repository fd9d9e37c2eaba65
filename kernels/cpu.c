/* The choice of a CPU path (cpu.h). */
#include "kernels/cpu.h"

#include <stdatomic.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

typedef struct known_path {
    const kvt_cpu_path *path;
    bool (*runs_here)(void);
} known_path;

static bool always(void) {
    return true;
}

#if defined(__x86_64__)
static bool has_avx2(void) {
    uint32_t a, b, c, d;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi");
}
#endif

/* Best first; the last one runs everywhere. */
static const known_path known[] = {
#if defined(__x86_64__)
    {&kvt_cpu_avx512, has_avx512},
    {&kvt_cpu_avx2, has_avx2},
#elif defined(__aarch64__)
    {&kvt_cpu_neon, always},
#endif
    {&kvt_cpu_portable, always},
};
enum { N_KNOWN = sizeof known / sizeof known[0] };

/* Threads that come here first at the same time all store the same pointer. */
static const kvt_cpu_path *_Atomic in_use;

const kvt_cpu_path *kvt_cpu_find(const char *name) {
    for (size_t i = 0; i < N_KNOWN; i++) {
        if (strcmp(known[i].path->name, name) == 0 && known[i].runs_here())
            return known[i].path;
    }
    return NULL;
}

static const kvt_cpu_path *choose(void) {
    const char *name = getenv("KVT_CPU");
    if (name && name[0]) {
        const kvt_cpu_path *path = kvt_cpu_find(name);
        return path ? path : &kvt_cpu_portable;
    }
    size_t i = 0;
    while (!known[i].runs_here())
        i++;
    return known[i].path;
}

const kvt_cpu_path *kvt_cpu(void) {
    const kvt_cpu_path *path = atomic_load_explicit(&in_use, memory_order_acquire);
    if (!path) {
        path = choose();
        atomic_store_explicit(&in_use, path, memory_order_release);
    }
    return path;
}

void kvt_cpu_use(const kvt_cpu_path *path) {
    atomic_store_explicit(&in_use, path, memory_order_release);
}

kvt_encode_unit *kvt_cpu_encoder(uint32_t codec) {
    if (codec >= KVT_N_CODECS)
        return NULL;
    kvt_encode_unit *encode = kvt_cpu()->encode[codec];
    return encode ? encode : kvt_cpu_portable.encode[codec];
}

kvt_decode_unit *kvt_cpu_decoder(uint32_t codec) {
    if (codec >= KVT_N_CODECS)
        return NULL;
    kvt_decode_unit *decode = kvt_cpu()->decode[codec];
    return decode ? decode : kvt_cpu_portable.decode[codec];
}
