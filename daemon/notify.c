/* notify.c - see notify.h; the protocol is sd_notify(3)'s. */
#include "daemon/notify.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int notify_fd = -1;
static uint64_t watchdog_ms;

static uint64_t number_from(const char *name) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

void notify_open(void) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof address.sun_path)
        return;
    size_t n = strlen(path);
    memcpy(address.sun_path, path, n);
    if (path[0] == '@')
        address.sun_path[0] = 0; /* a name without a file */
    socklen_t n_address = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, n_address) != 0) {
        close(fd);
        fd = -1;
    }
    notify_fd = fd;
    uint64_t pid = number_from("WATCHDOG_PID");
    if (fd >= 0 && (pid == 0 || pid == (uint64_t)getpid()))
        watchdog_ms = number_from("WATCHDOG_USEC") / 2000;
}

void notify_send(const char *format, ...) {
    char text[512];
    if (notify_fd < 0)
        return;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n > 0)
        (void)send(notify_fd, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1,
                   MSG_NOSIGNAL);
}

uint64_t notify_watchdog_ms(void) {
    return watchdog_ms;
}
