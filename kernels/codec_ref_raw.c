/* raw16: the elements as they are. Refuses nothing, clamps nothing. */
#include "kernels/codec_ref.h"

bool kvt_ref_encode_raw16(const kvt_unit *unit, const void *from, size_t stride_bytes, void *to,
                          uint32_t *saturated) {
    (void)saturated;
    size_t row_bytes = 2 * (size_t)unit->dim, bytes = row_bytes * unit->rows;
    uint8_t *out = to;
    if (stride_bytes == row_bytes) {
        memcpy(out, from, bytes);
    } else {
        const uint8_t *row = from;
        for (uint32_t r = 0; r < unit->rows; r++, row += stride_bytes)
            memcpy(out + r * row_bytes, row, row_bytes);
    }
    memset(out + bytes, 0, kvt_pad16((uint32_t)bytes) - bytes);
    return true;
}

void kvt_ref_decode_raw16(const kvt_unit *unit, const void *from, uint32_t first_row,
                          uint32_t n_rows, void *to, size_t stride_bytes) {
    size_t row_bytes = 2 * (size_t)unit->dim;
    const uint8_t *codes = (const uint8_t *)from + first_row * row_bytes;
    if (stride_bytes == row_bytes) {
        memcpy(to, codes, n_rows * row_bytes);
    } else {
        uint8_t *row = to;
        for (uint32_t r = 0; r < n_rows; r++, row += stride_bytes)
            memcpy(row, codes + r * row_bytes, row_bytes);
    }
}
