/* status.c - the table of statuses in words. */
#include "client/kvtrunk.h"

typedef struct status_words {
    const char *name;
    const char *text;
} status_words;

#define WORDS(status, text) [status] = {#status, text}

static const status_words table[KVT_N_STATUS] = {
    WORDS(KVT_OK, "done"),
    WORDS(KVT_EINVAL, "an argument makes no sense: mend the caller"),
    WORDS(KVT_ENOMEM, "out of memory, here or in the daemon"),
    WORDS(KVT_ELIMIT, "over a stated limit: ask for less, or raise the limit"),
    WORDS(KVT_ETIMEDOUT, "no answer in time: go on without the cache"),
    WORDS(KVT_ECONN, "no daemon at the socket, or it went away: go on without the cache"),
    WORDS(KVT_EPROTO, "the other side does not speak the protocol: is it kvtrunk's socket?"),
    WORDS(KVT_EVERSION, "the other side speaks another version of the protocol: update one side"),
    WORDS(KVT_EDENIED, "not allowed for this user: add its uid to the daemon's configuration"),
    WORDS(KVT_ESTALE, "what the lease named is no longer held: acquire again"),
    WORDS(KVT_EFULL, "no room, and nothing that could go: release leases, enlarge the arena, or "
                     "raise max_pages"),
    WORDS(KVT_EBUSY, "in use in a way that excludes this call: try again"),
    WORDS(KVT_ENOENT, "no such lease, realm, page or file"),
    WORDS(KVT_EEXIST, "it is there already"),
    WORDS(KVT_ECORRUPT,
          "a page's header, checksum or length is wrong: it is not stored, or what was read "
          "of it is void"),
    WORDS(KVT_EORDER, "a page was sealed before the page in front of it: seal in path order"),
    WORDS(KVT_EGEOMETRY, "the geometry is absurd, or not the one of the realm"),
    WORDS(KVT_ENOTSUP, "not in this build, or not for this geometry"),
    WORDS(KVT_EFORK, "the client belongs to the parent process: open one after exec"),
    WORDS(KVT_ECLOSED, "the client was closed meanwhile"),
    WORDS(KVT_EIO, "an operation on a file, or of a GPU, failed"),
    WORDS(KVT_ESESSION, "the daemon does not know this connection's session: say hello again"),
    WORDS(KVT_EDUPLICATE, "a request with this number was seen before: nothing was done"),
    WORDS(KVT_ECANCELED, "cancelled"),
    WORDS(KVT_ESYNTAX, "a text does not parse"),
    WORDS(KVT_EINTERNAL, "a fault of kvtrunk itself: report it"),
};

static const status_words *words_of(kvt_status status) {
    static const status_words unknown = {"KVT_?", "unknown status"};
    /* Through an unsigned number: a status off the wire may be any value. */
    unsigned number = (unsigned)status;
    return number < KVT_N_STATUS && table[number].name ? &table[number] : &unknown;
}

const char *kvt_status_name(kvt_status status) {
    return words_of(status)->name;
}

const char *kvt_status_text(kvt_status status) {
    return words_of(status)->text;
}
