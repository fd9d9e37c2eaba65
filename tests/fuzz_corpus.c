/*
 * fuzz_corpus.c - main() of a fuzz target where there is no libFuzzer: feeds it every file of the
 * folders and files named as arguments, and a few thousand seeded mutations of each, so that what a
 * fuzzer found once is looked at in every run of the tests, by every compiler and sanitizer.
 */
#include "tests/check.h"

#include <dirent.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_INPUT_BYTES = 1 << 20, N_MUTATIONS = 2000 };

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

static int feed_file(const char *path) {
    static uint8_t whole[MAX_INPUT_BYTES], changed[MAX_INPUT_BYTES];
    FILE *file = fopen(path, "rb");
    CHECK_MSG(file != NULL, "%s", path);
    size_t size = fread(whole, 1, sizeof whole, file);
    CHECK_MSG(!ferror(file), "%s", path);
    fclose(file);
    feed(whole, size);
    for (uint64_t seed = 0; seed < N_MUTATIONS; seed++) {
        uint64_t random = seed;
        size_t changed_size = size;
        memcpy(changed, whole, size);
        mutate(changed, &changed_size, &random);
        feed(changed, changed_size);
    }
    return 1;
}

static int feed_folder(const char *path) {
    struct dirent **entries;
    int n_files = 0, n_entries = scandir(path, &entries, NULL, alphasort);
    CHECK_MSG(n_entries >= 0, "%s", path);
    for (int i = 0; i < n_entries; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.') {
            n_files += feed_file(name);
        }
        free(entries[i]);
    }
    free(entries);
    return n_files;
}

int main(int argc, char **argv) {
    int n_files = 0;
    for (int i = 1; i < argc; i++) {
        struct stat info;
        CHECK_MSG(stat(argv[i], &info) == 0, "%s", argv[i]);
        n_files += S_ISDIR(info.st_mode) ? feed_folder(argv[i]) : feed_file(argv[i]);
    }
    CHECK_MSG(n_files > 0, "no input: name a file or a folder");
    printf("%d inputs, each with %d mutations\n", n_files, N_MUTATIONS);
    return 0;
}
