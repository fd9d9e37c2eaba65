/*
 * emu_fiber.h - fibers: many stacks on one OS thread, and the sanitizers told which one is in use.
 * A fiber is started, resumed and ended by one OS thread.
 */
#ifndef KVT_TESTS_CUDA_EMU_FIBER_H
#define KVT_TESTS_CUDA_EMU_FIBER_H

#include <cstddef>

class emu_fiber {
  public:
    emu_fiber() = default;
    ~emu_fiber();
    emu_fiber(const emu_fiber &) = delete;
    emu_fiber &operator=(const emu_fiber &) = delete;

    /* Gives it a stack; main(argument) runs at the first resume. */
    void start(void (*main)(void *), void *argument);

    /* From the scheduler: runs the fiber until it yields or its main returns. */
    void resume();

    /* From the fiber that runs: back to the scheduler. */
    static void yield();

    /*
     * From the scheduler, after main has returned: the stack may serve another fiber. With
     * ThreadSanitizer only the destructor gives it back: two fibers that share a stack and an
     * identity are one thread to it, and it would see no race between them.
     */
    void end();

    struct home {
        char *stack;
        void *tsan; /* ThreadSanitizer's identity of who runs on it */
    };

  private:
    static void entry();
    void leave(bool for_good);
    void give_back();

    home home_ = {};
    void *stack_pointer_ = nullptr;
    void (*main_)(void *) = nullptr;
    void *argument_ = nullptr;
    bool started_ = false;
    void *asan_fake_stack_ = nullptr;
};

/* Happens-before for ThreadSanitizer; nothing without it. `object` is 8 bytes of its own. */
void emu_order_release(void *object);
void emu_order_acquire(void *object);
bool emu_has_tsan();

#endif
