/*
 * tool_keep.c - kvtrunk pin, kvtrunk unpin, kvtrunk flush: what is to stay, and what is to go.
 */
#include "client/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- what is given ------------------------------------------------------------------------------
 */

typedef struct unit {
    const char *name;
    uint64_t factor;
} unit;

/* "90", "15m": a whole number over 0 and one of the units, of which the first is taken if none is
 * given. */
static int take_amount(const char *option, const char *text, const unit *units, uint64_t high,
                       uint64_t *ret) {
    char *end, names[64] = "";
    errno = 0;
    for (const unit *u = units; u->name; u++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
                 u == units ? "" : ", ", u->name);
    unsigned long long n = strtoull(text, &end, 10);
    const unit *u = units;
    while (u->name && *end && strcmp(u->name, end) != 0)
        u++;
    if (*text < '0' || *text > '9' || errno || !u->name)
        return tool_fail(TOOL_USAGE, "--%s %s: a whole number with one of %s is needed", option,
                         text, names);
    if (n == 0 || n > high / u->factor)
        return tool_fail(TOOL_USAGE, "--%s %s: 1 to %llu %s are possible", option, text,
                         (unsigned long long)(high / u->factor), u->name);
    *ret = n * u->factor;
    return TOOL_OK;
}

static const unit times[] = {{"s", 1000},        {"ms", 1},           {"m", 60 * 1000},
                             {"h", 3600 * 1000}, {"d", 86400 * 1000}, {0}};
static const unit sizes[] = {{"B", 1},
                             {"KiB", UINT64_C(1) << 10},
                             {"MiB", UINT64_C(1) << 20},
                             {"GiB", UINT64_C(1) << 30},
                             {"TiB", UINT64_C(1) << 40},
                             {0}};

typedef struct prefix {
    uint32_t *tokens;
    size_t n_tokens;
} prefix;

static const char white[] = " \t\r\n";

static int take_token(const char **at, int bad_code, prefix *ret) {
    char *end;
    errno = 0;
    unsigned long long n = strtoull(*at, &end, 10);
    if (**at < '0' || **at > '9' || !strchr(" \t\r\n,]", *end) || errno || n > UINT32_MAX)
        return tool_fail(bad_code, "token %zu is \"%.*s\"; a number up to %u is needed",
                         ret->n_tokens, (int)strcspn(*at, " \t\r\n,]"), *at, UINT32_MAX);
    ret->tokens[ret->n_tokens++] = (uint32_t)n;
    *at = end;
    return TOOL_OK;
}

/* Token ids with a comma or white space between them; brackets around all of them, as in JSON, may
 * stand there. A comma has a number on either side: where one is missing, something is lost. */
static int parse_tokens(const char *text, int bad_code, prefix *ret) {
    size_t room = strlen(text) / 2 + 1;
    const char *at = text + strspn(text, white);
    int in_brackets = *at == '[', code = TOOL_OK;
    *ret = (prefix){.tokens = malloc(room * sizeof *ret->tokens)};
    if (!ret->tokens)
        return tool_fail(TOOL_SYSTEM, "no memory for %zu tokens", room);
    at += in_brackets;
    at += strspn(at, white);
    for (int after_comma = 0; code == TOOL_OK && (after_comma || (*at && *at != ']'));) {
        code = take_token(&at, bad_code, ret);
        at += strspn(at, white);
        after_comma = code == TOOL_OK && *at == ',';
        at += after_comma;
        at += strspn(at, white);
    }
    if (code == TOOL_OK && in_brackets && *at == ']')
        at += 1 + strspn(at + 1, white);
    else if (code == TOOL_OK && in_brackets)
        code = tool_fail(bad_code, "the list of tokens begins with [ and does not end with ]");
    if (code == TOOL_OK && *at)
        code = tool_fail(bad_code, "behind the tokens stands \"%.20s\"", at);
    if (code == TOOL_OK && ret->n_tokens == 0)
        code = tool_fail(bad_code, "there are no tokens");
    return code;
}

enum { MAX_TEXT_BYTES = 16 << 20 };

static int read_text(const char *file, char **ret_text) {
    FILE *from = strcmp(file, "-") == 0 ? stdin : fopen(file, "re");
    char *text = malloc(MAX_TEXT_BYTES + 1);
    if (!from || !text) {
        free(text);
        return tool_fail(TOOL_BAD_INPUT, "%s: %s", file, strerror(errno));
    }
    size_t n = fread(text, 1, MAX_TEXT_BYTES + 1, from);
    int bad = ferror(from);
    if (from != stdin)
        fclose(from);
    if (bad || n > MAX_TEXT_BYTES) {
        free(text);
        return tool_fail(TOOL_BAD_INPUT, "%s: %s", file, bad ? "cannot be read" : "is too long");
    }
    text[n] = 0;
    *ret_text = text;
    return TOOL_OK;
}

