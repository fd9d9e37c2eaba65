/*
 * xxh3.cuh - XXH3, 64 bits, seed 0, default secret, on a GPU: the checksum of pages and their
 * headers (FORMAT.md). The algorithm is that of the xxHash specification; lengths here are
 * multiples of 16 up to 192, and multiples of 64 beyond.
 *
 * Long inputs: eight 64-bit accumulators take stripes of 64 bytes; after each block of 16 stripes
 * they are scrambled. What a stripe adds does not depend on the accumulators, so the blocks' sums
 * are taken by many warps at once (kvt_xxh3_block_sum), and only the chain of scrambles is walked
 * by eight lanes (kvt_xxh3_chain).
 */
#ifndef KVT_KERNELS_XXH3_CUH
#define KVT_KERNELS_XXH3_CUH

#include "kernels/unit_device.cuh"

enum {
    KVT_XXH3_STRIPE_BYTES = 64,
    KVT_XXH3_BLOCK_STRIPES = 16,
    KVT_XXH3_BLOCK_BYTES = 1024,
    KVT_XXH3_LANES = 8,         /* accumulators */
    KVT_XXH3_SHORT_BYTES = 240, /* up to here inputs are hashed in another way */
};

#define KVT_XXH3_PRIME32_1 0x9e3779b1u
#define KVT_XXH3_PRIME32_2 0x85ebca77u
#define KVT_XXH3_PRIME32_3 0xc2b2ae3du
#define KVT_XXH3_PRIME64_1 0x9e3779b185ebca87u
#define KVT_XXH3_PRIME64_2 0xc2b2ae3d27d4eb4fu
#define KVT_XXH3_PRIME64_3 0x165667b19e3779f9u
#define KVT_XXH3_PRIME64_4 0x85ebca77c2b2ae63u
#define KVT_XXH3_PRIME64_5 0x27d4eb2f165667c5u
#define KVT_XXH3_PRIME_MX1 0x165667919e3779f9u /* not PRIME64_3 */

/* The default secret's 192 bytes as little-endian words. */
static __device__ __constant__ const uint64_t kvt_xxh3_secret[24] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
};

/* Eight bytes of the secret from any byte on. */
KVT_LANE uint64_t kvt_xxh3_secret_at(uint32_t offset) {
    uint32_t shift = offset % 8 * 8;
    uint64_t word = kvt_xxh3_secret[offset / 8];
    return shift ? word >> shift | kvt_xxh3_secret[offset / 8 + 1] << (64 - shift) : word;
}

KVT_LANE uint64_t kvt_xxh3_fold(uint64_t a, uint64_t b) {
    return (a * b) ^ __umul64hi(a, b);
}

KVT_LANE uint64_t kvt_xxh3_avalanche(uint64_t h) {
    h ^= h >> 37;
    h *= KVT_XXH3_PRIME_MX1;
    return h ^ h >> 32;
}

/* ------------------------------------------------------------------------------------------------
 * Short inputs, by one lane. `words`: the input, 8-byte aligned.
 * ---------------------------------------------------------------------------------------------- */

KVT_LANE uint64_t kvt_xxh3_mix(const uint64_t *words, uint32_t at, uint32_t secret) {
    return kvt_xxh3_fold(words[at / 8] ^ kvt_xxh3_secret_at(secret),
                         words[at / 8 + 1] ^ kvt_xxh3_secret_at(secret + 8));
}

/* bytes: 64, 128 or 192. */
KVT_LANE uint64_t kvt_xxh3_short(const uint64_t *words, uint32_t bytes) {
    uint64_t sum = bytes * KVT_XXH3_PRIME64_1;
    if (bytes <= 128) {
        for (uint32_t i = 0; i < bytes / 32; i++) /* pairs from both ends */
            sum += kvt_xxh3_mix(words, 16 * i, 32 * i) +
                   kvt_xxh3_mix(words, bytes - 16 - 16 * i, 32 * i + 16);
        return kvt_xxh3_avalanche(sum);
    }
    for (uint32_t i = 0; i < 8; i++)
        sum += kvt_xxh3_mix(words, 16 * i, 16 * i);
    sum = kvt_xxh3_avalanche(sum);
    for (uint32_t i = 8; i < bytes / 16; i++)
        sum += kvt_xxh3_mix(words, 16 * i, 16 * (i - 8) + 3);
    return kvt_xxh3_avalanche(sum + kvt_xxh3_mix(words, bytes - 16, 119));
}

/* ------------------------------------------------------------------------------------------------
 * Long inputs
 * ---------------------------------------------------------------------------------------------- */

KVT_LANE uint32_t kvt_xxh3_blocks(uint32_t bytes) {
    return (bytes + KVT_XXH3_BLOCK_BYTES - 1) / KVT_XXH3_BLOCK_BYTES;
}

