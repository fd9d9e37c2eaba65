/*
 * where.c - linked into every test: one that crashes, or hangs until the limit that KVT_HANG_S
 * names, says where each of its threads is. `addr2line -pfe PROGRAM +0xOFFSET` gives the lines.
 */
#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FRAMES = 40, PAUSE_MS = 20 };

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
    (void)signal_number;
    say("a thread:\n");
    show_frames();
    for (;;) /* it should not go on with an interrupted call */
        pause();
}

/* One thread after the other; a pause keeps what they say apart. */
static void on_hang(int signal_number) {
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    DIR *threads = opendir("/proc/self/task");
    (void)signal_number;
    say("a test hangs:\n");
    show_frames();
    for (struct dirent *entry = threads ? readdir(threads) : NULL; entry;
         entry = readdir(threads)) {
        long thread = atol(entry->d_name);
        if (thread > 0 && thread != syscall(SYS_gettid)) {
            syscall(SYS_tgkill, getpid(), thread, SIGUSR2);
            nanosleep(&pause, NULL);
        }
    }
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
