/*
 * fuzz_config.c - any bytes as a configuration: a clear refusal with its place, or a configuration
 * that passes its own check or is refused by it.
 */
#include "client/assert.h"
#include "daemon/config.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static config c;
    char why[CONFIG_WHY_BYTES] = "";
    config_init(&c);
    kvt_status status = config_parse(&c, "fuzz.json", (const char *)data, size, why, sizeof why);
    if (status != KVT_OK) {
        /* One line that names the file; what the input holds must not break it into two. */
        KVT_ASSERT(strncmp(why, "fuzz.json", 9) == 0);
        KVT_ASSERT(strchr(why, '\n') == NULL);
        return 0;
    }
    (void)config_check(&c, 1000, why, sizeof why);
    return 0;
}
