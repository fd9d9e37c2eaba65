/* Fibers. Compiled without any sanitizer: a function that leaves on one stack and returns on
 * another is more than their instrumentation can follow. */
#include "tests/cuda/emu_fiber.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <vector>

extern "C" {
#define EMU_WEAK __attribute__((weak))
EMU_WEAK void *__tsan_create_fiber(unsigned flags);
EMU_WEAK void *__tsan_get_current_fiber(void);
EMU_WEAK void __tsan_switch_to_fiber(void *fiber, unsigned flags);
EMU_WEAK void __tsan_acquire(void *at);
EMU_WEAK void __tsan_release(void *at);
EMU_WEAK void __sanitizer_start_switch_fiber(void **save, const void *bottom, size_t bytes);
EMU_WEAK void __sanitizer_finish_switch_fiber(void *saved, const void **bottom, size_t *bytes);

/* Saves the callee's registers on this stack, its address at *save, and goes on with `to`. */
void emu_switch_stacks(void **save, void *to);
}

#if defined(__x86_64__)
enum { SAVED_WORDS = 6 };
asm(R"(
.text
.globl emu_switch_stacks
.type emu_switch_stacks, @function
emu_switch_stacks:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size emu_switch_stacks, .-emu_switch_stacks
)");
/* As if a call had just come to `entry`: below it the return address, which is never used. */
static void *first_frame(char *top, void (*entry)()) {
    void **at = (void **)top;
    *--at = nullptr;
    *--at = (void *)entry;
    for (int i = 0; i < SAVED_WORDS; i++)
        *--at = nullptr;
    return at;
}
#elif defined(__aarch64__)
enum { SAVED_WORDS = 20 };
asm(R"(
.text
.globl emu_switch_stacks
.type emu_switch_stacks, %function
emu_switch_stacks:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size emu_switch_stacks, .-emu_switch_stacks
)");
static void *first_frame(char *top, void (*entry)()) {
    void **at = (void **)top - SAVED_WORDS;
    for (int i = 0; i < SAVED_WORDS; i++)
        at[i] = nullptr;
    at[11] = (void *)entry; /* x30 */
    return at;
}
#else
#error "emu_switch_stacks: x86-64 and AArch64 are written"
#endif

enum { STACK_BYTES = 256 << 10, GUARD_BYTES = 64 << 10, TSAN_SYNC = 0, TSAN_NO_SYNC = 1 };

/* The scheduler's own side of a switch, and the fiber that runs. */
static thread_local struct {
    void *stack_pointer;
    void *tsan;
    void *asan_fake_stack;
    const void *stack_bottom;
    size_t stack_bytes;
} scheduler;
static thread_local emu_fiber *running;

/* Stacks that no fiber uses now, each with ThreadSanitizer's identity of its last fiber: to make
 * one is dear, and who goes on with both is, to it, the same thread on its own stack. */
static thread_local std::vector<emu_fiber::home> free_homes;

bool emu_has_tsan() {
    return __tsan_create_fiber != nullptr;
}

void emu_order_release(void *object) {
    if (__tsan_release)
        __tsan_release(object);
}

void emu_order_acquire(void *object) {
    if (__tsan_acquire)
        __tsan_acquire(object);
}

static emu_fiber::home new_home() {
    if (!free_homes.empty()) {
        emu_fiber::home home = free_homes.back();
        free_homes.pop_back();
        return home;
    }
    char *map = (char *)mmap(nullptr, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || mprotect(map, GUARD_BYTES, PROT_NONE) != 0) {
        perror("emulation: a fiber's stack");
        abort();
    }
    return {map + GUARD_BYTES, __tsan_create_fiber ? __tsan_create_fiber(0) : nullptr};
}

void emu_fiber::start(void (*main)(void *), void *argument) {
    home_ = new_home();
    main_ = main;
    argument_ = argument;
    stack_pointer_ = first_frame(home_.stack + STACK_BYTES, entry);
    started_ = false;
}

void emu_fiber::resume() {
    running = this;
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(&scheduler.asan_fake_stack, home_.stack, STACK_BYTES);
    if (__tsan_switch_to_fiber) {
        scheduler.tsan = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(home_.tsan, started_ ? TSAN_NO_SYNC : TSAN_SYNC);
    }
    started_ = true;
    emu_switch_stacks(&scheduler.stack_pointer, stack_pointer_);
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(scheduler.asan_fake_stack, nullptr, nullptr);
    running = nullptr;
}

void emu_fiber::leave(bool for_good) {
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(for_good ? nullptr : &asan_fake_stack_,
                                       scheduler.stack_bottom, scheduler.stack_bytes);
    if (__tsan_switch_to_fiber)
        __tsan_switch_to_fiber(scheduler.tsan, TSAN_NO_SYNC);
    emu_switch_stacks(&stack_pointer_, scheduler.stack_pointer);
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(asan_fake_stack_, &scheduler.stack_bottom,
                                        &scheduler.stack_bytes);
}

void emu_fiber::entry() {
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(nullptr, &scheduler.stack_bottom, &scheduler.stack_bytes);
    emu_fiber *self = running;
    self->main_(self->argument_);
    self->leave(true);
    abort(); /* nobody resumes a fiber that has ended */
}

void emu_fiber::yield() {
    running->leave(false);
}

void emu_fiber::end() {
    if (!emu_has_tsan())
        give_back();
}

void emu_fiber::give_back() {
    if (home_.stack)
        free_homes.push_back(home_);
    home_ = {};
}

emu_fiber::~emu_fiber() {
    give_back();
}
