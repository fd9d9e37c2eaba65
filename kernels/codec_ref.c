/* What the portable codecs share: rows in and out, codes in bytes. */
#include "kernels/codec_ref.h"

bool kvt_ref_load_row(const kvt_unit *unit, const void *from, size_t stride_bytes, uint32_t r,
                      float *row) {
    const uint8_t *at = (const uint8_t *)from + r * stride_bytes;
    bool taken = true;
    for (uint32_t d = 0; d < unit->dim; d++) {
        uint16_t element;
        memcpy(&element, at + 2 * (size_t)d, sizeof element);
        if (kvt_is_refused(unit->dtype, element))
            taken = false;
        row[d] = kvt_float_of_element(unit->dtype, element);
    }
    return taken;
}

void kvt_ref_store_row(const kvt_unit *unit, const float *row, uint8_t *to) {
    for (uint32_t d = 0; d < unit->dim; d++) {
        uint16_t element = kvt_element_of_float(unit->dtype, row[d]);
        memcpy(to + 2 * (size_t)d, &element, sizeof element);
    }
}

void kvt_ref_pack(uint32_t bits, const uint8_t *codes, uint32_t n, uint8_t *to) {
    uint32_t per_byte = 8 / bits, mask = (1u << bits) - 1;
    for (uint32_t i = 0; i < n; i += per_byte) {
        uint32_t byte = 0;
        for (uint32_t j = 0; j < per_byte && i + j < n; j++)
            byte |= (codes[i + j] & mask) << (j * bits);
        to[i / per_byte] = (uint8_t)byte;
    }
}

void kvt_ref_unpack(uint32_t bits, const uint8_t *from, uint32_t n, uint8_t *codes) {
    uint32_t per_byte = 8 / bits, mask = (1u << bits) - 1;
    for (uint32_t i = 0; i < n; i++)
        codes[i] = (uint8_t)((uint32_t)from[i / per_byte] >> (i % per_byte * bits) & mask);
}
