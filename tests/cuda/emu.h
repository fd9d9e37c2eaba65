/*
 * emu.h - what a test may say to the emulation of kernels: in which order their threads run.
 *
 * A thread of a kernel runs alone until it comes to a barrier, a warp operation or its end; the
 * schedule says who goes on then. A kernel is right if it gives the same bytes under every
 * schedule. FORWARD lets a value be written before it is needed where a barrier is missing (the
 * lower thread writes, the higher reads); BACKWARD turns that round; SHUFFLED mixes all resident
 * blocks' threads.
 */
#ifndef KVT_TESTS_CUDA_EMU_H
#define KVT_TESTS_CUDA_EMU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum emu_order { EMU_FORWARD, EMU_BACKWARD, EMU_SHUFFLED, EMU_N_ORDERS } emu_order;

typedef struct emu_schedule {
    emu_order order;
    uint64_t seed;            /* of EMU_SHUFFLED */
    unsigned resident_blocks; /* blocks under way at a time, at least 1 */
} emu_schedule;

/* Holds for the launches that the calling process makes from now on. */
void emu_set_schedule(emu_schedule schedule);

/* The usual three, by number; what a failure prints. */
emu_schedule emu_schedule_number(unsigned number);

#ifdef __cplusplus
}
#endif

#endif
