/* The portable path: the C reference, complete. */
#include "kernels/codec_ref.h"

const kvt_cpu_path kvt_cpu_portable = {
    .name = "portable",
    .encode =
        {
            [KVT_CODEC_RAW16] = kvt_ref_encode_raw16,
        },
    .decode =
        {
            [KVT_CODEC_RAW16] = kvt_ref_decode_raw16,
        },
};
