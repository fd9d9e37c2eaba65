/*
 * cpu.h - the table through which units are encoded and decoded on a CPU, and the choice of one.
 *
 * A path is a set of functions for one instruction set: "portable" (the C reference, which is the
 * format), "avx2", "avx512", "neon". Each gives the same bits as the reference, so paths may be
 * mixed codec by codec: an entry that a path leaves NULL is served by the portable one.
 *
 * To add a path: a file kernels/cpu_NAME.c that defines `const kvt_cpu_path kvt_cpu_NAME`, and a
 * line in the list in kernels/cpu.c. simd.h says what the vector paths are written in.
 */
#ifndef KVT_KERNELS_CPU_H
#define KVT_KERNELS_CPU_H

#include <stdbool.h>

#include "kernels/unit.h"

/* What a unit is: everything that its bytes depend on besides the elements. */
typedef struct kvt_unit {
    uint32_t codec; /* kvt_codec */
    uint32_t dtype; /* kvt_dtype of the elements outside */
    uint32_t dim;   /* elements of a row, 2 .. KVT_MAX_HEAD_DIM, even */
    uint32_t rows;  /* rows of the unit, 1 .. 128 */
    float scale;    /* of fp8s */
} kvt_unit;

/*
 * Encodes the unit's rows: row r is dim contiguous 16-bit elements at from + r * stride_bytes, at
 * any alignment. Writes all kvt_unit_layout.bytes at `to` (16-byte aligned), padding included.
 * *saturated grows by the number of elements that were clamped (FORMAT.md says which). False: an
 * element is refused (NaN, infinity, magnitude over 8192); what stands at `to` is then void and
 * *saturated is as it was.
 */
typedef bool kvt_encode_unit(const kvt_unit *unit, const void *from, size_t stride_bytes, void *to,
                             uint32_t *saturated);

/*
 * Decodes rows first_row .. first_row + n_rows - 1 of an encoded unit: the first of them goes to
 * `to`, the next to to + stride_bytes, ... Reads nothing outside the unit and nothing of its other
 * rows. The bytes may be anything, and may change meanwhile: the result is then garbage, no more.
 */
typedef void kvt_decode_unit(const kvt_unit *unit, const void *from, uint32_t first_row,
                             uint32_t n_rows, void *to, size_t stride_bytes);

typedef struct kvt_cpu_path {
    const char *name;
    kvt_encode_unit *encode[KVT_N_CODECS]; /* by codec number; NULL = the portable one */
    kvt_decode_unit *decode[KVT_N_CODECS];
} kvt_cpu_path;

/* The portable path; complete. */
extern const kvt_cpu_path kvt_cpu_portable;

/* The vector paths (simd.h); each stands in the builds for its processor alone. */
extern const kvt_cpu_path kvt_cpu_avx512;
extern const kvt_cpu_path kvt_cpu_avx2;
extern const kvt_cpu_path kvt_cpu_neon;

/*
 * The path in use. Chosen at the first call: the one that the environment variable KVT_CPU names (a
 * name that is unknown here, or that this machine cannot run, gives "portable"), else the best that
 * the machine can run. Any thread.
 */
const kvt_cpu_path *kvt_cpu(void);

/* The path of that name, or NULL if it is not in this build or the machine cannot run it. */
const kvt_cpu_path *kvt_cpu_find(const char *name);

/* Uses this path from now on (NULL: chooses anew); for tests and benches that compare paths. */
void kvt_cpu_use(const kvt_cpu_path *path);

/* The functions of a codec in the path in use; NULL for a number that is no codec. */
kvt_encode_unit *kvt_cpu_encoder(uint32_t codec);
kvt_decode_unit *kvt_cpu_decoder(uint32_t codec);

#endif