/* From --tokens or --tokens-file; none of them: no tokens. */
static int take_prefix(const char *list, const char *file, prefix *ret) {
    char *text = NULL;
    *ret = (prefix){0};
    if (list && file)
        return tool_fail(TOOL_USAGE, "--tokens and --tokens-file exclude each other");
    if (!list && !file)
        return TOOL_OK;
    int code = list ? TOOL_OK : read_text(file, &text);
    if (code == TOOL_OK)
        code = parse_tokens(list ? list : text, list ? TOOL_USAGE : TOOL_BAD_INPUT, ret);
    free(text);
    return code;
}

#define REALM_OPTION(at)                                                                           \
    {                                                                                              \
        .name = "realm", .value = "N", .number = (at), .low = 1, .high = UINT32_MAX,               \
        .help = "number of the realm, as kvtrunk tree shows it"                                    \
    }
#define TOKENS_OPTIONS(list, file)                                                                 \
    {.name = "tokens", .value = "LIST", .text = (list), .help = "token ids: 1,733,12"}, {          \
        .name = "tokens-file", .value = "FILE", .text = (file),                                    \
        .help = "the same from a file, - for standard input: numbers with commas or white space "  \
                "between them"                                                                     \
    }

/* --- pin ----------------------------------------------------------------------------------------
 */

typedef struct pin_options {
    const char *socket, *tokens, *tokens_file, *ttl, *budget, *owner;
    uint64_t realm;
    int json;
} pin_options;

static int list_pins(kvt_client *client, int json) {
    char *lines;
    kvt_status status = kvt_pins_json(client, 100000, &lines);
    if (status != KVT_OK)
        return tool_failed(status);
    int code = tool_lines(lines, json, "nothing is pinned");
    kvt_free(lines);
    return code;
}

static int make_pin(kvt_client *client, const pin_options *o, const prefix *p, uint64_t ttl_ms,
                    uint64_t max_bytes) {
    kvt_pin_info info;
    kvt_status status = kvt_pin(client, (uint32_t)o->realm, p->tokens, p->n_tokens,
                                (uint32_t)ttl_ms, max_bytes, &info);
    if (status != KVT_OK)
        return tool_failed(status);
    if (o->json)
        printf("{\"pin\":%llu,\"tokens\":%u,\"bytes\":%llu}\n", (unsigned long long)info.pin,
               info.pinned_tokens, (unsigned long long)info.pinned_bytes);
    else
        printf("pin %llu: %s of %s tokens, %s\n", (unsigned long long)info.pin,
               tool_number(info.pinned_tokens), tool_number(p->n_tokens),
               tool_size(info.pinned_bytes));
    return TOOL_OK;
}

static int run_pin(const tool_command *self, int argc, char **argv) {
    pin_options o = {.owner = "kvtrunk pin"};
    prefix p;
    uint64_t ttl_ms = 0, max_bytes = 0;
    int n;
    const tool_option options[] = {
        REALM_OPTION(&o.realm),
        TOKENS_OPTIONS(&o.tokens, &o.tokens_file),
        {.name = "ttl",
         .value = "TIME",
         .text = &o.ttl,
         .help = "how long it stays after the last time that all of it was asked for: 90s, 15m, "
                 "2h, 7d. Without it, until it is unpinned"},
        {.name = "budget",
         .value = "SIZE",
         .text = &o.budget,
         .help = "at most so many bytes of leading pages: 512MiB, 1GiB"},
        {.name = "owner",
         .value = "NAME",
         .text = &o.owner,
         .help = "in whose name, beside your user id (kvtrunk pin)"},
        {.name = "json", .flag = &o.json, .help = "one JSON object a line"},
        {.name = "socket", .value = "PATH", .text = &o.socket, .help = TOOL_SOCKET_HELP},
        {0}};
    kvt_client *client = NULL;
    int code = tool_options(self, argc, argv, options, NULL, 0, &n);
    if (code == TOOL_OK && o.ttl)
        code = take_amount("ttl", o.ttl, times, UINT32_MAX, &ttl_ms);
    if (code == TOOL_OK && o.budget)
        code = take_amount("budget", o.budget, sizes, UINT64_MAX, &max_bytes);
    if (code != TOOL_OK)
        return code;
    code = take_prefix(o.tokens, o.tokens_file, &p);
    if (code == TOOL_OK && (p.n_tokens > 0) != (o.realm > 0))
        code = tool_fail(TOOL_USAGE, "pin: a realm and tokens are needed (see kvtrunk pin --help)");
    if (code == TOOL_OK)
        code = tool_connect(o.socket, o.owner, &client);
    if (code == TOOL_OK)
        code = p.n_tokens ? make_pin(client, &o, &p, ttl_ms, max_bytes) : list_pins(client, o.json);
    kvt_close(client);
    free(p.tokens);
    return code;
}

const tool_command tool_pin = {
    .name = "pin",
    .operands = "",
    .summary = "keep a prefix for a while; without tokens: what is kept",
    .about =
        "Keeps what is held now of a prefix, a system prompt say, until its time is over,\n"
        "whether somebody leases it or not. The time starts again whenever all of it is asked\n"
        "for. The same owner pinning the same place again renews the pin. A pin ends with the\n"
        "daemon.\n",
    .examples = "  kvtrunk pin --realm 1 --tokens-file system.txt --ttl 2h --budget 1GiB\n"
                "  kvtrunk pin\n"
                "  kvtrunk pin --json | jq -s 'group_by(.owner)[] | {o: .[0].owner, n: length}'\n",
    .run = run_pin,
};

