/* What the portable codecs share: rows in and out, codes in bytes. */
#include "kernels/codec_ref.h"

#define INLINED static inline __attribute__((always_inline))

/* The functions below are these, inlined with a constant where a loop would ask again and again. */

INLINED bool load(uint32_t dtype, const uint8_t *at, uint32_t dim, float *row) {
    uint16_t largest = 0;
    for (uint32_t d = 0; d < dim; d++) {
        uint16_t element;
        memcpy(&element, at + 2 * (size_t)d, sizeof element);
        uint16_t magnitude = element & 0x7fff;
        largest = magnitude > largest ? magnitude : largest;
        row[d] = kvt_float_of_element(dtype, element);
    }
    return !kvt_is_refused(dtype, largest);
}

INLINED void store(uint32_t dtype, const float *row, uint32_t dim, uint8_t *to) {
    for (uint32_t d = 0; d < dim; d++) {
        uint16_t element = kvt_element_of_float(dtype, row[d]);
        memcpy(to + 2 * (size_t)d, &element, sizeof element);
    }
}

INLINED void pack(uint32_t bits, const uint8_t *codes, uint32_t n, uint8_t *to) {
    uint32_t per_byte = 8 / bits, mask = (1u << bits) - 1;
    for (uint32_t i = 0; i < n; i += per_byte) {
        uint32_t byte = 0;
        for (uint32_t j = 0; j < per_byte && i + j < n; j++)
            byte |= (codes[i + j] & mask) << (j * bits);
        to[i / per_byte] = (uint8_t)byte;
    }
}

INLINED void unpack(uint32_t bits, const uint8_t *from, uint32_t n, uint8_t *codes) {
    uint32_t per_byte = 8 / bits, mask = (1u << bits) - 1;
    for (uint32_t i = 0; i < n; i++)
        codes[i] = (uint8_t)((uint32_t)from[i / per_byte] >> (i % per_byte * bits) & mask);
}

bool kvt_ref_load_row(const kvt_unit *unit, const void *from, size_t stride_bytes, uint32_t r,
                      float *row) {
    const uint8_t *at = (const uint8_t *)from + r * stride_bytes;
    return unit->dtype == KVT_BF16 ? load(KVT_BF16, at, unit->dim, row)
                                   : load(KVT_F16, at, unit->dim, row);
}

void kvt_ref_store_row(const kvt_unit *unit, const float *row, uint8_t *to) {
    if (unit->dtype == KVT_BF16)
        store(KVT_BF16, row, unit->dim, to);
    else
        store(KVT_F16, row, unit->dim, to);
}

void kvt_ref_pack(uint32_t bits, const uint8_t *codes, uint32_t n, uint8_t *to) {
    if (bits == 8)
        memcpy(to, codes, n);
    else if (bits == 4)
        pack(4, codes, n, to);
    else
        pack(2, codes, n, to);
}

void kvt_ref_unpack(uint32_t bits, const uint8_t *from, uint32_t n, uint8_t *codes) {
    if (bits == 8)
        memcpy(codes, from, n);
    else if (bits == 4)
        unpack(4, from, n, codes);
    else
        unpack(2, from, n, codes);
}
