/* The NEON path, of AArch64. */
#include "kernels/simd_neon.h"

#include "kernels/simd_channel.h"
#include "kernels/simd_rotated.h"
#include "kernels/simd_row.h"

#include "kernels/simd_path.h"

const kvt_cpu_path kvt_cpu_neon = KVT_SIMD_PATH("neon");