/* --- unpin --------------------------------------------------------------------------------------
 */

static int run_unpin(const tool_command *self, int argc, char **argv) {
    const char *socket = NULL, *operand = NULL;
    int n = 0;
    const tool_option options[] = {
        {.name = "socket", .value = "PATH", .text = &socket, .help = TOOL_SOCKET_HELP}, {0}};
    kvt_client *client;
    int code = tool_options(self, argc, argv, options, &operand, 1, &n);
    if (code != TOOL_OK)
        return code;
    char *end = NULL;
    errno = 0;
    unsigned long long number = n ? strtoull(operand, &end, 10) : 0;
    if (n == 0 || *operand < '0' || *operand > '9' || *end || errno || number == 0)
        return tool_fail(
            TOOL_USAGE,
            "unpin%s%.40s: the number of a pin is needed, 1 to %llu; kvtrunk pin lists "
            "them",
            n ? " " : "", n ? operand : "", (unsigned long long)UINT64_MAX);
    code = tool_connect(socket, "kvtrunk unpin", &client);
    if (code != TOOL_OK)
        return code;
    kvt_status status = kvt_unpin(client, number);
    if (status != KVT_OK)
        code = tool_failed(status);
    kvt_close(client);
    return code;
}

const tool_command tool_unpin = {
    .name = "unpin",
    .operands = "PIN",
    .summary = "end a pin",
    .about = "Any pin of the tenant, whoever made it. Its pages stay until room is needed.\n",
    .examples = "  kvtrunk unpin 3\n",
    .run = run_unpin,
};

/* --- flush --------------------------------------------------------------------------------------
 */

static void print_flush(const kvt_flush_info *info, int json) {
    if (json) {
        printf("{\"pages\":%llu,\"bytes\":%llu,\"held_pages\":%llu,\"held_bytes\":%llu,"
               "\"pins\":%u}\n",
               (unsigned long long)info->pages, (unsigned long long)info->n_bytes,
               (unsigned long long)info->held_pages, (unsigned long long)info->held_bytes,
               info->pins);
        return;
    }
    printf("%s pages, %s: gone\n", tool_number(info->pages), tool_size(info->n_bytes));
    if (info->held_pages)
        printf("%s pages, %s: leased still; nobody else gets them, and they go when let go\n",
               tool_number(info->held_pages), tool_size(info->held_bytes));
    if (info->pins)
        printf("%s pins ended\n", tool_number(info->pins));
}

static int run_flush(const tool_command *self, int argc, char **argv) {
    const char *socket = NULL, *tokens = NULL, *tokens_file = NULL;
    uint64_t realm = 0;
    int json = 0, all = 0, n;
    prefix p;
    const tool_option options[] = {
        {.name = "all", .flag = &all, .help = "everything of your tenant"},
        REALM_OPTION(&realm),
        TOKENS_OPTIONS(&tokens, &tokens_file),
        {.name = "json", .flag = &json, .help = "one JSON object"},
        {.name = "socket", .value = "PATH", .text = &socket, .help = TOOL_SOCKET_HELP},
        {0}};
    kvt_client *client = NULL;
    kvt_flush_info info;
    int code = tool_options(self, argc, argv, options, NULL, 0, &n);
    if (code != TOOL_OK)
        return code;
    code = take_prefix(tokens, tokens_file, &p);
    if (code == TOOL_OK && (all ? realm || p.n_tokens : !realm))
        code = tool_fail(TOOL_USAGE,
                         "flush: say --all, or --realm N, or --realm N with tokens (see kvtrunk "
                         "flush --help)");
    if (code == TOOL_OK)
        code = tool_connect(socket, "kvtrunk flush", &client);
    if (code == TOOL_OK) {
        kvt_flush_scope scope = all          ? KVT_FLUSH_TENANT
                                : p.n_tokens ? KVT_FLUSH_PREFIX
                                             : KVT_FLUSH_REALM;
        kvt_status status = kvt_flush(client, scope, (uint32_t)realm, p.tokens, p.n_tokens, &info);
        if (status == KVT_OK)
            print_flush(&info, json);
        else
            code = tool_failed(status);
    }
    kvt_close(client);
    free(p.tokens);
    return code;
}

const tool_command tool_flush = {
    .name = "flush",
    .operands = "",
    .summary = "forget pages: all, those of a realm, those behind a prefix",
    .about = "Nobody gets any of these pages any more, from whatever tier. With tokens: the page\n"
             "that holds the last of them and all that goes on from there; pages in front of it\n"
             "stay. Pages that somebody leases stay for him alone, and go when he lets go.\n",
    .examples = "  kvtrunk flush --realm 2\n"
                "  kvtrunk flush --realm 1 --tokens-file prompt.txt\n"
                "  kvtrunk flush --all --json\n",
    .run = run_flush,
};
