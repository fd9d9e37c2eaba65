/* hang_close.c - put in front of libnng by LD_PRELOAD: closing a socket never ends. */
#include <unistd.h>

int nng_close(unsigned id); /* nng_socket is a structure of one such number */

int nng_close(unsigned id) {
    (void)id;
    for (;;)
        pause();
}
