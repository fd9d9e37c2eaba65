/*
 * where.c - linked into every test: one that crashes, or hangs until the limit that KVT_HANG_S
 * names, says where its threads are. `addr2line -pfe PROGRAM +0xOFFSET` gives the lines. Threads
 * that are at the same place (libnng's idle ones are dozens) say it once; the thread that the test
 * runs in comes last, where a log is looked at first.
 */
#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FRAMES = 40, MAX_THREADS = 512, PAUSE_MS = 20, MAX_PAUSES = 100 };

/* Each thread that is asked takes one and fills it. */
typedef struct stack {
    void *frames[MAX_FRAMES];
    int n_frames; /* 0: not filled, or counted with another */
} stack;

static stack stacks[MAX_THREADS];
static atomic_int n_taken, n_filled;

static void say(const char *text) {
    ssize_t n = write(STDERR_FILENO, text, strlen(text));
    (void)n;
}

static void show_frames(void) {
    void *frames[MAX_FRAMES];
    backtrace_symbols_fd(frames, backtrace(frames, MAX_FRAMES), STDERR_FILENO);
}

static void on_crash(int signal_number) {
    say("a test crashed:\n");
    show_frames();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void on_asked(int signal_number) {
    int i = atomic_fetch_add(&n_taken, 1);
    (void)signal_number;
    if (i < MAX_THREADS)
        stacks[i].n_frames = backtrace(stacks[i].frames, MAX_FRAMES);
    atomic_fetch_add(&n_filled, 1);
    for (;;) /* it should not go on with an interrupted call */
        pause();
}

/* Asks every other thread and waits for what they say; one that blocks all signals says nothing. */
static int ask_others(void) {
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    DIR *threads = opendir("/proc/self/task");
    int n_asked = 0;
    for (struct dirent *entry = threads ? readdir(threads) : NULL; entry;
         entry = readdir(threads)) {
        long thread = atol(entry->d_name);
        if (thread > 0 && thread != syscall(SYS_gettid))
            n_asked += syscall(SYS_tgkill, getpid(), thread, SIGUSR2) == 0;
    }
    for (int i = 0; i < MAX_PAUSES && atomic_load(&n_filled) < n_asked; i++)
        nanosleep(&pause, NULL);
    return n_asked;
}

/* How many say the same as the ith, which is none of those that were counted; they are taken out.
 */
static int take_equal(int i, int n) {
    int n_equal = 1;
    for (int j = i + 1; j < n; j++)
        if (stacks[j].n_frames == stacks[i].n_frames &&
            memcmp(stacks[j].frames, stacks[i].frames,
                   (size_t)stacks[i].n_frames * sizeof *stacks[i].frames) == 0) {
            stacks[j].n_frames = 0;
            n_equal++;
        }
    return n_equal;
}

static void show_others(void) {
    char line[80];
    int n_asked = ask_others(), n = atomic_load(&n_filled);
    if (n < n_asked) {
        snprintf(line, sizeof line, "%d threads say nothing\n", n_asked - n);
        say(line);
    }
    n = atomic_load(&n_taken) < MAX_THREADS ? atomic_load(&n_taken) : MAX_THREADS;
    for (int i = 0; i < n; i++) {
        if (stacks[i].n_frames == 0)
            continue;
        int n_equal = take_equal(i, n);
        say("a thread:\n");
        backtrace_symbols_fd(stacks[i].frames, stacks[i].n_frames, STDERR_FILENO);
        if (n_equal > 1) {
            snprintf(line, sizeof line, "and %d threads more like it\n", n_equal - 1);
            say(line);
        }
    }
}

static void on_hang(int signal_number) {
    (void)signal_number;
    show_others();
    say("a test hangs:\n");
    show_frames();
    signal(SIGABRT, SIG_DFL);
    abort();
}

__attribute__((constructor)) static void watch(void) {
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    const char *hang_s = getenv("KVT_HANG_S"), *sanitizer = getenv("KVT_SANITIZE");
    void *frame;
    backtrace(&frame, 1); /* loads what it needs now */
    /* Sanitizers say more themselves. */
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes && !(sanitizer && *sanitizer); i++)
        signal(crashes[i], on_crash);
    if (!hang_s)
        return;
    signal(SIGUSR2, on_asked);
    signal(SIGALRM, on_hang);
    alarm((unsigned)atoi(hang_s));
}
