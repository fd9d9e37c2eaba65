/* The table of cpu.h with the portable path alone, for a build of the kernels without the others.
 */
#include "kernels/cpu.h"

const kvt_cpu_path *kvt_cpu(void) {
    return &kvt_cpu_portable;
}

void kvt_cpu_use(const kvt_cpu_path *path) {
    (void)path;
}

kvt_encode_unit *kvt_cpu_encoder(uint32_t codec) {
    return codec < KVT_N_CODECS ? kvt_cpu_portable.encode[codec] : NULL;
}

kvt_decode_unit *kvt_cpu_decoder(uint32_t codec) {
    return codec < KVT_N_CODECS ? kvt_cpu_portable.decode[codec] : NULL;
}