/* What accumulators 2 pair and 2 pair + 1 gain from 16 bytes of a stripe. */
KVT_LANE void kvt_xxh3_take(const uint4 data, uint32_t secret, uint64_t *sums) {
    uint64_t first = (uint64_t)data.y << 32 | data.x, second = (uint64_t)data.w << 32 | data.z;
    uint64_t keyed = first ^ kvt_xxh3_secret_at(secret);
    sums[0] += second + (keyed & 0xffffffffu) * (keyed >> 32);
    keyed = second ^ kvt_xxh3_secret_at(secret + 8);
    sums[1] += first + (keyed & 0xffffffffu) * (keyed >> 32);
}

/*
 * One block of the input, by a warp: lane i takes bytes 16 i on of each half block. Lanes 0 .. 3
 * end up with the sums of accumulators 2 i and 2 i + 1. The stripes up to `bytes` count, but the
 * input's last stripe not: it is taken with another key, by kvt_xxh3_chain.
 */
KVT_LANE void kvt_xxh3_block_sum(const uint8_t *input, uint32_t bytes, uint32_t block,
                                 uint64_t *ret_sums) {
    uint32_t lane = threadIdx.x % 32, pair = lane % 4;
    KVT_GLOBAL(input);
    ret_sums[0] = ret_sums[1] = 0;
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t stripe = half * 8 + lane / 4;
        uint32_t at = block * KVT_XXH3_BLOCK_BYTES + stripe * KVT_XXH3_STRIPE_BYTES;
        if (at + KVT_XXH3_STRIPE_BYTES < bytes || block + 1 < kvt_xxh3_blocks(bytes))
            kvt_xxh3_take(*(const uint4 *)(input + at + 16 * pair), stripe * 8 + 16 * pair,
                          ret_sums);
    }
    for (uint32_t step = 4; step < 32; step *= 2) {
        ret_sums[0] += __shfl_xor_sync(KVT_ALL_LANES, ret_sums[0], (int)step, 32);
        ret_sums[1] += __shfl_xor_sync(KVT_ALL_LANES, ret_sums[1], (int)step, 32);
    }
}

KVT_LANE uint64_t kvt_xxh3_start(uint32_t lane) {
    switch (lane) {
    case 0:
        return KVT_XXH3_PRIME32_3;
    case 1:
        return KVT_XXH3_PRIME64_1;
    case 2:
        return KVT_XXH3_PRIME64_2;
    case 3:
        return KVT_XXH3_PRIME64_3;
    case 4:
        return KVT_XXH3_PRIME64_4;
    case 5:
        return KVT_XXH3_PRIME32_2;
    case 6:
        return KVT_XXH3_PRIME64_5;
    default:
        return KVT_XXH3_PRIME32_1;
    }
}

/*
 * The hash of an input over KVT_XXH3_SHORT_BYTES from its blocks' sums (8 words a block), by the
 * lanes of a warp; lanes of one residue modulo 8 do the same. All lanes return it.
 */
KVT_LANE uint64_t kvt_xxh3_chain(const uint8_t *input, uint32_t bytes, const uint64_t *sums) {
    enum {
        AHEAD = 8
    }; /* blocks whose sums are loaded at a time: the chain must not wait for each */
    uint32_t lane = threadIdx.x % KVT_XXH3_LANES, n_blocks = kvt_xxh3_blocks(bytes);
    uint64_t sum = kvt_xxh3_start(lane), key = kvt_xxh3_secret_at(128 + 8 * lane);
    for (uint32_t first = 0; first < n_blocks; first += AHEAD) {
        uint64_t next[AHEAD];
        for (uint32_t i = 0; i < AHEAD; i++) {
            uint32_t block = first + i < n_blocks ? first + i : n_blocks - 1;
            next[i] = sums[(uint64_t)block * KVT_XXH3_LANES + lane];
        }
        for (uint32_t i = 0; i < AHEAD; i++) {
            if (first + i >= n_blocks)
                break;
            sum += next[i];
            if (first + i + 1 < n_blocks) /* the last block, full or not, is not scrambled */
                sum = (sum ^ sum >> 47 ^ key) * KVT_XXH3_PRIME32_1;
        }
    }
    uint64_t last[2] = {0, 0};
    uint32_t pair = lane / 2;
    kvt_xxh3_take(*(const uint4 *)(input + bytes - KVT_XXH3_STRIPE_BYTES + 16 * pair),
                  121 + 16 * pair, last);
    sum += lane % 2 ? last[1] : last[0];
    uint64_t other = __shfl_xor_sync(KVT_ALL_LANES, sum, 1, 32);
    uint64_t first_key = kvt_xxh3_secret_at(11 + 16 * pair);
    uint64_t second_key = kvt_xxh3_secret_at(11 + 16 * pair + 8);
    uint64_t folded = lane % 2 ? kvt_xxh3_fold(other ^ first_key, sum ^ second_key)
                               : kvt_xxh3_fold(sum ^ first_key, other ^ second_key);
    folded += __shfl_xor_sync(KVT_ALL_LANES, folded, 2, 32);
    folded += __shfl_xor_sync(KVT_ALL_LANES, folded, 4, 32);
    return kvt_xxh3_avalanche(bytes * KVT_XXH3_PRIME64_1 + folded);
}

#endif
