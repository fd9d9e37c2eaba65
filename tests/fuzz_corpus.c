/*
 * fuzz_corpus.c - main() of a fuzz target where there is no libFuzzer: feeds it every file of the
 * folders named as arguments, and some ten thousand seeded mutations of them, so that what a fuzzer
 * found once is looked at in every run of the tests, by every compiler and sanitizer. The file at
 * hand is named before it is fed: the last name printed is the one that failed.
 */
#include "tests/check.h"

#include <dirent.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_INPUT_BYTES = 1 << 20, N_MUTATIONS = 10000 };

/* A copy of exactly size bytes on the heap, so that a sanitizer sees the first byte too far. */
static void feed(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    CHECK(copy != NULL);
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void mutate(uint8_t *data, size_t *size, uint64_t *random) {
    uint32_t n_changes = 1 + check_below(random, 4);
    for (uint32_t i = 0; i<n_changes && * size> 0; i++) {
        size_t at = check_below(random, (uint32_t)*size);
        switch (check_below(random, 4)) {
        case 0: /* one bit */
            data[at] ^= (uint8_t)(1u << check_below(random, 8));
            break;
        case 1: /* one byte */
            data[at] = (uint8_t)check_random(random);
            break;
        case 2: /* cut off */
            *size = at;
            break;
        default: /* take one out */
            memmove(data + at, data + at + 1, *size - at - 1);
            *size -= 1;
            break;
        }
    }
}

static void feed_file(const char *path, uint64_t n_mutations) {
    static uint8_t whole[MAX_INPUT_BYTES], changed[MAX_INPUT_BYTES];
    printf("%s\n", path);
    fflush(stdout);
    FILE *file = fopen(path, "rb");
    CHECK_MSG(file != NULL, "%s", path);
    size_t size = fread(whole, 1, sizeof whole, file);
    CHECK_MSG(!ferror(file), "%s", path);
    fclose(file);
    feed(whole, size);
    for (uint64_t seed = 0; seed < n_mutations; seed++) {
        uint64_t random = seed;
        size_t changed_size = size;
        memcpy(changed, whole, size);
        mutate(changed, &changed_size, &random);
        feed(changed, changed_size);
    }
}

static int is_visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

/* Every file gets its share of the mutations, but not less than a few. */
static void feed_folder(const char *path) {
    struct dirent **entries;
    int n_files = scandir(path, &entries, is_visible, alphasort);
    CHECK_MSG(n_files > 0, "%s: no input", path);
    uint64_t n_mutations = N_MUTATIONS / (uint64_t)n_files + 10;
    for (int i = 0; i < n_files; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        feed_file(name, n_mutations);
        free(entries[i]);
    }
    free(entries);
    printf("%d inputs, each with %" PRIu64 " mutations\n", n_files, n_mutations);
}

int main(int argc, char **argv) {
    CHECK_MSG(argc > 1, "name a folder");
    for (int i = 1; i < argc; i++)
        feed_folder(argv[i]);
    return 0;
}
