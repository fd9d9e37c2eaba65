/* The portable path: the C reference, complete. */
#include "kernels/codec_ref.h"

const kvt_cpu_path kvt_cpu_portable = {
    .name = "portable",
    .encode =
        {
            [KVT_CODEC_RAW16] = kvt_ref_encode_raw16,
            [KVT_CODEC_FP8T] = kvt_ref_encode_fp8t,
            [KVT_CODEC_FP8S_E4M3] = kvt_ref_encode_fp8s,
            [KVT_CODEC_FP8S_E5M2] = kvt_ref_encode_fp8s,
            [KVT_CODEC_I8V] = kvt_ref_encode_i8v,
            [KVT_CODEC_I8K] = kvt_ref_encode_channel,
            [KVT_CODEC_I4K] = kvt_ref_encode_channel,
            [KVT_CODEC_I2K] = kvt_ref_encode_channel,
            [KVT_CODEC_I4S] = kvt_ref_encode_i4s,
            [KVT_CODEC_W4V] = kvt_ref_encode_rotated,
            [KVT_CODEC_W2V] = kvt_ref_encode_rotated,
        },
    .decode =
        {
            [KVT_CODEC_RAW16] = kvt_ref_decode_raw16,
            [KVT_CODEC_FP8T] = kvt_ref_decode_fp8t,
            [KVT_CODEC_FP8S_E4M3] = kvt_ref_decode_fp8s,
            [KVT_CODEC_FP8S_E5M2] = kvt_ref_decode_fp8s,
            [KVT_CODEC_I8V] = kvt_ref_decode_i8v,
            [KVT_CODEC_I8K] = kvt_ref_decode_channel,
            [KVT_CODEC_I4K] = kvt_ref_decode_channel,
            [KVT_CODEC_I2K] = kvt_ref_decode_channel,
            [KVT_CODEC_I4S] = kvt_ref_decode_i4s,
            [KVT_CODEC_W4V] = kvt_ref_decode_rotated,
            [KVT_CODEC_W2V] = kvt_ref_decode_rotated,
        },
};
