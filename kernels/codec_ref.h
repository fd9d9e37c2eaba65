/* codec_ref.h - the functions of the portable path, one pair a codec (cpu.h says what they do), and
 * what they share. Written to be read next to FORMAT.md, not to be fast. */
#ifndef KVT_KERNELS_CODEC_REF_H
#define KVT_KERNELS_CODEC_REF_H

#include "kernels/cpu.h"

kvt_encode_unit kvt_ref_encode_raw16;
kvt_decode_unit kvt_ref_decode_raw16;
kvt_encode_unit kvt_ref_encode_fp8t;
kvt_decode_unit kvt_ref_decode_fp8t;
kvt_encode_unit kvt_ref_encode_fp8s;
kvt_decode_unit kvt_ref_decode_fp8s;
kvt_encode_unit kvt_ref_encode_i8v;
kvt_decode_unit kvt_ref_decode_i8v;
kvt_encode_unit kvt_ref_encode_i4s;
kvt_decode_unit kvt_ref_decode_i4s;
kvt_encode_unit kvt_ref_encode_channel; /* i8k, i4k, i2k */
kvt_decode_unit kvt_ref_decode_channel;
kvt_encode_unit kvt_ref_encode_rotated; /* w4v, w2v */
kvt_decode_unit kvt_ref_decode_rotated;

/* Row r as floats. False: an element is refused. */
bool kvt_ref_load_row(const kvt_unit *unit, const void *from, size_t stride_bytes, uint32_t r,
                      float *row);

/* Rounds a row to the unit's dtype. */
void kvt_ref_store_row(const kvt_unit *unit, const float *row, uint8_t *to);

/* n codes of `bits` bits (8, 4 or 2) as they stand in a row, and back; the upper bits of a code are
 * ignored, and zero after unpacking. Bits left over in the last byte are zero. */
void kvt_ref_pack(uint32_t bits, const uint8_t *codes, uint32_t n, uint8_t *to);
void kvt_ref_unpack(uint32_t bits, const uint8_t *from, uint32_t n, uint8_t *codes);

static inline void kvt_put_half(uint8_t *at, uint32_t index, uint16_t half) {
    memcpy(at + 2 * (size_t)index, &half, sizeof half);
}

static inline float kvt_get_half(const uint8_t *at, uint32_t index) {
    uint16_t half;
    memcpy(&half, at + 2 * (size_t)index, sizeof half);
    return kvt_float_of_half(half);
}

#endif
