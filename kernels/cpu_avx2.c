/* The AVX2 path. Compiled with AVX2 and F16C, and called only where the machine has them. */
#include "kernels/simd_avx2.h"

#include "kernels/simd_channel.h"
#include "kernels/simd_rotated.h"
#include "kernels/simd_row.h"

#include "kernels/simd_path.h"

const kvt_cpu_path kvt_cpu_avx2 = KVT_SIMD_PATH("avx2");
