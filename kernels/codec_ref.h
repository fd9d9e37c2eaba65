/* codec_ref.h - the functions of the portable path, one pair a codec; cpu.h says what they do. */
#ifndef KVT_KERNELS_CODEC_REF_H
#define KVT_KERNELS_CODEC_REF_H

#include "kernels/cpu.h"

kvt_encode_unit kvt_ref_encode_raw16;
kvt_decode_unit kvt_ref_decode_raw16;

#endif
