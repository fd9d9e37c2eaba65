/* log.c - one write(2) a line, so that lines of several threads never mix. */
#include "daemon/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_BYTES = 2048 };

static atomic_int level_now = LOG_INFO;
static int to_journal; /* set once, before there are threads */

/* systemd sets JOURNAL_STREAM to "device:inode" of what it connected; a redirected stderr differs.
 */
void log_open(void) {
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat info;
    to_journal = stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
                 fstat(STDERR_FILENO, &info) == 0 && info.st_dev == device && info.st_ino == inode;
}

void log_set_level(log_level level) {
    atomic_store(&level_now, (int)level);
}

void log_write(log_level level, const char *format, ...) {
    static const char *const names[] = {"", "warning: ", "info: ", "debug: "};
    static const char *const prefixes[] = {"<3>", "<4>", "<6>", "<7>"};
    char line[LINE_BYTES];
    if ((int)level > atomic_load(&level_now))
        return;
    int n = to_journal ? snprintf(line, sizeof line, "%s", prefixes[level])
                       : snprintf(line, sizeof line, "kvtrunkd: %s", names[level]);
    va_list args;
    va_start(args, format);
    int n_text = vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    va_end(args);
    if (n_text < 0)
        return;
    n += n_text;
    if (n > LINE_BYTES - 2)
        n = LINE_BYTES - 2;
    for (int i = 0; i < n; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    line[n++] = '\n';
    /* Nothing can be done about a log that cannot be written. */
    ssize_t written = write(STDERR_FILENO, line, (size_t)n);
    (void)written;
}
