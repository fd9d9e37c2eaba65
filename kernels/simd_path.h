/* simd_path.h - the table of a vector path; the last thing that cpu_NAME.c includes. */
#define KVT_SIMD_PATH(the_name)                                                                    \
    {                                                                                              \
        .name = the_name,                                                                          \
        .encode =                                                                                  \
            {                                                                                      \
                [KVT_CODEC_FP8T] = encode_fp8t,      [KVT_CODEC_FP8S_E4M3] = encode_e4m3,          \
                [KVT_CODEC_FP8S_E5M2] = encode_e5m2, [KVT_CODEC_I8V] = encode_i8v,                 \
                [KVT_CODEC_I4S] = encode_i4s,        [KVT_CODEC_I8K] = encode_i8k,                 \
                [KVT_CODEC_I4K] = encode_i4k,        [KVT_CODEC_I2K] = encode_i2k,                 \
                [KVT_CODEC_W4V] = encode_w4v,        [KVT_CODEC_W2V] = encode_w2v,                 \
            },                                                                                     \
        .decode = {                                                                                \
            [KVT_CODEC_FP8T] = decode_fp8t,      [KVT_CODEC_FP8S_E4M3] = decode_e4m3,              \
            [KVT_CODEC_FP8S_E5M2] = decode_e5m2, [KVT_CODEC_I8V] = decode_i8v,                     \
            [KVT_CODEC_I4S] = decode_i4s,        [KVT_CODEC_I8K] = decode_i8k,                     \
            [KVT_CODEC_I4K] = decode_i4k,        [KVT_CODEC_I2K] = decode_i2k,                     \
            [KVT_CODEC_W4V] = decode_w4v,        [KVT_CODEC_W2V] = decode_w2v,                     \
        },                                                                                         \
    }
