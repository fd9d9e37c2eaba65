/* The AVX-512 path. Compiled with AVX-512 F, BW, DQ, VL and VBMI, and called only where the machine
 * has them. */
#include "kernels/simd_avx512.h"
#include "kernels/simd_avx512_channel.h"
#include "kernels/simd_avx512_rotated.h"

#include "kernels/simd_channel.h"
#include "kernels/simd_rotated.h"
#include "kernels/simd_row.h"

#include "kernels/simd_path.h"

const kvt_cpu_path kvt_cpu_avx512 = KVT_SIMD_PATH("avx512");
