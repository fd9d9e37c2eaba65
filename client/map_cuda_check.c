/* map_cuda_check.c - may a GPU read and write what a caller hands in, and may work be put into his
 * stream? Kernels and copies would tell too late, and not in words. */
#include "client/map_cuda_parts.h"

/* Each kind of memory that a GPU's kernel would fault on, or reach across a bus. */
static kvt_status check_part(const kvt_cuda_map *map, const char *argument, int part,
                             const void *at, char *why, size_t why_bytes) {
    static const char cure[] = "kvt_decode and kvt_encode are for KV in host memory";
    struct cudaPointerAttributes found = {.type = cudaMemoryTypeUnregistered};
    cudaError_t error = cudaPointerGetAttributes(&found, at);
    if (error == cudaErrorInvalidValue) /* no address of any process */
        found.type = cudaMemoryTypeUnregistered;
    else if (error != cudaSuccess)
        return kvt_cuda_says(map, (int)error, "whose memory the KV is in", why, why_bytes);
    if (found.type == cudaMemoryTypeManaged ||
        (found.type == cudaMemoryTypeDevice && found.device == map->gpu))
        return KVT_OK;
    if (found.type == cudaMemoryTypeDevice)
        return kvt_say(why, why_bytes, KVT_EINVAL,
                       "%s->part[%d] is memory of CUDA device %d, and the pages are on %d: bring "
                       "the KV there. (Only a daemon whose setting gpu names that GPU as well "
                       "takes a client with options.gpu \"%d\".)",
                       argument, part, found.device, map->gpu, found.device);
    if (found.type == cudaMemoryTypeHost)
        return kvt_say(why, why_bytes, KVT_EINVAL,
                       "%s->part[%d] is pinned host memory, not a GPU's: %s", argument, part, cure);
    return kvt_say(why, why_bytes, KVT_EINVAL,
                   "%s->part[%d] is host memory, or no memory at all, not a GPU's: %s", argument,
                   part, cure);
}

kvt_status kvt_cuda_check_layout(kvt_cuda_map *map, const char *argument, const kvt_layout *layout,
                                 char *why, size_t why_bytes) {
    int entered = kvt_cuda_enter(map->gpu);
    kvt_status status = KVT_OK;
    if (entered != cudaSuccess)
        status = kvt_cuda_says(map, entered, "whose memory the KV is in", why, why_bytes);
    for (int p = 0; p < 2 && status == KVT_OK; p++)
        status = check_part(map, argument, p, layout->part[p], why, why_bytes);
    kvt_cuda_leave(entered);
    return status;
}

/*
 * Work goes into the stream in the calling thread, so cudaStreamPerThread means that thread's. It
 * must not be captured: a graph would read the pages each time that it is replayed, when nobody
 * holds them any more, and nothing would follow when that is done.
 */
kvt_status kvt_cuda_check_stream(kvt_cuda_map *map, void *stream, int is_kept, char *why,
                                 size_t why_bytes) {
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (is_kept && stream == (void *)cudaStreamPerThread)
        return kvt_say(why, why_bytes, KVT_EINVAL,
                       "the stream is cudaStreamPerThread, and whichever thread lets go of the "
                       "pages waits for all that is in it: make one with cudaStreamCreate");
    int entered = kvt_cuda_enter(map->gpu);
    cudaError_t error = (cudaError_t)entered;
    if (error == cudaSuccess)
        error = cudaStreamIsCapturing((cudaStream_t)stream, &capture);
    kvt_cuda_leave(entered);
    if (error == cudaErrorInvalidResourceHandle || error == cudaErrorInvalidValue ||
        error == cudaErrorStreamCaptureImplicit)
        return kvt_cuda_says_stream(map, (int)error, why, why_bytes);
    if (error != cudaSuccess)
        return kvt_cuda_says(map, (int)error, "whether the stream captures", why, why_bytes);
    if (capture != cudaStreamCaptureStatusNone)
        return kvt_say(why, why_bytes, KVT_EINVAL,
                       "the stream is being captured: pages are held for one reading, which no "
                       "graph repeats. Put this into the stream before the graph is launched");
    return KVT_OK;
}
